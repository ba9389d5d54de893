"""FedDisco: weights from sizes and from discrepancies of label distributions.

Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration,
ICML 2023, https://arxiv.org/abs/2305.19229.

    d_i = KL(D_i, T)                 D_i: shares of the classes, T: all equal
    p_i = relu(n_i - a d_i + b) / sum_j relu(n_j - a d_j + b)
    w^{t+1} = sum_i p_i w_i          n_i: share of the examples

    n_i -> Message.each.weight; w_i, d_i -> Message.each.value

As in the released code (MediaBrain-SJTU/FedDisco, disco.py), d_i is divided by
the sum over the cohort. If no weight is positive, that code fails; here the
weights are n_i then.
"""

from typing import Annotated

from annotated_types import Ge
import jax
import jax.numpy as jnp

from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.config.parts import checked, NonNegative
from moon_jax.methods import labels
from moon_jax.methods.fedavg import fedavg


@checked
def feddisco(a: NonNegative = 0.5,
             b: Annotated[float, Ge(-1)] = 0.1) -> Algorithm:
  """Returns FedDisco, for classification; at a = b = 0 it is FedAvg.

  Args:
    a: how much a discrepancy lowers the weight of a client.
    b: what is added to each weight.
  """

  def finish(trained, view):
    return view.client, Message(trained, each=(trained, discrepancy(view)))

  def aggregate(variables, server, message, call):
    each, (models_J, d_J) = message.each, message.each.value
    a, b = call.hparams['a'], call.hparams['b']
    d_J = jnp.where(each.is_received, d_J, 0)
    d_J = d_J / jnp.maximum(jnp.sum(d_J), 1e-12)
    p_J = jax.nn.relu(each.weight - a * d_J + b)
    p_J = jnp.where(each.is_received, p_J, 0)
    p_J = jnp.where(jnp.sum(p_J) > 0, p_J, each.weight)

    mean = lambda w_J: jnp.tensordot(
        p_J / jnp.sum(p_J), mixing.where(each.is_received, w_J, 0), 1,
        precision='highest')
    return jax.tree.map(mean, models_J), server, {}

  return fedavg()._replace(
      finish=finish, aggregate=aggregate, hparams={'a': a, 'b': b})


def discrepancy(view):
  """Returns d_i, in nats."""
  counts_K = labels.counts_K(view)
  share_K = counts_K / jnp.maximum(jnp.sum(counts_K), 1)
  return jnp.sum(jax.scipy.special.xlogy(share_K, share_K * len(share_K)))
