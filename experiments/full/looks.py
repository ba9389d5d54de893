"""The looks of AMENDMENT.md: part 1 is tested after 4, 5 and 8 pairs.

Each look has its share of the error (Bonferroni). Between the looks counts are
interim and have no verdict.
"""

from collections.abc import Callable, Sequence
import math
from typing import NamedTuple

import numpy as np
from scipy import stats as scipy_stats

from experiments.full.analysis import Block, last
from moon_jax.results import paired, stats
from moon_jax.view.text import fixed

ROUNDS = (1, 2, 3, 5, 10, 15, 20, 50, 100)  # whose differences are shown


class Look(NamedTuple):
  """A test after some pairs, with its share of the error."""

  pairs: int
  level: float


LOOKS = (Look(4, .02), Look(5, .02), Look(8, .01))


class State(NamedTuple):
  """What the looks say about some pairs.

  Attributes:
    number: the look that was reached last, from 1; 0 before the first.
    look: this look, or the first one.
    verdict: "higher", "lower" or "open"; open before the first look. The
      amendment calls the first two ahead and behind.
    is_interim: whether there are other pairs than those of the look.
  """

  number: int
  look: Look
  verdict: str
  is_interim: bool


def differences(blocks: Sequence[Block]) -> np.ndarray:
  """Returns MOON - FedAvg after the last round, in points, by pair.

  A look takes the first seeds, so pairs count up to the first missing seed.
  """
  return np.array([last(block.new) - last(block.baseline)
                   for i, block in enumerate(blocks) if block.seed == i])


def state(d: np.ndarray) -> State:
  """Returns the look that pairs have reached, and its verdict.

  A look follows only if the interval of the one before contains 0.

  Args:
    d: differences in the order of their seeds.
  """
  number, verdict = 0, 'open'
  for look in LOOKS:
    if len(d) < look.pairs or verdict != 'open':
      break
    number += 1
    low, high = paired.interval(d[:look.pairs], look.level)
    verdict = 'higher' if low > 0 else 'lower' if high < 0 else 'open'
  look = LOOKS[max(number, 1) - 1]
  return State(number, look, verdict, not number or len(d) != look.pairs)


def num_planned(d: np.ndarray) -> int:
  """Returns the pairs after which there is a verdict or the next look."""
  found = state(d)
  if found.verdict != 'open' or found.number == len(LOOKS):
    return len(d)
  return LOOKS[found.number].pairs


def sentence(blocks: Sequence[Block]) -> str:
  """Returns the verdict of the last look, or that counts are interim."""
  d = differences(blocks)
  found = state(d)
  if not len(d):
    return 'no first pair yet.'
  size = (f'{d.mean():+.1f} points over {len(d)} '
          f'pair{"s" * (len(d) > 1)}')
  if not found.number:
    return (f'interim: {size}; the first look is after {LOOKS[0].pairs} '
            'pairs.')
  d = d[:found.look.pairs]
  low, high = paired.interval(d, found.look.level)
  # The same look without pair 0, which was known before it was planned.
  rest = np.array([x for block, x in zip(blocks, d) if block.seed])
  rest_low, rest_high = paired.interval(rest, found.look.level)
  interval = (f'{d.mean():+.1f} points over {len(d)} pairs '
              f'(look {found.number}, {_percent(found.look.level)} interval '
              f'{stats.interval_text(low, high)}; without pair 0: '
              f'{rest.mean():+.1f}, {_percent(found.look.level)} interval '
              f'{stats.interval_text(rest_low, rest_high)})')
  later = f' Interim: {size}.' if found.is_interim else ''
  if found.verdict == 'open':
    final = ', final' if found.number == len(LOOKS) else ''
    return f'open{final}: {interval}.{later}'
  holds = rest_low > 0 if found.verdict == 'higher' else rest_high < 0
  only = '' if holds else ' This holds only with pair 0.'
  return f'{found.verdict}: {interval}.{only}{later}'


def size(blocks: Sequence[Block], endpoint: Callable[[np.ndarray], float],
         unit: str = ' points') -> str:
  """Returns the mean difference of an endpoint, as text.

  It has the pairs and the level of the last look, and no interval before the
  first one.
  """
  d = differences(blocks)
  found = state(d)
  pairs = [endpoint(block.new) - endpoint(block.baseline)
           for block, _ in zip(blocks, d)]
  if not found.number:
    return f'{np.mean(pairs):+.1f}{unit}'
  pairs, level = pairs[:found.look.pairs], found.look.level
  return (f'{np.mean(pairs):+.1f}{unit} ({_percent(level)} interval '
          f'{stats.interval_text(*paired.interval(pairs, level))})')


def table(blocks: Sequence[Block]) -> list[list[str]]:
  """Returns the rows of a table: with and without pair 0."""
  d = differences(blocks)
  found = state(d)
  level = _percent(found.look.level)
  rows = [['pairs', 'mean difference, points', '95% interval, unadjusted',
           f'{level} interval']]
  names = {'all': d, 'without pair 0': np.array(
      [x for block, x in zip(blocks, d) if block.seed])}
  for name, values in names.items():
    if not len(values):
      continue
    interim = ', interim' * found.is_interim
    rows.append([
        f'{len(values)}, {name}{interim}',
        stats.mean_and_std(values, 2, sign='+'),
        *(stats.interval_text(*paired.interval(values, of), 2)
          for of in (paired.LEVEL, found.look.level))])
  return rows


def by_round(blocks: Sequence[Block]
             ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns mean differences by round and their pointwise 95% band, [T] each.

  The band is NaN for a single pair.
  """
  d_ST = np.stack([block.new - block.baseline for block in blocks])
  means = d_ST.mean(0)
  if len(d_ST) < 2:
    return means, np.full_like(means, np.nan), np.full_like(means, np.nan)
  half = (scipy_stats.t.ppf(1 - paired.LEVEL / 2, len(d_ST) - 1)
          * d_ST.std(0, ddof=1) / math.sqrt(len(d_ST)))
  return means, means - half, means + half


def round_table(blocks: Sequence[Block]) -> list[list[str]]:
  """Returns the rows of a table of differences after some rounds."""
  means, low, high = by_round(blocks)
  return [['after round', 'difference, points', '95% interval, pointwise']] + [
      [str(r), fixed(means[r - 1], 2, '+'),
       stats.interval_text(low[r - 1], high[r - 1], 2)]
      for r in ROUNDS if r <= len(means)]


def _percent(level):
  return f'{100 * (1 - level):g}%'
