"""FedLC: each client calibrates the logits by its numbers of examples.

Zhang et al., Federated Learning with Label Distribution Skew via Logits
Calibration, ICML 2022, https://arxiv.org/abs/2209.00189.

    F_i = -log( e^{f_y - tau n_y^{-1/4}} / sum_k e^{f_k - tau n_k^{-1/4}} )

    f_k, the logit of class k -> logits_BK
    n_k, the client's number of examples of class k -> labels.counts_K
    tau -> hparams['tau']

A class without examples has n_k^{-1/4} = inf, and leaves the sum. The printed
equation also leaves y out of the sum: such a loss has no minimum, and is -inf
for clients with one class. This is the softmax cross-entropy of calibrated
logits that the abstract describes. No code of theirs is known.
"""

import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked, NonNegative
from moon_jax.methods import labels
from moon_jax.methods.fedavg import fedavg


@checked
def fedlc(tau: NonNegative = 1.0) -> Algorithm:
  """Returns FedLC.

  Args:
    tau: scale of the margins between classes.
  """
  return fedavg()._replace(
      loss=labels.loss_of_logits(calibrated), hparams={'tau': tau})


def calibrated(logits_BK, view):
  """Returns f_k - tau n_k^{-1/4}, -inf for classes without examples."""
  n_K = labels.counts_K(view)
  margin_K = view.hparams['tau'] * jnp.maximum(n_K, 1)**-.25
  return jnp.where((n_K > 0)[None], logits_BK - margin_K[None], -jnp.inf)
