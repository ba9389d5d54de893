"""DP-FedAvg: client-level differential privacy around any algorithm.

McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent
Language Models, ICLR 2018, https://arxiv.org/abs/1710.06963, algorithm 1, with
cohorts of a fixed size m.

    d_i = (w_i - w^t) min(1, S / |w_i - w^t|)
    w^{t+1} = w^t + 1/m (sum_i d_i + z S N(0, I))

    S -> clip, m -> cohort_size, z S / m -> deviation

The sum is divided by m even if some clients fail, so that the weight of the
others reveals nothing. Noise is added before the server optimizer, which is
post-processing. `moon_jax.algorithms.accounting` computes the privacy loss.
"""

import functools

import jax
import optax

from moon_jax.algorithms import base
from moon_jax.algorithms.base import Algorithm, Message
from moon_jax.algorithms.server import OptimizerFn
from moon_jax.errors import UserError

_NOISE = 0x6470  # folded into the run's key, to separate it from clients' keys


def with_clipping(algorithm: Algorithm, clip: float,
                  cohort_size: int) -> Algorithm:
  """Returns `algorithm` with client updates clipped to norm `clip`.

  Its clients must send model parameters and nothing else; otherwise tracing it
  raises a UserError.
  """
  @functools.wraps(algorithm.finish)
  def finish(variables, view, **given):
    client, message = algorithm.finish(variables, view, **given)
    same = (jax.tree.structure(message) == jax.tree.structure(
        Message(view.variables)))  # type: ignore[operator]
    if not same or set(view.variables) != {'params'}:
      raise UserError(
          f'--dp_clip={clip} requires clients that send all model parameters '
          'and nothing else; this --algorithm, or --model with --norm=batch, '
          'sends something else')
    update = optax.tree.sub(message.mean, view.variables)
    return client, Message(
        mean=(), total=optax.projections.projection_l2_ball(update, clip))

  def aggregate(variables, server, message, hparams=None, key=None):
    mean = jax.tree.map(
        lambda w, total: w + total / cohort_size, variables, message.total)
    return base.aggregate(
        algorithm, variables, server, Message(mean), hparams, key)

  return algorithm._replace(finish=finish, aggregate=aggregate)


def with_noise(optimizer_fn: OptimizerFn | None, deviation: float,
               seed: int) -> OptimizerFn:
  """Returns a server optimizer that first adds Gaussian noise.

  Noise is drawn independently in each round. Its key is part of the server
  state, where `Algorithm.init_server` puts it, the same for all runs of a
  program. Without `optimizer_fn` the server takes the noisy average.
  """
  key = jax.random.fold_in(jax.random.key(seed), _NOISE)
  noise = optax.add_noise(eta=deviation**2, gamma=0., key=key)
  return lambda hparams: optax.chain(
      noise, optimizer_fn(hparams) if optimizer_fn else optax.sgd(1.))
