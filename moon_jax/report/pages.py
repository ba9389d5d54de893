"""The pages of tables: their sections, made from arms.

A section is a list of Markdown and figures that begins with its heading.
"""

from collections.abc import Mapping
from collections.abc import Sequence
import math
import statistics

import numpy as np

from moon_jax.report import groups
from moon_jax.report.groups import Key
from moon_jax.report.groups import TableArm
from moon_jax.report.table_file import Published
from moon_jax.report.table_file import Table
from moon_jax.results import figures
from moon_jax.results import page as page_lib
from moon_jax.results import paired
from moon_jax.results import stats
from moon_jax.results.page import Figure
from moon_jax.results.page import Page
from moon_jax.results.read import Run
from moon_jax.sweep.values import show

Section = list[str | Figure]

_WINDOW = 5  # rounds of the running median
_MEASURES = {  # metrics that are drawn, and their axes
    'test_accuracy': 'test accuracy, %',
    'test_loss': 'test loss, nats per example',
    'train_loss': 'local loss, nats per example'}
_MAX_LINES = 12  # of a panel
_WARNINGS = {
    'smoke': 'It shows that the table can be made, and nothing about the '
             'methods.',
    'small': 'Accuracies cannot be compared with published ones, and '
             'differences between methods may change with more rounds.',
    'full': ''}


def make(table: Table, found: Mapping[Key, Run], command: str,
         extra: Section = ()) -> Page:
  """Returns the page of a table.

  Args:
    table: the table.
    found: the runs that have ended; see `groups.find`.
    command: the command of the page.
    extra: sections of `Table.pages`, which come after those of accuracies.
  """
  is_full = table.budget == 'full' and not table.changed
  arms = groups.of_table(table, found)
  arms, best = groups.chosen(arms, table.best_of)
  has_prediction = table.headline == 'time'
  accuracies, rounds = accuracy(arms, best, is_full), rounds_to_baseline(arms)
  compared, times = differences(arms), time(arms, has_prediction)
  first = {'accuracy': [accuracies, compared, rounds],
           'rounds': [rounds, accuracies, compared],
           'time': [times, accuracies, compared]}[table.headline]
  parts = [*lead(table, arms), *(part for section in first for part in section),
           *extra, *curves(arms, table.panels, table.loss_divisor, is_full),
           *([] if has_prediction else times), *_facts(table),
           *commands(arms, command)]
  return Page(table.title, banner(table, arms), parts)


def without_runs(table: Table, extra: Section, command: str) -> Page:
  """Returns the page of a table that needs no runs.

  Args:
    table: the table.
    extra: its sections.
    command: the command of the page.
  """
  names = dict.fromkeys(config.dataset for config in table.sweep.configs)
  description = [page_lib.text(table.description)] * bool(table.description)
  return Page(table.title,
              f'{table.budget.upper()} BUDGET: {", ".join(names)}.', [
                  *description, *extra, *_facts(table), '## Command',
                  page_lib.code(command)])


def index(pages: Sequence[tuple[Page, str]]) -> Page:
  """Returns a page with links to others.

  Args:
    pages: each with the name of its file.
  """
  return Page('Tables', '', [page_lib.listing([
      f'[{page.title}]({name}){": " * bool(page.banner)}{page.banner}'
      for page, name in pages])])


def banner(table: Table, arms: Sequence[TableArm]) -> str:
  """Returns the budget in one line."""
  runs = sum(len(arm.seeds) for arm in arms)
  words = []
  for name, unit in (('dataset', ''), ('num_rounds', ' rounds'),
                     ('local_epochs', ' local epochs')):
    shown = list(dict.fromkeys(
        show(getattr(arm.config, name)) for arm in arms))
    words.append(', '.join(shown[:-1]) + ' and ' * (len(shown) > 1) + shown[-1]
                 + (unit.removesuffix('s') if shown == ['1'] else unit))
  parts = dict.fromkeys(arm.config.train_examples for arm in arms)
  if any(parts):
    words[0] += f', {" or ".join(f"{n:,}" for n in parts)} training examples'
  text = (f'{words[0]}, {words[1]} of {words[2]}, {runs} run'
          f'{"s" * (runs != 1)}.')
  if not table.budget:
    return text
  name = table.budget.upper() + ' BUDGET' + ', CHANGED' * bool(table.changed)
  return f'{name}: {text} {_WARNINGS[table.budget]}'.strip()


def lead(table: Table, arms: Sequence[TableArm]) -> Section:
  """Returns the first paragraphs: what the table is, and what is missing."""
  planned = sum(len(arm.seeds) for arm in arms)
  ended = sum(arm.num_ended for arm in arms)
  texts = [table.description] if table.description else []
  if table.budget not in ('full', ''):
    found: dict[str, dict[str, None]] = {}
    for block in table.blocks:
      for name in block.replaced.keys() - {'data_dir'}:
        found.setdefault(name, {}).update(dict.fromkeys(
            show(getattr(config, name)) for config in block.sweep.configs))
    texts.append(
        'This describes the full budget. Settings of this one: ' + '; '.join(
            f'{name} {", ".join(found[name])}' for name in sorted(found)) + '.')
  if ended < planned:
    texts.append(f'**{ended} of {planned} runs have ended.** Rows of '
                 'unfinished runs are empty or incomplete.')
  return [page_lib.text(text) for text in texts]


# ---------------------------------------------------------------- accuracies


def accuracy(arms: Sequence[TableArm], best: Sequence[TableArm], is_full: bool
             ) -> Section:
  """Returns the table of test accuracies, ours beside the published ones.

  Args:
    arms: the rows.
    best: the arms that were chosen among settings, in bold; () for none.
    is_full: whether the runs have the published budget, so that differences
      from published values are shown.
  """
  tail = max(1, min(stats.LAST, max(
      arm.config.num_rounds for arm in arms) // 2))
  has_published = any(arm.of_measure('accuracy') for arm in arms)
  has_welch = has_published and is_full
  header = ['arm', 'published (%)', 'ours, last round (%)',
            f'mean of last {tail} (%)', 'runs', 'ours − published',
            '95% interval', 'p, Welch']
  keep = [True, has_published, True, True, True, *[has_welch] * 3]
  rows = []
  for arm in arms:
    values = list(arm.values().values())
    published = arm.of_measure('accuracy')
    rows.append([
        arm.label, _published(published),
        stats.mean_and_std(values, 1) + _over_clients(arm),
        stats.mean_and_std(list(arm.values(num_rounds=tail).values()), 1),
        _count(arm), *_deviation(values, published)])
  select = lambda row: [cell for cell, kept in zip(row, keep) if kept]
  caption = ('Top-1 test accuracy after the last round, and its mean over the '
             f'last {tail} evaluated round{"s" * (tail > 1)}: mean ± sample '
             'standard deviation over runs, each with its own seed and split '
             'unless settings say otherwise. Settings that a name leaves out '
             "have the value of most arms, or their flag's default.")
  if has_welch:
    caption += (' Published spreads may be over other seeds of one split; 3 '
                'published runs are assumed where the number is unknown.')
  if best:
    caption += ' Bold rows were chosen by their accuracy on the test set.'
  return ['## Test accuracy', page_lib.table(
      caption, select(header), [select(row) for row in rows],
      [i for i, arm in enumerate(arms) if any(arm is b for b in best)])]


def _published(found: Sequence[Published]) -> str:
  """Returns published accuracies with their spreads and what they are of."""
  names = {name for value in found for name in value.settings}
  shown = {name for name in names if name == 'dataset' or len(
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


def _over_clients(arm):
  """Returns the spread over clients that have separate models."""
  stds = [line['test_accuracy_std'] for run in arm.runs.values()
          for line in run.lines[-1:] if 'test_accuracy_std' in line]
  return f' (over clients ± {100 * statistics.fmean(stds):.1f})' if stds else ''


def _count(arm):
  """Returns how many runs have finished."""
  done, planned, diverged = len(arm.runs), len(arm.seeds), len(arm.others)
  text = str(done) if done == planned else f'{done} of {planned}'
  return text + f' ({diverged} diverged)' * bool(diverged)


def _deviation(values, published):
  """Returns the cells of our difference from a published value."""
  if not values or len(published) != 1:
    return '', '', ''
  theirs, = published
  found = paired.welch(values, theirs.value, theirs.std, theirs.n)
  return (f'{found.difference:+.1f}', stats.interval_text(
      found.low, found.high), stats.p_text(found.p_value))


def differences(arms: Sequence[TableArm]) -> Section:
  """Returns the differences from baselines, [] if there are none."""
  found = groups.with_baselines(arms)
  if not found:
    return []
  tested = sum(not math.isnan(c.holm_p) for c in found)
  rows = []
  for arm, baseline, pairs, holm_p, theirs in found:
    cells = ['0', '', '', '', '', 'no common seeds'] if pairs is None else [
        str(len(pairs.differences)), f'{pairs.mean:+.2f}',
        stats.interval_text(pairs.low, pairs.high, 2),
        stats.p_text(pairs.p_value), stats.p_text(holm_p),
        paired.verdict(pairs, holm_p)]
    rows.append((arm.label, baseline.label,
                 '' if theirs is None else f'{theirs:+.1f}', *cells))
  header = ('arm', 'baseline', 'published difference', 'pairs',
            'our difference', '95% interval', 'p, paired t',
            'p, Holm', 'verdict')
  table = page_lib.table(
      'Test accuracy after the last round, in percentage points. Both runs of '
      'a pair have the same seed, and with it the same split, cohorts, initial '
      'model and shuffles, unless a setting changes them. Number of '
      f"comparisons for which Holm's p is adjusted: {tested}.",
      *_without_empty(header, rows, 2))
  return ['## Differences from the baseline', table, *_effects(found)]


def _without_empty(header, rows, column):
  """Leaves out a column without any value."""
  if any(row[column] for row in rows):
    return header, rows
  cut = lambda row: (*row[:column], *row[column + 1:])
  return cut(header), [cut(row) for row in rows]


def _effects(found):
  """Returns a figure of the differences, if any has an interval."""
  shown = [c for c in found if c.pairs and not math.isnan(c.pairs.low)]
  if not shown:
    return []
  is_one = len({c.baseline.label for c in shown}) == 1
  labels = [c.arm.label + f' (against {c.baseline.label})' * (not is_one)
            for c in shown]
  svg = figures.effects(
      labels, [c.pairs.mean for c in shown], [c.pairs.low for c in shown],
      [c.pairs.high for c in shown], 'difference, percentage points',
      'differences')
  alt = '; '.join(f'{label}: {c.pairs.mean:+.2f}, 95% interval '
                  f'{stats.interval_text(c.pairs.low, c.pairs.high, 2)}'
                  for label, c in zip(labels, shown))
  return [Figure('differences', svg, f'Differences from the baseline. {alt}.',
                 'Mean differences from the baseline and their 95% intervals, '
                 'not adjusted for the number of comparisons.')]


def rounds_to_baseline(arms: Sequence[TableArm]) -> Section:
  """Returns the rounds to the baseline's final accuracy, [] for no baseline."""
  rows = []
  for arm in arms:
    baseline = groups.baseline_of(arm, arms)
    if baseline is None:
      continue
    # Of fractions: percentages could round the target above the curve.
    reached = [
        run.rounds_to(baseline.runs[seed].values('test_accuracy')[-1], _WINDOW)
        for seed, run in arm.runs.items() if seed in baseline.runs
        and len(run.series('test_accuracy')) >= _WINDOW]
    theirs = '; '.join(
        f'{value.value:g}' + (f' ({value.settings["dataset"]})'
                              if 'dataset' in value.settings else '')
        for value in arm.of_measure('rounds'))
    rows.append((arm.label, baseline.label, theirs, rounds_text(reached)))
  if not rows:
    return []
  header = ('arm', 'target: last round of', 'published', 'ours, rounds')
  return ['## Rounds to the accuracy of the baseline', page_lib.table(
      'First round in which the median test accuracy of this round and '
      'the four evaluated before it is at least that of the baseline, '
      'with the same seed, after its last round. Median over seeds; runs '
      'that do not reach it count as later than all others. Runs of '
      'fewer than five evaluated rounds are left out.',
      *_without_empty(header, rows, 2))]


def rounds_text(reached: Sequence[int | None]) -> str:
  """Returns the median of rounds, where None is later than all."""
  if not reached:
    return ''
  median = statistics.median_high(
      [math.inf if r is None else r for r in reached])
  count = sum(r is not None for r in reached)
  text = 'never' if math.isinf(median) else f'{median:g}'
  if count in (0, len(reached)):
    return text
  return f'{text} (reached in {count} of {len(reached)} runs)'


# ------------------------------------------------------------ runs themselves


def curves(arms: Sequence[TableArm], panels: Sequence[str], loss_divisor: int,
           is_full: bool) -> Section:
  """Returns accuracy and losses by round, [] if no run has ended.

  Args:
    arms: the arms.
    panels: settings with one panel per value.
    loss_divisor: adds the test loss divided by it; 0 for none.
    is_full: whether to draw published accuracies as lines.
  """
  arms = [arm for arm in arms if arm.runs]
  drawn: Section = ['## Curves'] if arms else []
  for measure, ylabel in _MEASURES.items() if arms else ():
    drawn.append(_figure(arms, panels, measure, ylabel, 1, is_full))
    if measure == 'test_loss' and loss_divisor:
      drawn.append(_figure(arms, panels, measure, f'test loss / {loss_divisor}',
                           loss_divisor, is_full))
  return drawn


def _figure(arms, panels, measure, ylabel, divisor, is_full):
  """Returns the figure of one metric."""
  has_published = is_full and measure == 'test_accuracy'
  drawn: dict[str, list] = {}
  for arm in arms:
    title = ', '.join(
        f'{name} {show(getattr(arm.config, name))}' for name in panels)
    # The label leaves out what the panel names.
    label = ', '.join([arm.settings['algorithm'], *(
        f'{name} {arm.settings[name]}' for name in arm.named
        if name not in panels)])
    published = arm.of_measure('accuracy')
    drawn.setdefault(title, []).append(figures.Line(
        label, arm.config.algorithm, arm.curves(measure) / divisor,
        published[0].value if has_published and len(published) == 1 else None))
  name = measure.replace('_', '-') + '-divided' * (divisor > 1)
  svg = figures.curves(tuple(
      figures.Panel(title, tuple(lines[:_MAX_LINES]))
      for title, lines in drawn.items()), ylabel, name)
  left_out = sum(max(0, len(lines) - _MAX_LINES) for lines in drawn.values())
  caption = (f'{ylabel[0].upper()}{ylabel[1:]}, by round. Line: mean over runs;'
             ' band: smallest to largest.')
  if has_published:
    caption += ' Dashed: published.'
  if left_out:
    caption += (f' {left_out} arm(s) beyond the first {_MAX_LINES} of a panel '
                'are left out.')
  last = '; '.join(f'{line.label}: {_last(line.curves_ST)}'
                   for lines in drawn.values() for line in lines)
  return Figure(name, svg, f'{ylabel} by round. After the last round, {last}.',
                caption)


def _last(curves_ST):
  """Returns the mean of the last values of curves, as text."""
  ends = [curve[~np.isnan(curve)][-1:] for curve in curves_ST]
  known = np.concatenate(ends) if ends else np.array([])
  return f'{known.mean():.3g}' if len(known) else 'not measured'


def time(arms: Sequence[TableArm], has_prediction: bool) -> Section:
  """Returns the table of times, communication and hardware.

  Args:
    arms: the arms. With `has_prediction`, their runs trained alone.
    has_prediction: whether to add what the arithmetic of a local step predicts.
  """
  header = ['arm', 'seconds per round', 'examples/s', 'MB per round']
  has_published = any(arm.of_measure('seconds') for arm in arms)
  rows = []
  for arm in arms:
    sizes = [size / 1e6 for size in arm.summaries('bytes_per_round')]
    row = [arm.label, _median(arm.summaries('seconds_per_round'), 2),
           _median(arm.summaries('examples_per_second'), 0), _median(sizes, 2)]
    if has_published:
      row.append('; '.join(f'{value.value:g} s' + (
          f' ({value.settings["dataset"]})' if 'dataset' in value.settings
          else '') for value in arm.of_measure('seconds')))
    if has_prediction:
      row += _predicted(arm, arms)
    rows.append(row)
  header += ['published'] * has_published
  header += ['predicted / FedAvg', 'measured / FedAvg'] * has_prediction
  shared = ('Each run trained alone.' if has_prediction else
            'The time of a run is its equal share of the program that trained '
            'it, alone or with others, so that times of different programs do '
            'not compare methods.')
  parts: Section = ['## Time and communication', page_lib.table(
      f'Medians over rounds and runs. {shared} MB are 10^6 bytes sent and '
      'received by all clients of a round.', header, rows),
                    page_lib.text(_hardware(arms))]
  if has_prediction:
    parts.append(
        'Predicted: floating-point operations of a local step, as XLA counts '
        'them before it optimizes the program, divided by those of FedAvg with '
        'the same network. Measured: seconds per round divided by those of '
        'FedAvg.')
  return parts


def _median(values, digits):
  return f'{statistics.median(values):,.{digits}f}' if values else ''


def _predicted(arm, arms):
  """Returns the cost of an arm relative to FedAvg, predicted and measured."""
  from moon_jax.report import arithmetic

  same = next((other for other in arms if other.config.algorithm == 'fedavg'
               and all(getattr(other.config, name) == getattr(arm.config, name)
                       for name in ('dataset', 'model', 'num_clients',
                                    'participation', 'local_epochs'))), None)
  ours, theirs = (of.summaries('seconds_per_round') if of else []
                  for of in (arm, same))
  ratio = (statistics.median(ours) / statistics.median(theirs)
           if ours and theirs and statistics.median(theirs) else 0)
  return [f'{arithmetic.relative_cost(arm.config):.2f}',
          f'{ratio:.2f}' if ratio else '']


def _hardware(arms):
  """Returns the devices and versions of all runs."""
  found = {}
  for arm in arms:
    for run in arm.runs.values():
      versions = run.summary.get('versions', {})
      found[f'{run.summary.get("device", "unknown device")}, moon_jax '
            f'{versions.get("moon_jax", "?")}, JAX {versions.get("jax", "?")}, '
            f'{run.summary.get("arithmetic", "float32")}'] = None
  return f'Hardware and software: {"; ".join(found) or "no run has ended"}.'


def commands(arms: Sequence[TableArm], command: str) -> Section:
  """Returns the commands that repeat the page and each run.

  Args:
    arms: the arms.
    command: the command of the page.
  """
  rows = []
  for arm in arms:
    seeds = dict.fromkeys(str(seed) for seed, _ in sorted(arm.runs))
    rows.append((arm.label, ', '.join(seeds) or 'none',
                 f'`{groups.normalized(arm.config).command()}`'))
  parts: Section = [
      '## Commands', 'This page; runs that are missing are trained:',
      page_lib.code(command), page_lib.table(
          'The command of one run of each arm; the others differ in --seed. A '
          'DATA_DIR is the directory of the data set.',
          ('arm', 'finished seeds', 'command'), rows)]
  diverged = [(arm.label, str(run.config['seed']), ' '.join(
      run.state.reason.split())) for arm in arms for run in arm.others]
  if diverged:
    parts.append(page_lib.table(
        'Runs that diverged. They are left out of all means and comparisons.',
        ('arm', 'seed', 'reason'), diverged))
  return parts


def _facts(table: Table) -> Section:
  """Returns the notes and the source of a table, [] if there are none."""
  parts = [page_lib.listing(table.notes)] if table.notes else []
  if table.source:
    parts.append(page_lib.text(f'Source of the table: {table.source}.'))
  title = ('Notes' if table.budget in ('full', '') else
           'Notes on the table at its full budget')
  return [f'## {title}', *parts] if parts else []
