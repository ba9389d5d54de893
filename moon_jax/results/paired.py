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

LEVEL = .05  # significance level; intervals have confidence 1 - LEVEL
MARGIN = 1.  # equivalence margin, percentage points
MIN_PERMUTED = 12  # fewest pairs for the sign-flip test
_MAX_PAIRS = 10_000
_EQUAL = 1e-5  # relative deviation below which differences are rounding error


class Comparison(NamedTuple):
  """Paired differences, in the unit of the values, and their tests.

  With a single pair all statistics except the mean are NaN.
  """

  differences: tuple[float, ...]
  mean: float
  std: float  # sample standard deviation
  low: float  # lower end of the confidence interval of the mean
  high: float  # upper end
  p_value: float  # two-sided paired t test
  equivalence_p: float  # TOST at ±MARGIN
  sign_flip_p: float  # exact; NaN for fewer than MIN_PERMUTED pairs


def compare(new: Sequence[float], baseline: Sequence[float]) -> Comparison:
  """Compares two methods over blocks.

  Args:
    new: the new method's value in each block.
    baseline: the baseline's values, in the same order of blocks.

  Raises:
    ValueError: if the lengths differ or are 0.

  Examples:
    >>> compare([69., 70., 68.5], [66., 66.5, 66.]).mean
    3.0
  """
  if len(new) != len(baseline) or not len(new):
    raise ValueError('values must form one or more pairs, got '
                     f'{len(new)} and {len(baseline)} values')
  d = np.subtract(new, baseline, dtype=np.float64)
  nan = math.nan
  result = Comparison(tuple(d.tolist()), float(d.mean()), *[nan] * 6)
  if len(d) < 2:
    return result
  std = float(d.std(ddof=1))
  if std <= _EQUAL * max(map(abs, d)):  # the t statistic has no meaning
    return result._replace(
        std=0., low=result.mean, high=result.mean,
        p_value=float(not result.mean),
        equivalence_p=float(abs(result.mean) >= MARGIN))
  test = stats.ttest_1samp(d, 0)
  low, high = interval(d)
  return result._replace(
      std=std, low=low, high=high,
      p_value=float(test.pvalue),
      equivalence_p=max(
          float(stats.ttest_1samp(d, -MARGIN, alternative='greater').pvalue),
          float(stats.ttest_1samp(d, MARGIN, alternative='less').pvalue)),
      sign_flip_p=_sign_flip(d) if len(d) >= MIN_PERMUTED else nan)


def interval(differences: Sequence[float] | np.ndarray, level: float = LEVEL
             ) -> tuple[float, float]:
  """Returns the confidence interval of the mean of normal differences.

  Args:
    differences: one per pair; fewer than two give NaN.
    level: 1 - confidence.
  """
  if len(differences) < 2:
    return math.nan, math.nan
  found = stats.ttest_1samp(differences, 0).confidence_interval(1 - level)
  return float(found.low), float(found.high)


def without_equal(found: Comparison) -> Comparison:
  """Returns a comparison without interval and test if differences are equal.

  Equal differences, which few test examples or rounded values cause, say
  nothing of the spread: an interval of width 0 would be false certainty.
  """
  return found if found.std else found._replace(
      low=math.nan, high=math.nan, p_value=math.nan)


def _sign_flip(d):
  """Returns the fraction of the 2^n sign patterns with as large a |mean|."""
  return float(stats.permutation_test(
      (d,), np.mean, permutation_type='samples', n_resamples=2**16,
      rng=np.random.default_rng(0)).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
  """Returns p-values adjusted for multiple tests, in the order given.

  Examples:
    >>> holm([.01, .04, .03])
    [0.03, 0.06, 0.06]
  """
  n, adjusted, largest = len(p_values), [0.] * len(p_values), 0.
  for rank, i in enumerate(np.argsort(p_values, kind='stable').tolist()):
    largest = max(largest, min(1., (n - rank) * p_values[i]))
    adjusted[i] = largest
  return adjusted


class Deviation(NamedTuple):
  """Our mean less a published one, by Welch's t test."""

  difference: float
  low: float  # 95% interval; NaN without the spreads of both sides
  high: float
  p_value: float


def welch(values: Sequence[float], mean: float, std: float | None = None,
          n: int | None = None) -> Deviation:
  """Compares values with a published mean.

  Args:
    values: one per seed, one or more.
    mean: the published mean.
    std: the published sample standard deviation, if it is known.
    n: number of published runs; 3 if it is unknown.
  """
  difference = float(np.mean(values)) - mean
  unknown = Deviation(difference, math.nan, math.nan, math.nan)
  if len(values) < 2 or std is None:
    return unknown
  n = n or 3
  ours, theirs = stats.tvar(values) / len(values), std**2 / n
  if not ours + theirs:
    return unknown
  test = stats.ttest_ind_from_stats(
      np.mean(values), np.std(values, ddof=1), len(values), mean, std, n,
      equal_var=False)
  freedom = (ours + theirs)**2 / (
      ours**2 / (len(values) - 1) + theirs**2 / max(1, n - 1))
  half = stats.t.ppf(1 - LEVEL / 2, freedom) * math.sqrt(ours + theirs)
  return Deviation(difference, difference - half, difference + half,
                   float(test.pvalue))


def pairs_needed(std: float, half_width: float = MARGIN) -> int:
  """Returns the number of pairs needed for a confidence interval of the mean.

  Args:
    std: standard deviation of the differences.
    half_width: largest half-width of the interval, in the same unit.
  """
  for n in range(2, _MAX_PAIRS):
    if stats.t.ppf(1 - LEVEL / 2, n - 1) * std / math.sqrt(n) <= half_width:
      return n
  return _MAX_PAIRS


def verdict(pairs: Comparison, holm_p: float) -> str:
  """Returns what the 95% interval of the mean difference says.

  Args:
    pairs: the differences.
    holm_p: p-value adjusted for all comparisons of the page.
  """
  suffix = '' if holm_p < LEVEL else " (not by Holm's p)"
  if len(pairs.differences) == 1:
    return 'one pair'
  if not pairs.std:
    return ('same difference in all pairs' if pairs.mean
            else 'equal in all pairs')
  if pairs.low > 0:
    return f'higher{suffix}'
  if pairs.high < 0:
    return f'lower{suffix}'
  if pairs.equivalence_p < LEVEL:
    return f'within ±{MARGIN:g} point'
  return 'open'
