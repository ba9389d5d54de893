"""Which clients take part in each round, and which of them fail."""

from collections.abc import Iterable
import pathlib
import random

import numpy as np

from moon_jax.config import Config
from moon_jax.errors import UserError

_MAX_LETTERS = 2**27  # of a file; 1,000 clients in 20,000 rounds
_LOST = 1  # tells this generator from that of a client's shuffles


def make(config: Config) -> list[list[int]]:
  """The clients of each round: num_rounds lists, or as many as a file has.

  Raises:
    UserError: where --cohorts_file cannot be read or does not fit.
  """
  if config.cohorts_file:
    return read(config.cohorts_file, config.num_clients, config.num_rounds)
  return sample(config.num_clients, config.cohort_size(), config.num_rounds,
                config.seed)


def sample(num_clients: int, cohort_size: int, num_rounds: int,
           seed: int) -> list[list[int]]:
  """Uniform, without replacement, as the released code of MOON samples.

  All clients in order where all take part; otherwise one `random.sample` a
  round from Python's generator, seeded once.
  """
  if cohort_size == num_clients:
    return [list(range(num_clients))] * num_rounds
  generator = random.Random(seed)
  return [generator.sample(range(num_clients), cohort_size)
          for _ in range(num_rounds)]


def read(path: str, num_clients: int, num_rounds: int) -> list[list[int]]:
  """Reads a list: a line a round, its clients apart by blanks or commas.

  What follows a # is left out, and so are empty lines. There may be more than
  `num_rounds`, for a run to go on with.

  Raises:
    UserError: naming the line at fault.
  """
  try:
    with open(pathlib.Path(path).expanduser(), encoding='utf-8') as file:
      text = file.read(_MAX_LETTERS)
    if len(text) == _MAX_LETTERS:  # a device may never end
      raise ValueError(f'it has {_MAX_LETTERS:,} letters or more')
  except (OSError, ValueError) as error:
    raise UserError(f'--cohorts_file={path} cannot be read ({error}); name a '
                    'text file with the clients of a round on each line'
                    ) from error
  cohorts = []
  for number, line in enumerate(text.splitlines(), 1):
    if words := line.partition('#')[0].replace(',', ' ').split():
      cohorts.append(_clients_of(words, num_clients, f'{path}, line {number}'))
  if len(cohorts) < num_rounds:
    raise UserError(
        f'--cohorts_file={path} has the clients of {len(cohorts)} rounds; '
        f'--num_rounds={num_rounds} needs as many lines')
  return cohorts


def _clients_of(words, num_clients, where):
  for word in words:
    if not (word.isascii() and word.isdecimal() and len(word) < 10
            and int(word) < num_clients):
      raise UserError(
          f'--cohorts_file={where}: {word[:20]!r} is no client; '
          f'--num_clients={num_clients} are 0 to {num_clients - 1}')
  cohort = [int(word) for word in words]
  if len(set(cohort)) < len(cohort):
    raise UserError(
        f'--cohorts_file={where} has a client twice; name each once')
  return cohort


def text_of(cohorts: Iterable[list[int]]) -> str:
  """The list as `read` reads it."""
  return ''.join(' '.join(map(str, cohort)) + '\n' for cohort in cohorts)


def is_lost(rate: float, seed: int, round_index: int, client: int) -> bool:
  """Whether this client fails in this round (from 0), with chance `rate`."""
  if rate == 0:
    return False
  generator = np.random.default_rng([seed, round_index, client, _LOST])
  return generator.random() < rate
