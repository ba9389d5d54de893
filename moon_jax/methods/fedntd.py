"""FedNTD: clients keep what the global model knows about not-true classes.

Lee et al., Preservation of the Global Knowledge by Not-True Distillation in
Federated Learning, NeurIPS 2022, https://arxiv.org/abs/2106.03097.

    F_i = CE(f, y) + beta KL( p(f_glob / tau) | p(f / tau) )
    p, the softmax over all classes but y

    f_glob, the logits by w^t -> batch.frozen, f -> outputs.logits
    beta, tau -> hparams['distill_weight'], hparams['tau']

form="released" has the factor tau^2 of the code of the authors on the KL
divergence, https://github.com/Lee-Gihun/FedNTD; their tau is 1.
"""

from typing import Literal

import jax.numpy as jnp

from moon_jax import losses
from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked, NonNegative, Positive
from moon_jax.methods import labels
from moon_jax.methods.fedavg import with_terms


@checked
def fedntd(distill_weight: NonNegative = 1.0, tau: Positive = 1.0,
           form: Literal['paper', 'released'] = 'paper') -> Algorithm:
  """Returns FedNTD.

  Args:
    distill_weight: the paper's beta; 0 is FedAvg.
    tau: temperature.
    form: "paper", or "released" to multiply the distillation loss by tau^2.
  """

  def terms(outputs, batch, view):
    is_label_BK, tau = labels.is_label_BK(batch, view), view.hparams['tau']
    not_true = lambda logits_BK: jnp.where(is_label_BK, -jnp.inf, logits_BK)
    kl_B = losses.distillation_B(
        not_true(outputs.logits), not_true(batch.frozen), tau)
    kl = losses.masked_mean(kl_B, batch.mask)
    return {'distillation': tau**2 * kl if form == 'released' else kl}

  return with_terms(
      terms, {'distillation': 'distill_weight'},
      {'distill_weight': distill_weight, 'tau': tau})._replace(
          frozen=lambda model, batch, view: mixing.outputs_of(
              model, view.variables, batch).logits)
