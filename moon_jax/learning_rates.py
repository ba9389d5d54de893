"""Learning rates over rounds: optax schedules of the round, from 0.

A learning rate is a number, or a schedule: a function of the round. Every
function of `optax.schedules` is one. `--learning_rate_schedule` selects one of
these for n = --num_rounds rounds. The first w = --warmup_rounds of them
increase the rate linearly from rate / w to the rate:

    constant   the rate
    cosine     rate * (1 + cos(pi (t - w) / (n - w))) / 2 in round t, from 0
    step       rate * decay^floor((t - w) / decay_rounds)
"""

from collections.abc import Callable

import optax

from moon_jax.config import Config
from moon_jax.errors import UserError

LearningRate = float | Callable[[int], float]


def make(config: Config) -> LearningRate:
  """Returns the configured learning rate: a number if it is constant."""
  rate, warmup = config.learning_rate, config.warmup_rounds
  if config.learning_rate_schedule == 'constant' and not warmup:
    return rate
  schedule = {
      'constant': lambda: optax.constant_schedule(rate),
      'cosine': lambda: optax.cosine_decay_schedule(
          rate, config.num_rounds - warmup),
      'step': lambda: optax.exponential_decay(
          rate, config.decay_rounds, config.learning_rate_decay,
          staircase=True),
  }[config.learning_rate_schedule]()
  if not warmup:
    return schedule
  first = optax.linear_schedule(rate / warmup, rate, warmup - 1)
  return optax.join_schedules([first, schedule], [warmup])


def of_round(learning_rate: LearningRate, round_index: int) -> float:
  """Returns the learning rate of a round, which counts from 0.

  Raises:
    UserError: if it is not a number.
  """
  rate = (learning_rate(round_index) if callable(learning_rate)
          else learning_rate)
  try:
    return float(rate)
  except (TypeError, ValueError) as error:
    raise UserError(
        'learning_rate must be a number, or a function of the round that '
        'returns one, such as optax.cosine_decay_schedule(0.1, 100); got '
        f'{rate!r}') from error
