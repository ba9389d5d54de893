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
import math

import optax

from moon_jax import user_code
from moon_jax.config import Config, parts
from moon_jax.config.parts import Count, FromRun, Positive
from moon_jax.errors import UserError

LearningRate = float | Callable[[int], float]


def make(config: Config) -> LearningRate:
  """Returns the configured learning rate: a number if it is constant."""
  rate, warmup = config.learning_rate, config.args('schedule')['warmup']
  num_rounds = config.num_rounds - warmup
  schedule = parts.make('schedule', config.schedule, learning_rate=rate,
                        num_rounds=num_rounds)
  if config.schedule.is_own:
    schedule = user_code.call('schedule', config.schedule.name, _listed,
                              schedule, num_rounds)
  if not warmup:
    return schedule
  first = optax.linear_schedule(rate / warmup, rate, warmup - 1)
  after = schedule if callable(schedule) else optax.constant_schedule(schedule)
  return optax.join_schedules([first, after], [warmup])


def _listed(schedule: LearningRate, num_rounds: int) -> LearningRate:
  """Returns your own schedule, whose rates of all rounds are valid."""
  if not callable(schedule):
    return at_round(schedule, 0)
  rates = [at_round(schedule, index) for index in range(num_rounds)]
  # A warmup calls it for earlier rounds, too, and does not use the result.
  return lambda index: (
      rates[max(index, 0)] if index < num_rounds else schedule(index))


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
    UserError: if it is not a number, or negative or not finite.
  """
  rate = (learning_rate(round_index) if callable(learning_rate)
          else learning_rate)
  try:
    rate = float(rate)
  except (TypeError, ValueError) as error:
    raise UserError(
        'learning_rate', 'must be a number, or a function of the round that '
        'returns one', repr(rate),
        'optax.cosine_decay_schedule(0.1, 100) makes one') from error
  if not 0 <= rate < math.inf:
    raise UserError(
        'learning_rate', 'must be 0 or more in each round',
        f'{rate} in round {round_index + 1}', 'Change the schedule')
  return rate
