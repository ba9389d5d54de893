"""FedRCL: supervised contrastive losses that keep classes from collapsing.

Seo et al., Relaxed Contrastive Learning for Federated Learning, CVPR 2024,
https://arxiv.org/abs/2401.04928. For an example i of a batch, and the cosine
similarities s_ij of its representation to those of the other examples:

    F_i = CE + mean over levels of (l_scl + beta l_div)
    l_scl = log(1 + sum_{k in N_i} e^{(s_ik - s_ip) / tau})
    l_div = log(1 + e^{(s_iq - 1) / tau}), where s_iq >= lambda

    p, the least similar example of i's class, i itself included
    q, the same without i;  N_i, the most similar examples of other classes
    |N_i|, lambda, tau -> hardest, hparams['threshold'], hparams['tau']
    beta -> hparams['penalty_weight']
    levels: outputs of the stages of a network -> outputs.levels and features

That is the loss of the code of the authors, https://github.com/skynbe/FedRCL;
the equations of the paper sum over all pairs. The code takes the levels before
their last ReLU, and averages clients with equal weights, --weighting=uniform.
"""

from typing import Annotated

from annotated_types import Ge

from moon_jax import losses
from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked, Count, NonNegative, Positive
from moon_jax.methods import labels
from moon_jax.methods.fedavg import with_terms


@checked
def fedrcl(scl_weight: NonNegative = 1.0, penalty_weight: NonNegative = 1.0,
           tau: Positive = 0.05, threshold: Annotated[float, Ge(-1)] = 0.7,
           hardest: Count = 2) -> Algorithm:
  """Returns FedRCL.

  Args:
    scl_weight: weight of l_scl; FedAvg if this and penalty_weight are 0.
    penalty_weight: weight of l_div, which repels examples of one class.
    tau: temperature.
    threshold: lambda, the similarity from which on l_div acts.
    hardest: number of examples of other classes in l_scl.
  """

  def terms(outputs, batch, view):
    labels.require_classes(view)
    levels = (*outputs.levels, outputs.features)
    terms_B = [losses.relaxed_contrastive_B(
        level_BF, batch.labels, batch.mask, view.hparams['tau'],
        view.hparams['threshold'], hardest) for level_BF in levels]
    scl, penalty = (losses.masked_mean(sum(x_B) / len(levels), batch.mask)
                    for x_B in zip(*terms_B))
    return {'contrastive_loss': scl, 'divergence_penalty': penalty}

  return with_terms(
      terms, {'contrastive_loss': 'scl_weight',
              'divergence_penalty': 'penalty_weight'},
      {'scl_weight': scl_weight, 'penalty_weight': penalty_weight,
       'tau': tau, 'threshold': threshold})
