"""Endpoints of runs, means and spreads over runs, and their texts.

Endpoints are of one run: its best value, the mean of its last rounds, its
rounds to a target. `moon_jax.results.paired` compares runs.
"""

from collections.abc import Callable, Iterable, Sequence
import math
import statistics

import numpy as np

from moon_jax.view.text import decimals, fixed

LAST = 10  # rounds whose mean is the second endpoint
NOT_FINITE = 'not finite'  # the text of NaN


# Accuracies of clients' models on their own held-out examples: of all clients,
# and of those that trained in the round.
OF_CLIENTS = 'personal_heldout_accuracy', 'local_heldout_accuracy'
_EXPLAINED = {
    OF_CLIENTS[0]: "of all clients' models on their held-out examples",
    OF_CLIENTS[1]: "of clients' models on their held-out examples",
    'global_heldout_accuracy': "of the global model on clients' held-out "
                               'examples'}


def words(metric: str) -> str:
  """Returns the name of a metric in words, as the header of a column."""
  return metric.removeprefix('num_').replace('heldout', 'held-out').replace(
      '_', ' ')


def label(metric: str) -> str:
  """Returns a metric with its unit, as the label of an axis."""
  return words(metric) + ' (%)' * ('accuracy' in metric)


def title(metric: str) -> str:
  """Returns a metric with its unit, and what it is of."""
  explained = _EXPLAINED.get(metric)
  return label(metric) + (f', {explained}' if explained else '')


def scale(metric: str) -> int:
  """Returns the factor of a metric in tables: accuracies are in percent."""
  return 100 if 'accuracy' in metric else 1


def mean_of_last(values: Sequence[float], num_rounds: int = LAST) -> float:
  """Returns the mean of the last values, of all values if there are fewer."""
  return statistics.fmean(values[-num_rounds:])


def note_of_last(series: Iterable[Sequence[float]]) -> tuple[str, ...]:
  """Returns a note on the mean of the last values, () if all have enough."""
  return ('mean of last 10: of all evaluations if there are fewer',) if any(
      len(values) < LAST for values in series) else ()


def note_of_missing(values: Iterable[float]) -> tuple[str, ...]:
  """Returns a note on values that are not finite, () if all are."""
  return (f'{NOT_FINITE}: null in metrics.jsonl, as when the model of a client '
          'has diverged; means over runs are of the others, whose number is in '
          'parentheses',) if any(map(math.isnan, values)) else ()


def first_reached(values: Sequence[float], target: float, window: int = 1
                  ) -> int | None:
  """Returns the position of the first value that reaches a target, or None.

  The running median of `window` values counts instead of a value; the first
  `window` - 1 positions have none. An equal value reaches the target.
  """
  for end in range(window, len(values) + 1):
    if np.median(values[end - window:end]) >= target:
      return end - 1
  return None


def rounds_text(reached: Sequence[float | None], missing: str = '',
                text: Callable[[float], str] = '{:g}'.format) -> str:
  """Formats the median over runs of the rounds, or the time, to a target.

  Of an even number of runs it is the later of the two in the middle. Runs that
  never reach it (None or NaN) count as later than all others. If only some do,
  their number follows in parentheses.
  """
  if not len(reached):
    return missing
  rounds = np.sort(np.array([*reached], float))  # NaN is last
  count, median = np.isfinite(rounds).sum(), rounds[len(rounds) // 2]
  return ('never' if math.isnan(median) else text(median)) + _part_text(
      count, len(rounds))


def _part_text(count, total):
  """Returns how many runs have a value, '' if all or none have."""
  return f' ({count} of {total})' * bool(0 < count < total)


def mean_and_std(values: Sequence[float], digits: int, scale: float = 1.,
                 missing: str = '', sign: str = '') -> str:
  """Formats a mean and, of two values or more, the sample standard deviation.

  `scale` is a factor, `missing` the text without values, and `sign` '+' shows
  the sign of a positive mean.
  """
  if not len(values):
    return missing
  std = (f' ± {fixed(scale * statistics.stdev(values), digits)}'
         if len(values) > 1 else '')
  return fixed(scale * statistics.fmean(values), digits, sign) + std


def metric_text(name: str, values: Sequence[float], missing: str = '') -> str:
  """Formats the mean and the deviation of a metric; accuracies in percent.

  NaN is left out; the number of the other values follows in parentheses.
  `missing` is the text without values.
  """
  known = [value for value in values if not math.isnan(value)]
  part = _part_text(len(known), len(values))
  if name == 'epsilon' and len({*known}) == 1:
    known = known[:1]  # the plan of the rounds decides it, not the seed
  return mean_and_std(known, digits(name, known), scale(name),
                      NOT_FINITE if len(values) else missing) + part


def digits(name: str, values: Iterable[float]) -> int:
  """Returns the decimals of the mean of a metric in tables."""
  return 1 if 'accuracy' in name else decimals(
      max(map(abs, values), default=0))


def digits_of_difference(name: str, mean: float, std: float) -> int:
  """Returns the decimals of a mean difference of a metric and of its interval.

  Accuracies, in points, have 2; others as many as their spread needs.
  """
  return 2 if 'accuracy' in name else decimals(std if std > 0 else mean)


def range_text(values: Iterable[int], to: str = ' to ') -> str:
  """Formats the smallest and the largest value, '' without values."""
  ordered = sorted({*values})
  return to.join(map(str, dict.fromkeys([*ordered[:1], *ordered[-1:]])))


def count_text(done: int, planned: int, diverged: int) -> str:
  """Formats how many runs have finished."""
  return (str(done) if done == planned else f'{done} of {planned}') + (
      f' ({diverged} diverged)' * bool(diverged))


def interval_text(low: float, high: float, digits: int = 1) -> str:
  """Formats a confidence interval, '' for NaN."""
  return '' if math.isnan(low) else (
      f'{fixed(low, digits, "+")} to {fixed(high, digits, "+")}')


def p_text(value: float | None) -> str:
  """Formats a p-value, '' if it is unknown."""
  if value is None or math.isnan(value):
    return ''
  return f'{value:.3f}' if value >= .001 else '< 0.001'
