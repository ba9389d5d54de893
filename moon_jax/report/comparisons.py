"""Compares arms: with their baseline, and with published values."""

from collections.abc import Sequence
import math
from typing import NamedTuple

from scipy import stats

from moon_jax.report import arms as arms_lib
from moon_jax.report import paired
from moon_jax.report.arms import Arm
from moon_jax.report.published import Published

_MEASURE = 'test_accuracy'


class Compared(NamedTuple):
  """An arm and its baseline.

  Attributes:
    arm, baseline: the arms.
    pairs: differences in points over the common seeds; None if there are none.
    holm_p: p-value of the paired t test, adjusted for all comparisons.
    published: the published difference in points, or None.
  """

  arm: Arm
  baseline: Arm
  pairs: paired.Comparison | None
  holm_p: float
  published: float | None


def with_baselines(arms: Sequence[Arm]) -> list[Compared]:
  """Compares test accuracies after the last round, paired over seeds.

  Args:
    arms: the arms of a table; those without baseline are left out.
  """
  found = []
  for arm in arms:
    baseline = arms_lib.baseline_of(arm, arms)
    if baseline is None:
      continue
    new, old = arm.values(_MEASURE), baseline.values(_MEASURE)
    seeds = [seed for seed in new if seed in old]
    pairs = paired.without_equal(paired.compare(
        [new[seed] for seed in seeds],
        [old[seed] for seed in seeds])) if seeds else None
    found.append(Compared(arm, baseline, pairs, math.nan,
                          _published_difference(arm, baseline)))
  tested = [i for i, compared in enumerate(found)
            if compared.pairs and not math.isnan(compared.pairs.p_value)]
  adjusted = paired.holm([found[i].pairs.p_value for i in tested])
  for i, p_value in zip(tested, adjusted):
    found[i] = found[i]._replace(holm_p=p_value)
  return found


def _published_difference(arm, baseline):
  """Returns the difference of published accuracies, if there is one of each."""
  new, old = ([value for value in of.published if value.measure == 'accuracy']
              for of in (arm, baseline))
  return (new[0].value - old[0].value if len(new) == len(old) == 1 else None)


def verdict(pairs: paired.Comparison, holm_p: float) -> str:
  """Returns what the 95% interval of the mean difference says.

  Args:
    pairs: the differences.
    holm_p: p-value adjusted for all comparisons of the page.
  """
  suffix = '' if holm_p < paired.LEVEL else " (not by Holm's p)"
  if len(pairs.differences) == 1:
    return 'one pair'
  if not pairs.std:
    return ('same difference in all pairs' if pairs.mean
            else 'equal in all pairs')
  if pairs.low > 0:
    return f'higher{suffix}'
  if pairs.high < 0:
    return f'lower{suffix}'
  if pairs.equivalence_p < paired.LEVEL:
    return 'within ±1 point'
  return 'open'


class Deviation(NamedTuple):
  """Our mean less a published one, in points, by Welch's t test."""

  difference: float
  low: float  # 95% interval; NaN without the spreads of both sides
  high: float
  p_value: float


def with_published(ours: Sequence[float], theirs: Published) -> Deviation:
  """Compares accuracies in percent with a published mean.

  Args:
    ours: one value per seed, one or more.
    theirs: the published value; 3 runs are assumed if it has none.
  """
  difference = sum(ours) / len(ours) - theirs.value
  if len(ours) < 2 or theirs.std is None:
    return Deviation(difference, math.nan, math.nan, math.nan)
  n = theirs.n or 3
  difference, p_value = paired.welch(ours, theirs.value, theirs.std, n)
  a, b = stats.tvar(ours) / len(ours), theirs.std**2 / n
  if not a + b:
    return Deviation(difference, math.nan, math.nan, math.nan)
  freedom = (a + b)**2 / (a**2 / (len(ours) - 1) + b**2 / max(1, n - 1))
  half = stats.t.ppf(1 - paired.LEVEL / 2, freedom) * math.sqrt(a + b)
  return Deviation(difference, difference - half, difference + half, p_value)
