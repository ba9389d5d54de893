"""Paired statistics of two methods over blocks.

A block is a seed, which determines the split, the initial model, the cohorts
and the shuffles. Both methods run in each block, and the difference d_s of
their results is one observation. The tests are SciPy's.

Holm's adjustment: S. Holm, Scandinavian Journal of Statistics 6, 1979,
https://www.jstor.org/stable/4615733. Equivalence (TOST): D. J. Schuirmann,
Journal of Pharmacokinetics and Biopharmaceutics 15, 1987,
https://doi.org/10.1007/BF01068419.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from moon_jax.results import stats as texts

LEVEL = .05  # significance level; intervals have confidence 1 - LEVEL
MARGIN = 1.  # equivalence margin, percentage points
MIN_PAIRS = 3  # of an interval that is shown: of two, t(1, 0.975) is 12.7
_EQUAL = 1e-5  # relative deviation below which differences are rounding error


class Comparison(NamedTuple):
  """Paired differences, in the unit of the values, and their tests.

  Statistics after `std` are NaN for a single pair, and for equal differences,
  which few test examples or rounded values cause: they say nothing of the
  spread, and an interval of width 0 would be false certainty. Without pairs all
  are NaN.
  """

  differences: tuple[float, ...] = ()
  mean: float = math.nan
  std: float = math.nan  # of the sample; 0 for equal differences
  low: float = math.nan  # lower end of the confidence interval of the mean
  high: float = math.nan  # upper end
  p_value: float = math.nan  # two-sided paired t test
  equivalence_p: float = math.nan  # TOST at ±MARGIN


def compare(new: Sequence[float], baseline: Sequence[float]) -> Comparison:
  """Compares two methods' values in the same blocks."""
  if not len(new):
    return Comparison()
  d = np.subtract(new, baseline, dtype=np.float64)
  std = float(d.std(ddof=1)) if len(d) > 1 else math.nan
  if std <= _EQUAL * np.abs(d).max():  # the t statistic has no meaning
    std = 0.
  result = Comparison(tuple(d.tolist()), float(d.mean()), std)
  if not std > 0:
    return result
  p_value = lambda mean, alternative: float(
      stats.ttest_1samp(d, mean, alternative=alternative).pvalue)
  low, high = interval(d)
  return result._replace(
      low=low, high=high, p_value=p_value(0, 'two-sided'),
      equivalence_p=max(p_value(-MARGIN, 'greater'), p_value(MARGIN, 'less')))


def interval(differences: Sequence[float] | np.ndarray, level: float = LEVEL
             ) -> tuple[float, float]:
  """Returns the interval of confidence 1 - `level` of the mean of differences.

  They are normal, one per pair; fewer than two give NaN.
  """
  if len(differences) < 2:
    return math.nan, math.nan
  ends = stats.ttest_1samp(differences, 0).confidence_interval(1 - level)
  return float(ends.low), float(ends.high)


def holm(p_values: Sequence[float]) -> list[float]:
  """Returns p-values adjusted for multiple tests; NaN, no test, stays."""
  p = np.array(p_values, float)
  order = np.argsort(p)[:np.isfinite(p).sum()]  # NaN is last
  factors = np.arange(len(order), 0, -1)
  p[order] = np.maximum.accumulate(np.minimum(1, factors * p[order]))
  return p.tolist()


def welch(values: Sequence[float], mean: float, std: float | None = None,
          n: int | None = None) -> Comparison:
  """Compares one value per seed with the published mean of n runs, by Welch.

  The result has no pairs: it has the difference of the means as `mean`, and its
  interval and its p-value, which are NaN without the spreads of both sides.

  Args:
    values: one or more.
    mean: the published mean.
    std: the published sample standard deviation, if it is known.
    n: number of published runs; 3 if it is unknown.
  """
  spread = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
  return of_means(float(np.mean(values)) - mean, [
      (spread, len(values)), (math.nan if std is None else std, n or 3)])


def of_means(total: float, groups: Sequence[tuple[float, int]]) -> Comparison:
  """Compares a sum or difference of independent means with 0, by Welch.

  The degrees of freedom are Satterthwaite's. The result has no pairs; interval
  and p-value are NaN without the spread of a group, or if all are 0.

  Args:
    total: the sum or difference.
    groups: the sample standard deviation and the number of values of each mean.
  """
  parts = [std**2 / n for std, n in groups]
  if not (variance := sum(parts)) > 0:
    return Comparison(mean=total)
  freedom = variance**2 / sum(part**2 / max(1, n - 1)
                              for part, (_, n) in zip(parts, groups))
  error = math.sqrt(variance)
  half = stats.t.ppf(1 - LEVEL / 2, freedom) * error
  return Comparison(
      mean=total, low=total - half, high=total + half,
      p_value=2 * float(stats.t.sf(abs(total) / error, freedom)))


def shown(pairs: Comparison, limit: float = 100.) -> Comparison:
  """Returns a comparison as pages show it.

  Without an interval and tests, NaN, if there are fewer than `MIN_PAIRS` pairs
  or an end of the interval is beyond ±`limit`: accuracies differ by at most 100
  points.
  """
  if (len(pairs.differences) >= MIN_PAIRS
      and not max(-pairs.low, pairs.high) > limit):
    return pairs
  return untested(pairs)


def untested(pairs: Comparison) -> Comparison:
  """Returns a comparison without an interval and tests."""
  return Comparison(pairs.differences, pairs.mean, pairs.std)


def interval_text(pairs: Comparison, digits: int = 2) -> str:
  """Formats the interval of a comparison, or why there is none."""
  if pairs.differences and math.isnan(pairs.low) and pairs.std != 0:
    return _why_none(pairs)
  return texts.interval_text(pairs.low, pairs.high, digits)


def _why_none(pairs):
  """Returns why a comparison with a spread has no interval."""
  return ('too few pairs' if len(pairs.differences) < MIN_PAIRS
          else 'interval too wide')


def verdict(pairs: Comparison, holm_p: float) -> str:
  """Returns what the 95% interval of the mean difference says.

  `holm_p` is the p-value adjusted for all comparisons of the page.
  """
  suffix = '' if holm_p < LEVEL else " (not by Holm's p)"
  if not pairs.differences:
    return 'no common seeds'
  if not pairs.std:
    return f'{"same difference" if pairs.mean else "equal"} in all pairs'
  if math.isnan(pairs.low):
    return _why_none(pairs)
  if pairs.low > 0:
    return f'higher{suffix}'
  if pairs.high < 0:
    return f'lower{suffix}'
  if pairs.equivalence_p < LEVEL:
    return f'within ±{MARGIN:g} point'
  return 'open'
