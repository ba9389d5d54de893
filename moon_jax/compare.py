"""Compares runs: python -m moon_jax.compare RUN RUN ...

Each RUN is the directory of a run, a directory above several such as that of a
sweep, or a pattern. Runs that differ only in their seeds are one row: mean ±
sample standard deviation. docs/looking_at_runs.md describes the output.
"""

import argparse
from collections.abc import Sequence
import pathlib
import statistics
import sys

from moon_jax.cli import file_command
from moon_jax.errors import UserError
from moon_jax.report import groups as groups_lib
from moon_jax.report.groups import Arm
from moon_jax.results import frames, paired, read, stats
from moon_jax.sweep.table import SEEDS
from moon_jax.view.text import aligned, duration, wrapped

_CSV_COLUMNS = [  # besides the settings in which runs differ
    *SEEDS, 'state', 'rounds', 'last', 'best', 'best_round', 'mean_of_last_10',
    'target', 'rounds_to_target', 'seconds_per_round', 'seconds_of_rounds']


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
      prog='moon-jax compare', description='Compares runs: which settings '
      'differ, accuracies, rounds to a target, seconds.')
  parser.add_argument('runs', nargs='+', metavar='RUN', help='directory of a '
                      'run, directory above several runs, or pattern')
  parser.add_argument('--target', type=float, metavar='ACCURACY',
                      help='accuracy, a fraction, of "rounds to target"; by '
                      'default the last one of the baseline')
  parser.add_argument('--baseline', default='', metavar='SETTING',
                      help='the runs that others are compared with, such as '
                      'fedavg or mu=1; by default fedavg, or the first ones')
  parser.add_argument('--plot', type=pathlib.Path, metavar='FILE.png',
                      help='draws the curves')
  parser.add_argument('--csv', type=pathlib.Path, metavar='FILE',
                      help='writes one row per run')
  file_command.start(parser, _compare)


def _compare(arguments: argparse.Namespace) -> None:
  if arguments.target is not None and not 0 < arguments.target <= 1:
    raise UserError('--target must be a fraction above 0, at most 1; got '
                    f'{arguments.target}')
  runs = _read(arguments.runs)
  groups = groups_lib.of_runs(runs)
  if not all(read.is_run(path) for path in arguments.runs):
    # The names of directories end with hashes: their order means nothing.
    groups.sort(key=groups_lib.order)
  base = baseline(groups, arguments.baseline)
  target = arguments.target
  if target is None and base.runs:
    target = statistics.fmean(
        run.values('test_accuracy')[-1] for run in base.runs.values())
  parts = [_common(runs, groups), *_tables(groups, target),
           differences(groups, base), _notes(groups)]
  text = '\n\n'.join('\n'.join(
      row for line in part for row in wrapped(line)) for part in parts if part)
  is_unicode = 'utf' in (sys.stdout.encoding or '').lower()
  print(text if is_unicode else text.replace('±', '+-').replace('–', '-'))
  if arguments.csv:
    _write_csv(runs, groups, target, arguments.csv)
    print(f'table: {arguments.csv}', file=sys.stderr)
  if arguments.plot:
    from moon_jax.results import figures

    figures.save_curves([
        figures.Line(f'{arm.label} (n={len(arm.runs)})', next(iter(
            _members(arm))).config['algorithm'], arm.curves())
        for arm in groups], 'test accuracy (%)', arguments.plot)
    print(f'plot: {arguments.plot}', file=sys.stderr)


def _read(arguments):
  """Returns the runs that have metrics; reports the others."""
  runs = []
  for path in read.find(arguments):
    try:
      run = read.read(path)
      if not run.series('test_accuracy'):
        raise UserError(f'{path} has no accuracy yet ({run.state.kind})')
      runs.append(run)
    except UserError as error:
      print(f'left out: {error}', file=sys.stderr)
  if not runs:
    raise UserError('there must be a run with an accuracy, got none; wait for '
                    'a first round, or name other directories')
  return runs


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


def _write_csv(runs, groups, target, path):
  settings = {str(run.path): arm.settings for arm in groups
              for run in _members(arm)}
  table = frames(runs).runs
  table['target'] = target
  table['rounds_to_target'] = [target and run.rounds_to(target) for run in runs]
  table = table[_CSV_COLUMNS].astype({'rounds_to_target': 'Int64'})
  for i, name in enumerate(groups[0].settings):
    table.insert(i, name, [settings[run][name] for run in table.index])
  table.to_csv(path, lineterminator='\r\n')


def _members(found):
  return [*found.runs.values(), *found.others]


def _common(runs, groups):
  names = list(groups[0].settings)
  same = [runs[0].config[name] for name in ('dataset', 'algorithm', 'model')
          if name not in names]
  what = f' of {", ".join(same)}' * bool(same)
  differ = (f'they differ in {", ".join(names)}' if names
            else 'they differ at most in their seeds')
  lines = [f'{len(runs)} run{"s" * (len(runs) > 1)}{what}; '
           + (differ if len(runs) > 1 else str(runs[0].path))]
  if 'dataset' in names:
    datasets = sorted({run.config['dataset'] for run in runs})
    lines += ['', f'The runs have different data sets ({", ".join(datasets)}): '
              'their accuracies cannot be compared.']
  return lines


def _tables(groups, target):
  """Returns the lines of accuracies, and those of rounds and times."""
  accuracies = [['', 'n', 'rounds', 'last', 'best', 'mean of last 10']]
  times = [['', 'to target', 's/round', 'time']]
  for found in groups:
    ends = [run.endpoints() for run in found.runs.values()]
    median = lambda name, form, of=ends: (
        form(statistics.median(values)) if (
            values := [end[name] for end in of if name in end]) else '-')
    label = found.label + '*' * (not _has_finished(found))
    accuracies.append([
        label, f'{len(ends)}' + f'/{len(_members(found))}' * bool(found.others),
        stats.range_text((len(run.lines) for run in found.runs.values()),
                         '..') or '-',
        *(stats.mean_and_std([end['test_accuracy'][name] for end in ends], 1,
                             100, missing='-')
          for name in ('last', 'best', 'mean_of_last_10'))])
    reached = [target and run.rounds_to(target) for run in found.runs.values()]
    times.append([label, stats.rounds_text(reached if target else [], '-'),
                  median('seconds_per_round', '{:.2f}'.format),
                  median('seconds_of_rounds', duration)])
  notes = []
  if any(len(run.values('test_accuracy')) < stats.LAST
         for found in groups for run in found.runs.values()):
    notes.append('mean of last 10: of the last 10 evaluations, or of all if '
                 'fewer')
  if not all(map(_has_finished, groups)):
    notes.append('* no run has finished: results so far')
  goal = f'rounds to {100 * target:.2f}% test accuracy; ' if target else ''
  return [['test accuracy (%)', *aligned(accuracies), *notes],
          [f'{goal}times of a round and of all rounds (medians)',
           *aligned(times)]]


def _has_finished(found):
  return any(run.state.kind == 'finished' for run in found.runs.values())


def differences(groups: Sequence[Arm], base: Arm) -> list[str]:
  """Returns the lines of paired differences from the baseline."""
  rows = [['', 'pairs', 'last', 'mean of last 10']]
  for found in groups:
    if found is base or any(  # evaluated on other examples
        found.settings.get(name) != base.settings.get(name)
        for name in ('dataset', 'content of dataset', 'eval_examples')):
      continue
    last, mean = (groups_lib.compare(found, base, n) for n in (1, stats.LAST))
    rows.append([found.label, str(len(last.differences)), *map(
        _interval, (last, mean))])
  if len(rows) == 1:
    return []
  return [f'difference from {base.label} in points, over common seeds (95% '
          'interval)', *aligned(rows)]


def _interval(found):
  """Formats a difference and its 95% interval."""
  if not found.differences:
    return 'no common seed'
  interval = paired.interval_text(found)
  return f'{found.mean:+.2f}' + f' ({interval})' * bool(interval)


def _notes(groups):
  lines = []
  for found in groups:
    for i, run in enumerate(_members(found)):
      counts, kind = i < len(found.runs), run.state.kind
      if kind != 'finished' or not counts:
        reason = (f'{kind}, with the seed {run.config["seed"]} of another run'
                  if kind == 'finished' else
                  f'{kind} {" ".join(run.state.text.split())}')
        lines.append(f'{found.label}{", not counted" * (not counts)}: '
                     f'{run.path.name}: {reason}')
  return lines


if __name__ == '__main__':
  main()
