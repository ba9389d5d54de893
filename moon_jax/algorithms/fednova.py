"""FedNova: averages client updates normalized by their number of local steps.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization, NeurIPS 2020, https://arxiv.org/abs/2007.07481,
equation 8 and section 4.2.

    d_i = (w^t - w_i) / |a_i|_1
    w^{t+1} = w^t - (sum_i p_i |a_i|_1) sum_i p_i d_i,   p_i = |D_i| / |D|

    |a_i|_1 = (K - rho (1 - rho^K) / (1 - rho)) / (1 - rho) for K steps of SGD
    with momentum rho; K without momentum.

A model's mutable state (batch statistics) is averaged as in FedAvg.
"""

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.base import Message
from moon_jax.algorithms.fedavg import fedavg


def fednova() -> Algorithm:
  """Returns FedNova; equal to FedAvg if all clients make equally many steps."""
  return fedavg()._replace(finish=finish, aggregate=aggregate)


def effective_steps(num_steps: jax.Array, rho: jax.Array) -> jax.Array:
  """Returns |a_i|_1, the number of plain steps that momentum steps equal."""
  k = num_steps.astype(jnp.float32)
  return (k - rho * (1 - rho**k) / (1 - rho)) / (1 - rho)


def finish(variables, view):
  """Sends the normalized update, |a_i|_1 and the model's mutable state."""
  a = effective_steps(view.num_steps, view.hparams['momentum'])
  moved = jax.tree.map(
      lambda w_global, w: (w_global - w) / a,
      view.variables['params'], variables['params'])
  return view.client, Message({**variables, 'params': (moved, a)})


def aggregate(variables, server, message):
  """Returns w^t - (mean of |a_i|_1) (mean of d_i)."""
  moved, a = message.mean['params']
  params = jax.tree.map(lambda w, d: w - a * d, variables['params'], moved)
  return {**message.mean, 'params': params}, server
