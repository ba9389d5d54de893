"""The sections of a page that compare arms with their baselines."""

from collections.abc import Sequence
import math
import statistics

import numpy as np

from moon_jax.report import arms as arms_lib
from moon_jax.report import comparisons
from moon_jax.report import figures
from moon_jax.report import paired
from moon_jax.report import sections
from moon_jax.report.arms import Arm
from moon_jax.report.document import Figure
from moon_jax.report.document import Section
from moon_jax.report.document import Table

_WINDOW = 5  # rounds of the running median

def differences(arms: Sequence[Arm]) -> Section | None:
  """Returns the differences from baselines, or None if there are none."""
  found = comparisons.with_baselines(arms)
  tested = sum(not math.isnan(c.holm_p) for c in found)
  if not found:
    return None
  rows = []
  for arm, baseline, pairs, holm_p, theirs in found:
    cells = ['0', '', '', '', '', 'no common seeds'] if pairs is None else [
        str(len(pairs.differences)), f'{pairs.mean:+.2f}',
        sections.interval(pairs.low, pairs.high, 2),
        sections.p_text(pairs.p_value), sections.p_text(holm_p),
        comparisons.verdict(pairs, holm_p)]
    rows.append((arm.label, baseline.label,
                 '' if theirs is None else f'{theirs:+.1f}', *cells))
  header = ('arm', 'baseline', 'published difference', 'pairs',
            'our difference', '95% interval', 'p, paired t',
            'p, Holm', 'verdict')
  if not any(row[2] for row in rows):
    header = header[:2] + header[3:]
    rows = [row[:2] + row[3:] for row in rows]
  table = Table(
      'Test accuracy after the last round, in percentage points. Both runs of '
      'a pair have the same seed, and with it the same split, cohorts, initial '
      'model and shuffles, unless a setting changes them. Number of '
      f"comparisons for which Holm's p is adjusted: {tested}.", header,
      tuple(rows))
  return Section('Differences from the baseline', (table, *_effects(found)))


def _effects(found):
  """Returns a figure of the differences, if any has an interval."""
  shown = [c for c in found if c.pairs and not math.isnan(c.pairs.low)]
  if not shown:
    return ()
  labels = [f'{c.arm.label} (against {c.baseline.label})' if len(
      {other.baseline.label for other in shown}) > 1 else c.arm.label
            for c in shown]
  svg = figures.effects(
      labels, [c.pairs.mean for c in shown], [c.pairs.low for c in shown],
      [c.pairs.high for c in shown], 'difference, percentage points',
      'differences')
  alt = '; '.join(f'{label}: {c.pairs.mean:+.2f}, 95% interval '
                  f'{sections.interval(c.pairs.low, c.pairs.high, 2)}'
                  for label, c in zip(labels, shown))
  return (Figure('differences', svg, f'Differences from the baseline. {alt}.',
                 'Mean differences from the baseline and their 95% intervals, '
                 'not adjusted for the number of comparisons.'),)


def rounds(arms: Sequence[Arm]) -> Section | None:
  """Returns the rounds to the baseline's final accuracy, or None."""
  rows = []
  for arm in arms:
    baseline = arms_lib.baseline_of(arm, arms)
    if baseline is None:
      continue
    finals = baseline.values('test_accuracy')
    reached = [_reached(curve_T, finals[seed])
               for seed, curve_T in zip(
                   arm.finished, arm.curves('test_accuracy'))
               if seed in finals and np.sum(~np.isnan(curve_T)) >= _WINDOW]
    theirs = '; '.join(_rounds_text(value)
                       for value in sections.of_measure(arm, 'rounds'))
    rows.append((arm.label, baseline.label, theirs, rounds_text(reached)))
  if not rows:
    return None
  header: tuple[str, ...] = ('arm', 'target: last round of', 'published',
                             'ours, rounds')
  if not any(row[2] for row in rows):
    header, rows = header[:2] + header[3:], [r[:2] + r[3:] for r in rows]
  return Section('Rounds to the accuracy of the baseline', (
      Table('First round in which the median test accuracy of this round and '
            'the four evaluated before it is at least that of the baseline, '
            'with the same seed, after its last round. Median over seeds; runs '
            'that do not reach it count as later than all others. Runs of '
            'fewer than five evaluated rounds are left out.', header,
            tuple(rows)),))


def _reached(curve_T, target):
  """Returns the round that reaches a target, or None; NaN: not evaluated."""
  evaluated = np.flatnonzero(~np.isnan(curve_T))
  found = paired.rounds_to(curve_T[evaluated], target, _WINDOW)
  return None if found is None else int(evaluated[found - 1]) + 1


def _rounds_text(value):
  data = value.settings.get('dataset')
  return f'{value.value:g}' + (f' ({data})' if data else '')


def rounds_text(reached: Sequence[int | None]) -> str:
  """Returns the median of rounds, where None is later than all."""
  if not reached:
    return ''
  median = statistics.median_high(
      [math.inf if r is None else r for r in reached])
  count = sum(r is not None for r in reached)
  if count in (0, len(reached)):
    return f'{median:g}' if count else 'never'
  text = 'never' if math.isinf(median) else f'{median:g}'
  return f'{text} (reached in {count} of {len(reached)} runs)'
