"""Differential privacy of clients, or of their examples, around algorithms.

`with_private_gradients` protects each example, and `with_local_noise` a client
from the server, too. DP-FedAvg (`with_clipping`) protects all data of a client:
McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent
Language Models, ICLR 2018, https://arxiv.org/abs/1710.06963, algorithm 1, with
cohorts of a fixed size m.

    d_i = (w_i - w^t) min(1, S / |w_i - w^t|)
    w^{t+1} = w^t + 1/m (sum_i d_i + z S N(0, I))

    S -> clip, m -> cohort_size, z -> multiplier

The sum is divided by m even if some clients fail, so that the weight of the
others reveals nothing. Noise is added before the algorithm's own aggregation
and the server optimizer, which are post-processing.
`moon_jax.simulation.accounting` computes the privacy loss.
"""

import dataclasses
import functools
from typing import Annotated, Literal

from annotated_types import Gt, Lt
import jax
import jax.numpy as jnp
import optax

from moon_jax.algorithms.base import Algorithm, LossAux, Message
from moon_jax.algorithms.wrap import wrap
from moon_jax.config.parts import (
  BelowOne,
  checked,
  Count,
  NonNegative,
  Positive,
)
from moon_jax.errors import setting, UserError

_NOISE = 0x6470  # folded into the run's key, to separate it from clients' keys


@dataclasses.dataclass(frozen=True)
class _Private:
  """What all kinds of privacy have."""

  clip: Positive
  noise_multiplier: NonNegative = 0.
  delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
  epsilon: NonNegative = 0.


@dataclasses.dataclass(frozen=True)
class Example(_Private):
  """Privacy of each example, by noise in local steps.

  Attributes:
    clip: bound on the norm of an example's gradient.
    noise_multiplier: standard deviation of the noise, in units of clip; 0 has
      none.
    delta: the delta for which epsilon is reported; below 1 / number of examples
      is usual.
    epsilon: privacy loss that the whole run may have: the least
      noise_multiplier for it is computed; 0 uses noise_multiplier.
  """


@dataclasses.dataclass(frozen=True)
class Client(_Private):
  """Privacy of all data of a client.

  See `example` for the other arguments.

  Attributes:
    clip: bound on the norm of a client's update; with `quantile` the first one.
    delta: the delta for which epsilon is reported; below 1 / number of clients
      is usual.
    noise_by: who adds the noise: the server, which must be trusted, or each
      client to its own update, which leaves more noise in the mean.
    quantile: fraction of the updates that an adaptive bound leaves as they are;
      0 keeps the bound fixed.
  """

  noise_by: Literal['server', 'clients'] = 'server'
  quantile: BelowOne = 0.


@checked
def with_clipping(algorithm: Algorithm, clip: Positive, cohort_size: Count,
                  multiplier: NonNegative = 0.) -> Algorithm:
  """Returns `algorithm` with updates clipped to norm `clip`, and noise.

  Its clients must send model parameters and nothing else; otherwise tracing it
  raises a UserError. Noise is drawn independently in each round. A federation
  must have rounds of `cohort_size` clients, of which some may fail.
  """
  def send(trained, message, view):
    update = _update(message, view, clip)
    return (), Message(
        mean=(), total=optax.projections.projection_l2_ball(update, clip))

  def receive(variables, server, message, call):
    total = message.total
    if multiplier:
      noise = optax.tree.random_like(
          jax.random.fold_in(call.key, _NOISE), total)
      total = optax.tree.add_scale(total, multiplier * clip, noise)
    return Message(jax.tree.map(
        lambda w, total: w + total / cohort_size, variables, total)), server, {}

  return wrap(algorithm, 'with_clipping', send=send, receive=receive,
              needs=_needs(algorithm, cohort_size))


def _needs(algorithm, cohort_size):
  return {**algorithm.needs, 'clipped_cohort': cohort_size}


@checked
def with_adaptive_clipping(
    algorithm: Algorithm, clip: Positive, cohort_size: Count,
    multiplier: NonNegative = 0., quantile: BelowOne = 0.5,
    rate: NonNegative = 0.2) -> Algorithm:
  """Returns `algorithm` with updates clipped to a norm that adapts, and noise.

  Andrew, Thakkar, McMahan and Ramaswamy, Differentially Private Learning with
  Adaptive Clipping, NeurIPS 2021, https://arxiv.org/abs/1905.03871, algorithm
  1. Clients also send whether their update is short, b_i = 1 if |u_i| <= S:

      S <- S exp(-rate / m (sum_i (b_i - quantile) + s N(0, 1))),   s = m / 20

  Noise on the updates is z_u S with z_u = (z^-2 - (2 s)^-2)^(-1/2), so that
  both together have the privacy loss of the multiplier z. A client that fails
  changes neither sum.

  Args:
    algorithm: see `with_clipping`.
    clip: the first S.
    cohort_size: m.
    multiplier: z, below m / 10; 0 has no noise.
    quantile: fraction of updates that S is to leave as they are.
    rate: of the change of S.

  Raises:
    UserError: if the multiplier is too large.
  """
  deviation_of_bits, of_updates = cohort_size / 20 * (multiplier > 0), 0.
  if multiplier:
    rest = multiplier**-2 - (2 * deviation_of_bits)**-2
    if rest <= 0:
      raise UserError(
          'privacy.noise_multiplier', f'must be below {cohort_size / 10:g}, a '
          f'tenth of the {cohort_size} clients per round, with '
          f'{setting("privacy.quantile")}', multiplier, 'Lower it, or raise '
          f'{setting("participation")} or {setting("num_clients")}')
    of_updates = rest**-.5

  def send(trained, message, view):
    norm, update = view.server, _update(message, view, clip)
    length = optax.tree.norm(update)
    clipped = optax.tree.scale(norm / jnp.maximum(length, norm), update)
    is_short = (length <= norm).astype(jnp.float32)
    return (), Message((), total=(clipped, is_short - quantile))

  def receive(variables, norm, message, call):
    total, bits = message.total
    keys = jax.random.split(jax.random.fold_in(call.key, _NOISE))
    noise = optax.tree.random_like(keys[0], total)
    mean = jax.tree.map(
        lambda w, x, n: w + (x + of_updates * norm * n) / cohort_size,
        variables, total, noise)
    excess = (bits + deviation_of_bits * jax.random.normal(keys[1])) / (
        cohort_size)
    return Message(mean), norm * jnp.exp(-rate * excess), {}

  return wrap(
      algorithm, 'with_adaptive_clipping', send=send, receive=receive,
      init_server=lambda variables: jnp.float32(clip),
      broadcast=lambda norm, receiver: norm,
      needs=_needs(algorithm, cohort_size))


@checked
def with_local_noise(algorithm: Algorithm, clip: Positive,
                     multiplier: NonNegative) -> Algorithm:
  """Returns `algorithm` with clients that clip their update and add noise.

  Local differential privacy of a client: its message w^t + d_i + z S N(0, I) is
  private even against the server, which averages it like any other. The symbols
  are those of this module, the requirements those of `with_clipping`.

  Args:
    algorithm: the algorithm.
    clip: S.
    multiplier: z, of the noise of each client.
  """
  def send(trained, message, view):
    update = optax.projections.projection_l2_ball(
        _update(message, view, clip), clip)
    noise = optax.tree.random_like(jax.random.fold_in(view.key, _NOISE), update)
    return (), Message(jax.tree.map(
        lambda w, d, n: w + d + multiplier * clip * n,
        view.variables, update, noise))

  return wrap(algorithm, 'with_local_noise', send=send)


@checked
def with_private_gradients(algorithm: Algorithm, clip: Positive,
                           multiplier: NonNegative = 0.) -> Algorithm:
  """Returns `algorithm` with local steps that protect each example, DP-SGD.

  Abadi et al., Deep Learning with Differential Privacy, CCS 2016,
  https://arxiv.org/abs/1607.00133, algorithm 1, with the n examples of a batch:

      g = 1/n (sum_i g_i min(1, C / |g_i|) + z C N(0, I))

  g_i is the gradient of the whole local objective for example i alone, so
  penalties are clipped with it. All examples of a batch get the same dropout
  mask. Nothing else of the algorithm may depend on examples.

  Args:
    algorithm: the algorithm.
    clip: C.
    multiplier: z; 0 has no noise.
  """
  def gradient(objective, params, batch, view):
    if set(view.variables) != {'params'}:
      raise UserError(
          'privacy=example', 'needs a network without running statistics',
          remedy=f'Give {setting("model.norm")}=group')
    if batch.mixed is not None:
      raise UserError(
          'privacy=example', 'needs gradients of single examples',
          setting('augmentation', 'mixup'), 'Remove it')

    def example_gradient(i):
      select = functools.partial(jax.tree.map, lambda x_B: x_B[i][None])
      (loss, aux), grads = algorithm.gradient(objective, params, batch._replace(
          inputs=select(batch.inputs), labels=select(batch.labels),
          mask=jnp.ones(1), frozen=select(batch.frozen)), view)
      return (loss, aux), optax.projections.projection_l2_ball(grads, clip)

    size = len(batch.mask)
    (loss_B, aux_B), grads_B = jax.vmap(example_gradient)(jnp.arange(size))
    count = jnp.maximum(batch.mask.sum(), 1)
    is_real = lambda x_B: batch.mask.reshape(size, *[1] * (x_B.ndim - 1)) > 0
    mean = lambda x_B: jnp.where(is_real(x_B), x_B, 0).sum(0) / count
    noise = optax.tree.random_like(
        jax.random.fold_in(batch.key, _NOISE), params)
    grads = jax.tree.map(
        lambda g_B, n: mean(g_B) + multiplier * clip / count * n,
        grads_B, noise)
    return (mean(loss_B), LossAux(
        jax.tree.map(lambda x_B: x_B[0], aux_B.variables),
        jax.tree.map(mean, aux_B.metrics))), grads

  return wrap(algorithm, 'with_private_gradients', gradient=gradient)


def _update(message, view, clip):
  """Returns the update of a client, which must be all that it sends."""
  same = (jax.tree.structure(message) == jax.tree.structure(
      Message(view.variables)))  # type: ignore[operator]
  if not same or set(view.variables) != {'params'}:
    raise UserError(
        f'privacy.clip={clip}', 'needs clients that send all parameters of the '
        'model and nothing else', 'another message',
        f'Choose another {setting("algorithm")}, or a {setting("model")} '
        'without norm=batch')
  return optax.tree.sub(message.mean, view.variables)

