"""FedPHP: a client's past personal models teach its next one.

Li, Zhan, Shao, Li and Song, FedPHP: Federated Personalization with Inherited
Private Models, ECML PKDD 2021, https://doi.org/10.1007/978-3-030-86486-6_36.

    F_i(w_i) = (1 - lam) CE + lam R(h_i, w_i)
    R = -sum softmax(z_h / 4) log softmax(z_i), or the MMD of their features
    h_i <- mu_n h_i + (1 - mu_n) w_i      after the last step of a round
    mu_n = mu_max n / (participation rounds), at most mu_max

    h_i, the inherited private model, and n, the client's rounds -> view.client
    z -> logits

What the paper leaves open follows the released code
(https://github.com/lxcnju/FedRepo): only the teacher is softened, h_i begins as
the initial model and teaches from the first round on. Its clipping of gradients
to norm 100 is left out. The client uses h_i.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp

from moon_jax import losses
from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, LossAux, Message
from moon_jax.config.parts import checked, Fraction, FromRun
from moon_jax.methods import labels
from moon_jax.methods.fedavg import fedavg


@checked
def fedphp(lam: Fraction = 0.1, mu_max: Fraction = 0.9,
           transfer: Literal['kd', 'mmd'] = 'kd',
           participation: FromRun[Fraction] = 1.0) -> Algorithm:
  """Returns FedPHP. Client state is h_i and n.

  Args:
    lam: weight of the teacher; 0 sends what FedAvg sends.
    mu_max: the largest weight of the past in h_i.
    transfer: "kd" or "mmd".
    participation: fraction of the clients that train per round.
  """
  return fedavg()._replace(
      init_client=lambda variables: (variables, jnp.int32(0)),
      frozen=lambda model, batch, view: mixing.outputs_of(
          model, view.client[0], batch),
      loss=functools.partial(loss, transfer),
      finish=lambda trained, view: (
          (inherited(trained, view), view.client[1] + 1), Message(trained)),
      personal_model=inherited,
      hparams={'lam': lam, 'mu_max': mu_max, 'participation': participation})


def inherited(trained, view):
  """Returns the next h_i."""
  h, n = view.client
  expected = view.hparams['participation'] * view.hparams['num_rounds']
  expected = jnp.maximum(jnp.floor(jnp.round(expected, 3)), 1)  # 0.21 of 300
  mu = view.hparams['mu_max'] * jnp.minimum(jnp.float32(n) / expected, 1)
  return jax.tree.map(lambda h, w: mu * h + (1 - mu) * w, h, trained)


def loss(transfer, model, variables, batch, view):
  """Returns (1 - lam) CE + lam R."""
  outputs, variables = model.apply(
      variables, batch.inputs, batch.mask, train=True)
  ce = model.task.loss(outputs.logits, batch)
  if transfer == 'kd':
    labels.require_classes(view)
    p_BK = jax.nn.softmax(batch.frozen.logits / 4)
    term = losses.masked_mean(
        -jnp.sum(p_BK * jax.nn.log_softmax(outputs.logits), -1), batch.mask)
  else:
    term = losses.mean_discrepancy(
        outputs.features, batch.frozen.features, batch.mask)
  lam = view.hparams['lam']
  return (1 - lam) * ce + lam * term, LossAux(variables, {'transfer': term})
