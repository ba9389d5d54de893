"""Clients that take part in each round, and clients that drop out of it."""

from collections.abc import Iterable
import random
from typing import SupportsIndex

import numpy as np

from moon_jax.config import Config, parts
from moon_jax.config.parts import File, FromRun
from moon_jax.data.io import files
from moon_jax.errors import require, setting, UserError

_DROPOUT = 1  # separates this random stream from the shuffles of a client


def make(config: Config) -> list[list[int]]:
  """Returns the clients of `num_rounds` rounds, or all of a file."""
  if config.cohort.name == 'file':
    return parts.make('cohort', config.cohort, num_clients=config.num_clients,
                      num_rounds=config.num_rounds)
  return sample(config.num_clients, config.cohort_size(), config.num_rounds,
                config.seed)


def sample(num_clients: int, cohort_size: int, num_rounds: int,
           seed: int) -> list[list[int]]:
  """Samples cohorts uniformly without replacement.

  The cohorts equal those of the released code of MOON: one call of
  `random.sample` per round on a generator that is seeded once. If all clients
  take part, they are in ascending order. Clients are numbered from 0.

  Raises:
    UserError: if `cohort_size` is not an integer from 1 to `num_clients`, or
      another number is not an integer.
  """
  for name, number in ('num_clients', num_clients), ('num_rounds', num_rounds):
    require(isinstance(number, SupportsIndex), name, 'must be an integer',
            f'{type(number).__name__} {str(number)!r:.40}', 'Pass their number')
  require(isinstance(cohort_size, SupportsIndex)
          and 1 <= cohort_size <= num_clients, 'cohort_size',
          f'must be an integer from 1 to num_clients={num_clients}',
          repr(cohort_size), 'For a fraction pass round(0.3 * num_clients)')
  if cohort_size == num_clients:
    return [list(range(num_clients))] * num_rounds
  generator = random.Random(seed)
  return [generator.sample(range(num_clients), cohort_size)
          for _ in range(num_rounds)]


def read(path: File, num_clients: FromRun[int], num_rounds: FromRun[int]
         ) -> list[list[int]]:
  """Reads cohorts from a text file with one line per round.

  The clients of a line are separated by blanks or commas. A # starts a comment.
  Empty lines are ignored. The file may hold more than `num_rounds` rounds, so
  that a run can be extended.

  Args:
    path: the text file.

  Raises:
    UserError: if the file cannot be read, or a line is invalid.
  """
  text = files.read_text(path, 'the clients of one round')
  cohorts = []
  for number, line in enumerate(text.splitlines(), 1):
    words = line.partition('#')[0].replace(',', ' ').split()
    for word in words:
      if not (word.isascii() and word.isdecimal() and len(word) < 10
              and int(word) < num_clients):
        raise UserError(
            '', f'{setting("path", path)}, line {number}: clients must be 0 to '
            f'{num_clients - 1} with {setting("num_clients", num_clients)}',
            repr(word[:20]), 'Fix the line')
    cohort = [int(word) for word in words]
    require(len(set(cohort)) == len(cohort), '', f'{setting("path", path)}, '
            f'line {number} must list each client once', repr(line[:40]),
            'Fix the line')
    if cohort:
      cohorts.append(cohort)
  require(len(cohorts) >= num_rounds, 'path', 'must name a file with a line '
          f'for each of {setting("num_rounds", num_rounds)}',
          f'{path} with {len(cohorts)} rounds',
          f'Add lines or lower {setting("num_rounds")}')
  return cohorts


def text_of(cohorts: Iterable[list[int]]) -> str:
  """Returns cohorts as text in the format of `read`."""
  return ''.join(' '.join(map(str, cohort)) + '\n' for cohort in cohorts)


def is_lost(rate: float, seed: int, round_index: int, client: int,
            num_before: int = 0) -> bool:
  """Returns whether a client drops out of a round, with the probability `rate`.

  Rounds and clients are numbered from 0. `num_before` is the number of other
  reasons that were drawn before, each by its own random numbers.
  """
  generator = np.random.default_rng([
      seed, round_index, client, *[_DROPOUT] * (num_before + 1)])
  return generator.random() < rate
