"""The pages of tables: their sections, made from arms.

A section is a list of Markdown and figures that begins with its heading.
"""

from collections.abc import Sequence
import math
import statistics

import numpy as np

from moon_jax.results import arms as arms_lib
from moon_jax.results import figures, paired, stats
from moon_jax.results import page as page_lib
from moon_jax.results.arms import Arm, TableArm
from moon_jax.results.page import Figure, Page
from moon_jax.results.table_file import Table
from moon_jax.runs.values import NO_VALUE, show, shown
from moon_jax.simulation.metric_functions import is_better_lower
from moon_jax.view.text import fixed

Section = list[str | Figure]

_WINDOW = 5  # rounds of the running median
_MOST_LINES = 12  # of a figure
_MEASURES = 'test_accuracy', 'test_loss', 'train_loss'  # that are drawn
_WARNINGS = {
    'smoke': 'It shows that the table can be made, and nothing about the '
             'methods.',
    'small': 'Accuracies cannot be compared with published ones, and '
             'differences between methods may change with more rounds.',
    'full': ''}


def make(table: Table, arms: Sequence[TableArm], command: str,
         data_dir: str = '') -> Page:
  """Returns the page of a table; without arms, that of its data."""
  if not arms:
    return Page(table.title, _banner(table, ()), [
        table.description, *_extra(table, (), data_dir), *_facts(table),
        '## Command', f'```\n{command}\n```'])
  is_full = table.budget == 'full' and not table.changed
  arms = arms_lib.chosen(arms, table.best_of)
  is_timed = table.headline == 'time'
  accuracies = accuracy(arms, is_full) + heldout(arms)
  rounds = rounds_to_baseline(arms)
  compared, times = differences(arms), time(arms, is_timed)
  first = {'accuracy': accuracies + compared + rounds,
           'rounds': rounds + accuracies + compared,
           'time': times + accuracies + compared}[table.headline]
  return Page(table.title, _banner(table, arms), [
      *_lead(table, arms), *first, *_extra(table, arms, data_dir),
      *curves(arms, [name for name in _MEASURES if any(
          arm.values(name) for arm in arms)], table.panels, is_full),
      *([] if is_timed else times),
      *_facts(table), *commands(arms, command, True)])


def _extra(table, arms, data_dir):
  """Returns the sections of `Table.pages`."""
  parts: Section = []
  if 'data' in table.pages:
    from moon_jax.results import data_page

    parts += data_page.sections(table.sweep.configs)
  if 'projections' in table.pages:
    from moon_jax.results import projections

    firsts = {arm.label: next(iter(arm.runs.values())).path
              for arm in arms if arm.runs}
    kept = {label: path for label, path in firsts.items()
            if (path / 'model.safetensors').exists()}
    parts += projections.section(kept, data_dir) if kept else [
        '## Projections',
        'No finished run has its final model, model.safetensors.']
  return parts


def _banner(table, arms):
  configs = table.sweep.configs
  steps = {config.local_steps for config in configs}
  names = ['dataset']
  if arms:
    names += ['num_rounds', *['local_steps'] * any(steps),
              *['local_epochs'] * (0 in steps)]
  if any(config.train_examples for config in configs):
    names.append('train_examples')
  text = _settings(configs, names)
  if arms:
    runs = sum(len(arm.seeds) for arm in arms)
    text += f'; {runs} run{"s" * (runs != 1)}'
  name = table.budget.upper() + ' BUDGET' + ', CHANGED' * bool(table.changed)
  return f'{name}: {text}. {_WARNINGS[table.budget] * bool(arms)}'.strip()


def _settings(configs, names):
  rows = [shown(config, names) for config in configs]
  return '; '.join(f'{name} {", ".join(dict.fromkeys(column))}'
                   for name, column in zip(names, zip(*rows)))


def _lead(table, arms):
  """Returns the first paragraphs: what the table is, and what is missing."""
  planned = sum(len(arm.seeds) for arm in arms)
  ended = sum(len(arm.members) for arm in arms)
  texts = [table.description]
  if table.budget != 'full':
    replaced = {name for block in table.blocks
                for name in block.replaced} - {'data_dir'}
    texts.append('This describes the full budget. Settings of this one: '
                 f'{_settings(table.sweep.configs, sorted(replaced))}.')
  if ended < planned:
    texts.append(f'**{ended} of {planned} runs have ended.** Rows of '
                 'unfinished runs are empty or incomplete.')
  return texts


# ------------------------------------------------------ accuracies, or losses


def accuracy(arms: Sequence[TableArm], is_full: bool) -> Section:
  """Returns the table of measured and published test accuracies.

  Differences from published values are shown for runs of the published budget
  (`is_full`). Tasks without accuracy have their test loss.
  """
  measure = arms_lib.measure_of(arms)
  is_accuracy = measure == 'test_accuracy'
  percent = ' (%)' * is_accuracy
  unit = 'rounds' if all(arm.config.eval_every == 1 for arm in arms) else (
      'evaluations')
  rows = []
  for arm in arms:
    values = list(arm.values(measure).values())
    stds = arm.values('test_accuracy_std').values()
    published = arm.published_accuracy if is_accuracy else None
    digits = stats.digits(measure, values)
    row = {
        'arm': arm.label, 'published (%)': _published(arm, 'accuracy'),
        f'ours, last round{percent}': stats.mean_and_std(values, digits) + (
            f' (over clients ± {fixed(statistics.fmean(stds), 1)})'
            if stds else ''),
        f'mean of last {stats.LAST} {unit}{percent}': stats.mean_and_std(
            list(arm.values(measure, stats.LAST).values()), digits),
        'runs': stats.count_text(
            len(arm.runs), len(arm.seeds), len(arm.others))}
    if is_full and values and published:
      welch = paired.welch(
          values, published.value, published.std, published.n)
      row |= {'ours − published': fixed(welch.mean, 1, '+'),
              '95% interval': stats.interval_text(welch.low, welch.high),
              'p, Welch': stats.p_text(welch.p_value)}
    rows.append(row)
  caption = (f'{"Top-1 test accuracy" if is_accuracy else "Test loss"}: mean ± '
             'sample standard deviation over runs, each with its own seed and '
             'split unless settings say otherwise. Settings that a name leaves '
             "out have the value of most arms, or their flag's default.")
  if any(row.get('p, Welch') for row in rows):
    caption += (' Published spreads may be over other seeds of one split; 3 '
                'published runs are assumed where the number is unknown.')
  if any(len(run.values(measure)) < stats.LAST
         for arm in arms for run in arm.runs.values()):
    caption += f' Where there are fewer than {stats.LAST}, the mean is of all.'
  best = [i for i, arm in enumerate(arms) if arm.is_best]
  if best:
    caption += (f' Bold rows were chosen by their {_word(measure)} on the test '
                'set.')
  return [f'## Test {_word(measure)}', page_lib.table(caption, rows, best)]


def _word(measure):
  """Returns accuracy or loss."""
  return measure.removeprefix('test_')


def heldout(arms: Sequence[TableArm]) -> Section:
  """Returns accuracies on held-out examples of clients, [] without these.

  Means weigh clients by their examples if the table has published values, as
  these do.
  """
  metric = next((name for name in stats.OF_CLIENTS if any(
      arm.summaries(name) for arm in arms)), None)
  if metric is None:
    return []
  columns = {
      'global model (%)': 'global_heldout_accuracy',
      'models of clients (%)': metric,
      'their worst tenth (%)': f'{metric}_worst_tenth'}
  published = {'published, global (%)': 'global',
               'published, of clients (%)': 'personal'}
  shown = {title: measure for title, measure in published.items()
           if any(_published(arm, measure) for arm in arms)}
  if shown:
    columns = {title: name if 'tenth' in name else f'{name}_weighted'
               for title, name in columns.items()}
  rows = [{'arm': arm.label} | {
      title: _published(arm, measure) for title, measure in shown.items()} | {
          title: stats.metric_text(name, arm.summaries(name))
          for title, name in columns.items()} for arm in arms]
  note = stats.note_of_missing(
      x for arm in arms for name in columns.values()
      for x in arm.summaries(name))
  return ['## Accuracy on held-out examples of clients', page_lib.table(
      f'Mean over {"held-out examples" if shown else "clients"} (the worst '
      'tenth: over its clients), after the last evaluation: mean ± sample '
      'standard deviation over runs. Models of clients are '
      + ('those that they have in the method: the personal one, or the global '
         'one (docs/metrics.md, All clients).'
         if metric == stats.OF_CLIENTS[0] else
         'personal ones, otherwise local ones after training.')
      + ''.join(f' {text[0].upper()}{text[1:]}.' for text in note), rows)]


def _published(arm, measure):
  """Returns published values with their spreads and what they are of."""
  values = [value for value in arm.published if value.measure == measure]
  shown = {name for value in values for name in value.settings
           if name == 'dataset' or len(
               {repr(other.settings.get(name)) for other in values}) > 1}
  texts = []
  for value in values:
    what = [show(x) if name == 'dataset' else f'{name} {show(x)}'
            for name, x in value.settings.items() if name in shown]
    what += [value.note] * bool(value.note)
    std = '' if value.std is None else f' ± {number(value.std)}'
    texts.append((f'{value.value:g}' if measure in ('rounds', 'seconds') else
                  number(value.value)) + std + f' ({", ".join(what)})' * bool(
                      what))
  return '; '.join(texts)


def number(value: float) -> str:
  """Formats a published number with one decimal or more."""
  return f'{value:.1f}' if round(value, 1) == value else f'{value:g}'


def baseline_of(arm: TableArm, arms: Sequence[TableArm]) -> TableArm | None:
  """Returns the arm to which an arm of a table is compared, if any."""
  return arms_lib.baseline_of(arm, arms, arm.block.baseline)


def differences(arms: Sequence[TableArm]) -> Section:
  """Returns paired differences from baselines, [] if there are none."""
  measure = arms_lib.measure_of(arms)
  unit = ', in percentage points' * (measure == 'test_accuracy')
  compared = [(arm, baseline, arms_lib.compare(arm, baseline, measure=measure))
              for arm in arms if (baseline := baseline_of(arm, arms))]
  if not compared:
    return []
  holm = paired.holm([pairs.p_value for _, _, pairs in compared])
  num_tests = int(np.isfinite(holm).sum())
  rows = []
  for (arm, baseline, pairs), holm_p in zip(compared, holm):
    ours, theirs = arm.published_accuracy, baseline.published_accuracy
    digits = stats.digits_of_difference(measure, pairs.mean, pairs.std)
    rows.append({
        'arm': arm.label, 'baseline': baseline.label,
        'published difference': fixed(ours.value - theirs.value, 1, '+')
                                if ours and theirs else '',
        'pairs': str(len(pairs.differences)),
        'our difference': fixed(
            pairs.mean, digits, '+') * bool(pairs.differences),
        '95% interval': paired.interval_text(pairs, digits),
        'p, paired t': stats.p_text(pairs.p_value),
        'p, Holm': stats.p_text(holm_p),
        'verdict': paired.verdict(pairs, holm_p)})
  return ['## Differences from the baseline', page_lib.table(
      f'Test {_word(measure)} after the last round{unit}. Both runs of a pair '
      'have the same seed, and with it the same split, cohorts, initial model '
      'and shuffles, unless the arms differ in them.' + (
          f" Holm's p is adjusted for {num_tests} comparison"
          f'{"s" * (num_tests > 1)}.' if num_tests else ''), rows)]


def rounds_to_baseline(arms: Sequence[TableArm]) -> Section:
  """Returns the rounds to the baseline's final accuracy, [] for no baseline."""
  measure = arms_lib.measure_of(arms)
  rows = []
  for arm in arms:
    baseline = baseline_of(arm, arms)
    if baseline is None:
      continue
    # Of fractions: percentages could round the target above the curve.
    reached = [
        run.rounds_to(baseline.runs[seed].last(measure), _WINDOW, measure)
        for seed, run in arm.runs.items() if seed in baseline.runs
        and len(run.series(measure)) >= _WINDOW]
    rows.append({'arm': arm.label, 'target: last round of': baseline.label,
                 'published': _published(arm, 'rounds'),
                 'ours, rounds': stats.rounds_text(reached)})
  return [f'## Rounds to the {_word(measure)} of the baseline', page_lib.table(
      f'First round in which the median test {_word(measure)} of this round '
      'and the four evaluated before it is '
      f'{"at most" if is_better_lower(measure) else "at least"} that of the '
      'baseline, with the same seed, after its last round. Median over seeds; '
      'runs that do not reach it are later than all others, and those that do '
      'are counted in parentheses.', rows)] if any(
          row['published'] or row['ours, rounds'] for row in rows) else []


# ------------------------------------------------------------ runs themselves


def curves(arms: Sequence[Arm], measures: Sequence[str],
           panels: Sequence[str] = (), is_full: bool = False) -> Section:
  """Returns metrics by round, [] if no run has ended.

  Args:
    arms: those without runs are left out.
    measures: the metrics, each of which has figures of its own.
    panels: settings with a figure for each of their values.
    is_full: whether the runs have the published budget; published accuracies
      are lines then.

  Many arms have several figures, in the order of their last values.
  """
  members: dict[str, list[Arm]] = {}
  for arm in arms:
    if arm.runs:
      members.setdefault(', '.join(
          f'{name.rpartition(".")[2]} {value}' for name, value in zip(
              panels, shown(arm.config, panels))
          if value != NO_VALUE), []).append(arm)
  return ['## Curves'] * bool(members) + [
      _figure(shown, title, suffix, panels, measure, is_full)
      for measure in measures
      for i, (panel, arms) in enumerate(members.items(), 1)
      for title, suffix, shown in _parts(
          arms, panel, f'-{i}' * bool(panel), measure)]


def _parts(arms, title, suffix, measure):
  """Yields title, suffix of the name, and arms of each figure of a panel."""
  if len(arms) <= _MOST_LINES:
    yield title, suffix, arms
    return
  sign = -1 if 'accuracy' in measure else 1

  def rank(arm):
    values = arm.values(measure).values()
    return not values, sign * statistics.fmean(values) if values else 0

  ranked = sorted(arms, key=rank)
  for first in range(0, len(arms), _MOST_LINES):
    members = ranked[first:first + _MOST_LINES]
    ranks = f'ranks {first + 1} to {first + len(members)}'
    yield (', '.join(filter(None, [title, ranks])),
           f'{suffix}-{first // _MOST_LINES + 1}', members)


def _figure(arms, title, suffix, panels, measure, is_full):
  ylabel = stats.label(measure)
  has_published = is_full and measure == 'test_accuracy'
  lines = [figures.Line(
      arm.label_without(panels), arm.config.algorithm.name, arm.curves(measure),
      arm.published_accuracy.value if has_published and arm.published_accuracy
      else None) for arm in arms]
  name = figures.file_name(measure) + suffix
  what = ', '.join(filter(None, [title, f'{ylabel} by round']))
  caption = f'{what[0].upper()}{what[1:]}.'
  if any(len(arm.runs) > 1 for arm in arms):
    caption += ' Line: mean over runs; band: smallest to largest.'
  ends = [f'{line.label} {line.curves.dropna().index.max()}'
          for line in lines if figures.is_cut(line.curves)]
  if ends:
    caption += (' These curves end with the shortest run of their row, in '
                f'round: {"; ".join(ends)}.')
  if any(line.published is not None for line in lines):
    caption += ' Thin horizontal lines: published.'
  last = '; '.join(
      f'{arm.label}: ' + (f'{statistics.fmean(values):.3g}' if values
                          else 'not measured')
      for arm in arms for values in [arm.values(measure).values()])
  return Figure(name, figures.curves(lines, ylabel, name),
                f'{what}. After the last round, {last}.', caption)


def pictures(drawn: Sequence[figures.Picture]) -> Section:
  """Returns a section for each picture of a run."""
  return [part for picture in drawn for part in (
      f'## {picture.name.capitalize().replace("-", " ")}', Figure(
          picture.name, figures.svg(
              picture.draw, picture.size[1], picture.name, picture.size[0]),
          picture.caption, picture.caption, is_wide=True))]


def time(arms: Sequence[TableArm], is_timed: bool) -> Section:
  """Returns the table of times, communication and hardware.

  Times are compared if each run trained alone (`is_timed`).
  """
  rows = []
  for arm in arms:
    median = lambda name, of=arm: statistics.median(
        of.summaries(name) or [math.nan])
    text = lambda value, form=',.2f': (
        '' if math.isnan(value) else f'{value:{form}}')
    seconds, base = median('seconds_per_round'), baseline_of(arm, arms)
    rows.append({
        'arm': arm.label, 'seconds per round': text(seconds),
        'examples/s': text(median('examples_per_second'), ',.0f'),
        'MB per round': text(median('bytes_per_round') / 1e6),
        'published, seconds': _published(arm, 'seconds'),
        'time / baseline': text(seconds / median('seconds_per_round', base))
                           if is_timed and base else ''})
  shared = ('Each run trained alone.' if is_timed else
            'The time of a run is its equal share of the program that trained '
            'it, alone or with others, so that times of different programs do '
            'not compare methods.')
  hardware: dict[str, None] = {}
  for summary in (run.summary for arm in arms for run in arm.runs.values()):
    versions = summary.get('versions', {})
    hardware[f'{summary.get("device", "unknown device")}, moon_jax '
             f'{versions.get("moon_jax", "?")}, JAX {versions.get("jax", "?")},'
             f' {summary.get("arithmetic", "float32")}'] = None
  return ['## Time and communication', page_lib.table(
      f'Medians over rounds and runs. {shared} MB are 10^6 bytes sent and '
      'received by all clients of a round.', rows),
          'Hardware and software: '
          f'{"; ".join(hardware) or "no run has ended"}.']


def commands(arms: Sequence[Arm], command: str, is_table: bool = True
             ) -> Section:
  """Returns the commands that repeat the page and each run.

  That of a table can train its missing runs.
  """
  trains = '; --train trains runs that are missing' * is_table
  parts: Section = [
      '## Commands', f'This page{trains}:',
      f'```\n{command}\n```',
      'The command of one run of each arm; the others differ in --seed. A '
      'DATA_DIR is the directory of the data set.']
  for arm in arms:
    first = min((run.config for run in arm.members), default=arm.config,
                key=lambda config: config.seed)
    seeds = dict.fromkeys(str(seed) for seed, _ in sorted(arm.runs)
                          if arm.is_finished)  # or no run has
    parts += [f'**{arm.label}**, finished seeds: {", ".join(seeds) or "none"}',
              f'```\n{first.command()}\n```']
  diverged = [{'arm': arm.label, 'seed': str(run.config.seed),
               'reason': f'`{run.state.reason}`' * bool(run.state.reason)}
              for arm in arms for run in arm.others
              if run.state.kind == 'diverged']
  if diverged:
    parts.append(page_lib.table(
        'Runs that diverged. They are left out of all means and comparisons.',
        diverged))
  return parts


def _facts(table):
  """Returns the notes and the source of a table, [] if there are none."""
  title = '## Notes' + ' on the table at its full budget' * (
      table.budget != 'full')
  source = f'Source of the table: {table.source}.' * bool(table.source)
  notes = '\n'.join(f'- {note}' for note in table.notes)
  return [title, notes, source] if notes or source else []
