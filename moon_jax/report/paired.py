"""Statistics of two methods over blocks that share everything but the method.

A block is a seed with its own split, initial model, cohorts and shuffles; both
methods run in it, and their difference d_s is one observation. Tests are
scipy's. Holm's adjustment: S. Holm, Scandinavian Journal of Statistics 6, 1979,
https://www.jstor.org/stable/4615733. Equivalence (TOST): D. J. Schuirmann,
Journal of Pharmacokinetics and Biopharmaceutics 15, 1987,
https://doi.org/10.1007/BF01068419.
"""

from collections.abc import Sequence
import math
from typing import NamedTuple

import numpy as np
from scipy import stats

LEVEL = .05  # of all tests; the confidence of intervals is 1 - LEVEL
MARGIN = 1.  # points within which two methods are equivalent
MIN_PERMUTED = 12  # pairs from which the sign-flip test is made
_MAX_PAIRS = 10_000


class Comparison(NamedTuple):
  """Paired differences, in the unit of the values, and their tests.

  With one pair only the mean is known: the other numbers are NaN.
  """

  differences: tuple[float, ...]
  mean: float
  std: float  # sample standard deviation
  low: float  # the interval of the mean
  high: float
  p_value: float  # two-sided paired t test
  equivalence_p: float  # TOST at ±MARGIN
  sign_flip_p: float  # exact; NaN of fewer than MIN_PERMUTED pairs


def compare(new: Sequence[float], baseline: Sequence[float]) -> Comparison:
  """Compares two methods over blocks.

  Args:
    new: a value for each block.
    baseline: likewise, of the same blocks in the same order.

  Raises:
    ValueError: where the lengths differ or there is no pair.

  Example:
    >>> compare([69., 70., 68.5], [66., 66.5, 66.]).mean
    3.0
  """
  if len(new) != len(baseline) or not len(new):
    raise ValueError(f'{len(new)} and {len(baseline)} values are not one or '
                     'more pairs')
  d = np.subtract(new, baseline, dtype=np.float64)
  nan = math.nan
  found = Comparison(tuple(d.tolist()), float(d.mean()), *[nan] * 6)
  if len(d) < 2:
    return found
  std = float(d.std(ddof=1))
  if not std:  # the t distribution of a sample without spread is a point
    return found._replace(
        std=0., low=found.mean, high=found.mean, p_value=float(not found.mean),
        equivalence_p=float(abs(found.mean) >= MARGIN))
  test = stats.ttest_1samp(d, 0)
  interval = test.confidence_interval(1 - LEVEL)
  return found._replace(
      std=std, low=float(interval.low), high=float(interval.high),
      p_value=float(test.pvalue),
      equivalence_p=max(
          float(stats.ttest_1samp(d, -MARGIN, alternative='greater').pvalue),
          float(stats.ttest_1samp(d, MARGIN, alternative='less').pvalue)),
      sign_flip_p=_sign_flip(d) if len(d) >= MIN_PERMUTED else nan)


def _sign_flip(d):
  """The share of all 2^n sign patterns whose mean is at least as far from 0."""
  return float(stats.permutation_test(
      (d,), np.mean, permutation_type='samples', n_resamples=2**16,
      rng=np.random.default_rng(0)).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
  """Returns p-values adjusted for their number, in the order given.

  Example:
    >>> holm([.01, .04, .03])
    [0.03, 0.06, 0.06]
  """
  n, adjusted, largest = len(p_values), [0.] * len(p_values), 0.
  for rank, i in enumerate(np.argsort(p_values, kind='stable').tolist()):
    largest = max(largest, min(1., (n - rank) * p_values[i]))
    adjusted[i] = largest
  return adjusted


def welch(values: Sequence[float], mean: float, std: float,
          n: int) -> tuple[float, float]:
  """Compares values with published ones, of which only a summary is known.

  Args:
    values: two or more.
    mean: published.
    std: published sample standard deviation.
    n: number of published runs.

  Returns:
    mean(values) - mean, and the p-value of Welch's t test.
  """
  test = stats.ttest_ind_from_stats(
      np.mean(values), np.std(values, ddof=1), len(values), mean, std, n,
      equal_var=False)
  return float(np.mean(values) - mean), float(test.pvalue)


def pairs_needed(std: float, half_width: float = MARGIN) -> int:
  """Returns the smallest number of pairs with at most this half-width.

  Args:
    std: standard deviation of the differences.
    half_width: wanted, in the unit of the differences.
  """
  for n in range(2, _MAX_PAIRS):
    if stats.t.ppf(1 - LEVEL / 2, n - 1) * std / math.sqrt(n) <= half_width:
      return n
  return _MAX_PAIRS


def rounds_to(accuracies: Sequence[float], target: float,
              window: int = 5) -> int | None:
  """Returns the first round whose running median reaches a target.

  Args:
    accuracies: one for each round, from round 1.
    target: in the same unit.
    window: number of rounds in the median, a round and those just before it;
      the first `window` - 1 rounds have none.

  Returns:
    The round, from 1; None where it is never reached (censored).
  """
  for r in range(window, len(accuracies) + 1):
    if np.median(accuracies[r - window:r]) >= target:
      return r
  return None
