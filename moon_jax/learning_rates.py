"""Learning rates over rounds: optax schedules of the round, from 0.

A learning rate is a number, or a schedule: a function of the round. Every
function of `optax.schedules` is one. The functions here are the parts of
`--schedule` for n = --num_rounds rounds. With warmup=w the first w of them
increase the rate linearly from rate / w to the rate, and t counts from w:

    constant   the rate
    cosine     rate * (1 + cos(pi t / (n - w))) / 2
    step       rate * decay^floor(t / every)
"""

from collections.abc import Callable

import optax

from moon_jax.config import Config, parts
from moon_jax.config.parts import Count, FromRun, Positive
from moon_jax.errors import UserError

LearningRate = float | Callable[[int], float]


def make(config: Config) -> LearningRate:
  """Returns the configured learning rate: a number if it is constant."""
  rate, warmup = config.learning_rate, config.args('schedule')['warmup']
  schedule = parts.make('schedule', config.schedule, learning_rate=rate,
                        num_rounds=config.num_rounds - warmup)
  if not warmup:
    return schedule
  first = optax.linear_schedule(rate / warmup, rate, warmup - 1)
  after = schedule if callable(schedule) else optax.constant_schedule(schedule)
  return optax.join_schedules([first, after], [warmup])


def constant(learning_rate: FromRun[float]) -> LearningRate:
  """Returns the rate."""
  return learning_rate


def cosine(learning_rate: FromRun[float], num_rounds: FromRun[int]
           ) -> LearningRate:
  """Returns half a cosine, down to 0 after `num_rounds` rounds."""
  return optax.cosine_decay_schedule(learning_rate, num_rounds)


def step(learning_rate: FromRun[float], every: Count,
         decay: Positive = 0.1) -> LearningRate:
  """Returns a rate that is multiplied by `decay` after each `every` rounds.

  Args:
    every: number of rounds.
    decay: factor.
  """
  return optax.exponential_decay(learning_rate, every, decay, staircase=True)


def at_round(learning_rate: LearningRate, round_index: int) -> float:
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
        'learning_rate', 'must be a number, or a function of the round that '
        'returns one', repr(rate),
        'optax.cosine_decay_schedule(0.1, 100) makes one') from error
