"""Asynchronous federated learning: clients that start from older models.

The server takes a step when the updates of a few clients have arrived. Client i
began tau_i steps before, from w^{t - tau_i}, and its model counts as

    w^t + s(tau_i) (w_i - w^{t - tau_i})    (fedbuff)
    w^t + s(tau_i) (w_i - w^t)              (fedasync)

so that w^{t+1} - w^t = eta sum_i p_i s(tau_i) (w_i - w^{t - tau_i}), or w_i -
w^t, with a server optimizer of learning rate eta, and weights p_i with sum 1.
FedAsync (Xie, Koyejo and Gupta, 2019, https://arxiv.org/abs/1903.03934,
algorithm 1) has one update per step, and eta is its mixing alpha; FedBuff
(Nguyen et al., AISTATS 2022, https://arxiv.org/abs/2106.06639, algorithm 1) has
K, with p_i = 1 / K.

When updates arrive depends on simulated time and not on values, so
`moon_jax.clock` plans it, and the server keeps the models that clients begin
with. In FedAsync's algorithm 1 the tau of the newest model is 1; here it is 0.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from moon_jax import trees, user_code
from moon_jax.algorithms import base, mixing
from moon_jax.algorithms.base import Algorithm, Receiver
from moon_jax.algorithms.wrap import wrap
from moon_jax.config.parts import checked, Natural, NonNegative
from moon_jax.errors import UserError

# Maps staleness, a float32 scalar, to the weight s of an update.
Weight = Callable[[jax.Array], jax.Array]

_REMEDY = 'Choose another, such as fedavg, or remove with_staleness'


def constant() -> Weight:
  """Returns s(tau) = 1."""
  return lambda staleness: jnp.float32(1)


@checked
def polynomial(exponent: NonNegative = 0.5) -> Weight:
  """Returns s(tau) = (1 + tau)^-exponent; 0.5 is that of FedBuff.

  Args:
    exponent: 0 gives all updates the same weight.
  """
  return lambda staleness: (1. + staleness) ** -exponent


@checked
def hinge(slope: NonNegative = 10.0, delay: NonNegative = 4.0) -> Weight:
  """Returns s(tau) = 1 up to `delay`, then 1 / (slope (tau - delay) + 1).

  Args:
    slope: how fast the weight falls after `delay`.
    delay: the largest staleness with full weight.
  """
  return lambda staleness: 1 / (
      slope * jnp.maximum(staleness - delay, 0.) + 1.)


@checked
def with_staleness(algorithm: Algorithm, max_staleness: Natural,
                   weight: Weight | None = None,
                   form: Literal['fedbuff', 'fedasync'] = 'fedbuff'
                   ) -> Algorithm:
  """Returns `algorithm` for clients that begin from older models.

  Its clients and its server must send a model and nothing else. Server
  optimizers and compression must be applied first; only a robust rule may be
  applied to the result. Running statistics move by
  s (of client - of server) with both forms, without eta, so that variances stay
  positive.

  Args:
    algorithm: the algorithm.
    max_staleness: the most server steps between the start of a client and its
      update; the server keeps max_staleness + 1 models.
    weight: s; None for `polynomial()`.
    form: "fedbuff" or "fedasync".

  Raises:
    UserError: if an argument is invalid; when traced, if the algorithm sends
      something else.
  """
  weight, kept = weight or polynomial(), max_staleness + 1

  def init_server(variables):
    if jax.tree.leaves(base.answer(
        algorithm, algorithm.init_server(variables),
        Receiver(jnp.int32(0), jnp.int32(0)))):
      raise UserError(
          'algorithm', 'must have a server that sends its model and nothing '
          'else with asynchronous training', remedy=_REMEDY)
    return mixing.copies(variables, kept), jnp.int32(0)

  def broadcast(server, receiver):
    models, version = server
    return receiver.staleness, mixing.at(
        models, (version - receiver.staleness) % kept)

  def send(trained, message, view):
    staleness, begun = view.server
    scale = weight(staleness.astype(jnp.float32))
    if not trees.is_array(scale) or jnp.shape(scale):
      raise UserError(
          'staleness', 'must return the weight of an update, a scalar',
          trees.shapes(scale), f'Change the function{user_code.place(weight)}')
    if jax.tree.structure(message) != jax.tree.structure(
        base.Message(view.variables)):  # type: ignore[operator]
      raise UserError(
          'algorithm', 'must have clients that send their model and nothing '
          'else with asynchronous training', remedy=_REMEDY)
    origin = {**view.variables, 'params': begun['params']} if (
        form == 'fedbuff') else view.variables
    return (), message._replace(mean=jax.tree.map(
        lambda now, new, old: now + scale * (new - old),
        view.variables, message.mean, origin))

  def step(variables, server, following, call):
    models, version = server
    at = (version + 1) % kept
    return following, (jax.tree.map(
        lambda w_V, w: w_V.at[at].set(w), models, following), version + 1), {}

  return wrap(
      algorithm, 'with_staleness', init_server=init_server,
      broadcast=broadcast, begin=lambda view: view.server[1], send=send,
      step=step, per_client_broadcast=True, max_staleness=max_staleness)
