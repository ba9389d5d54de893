"""FedRS: each client restricts the softmax to the classes that it has.

Li and Zhan, FedRS: Federated Learning with Restricted Softmax for Label
Distribution Non-IID Data, KDD 2021, https://doi.org/10.1145/3447548.3467254.

    F_i = -log( e^{a_y f_y} / sum_k e^{a_k f_k} )
    a_k = 1 if client i has examples of class k, else alpha

    f_k, the logit of class k -> logits_BK
    alpha -> hparams['alpha']

form="released" is the code of the authors, https://github.com/lxcnju/FedRepo:
a_k = alpha + (1 - alpha) n_k / max_j n_j, for n_k examples of class k. Logits
there have no bias; here a_k scales the bias too.
"""

import functools
from typing import Literal

import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.config.parts import checked, Fraction
from moon_jax.methods import labels
from moon_jax.methods.fedavg import fedavg


@checked
def fedrs(alpha: Fraction = 0.5,
          form: Literal['paper', 'released'] = 'paper') -> Algorithm:
  """Returns FedRS.

  Args:
    alpha: scale of the logits of classes that a client lacks; 1 is
      FedAvg.
    form: "paper", or "released" to scale by numbers of examples.
  """
  return fedavg()._replace(
      loss=labels.loss_of_logits(functools.partial(restricted, form)),
      hparams={'alpha': alpha})


def restricted(form, logits_BK, view):
  """Returns a_k f_k."""
  n_K, alpha = labels.counts_K(view), view.hparams['alpha']
  share_K = (n_K / jnp.max(n_K) if form == 'released'
             else (n_K > 0).astype(jnp.float32))
  return (alpha + (1 - alpha) * share_K)[None] * logits_BK
