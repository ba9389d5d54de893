"""Compares runs: moon-jax compare RUN RUN ...

Each RUN is the directory of a run, a directory above several such as that of a
sweep, or a pattern. Runs that differ only in their seeds are one row: mean ±
sample standard deviation. docs/looking_at_runs.md describes the output.
"""

import argparse
from collections.abc import Sequence
import math
import statistics
import sys

import numpy as np
import pandas as pd

from moon_jax.cli import file_command
from moon_jax.errors import UserError
from moon_jax.results import arms as arms_lib
from moon_jax.results import frames, paired, read, stats
from moon_jax.results.arms import Arm
from moon_jax.runs.table import SEEDS
from moon_jax.view.text import aligned, duration, fixed, metric, wrapped

_CSV_COLUMNS = [  # besides the settings in which runs differ
    *SEEDS, 'state', 'rounds', 'last', 'best', 'best_round', 'mean_of_last_10',
    'target', 'rounds_to_target', 'simulated_seconds_to_target',
    'seconds_per_round', 'seconds_of_rounds']
_AXES = 'simulated_seconds', 'bytes'  # of curves, besides the round


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
      prog='moon-jax compare', description='Compares runs: which settings '
      'differ, accuracies, rounds to a target, seconds.')
  parser.add_argument('runs', nargs='+', metavar='RUN', help='directory of a '
                      'run, directory above several runs, or pattern')
  parser.add_argument('--target', type=float, metavar='ACCURACY',
                      help='accuracy, a fraction such as 0.8 for 80%%, or '
                      'loss of "rounds to target"; by default the last one of '
                      'the baseline')
  parser.add_argument('--baseline', default='', metavar='SETTING',
                      help='the runs that others are compared with, such as '
                      'fedavg or mu=1; by default fedavg, or the first ones')
  parser.add_argument('--plot', type=file_command.path, metavar='FILE.png',
                      help='draws the curves')
  parser.add_argument('--x', default='round', help='what the curves are drawn '
                      'over: round (the default), simulated_seconds, or bytes '
                      'exchanged', choices=('round', *_AXES))
  parser.add_argument('--csv', type=file_command.path, metavar='FILE',
                      help='writes one row per run')
  file_command.start(parser, _compare)


def _compare(arguments: argparse.Namespace) -> None:
  runs, measure = _read(arguments.runs)
  target = arguments.target
  if target is not None and not 0 < target <= (
      1 if measure == 'test_accuracy' else math.inf):
    percent = f' Write --target={target / 100:g} for {target:g}%' * (
        1 < target <= 100)
    raise UserError('--target must be a fraction above 0, at most 1, or a loss '
                    f'above 0; got {target:g}.{percent}')
  groups = arms_lib.of_runs(runs)
  if not all(read.is_run(path) for path in arguments.runs):
    # The names of directories end with hashes: their order means nothing.
    groups.sort(key=arms_lib.order)
  base = baseline(groups, arguments.baseline)
  if target is None and base.runs:
    target = statistics.mean(  # exact: fmean may be above equal numbers
        run.values(measure)[-1] for run in base.runs.values())
  table = frames(runs).runs
  table['target'] = target
  table['rounds_to_target'] = [
      target and run.rounds_to(target, measure=measure) for run in runs]
  table['simulated_seconds_to_target'] = [
      dict(run.series('simulated_seconds')).get(reached)
      for run, reached in zip(runs, table.rounds_to_target)]
  parts = [_common(runs, groups), *_tables(groups, table, measure),
           differences(groups, base, measure), _notes(groups)]
  text = '\n\n'.join('\n'.join(
      row for line in part for row in wrapped(line)) for part in parts if part)
  is_unicode = 'utf' in (sys.stdout.encoding or '').lower()
  print(text if is_unicode else text.replace('±', '+-').replace('–', '-'))
  if arguments.csv:
    settings = {str(run.path): arm.settings for arm in groups
                for run in arm.members}
    written = table[_CSV_COLUMNS].astype({'rounds_to_target': 'Int64'})
    pd.DataFrame([settings[run] for run in table.index], table.index).join(
        written).to_csv(arguments.csv, lineterminator='\r\n',
                       errors='backslashreplace')
    print(f'table: {arguments.csv}', file=sys.stderr)
  if arguments.plot:
    from moon_jax.results import figures

    path = figures.save_curves([
        figures.Line(f'{arm.label} (n={len(arm.runs)})',
                     arm.config.algorithm.name,
                     _over(arm, arguments.x, measure))
        for arm in groups if arm.runs],
                               _title(measure), arguments.plot,
                               arguments.x.replace('_', ' '))
    print(f'plot: {path}', file=sys.stderr)


def _read(arguments):
  """Returns runs and the metric that they all have; reports the others.

  The metric is the accuracy if any run has it, otherwise the loss.
  """
  runs = []
  for path in read.find(arguments):
    try:
      run = read.read(path)
      if not run.measure():
        raise UserError(f'{path} has no evaluation yet ({run.state.kind})')
      runs.append(run)
    except UserError as error:
      print(f'left out: {error}', file=sys.stderr)
  if not runs:
    raise UserError('there must be a run with an evaluation, got none; wait '
                    'for a first one, or name other directories')
  measure = ('test_accuracy' if any(
      run.measure() == 'test_accuracy' for run in runs) else 'test_loss')
  for run in runs:
    if run.measure() != measure:
      print(f'left out: {run.path} has no {measure}, by which the other runs '
            'are compared', file=sys.stderr)
  return [run for run in runs if run.measure() == measure], measure


def baseline(groups: Sequence[Arm], name: str = '') -> Arm:
  """Returns the arm that has a setting; by default fedavg, or the first arm.

  Raises:
    UserError: if not exactly one arm has the setting.
  """
  if not name:
    return next((arm for arm in groups
                 if arm.settings.get('algorithm') == 'fedavg'), groups[0])
  matching = [arm for arm in groups if name in arm.label.split()
              or name in arm.settings.values()]
  if len(matching) != 1:
    raise UserError(
        f'--baseline={name} must be a setting of one group, got '
        f'{len(matching)}; the groups are '
        + '; '.join(arm.label for arm in groups))
  return matching[0]


def _over(arm, name, measure):
  """Returns curves over the mean of another number in the same rounds."""
  curves = arm.curves(measure)
  if name == 'round':
    return curves
  if name == 'bytes':
    places = curves.index * statistics.fmean(
        arm.summaries('bytes_per_round') or [math.nan])
  else:
    places = arm.curves(name).mean(axis=1).reindex(curves.index)
  if np.isnan(places).any():
    raise UserError(
        f'--x={name} must be known of all runs; {arm.label} lacks it. Runs '
        'with --clock have simulated_seconds, and finished runs bytes. Remove '
        '--x')
  return curves.set_axis(places)


def _title(measure):
  return measure.replace('_', ' ') + ' (%)' * ('accuracy' in measure)


def _common(runs, groups):
  names = list(groups[0].settings)
  same = [str(getattr(runs[0].config, name))
          for name in ('dataset', 'algorithm', 'model')
          if name not in names]
  what = f' of {", ".join(same)}' * bool(same)
  differ = (f'they differ in {", ".join(names)}' if names
            else 'they differ at most in their seeds')
  lines = [f'{len(runs)} run{"s" * (len(runs) > 1)}{what}; '
           + (differ if len(runs) > 1 else str(runs[0].path))]
  if 'dataset' in names:
    datasets = sorted({run.config.dataset for run in runs})
    lines += ['', f'The runs have different data sets ({", ".join(datasets)}): '
              'their results cannot be compared.']
  return lines


def _tables(groups, table, measure):
  """Returns the lines of results, and those of rounds and times."""
  results = [['', 'n', 'rounds', 'last', 'best', 'mean of last 10']]
  timed = bool(table.simulated_seconds_to_target.notna().any())
  times = [['', 'to target', *['simulated'] * timed, 's/round', 'time']]
  notes = []
  if any(len(run.values(measure)) < stats.LAST
         for arm in groups for run in arm.runs.values()):
    notes.append('mean of last 10: of the last 10 evaluations, or of all if '
                 'fewer')
  if any(_label(arm) != arm.label for arm in groups):
    notes.append('* no run has finished: results so far')
  target = table.target.iloc[0]
  for arm in groups:
    runs = table.loc[[str(run.path) for run in arm.runs.values()]]
    results.append([
        _label(arm),
        f'{len(runs)}' + f'/{len(arm.members)}' * bool(arm.others),
        stats.range_text(runs.rounds, '..') or '-',
        *(stats.metric_text(measure, runs[name], '-')
          for name in ('last', 'best', 'mean_of_last_10'))])
    reached = runs.rounds_to_target if target else []
    seconds = [f'{runs.seconds_per_round.median():.2f}',
               duration(runs.seconds_of_rounds.median())
               ] if len(runs) else ['-', '-']
    simulated = [stats.rounds_text(
        runs.simulated_seconds_to_target, '-', duration)] * timed
    times.append([_label(arm), stats.rounds_text(reached, '-'), *simulated,
                  *seconds])
  goal = (f'rounds to {metric(measure, target)} {measure.replace("_", " ")}; '
          if target else '')
  return [[_title(measure), *aligned(results), *notes],
          [f'{goal}times of a round and of all rounds (medians)',
           *aligned(times)]]


def _label(arm):
  """Returns the label, with a star if no run has finished."""
  return arm.label + '*' * all(
      run.state.kind != 'finished' for run in arm.runs.values())


def differences(groups: Sequence[Arm], base: Arm,
                measure: str = 'test_accuracy') -> list[str]:
  """Returns the lines of paired differences from the baseline."""
  rows = [['', 'pairs', 'last', 'mean of last 10']]
  digits, unit = (2, ' in points') if 'accuracy' in measure else (4, '')
  for arm in groups:
    if arm is base or any(  # evaluated on other examples
        arm.settings.get(name) != base.settings.get(name)
        for name in ('dataset', 'content of dataset', 'eval_examples')):
      continue
    every = [{run.config.eval_every for run in one.runs.values()}
             for one in (arm, base)]
    found = [arms_lib.compare(arm, base, n, measure) for n in (1, stats.LAST)]
    rows.append([_label(arm), str(len(found[0].differences)), *(
        'other --eval_every' if n > 1 and len(set.union(*every)) > 1 else
        fixed(pairs.mean, digits, '+')
        + (f' ({interval})' if (
            interval := paired.interval_text(pairs, digits)) else '')
        if pairs.differences else 'no common seed'
        for n, pairs in zip((1, stats.LAST), found))])
  if len(rows) == 1:
    return []
  return [f'difference from {_label(base)}{unit}, over common seeds (95% '
          'interval)', *aligned(rows)]


def _notes(groups):
  lines = []
  for arm in groups:
    for i, run in enumerate(arm.members):
      counts, kind = i < len(arm.runs), run.state.kind
      if kind != 'finished' or not counts:
        reason = (f'{kind}, with the seed {run.config.seed} of another run'
                  if kind == 'finished' else
                  f'{kind} {" ".join(run.state.text.split())}')
        lines.append(f'{arm.label}{", not counted" * (not counts)}: '
                     f'{run.path.name}: {reason}')
  return lines

