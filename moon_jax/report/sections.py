"""The sections of accuracies and of notes."""

from collections.abc import Sequence
import math
import statistics

from moon_jax.report import comparisons
from moon_jax.report.arms import Arm
from moon_jax.report.document import Listing
from moon_jax.report.document import Section
from moon_jax.report.document import Table
from moon_jax.report.document import Text
from moon_jax.report.published import Published
from moon_jax.sweep.values import show

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
  has_published = any(of_measure(arm, 'accuracy') for arm in arms)
  has_welch = has_published and is_full
  header = ['arm', 'published (%)', 'ours, last round (%)',
            f'mean of last {tail} (%)', 'runs', 'ours − published',
            '95% interval', 'p, Welch']
  keep = [True, has_published, True, True, True, *[has_welch] * 3]
  rows = []
  for arm in arms:
    values = list(arm.values('test_accuracy').values())
    published = of_measure(arm, 'accuracy')
    row = [arm.label, _published_text(published),
           spread(values) + _over_clients(arm),
           spread(list(arm.values('test_accuracy', tail).values())),
           _count(arm), *_deviation(values, published)]
    rows.append(row)
  select = lambda row: tuple(cell for cell, kept in zip(row, keep) if kept)
  plural = 's' * (tail > 1)
  caption = ('Top-1 test accuracy after the last round, and its mean over the '
             f'last {tail} evaluated round{plural}: mean ± sample standard '
             'deviation over runs, each with its own seed and split unless '
             'settings say otherwise. Settings that a name leaves out have the '
             "value of most arms, or their flag's default.")
  if has_welch:
    caption += (' Published spreads may be over other seeds of one split; 3 '
                'published runs are assumed where the number is unknown.')
  if best:
    caption += ' Bold rows were chosen by their accuracy on the test set.'
  return Section('Test accuracy', (Table(
      caption, select(header), tuple(map(select, rows)),
      frozenset(i for i, arm in enumerate(arms)
                if any(arm is b for b in best))),))


def of_measure(arm, measure):
  return [value for value in arm.published if value.measure == measure]


def _published_text(found: Sequence[Published]) -> str:
  """Returns published accuracies with their spreads and what they are of."""
  shown = {name for name in _names(found) if name == 'dataset' or len(
      {repr(value.settings.get(name)) for value in found}) > 1}
  texts = []
  for value in found:
    std = '' if value.std is None else f' ± {_number(value.std)}'
    what = ', '.join([*(
        show(x) if name == 'dataset' else f'{name} {show(x)}'
        for name, x in value.settings.items() if name in shown),
                      *filter(None, [value.note])])
    texts.append(f'{_number(value.value)}{std}' + f' ({what})' * bool(what))
  return '; '.join(texts)


def _number(value):
  """Formats a published number with one decimal or more."""
  return f'{value:.1f}' if round(value, 1) == value else f'{value:g}'


def _names(found):
  return {name for value in found for name in value.settings}


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


def facts(notes: Sequence[str], table_source: str, is_full: bool = True
          ) -> Section | None:
  """Returns the section of notes, or None if there are none.

  Args:
    notes: sentences about the table at the full budget.
    table_source: where it was published.
    is_full: whether this is the full budget.
  """
  parts: list = [Listing(tuple(notes))] if notes else []
  if table_source:
    parts.append(Text(f'Source of the table: {table_source}.'))
  title = 'Notes' if is_full else 'Notes on the table at its full budget'
  return Section(title, tuple(parts)) if parts else None
