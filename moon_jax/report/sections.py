"""The sections of a table's page that are made of its runs."""

from collections.abc import Sequence
import math
import statistics

import numpy as np

from moon_jax.report import arms as arms_lib
from moon_jax.report import comparisons
from moon_jax.report import figures
from moon_jax.report import paired
from moon_jax.report.arms import Arm
from moon_jax.report.document import Figure
from moon_jax.report.document import Listing
from moon_jax.report.document import Section
from moon_jax.report.document import Table
from moon_jax.report.document import Text
from moon_jax.report.table_file import Published

LAST = 10  # rounds of the second endpoint, at most half of the run


def last_rounds(arms: Sequence[Arm]) -> int:
  """Returns the number of rounds of the second endpoint."""
  longest = max(arm.config.num_rounds for arm in arms)
  return max(1, min(LAST, longest // 2))


def accuracy(arms: Sequence[Arm], best: Sequence[Arm], is_full: bool
             ) -> Section:
  """Returns the table of test accuracies, ours beside the published ones.

  Args:
    arms: the rows.
    best: the arms that were chosen among settings, in bold; () for none.
    is_full: whether the runs have the published budget, so that differences
      from published values are shown.
  """
  tail = last_rounds(arms)
  has_published = any(_published(arm, 'accuracy') for arm in arms)
  has_welch = has_published and is_full
  header = ['arm', 'published (%)', 'ours, last round (%)',
            f'mean of last {tail} (%)', 'runs', 'ours − published',
            '95% interval', 'p, Welch']
  keep = [True, has_published, True, True, True, *[has_welch] * 3]
  rows = []
  for arm in arms:
    values = list(arm.values('test_accuracy').values())
    published = _published(arm, 'accuracy')
    if best and arm not in best:  # a published best is of the chosen arm
      published = []
    row = [arm.label, '; '.join(map(_published_text, published)),
           spread(values) + _over_clients(arm),
           spread(list(arm.values('test_accuracy', tail).values())),
           _count(arm), *_deviation(values, published)]
    rows.append(row)
  select = lambda row: tuple(cell for cell, kept in zip(row, keep) if kept)
  caption = ('Top-1 test accuracy after the last round, and the mean of the '
             f'last {tail} rounds: mean ± sample standard deviation over runs. '
             'A run has its own seed and, unless settings say otherwise, its '
             'own split.')
  if len(best) < len(arms) and best:
    caption += ' Bold rows were chosen by their accuracy on the test set.'
  return Section('Test accuracy', (Table(
      caption, select(header), tuple(map(select, rows)),
      frozenset(i for i, arm in enumerate(arms) if arm in best
                and len(best) < len(arms))),))


def _published(arm, measure):
  return [value for value in arm.published if value.measure == measure]


def _published_text(value: Published) -> str:
  """Returns a published accuracy with its spread and what it is of."""
  std = '' if value.std is None else f' ± {value.std:g}'
  what = filter(None, [value.settings.get('dataset'), value.note])
  text = ', '.join(what)
  return f'{value.value:g}{std}' + (f' ({text})' if text else '')


def _over_clients(arm):
  """Returns the spread over clients that have separate models."""
  stds = [line['test_accuracy_std'] for run in arm.finished.values()
          for line in run.metrics[-1:] if 'test_accuracy_std' in line]
  return f' (over clients ± {100 * statistics.fmean(stds):.1f})' if stds else ''


def _count(arm):
  """Returns how many runs have finished."""
  done, planned = len(arm.finished), len(arm.seeds)
  diverged = len(arm.runs) - done
  text = str(done) if done == planned else f'{done} of {planned}'
  return text + f' ({diverged} diverged)' * bool(diverged)


def _deviation(values, published):
  """Returns the cells of our difference from a published value."""
  if not values or len(published) != 1:
    return '', '', ''
  found = comparisons.with_published(values, published[0])
  return (f'{found.difference:+.1f}', interval(found.low, found.high),
          p_text(found.p_value))


def compared(arms: Sequence[Arm]) -> Section | None:
  """Returns the differences from baselines, or None if there are none."""
  found = comparisons.with_baselines(arms)
  if not found:
    return None
  rows = []
  for arm, baseline, pairs, holm_p, theirs in found:
    cells = ['0', '', '', '', '', 'no common seeds'] if pairs is None else [
        str(len(pairs.differences)), f'{pairs.mean:+.2f}',
        interval(pairs.low, pairs.high, 2), p_text(pairs.p_value),
        p_text(holm_p), comparisons.verdict(pairs, holm_p)]
    rows.append((arm.label, baseline.label,
                 '' if theirs is None else f'{theirs:+.1f}', *cells))
  header = ('arm', 'baseline', 'published difference', 'pairs',
            'our difference', '95% interval', 'p, paired t',
            'p, Holm', 'verdict')
  if not any(row[2] for row in rows):
    header = header[:2] + header[3:]
    rows = [row[:2] + row[3:] for row in rows]
  table = Table(
      'Test accuracy after the last round, in percentage points. A pair is a '
      'seed, which gives both arms the same split, cohorts, initial model and '
      f'shuffles. Holm\'s p is adjusted for the {len(found)} comparisons of '
      'this page.', header, tuple(rows))
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
                  f'{interval(c.pairs.low, c.pairs.high, 2)}'
                  for label, c in zip(labels, shown))
  return (Figure('differences', svg, f'Differences from the baseline. {alt}.',
                 'Mean differences from the baseline and their 95% intervals, '
                 'not adjusted for the number of comparisons.'),)


def rounds(arms: Sequence[Arm]) -> Section | None:
  """Returns the rounds to the baseline's final accuracy, or None."""
  rows = []
  for arm in arms:
    baseline = arms_lib.baseline_of(arm, arms)
    if baseline is None and not any(
        arms_lib.baseline_of(other, arms) is arm for other in arms):
      continue
    finals = (baseline or arm).values('test_accuracy')
    reached = [paired.rounds_to(curve[~np.isnan(curve)], finals[seed])
               for seed, curve in zip(arm.finished, arm.curves('test_accuracy'))
               if seed in finals]
    theirs = '; '.join(_rounds_text(value)
                       for value in _published(arm, 'rounds'))
    rows.append((arm.label, (baseline or arm).label, theirs,
                 rounds_text(reached)))
  if not rows:
    return None
  header: tuple[str, ...] = ('arm', 'target: last round of', 'published',
                             'ours, rounds')
  if not any(row[2] for row in rows):
    header, rows = header[:2] + header[3:], [r[:2] + r[3:] for r in rows]
  return Section('Rounds to the accuracy of the baseline', (
      Table('First round in which the median test accuracy of 5 rounds is at '
            'least that of the baseline, with the same seed, after its last '
            'round. Median over seeds; "never" counts as later than the last '
            'round.', header, tuple(rows)),))


def _rounds_text(value):
  data = value.settings.get('dataset')
  text = 'never' if math.isinf(value.value) else f'{value.value:g}'
  return text + (f' ({data})' if data else '')


def rounds_text(reached: Sequence[int | None]) -> str:
  """Returns the median of rounds, where None is later than all."""
  if not reached:
    return ''
  median = statistics.median_high(
      [math.inf if r is None else r for r in reached])
  never = sum(r is None for r in reached)
  text = 'never' if math.isinf(median) else f'{median:g}'
  return text + f' ({never} of {len(reached)} never)' * bool(
      never and never < len(reached))


def spread(values: Sequence[float]) -> str:
  """Formats a mean and, of two values or more, the standard deviation."""
  if not values:
    return ''
  std = f' ± {statistics.stdev(values):.1f}' if len(values) > 1 else ''
  return f'{statistics.fmean(values):.1f}{std}'


def interval(low: float, high: float, digits: int = 1) -> str:
  """Formats a confidence interval, '' if it is unknown."""
  return '' if math.isnan(low) else f'{low:+.{digits}f} to {high:+.{digits}f}'


def p_text(value: float) -> str:
  """Formats a p-value, '' if it is unknown."""
  if math.isnan(value):
    return ''
  return f'{value:.3f}' if value >= .001 else '< 0.001'


def facts(notes: Sequence[str], table_source: str) -> Section | None:
  """Returns the section of notes, or None if there are none."""
  parts: list = [Listing(tuple(notes))] if notes else []
  if table_source:
    parts.append(Text(f'Published values: {table_source}.'))
  return Section('Notes', tuple(parts)) if parts else None
