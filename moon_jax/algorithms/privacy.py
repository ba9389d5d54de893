"""DP-FedAvg: differential privacy for the clients, around any algorithm.

McMahan, Ramage, Talwar and Zhang, Learning Differentially Private Recurrent
Language Models, ICLR 2018, https://arxiv.org/abs/1710.06963, algorithm 1, with
cohorts of a fixed size m.

    d_i = (w_i - w^t) min(1, S / |w_i - w^t|)
    w^{t+1} = w^t + 1/m (sum_i d_i + z S N(0, I))

    S -> clip, m -> cohort_size, z S / m -> deviation

The sum is divided by m however many clients were received, so that none can
tell by the others' weight. Noise comes before the server's optimizer, which is
post-processing. What it spends, and of what: `moon_jax.algorithms.accounting`.
"""

import jax
import optax

from moon_jax.algorithms.base import Algorithm
from moon_jax.algorithms.base import Message
from moon_jax.errors import UserError

_NOISE = 0x6470  # folded into the run's key, which clients' keys come from, too


def with_clipping(algorithm: Algorithm, clip: float,
                  cohort_size: int) -> Algorithm:
  """`algorithm`, of whose updates the server receives clipped ones.

  Raises:
    UserError: while tracing, where clients send more than a model's parameters.
  """
  def finish(variables, view):
    client, message = algorithm.finish(variables, view)
    same = jax.tree.structure(message) == jax.tree.structure(Message(variables))
    if not same or set(variables) != {'params'}:
      raise UserError(
          f'--dp_clip={clip} protects clients that send parameters of a model '
          'and nothing else; this --algorithm, or --model with --norm=batch, '
          'sends more')
    update = optax.tree.sub(message.mean, view.variables)
    return client, Message(
        mean=(), total=optax.projections.projection_l2_ball(update, clip))

  def aggregate(variables, server, message):
    mean = jax.tree.map(
        lambda w, total: w + total / cohort_size, variables, message.total)
    return algorithm.aggregate(variables, server, Message(mean))

  return algorithm._replace(finish=finish, aggregate=aggregate)


def with_noise(optimizer: optax.GradientTransformation | None,
               deviation: float, seed: int) -> optax.GradientTransformation:
  """The server's optimizer behind Gaussian noise, drawn anew each round.

  Runs that share a program share the noise.
  """
  key = jax.random.fold_in(jax.random.key(seed), _NOISE)
  noise = optax.add_noise(eta=deviation**2, gamma=0., key=key)
  return optax.chain(noise, optimizer or optax.sgd(1.))
