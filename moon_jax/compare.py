"""Compares runs: python -m moon_jax.compare RUN RUN ...

Each RUN is the directory of a run, a directory above several such as that of a
sweep, or a pattern. Runs that differ only in their seeds are one row: mean ±
sample standard deviation. docs/looking_at_runs.md describes the output.
"""

import argparse
import csv
import pathlib
import statistics
import sys
import textwrap

from moon_jax.cli import file_command
from moon_jax.errors import UserError
from moon_jax.report import groups as groups_lib
from moon_jax.results import cells
from moon_jax.results import read
from moon_jax.results import stats
from moon_jax.results.cells import WIDTH
from moon_jax.view import curves
from moon_jax.view import screen

_MAX_GROUPS = 26  # letters


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
      prog='moon-jax compare', description='Compares runs: which settings '
      'differ, accuracies, rounds to a target, seconds, curves.')
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
    groups = groups_lib.by_settings(groups)
  if len(groups) > _MAX_GROUPS:
    raise UserError(f'runs must differ in at most {_MAX_GROUPS} combinations of'
                    f' settings, got {len(groups)}; name fewer runs')
  base = groups_lib.named_baseline(groups, arguments.baseline)
  target = arguments.target
  if target is None and base.runs:
    target = statistics.fmean(
        run.values('test_accuracy')[-1] for run in base.runs.values())
  is_unicode = 'utf' in (sys.stdout.encoding or '').lower()
  text = _text(runs, groups, base, target, is_unicode)
  print(text if is_unicode else text.replace('±', '+-').replace('–', '-'))
  if arguments.csv:
    _write_csv(arguments.csv, runs, groups, target)
    print(f'table: {arguments.csv}', file=sys.stderr)
  if arguments.plot:
    from moon_jax.results import figures

    figures.draw_arms([(f'{mark}  {found.label}', found.curves() / 100)
                       for mark, found in zip(curves.MARKS, groups)],
                      arguments.plot)
    print(f'plot: {arguments.plot}', file=sys.stderr)


def _read(arguments):
  """Returns the runs that have metrics; reports the others."""
  runs = []
  for path in read.find(arguments):
    try:
      run = read.read(path)
    except UserError as error:
      print(f'left out: {error}', file=sys.stderr)
      continue
    if run.series('test_accuracy'):
      runs.append(run)
    else:
      print(f'left out: {path} has no accuracy yet ({run.state.kind})',
            file=sys.stderr)
  if not runs:
    raise UserError('there must be a run with an accuracy, got none; wait for '
                    'a first round, or name other directories')
  return runs


def _text(runs, groups, base, target, is_unicode):
  datasets = sorted({run.config['dataset'] for run in runs})
  lines = [_common(runs[0], len(runs), groups)]
  if len(datasets) > 1:
    lines.append([f'The runs have different data sets ({", ".join(datasets)}): '
                  'their accuracies cannot be compared.'])
  lines.append(_table(groups, target))
  if len(groups) > 1:
    lines.append(_differences(groups, base))
  shown = []
  for found in groups:
    rounds, means, _ = stats.mean_curve(found.curves() / 100)
    shown.append(list(zip(rounds.tolist(), means.tolist())))
  lines += [['test accuracy', *curves.draw(
      shown, WIDTH, 14, is_unicode)], _notes(groups)]
  return '\n\n'.join('\n'.join(
      row for line in part for row in (textwrap.wrap(
          line, WIDTH, subsequent_indent='  ')
                                       if len(line) > WIDTH else [line]))
                     for part in lines if part)


def _common(run, count, groups):
  names = list(groups[0].settings)
  same = [run.config[name] for name in ('dataset', 'algorithm', 'model')
          if name not in names]
  what = f' of {", ".join(same)}' if same else ''
  differ = (f'differ in {", ".join(names)}' if names
            else 'differ at most in their seeds')
  return [f'{count} run{"s" * (count > 1)}{what}; '
          + (f'they {differ}' if count > 1 else str(run.path)),
          *(f'{curves.MARKS[i]}  {found.label}'
            for i, found in enumerate(groups))]


def _table(groups, target):
  rows = [['', 'n', 'rounds', 'last (%)', 'best (%)', 'last 10 (%)',
           'to target', 's/round', 'time']]
  for mark, found in zip(curves.MARKS, groups):
    counted = list(found.runs.values())
    times = [run.endpoints() for run in counted]
    rows.append([
        mark + ('' if _has_finished(found) else '*'),
        f'{len(counted)}' + f'/{len(counted) + len(found.others)}' * bool(
            found.others),
        _range([len(run.lines) for run in counted]),
        *(stats.mean_and_std([time['test_accuracy'][key] for time in times],
                             1, 100, missing='-')
          for key in ('last', 'best', 'mean_of_last_10')),
        '-' if target is None else _target(
            [run.rounds_to(target) for run in counted]),
        _median(times, 'seconds_per_round'),
        _time(times)])
  lines = cells.aligned(rows)
  if target is not None:
    lines += ['', f'target: test accuracy {100 * target:.2f}%. Times: median '
              'over runs; "time" is that of all rounds']
  if any(len(run.lines) < stats.LAST for found in groups
         for run in found.runs.values()):
    lines.append('last 10: the mean of the last 10 rounds, or of all if fewer')
  if not all(map(_has_finished, groups)):
    lines.append('* no run has finished: results so far')
  return lines


def _has_finished(found):
  return any(run.state.kind == 'finished' for run in found.runs.values())


def _range(counts):
  return '-' if not counts else str(min(counts)) + (
      f'..{max(counts)}' if max(counts) > min(counts) else '')


def _target(reached):
  found = sorted(round_ for round_ in reached if round_ is not None)
  if not found:
    return '-'
  some = f' ({len(found)}/{len(reached)})' * (len(found) < len(reached))
  return f'{statistics.median(found):g}{some}'


def _median(times, name):
  found = [time[name] for time in times if name in time]
  return f'{statistics.median(found):.2f}' if found else '-'


def _time(times):
  found = [time['seconds_of_rounds'] for time in times
           if 'seconds_of_rounds' in time]
  return screen.duration(statistics.median(found)) if found else '-'


def _differences(groups, base):
  """The paired differences from the baseline, over common seeds."""
  rows = [['', 'pairs', 'last', 'mean of last 10']]
  for mark, found in zip(curves.MARKS, groups):
    if found is base or not groups_lib.is_comparable(found, base):
      continue
    last = groups_lib.compare(found, base)
    rows.append([mark, str(len(last.differences)) if last else '0',
                 _interval(last), _interval(groups_lib.compare(
                     found, base, stats.LAST))])
  if len(rows) == 1:
    return []
  mark = curves.MARKS[groups.index(base)]
  return [f'difference from {mark} in points, over common seeds (95% interval)',
          *cells.aligned(rows)]


def _interval(found):
  """Formats a difference and its 95% interval."""
  if found is None:
    return 'no common seed'
  interval = stats.interval_text(found.low, found.high, 2)
  return f'{found.mean:+.2f}' + f' ({interval})' * bool(interval)


def _notes(groups):
  lines = []
  for mark, found in zip(curves.MARKS, groups):
    for run in (*found.runs.values(), *found.others):
      counts = not any(run is other for other in found.others)
      if run.state.kind != 'finished' or not counts:
        reason = (f'finished, with the seed {run.config["seed"]} of another run'
                  if run.state.kind == 'finished' else
                  f'{run.state.kind} {" ".join(run.state.text.split())}')
        lines.append(f'{mark}{"" if counts else ", not counted"}: '
                     f'{run.path.name}: {reason}')
  return lines


def _write_csv(path, runs, groups, target):
  settings = list(groups[0].settings)
  of = {id(run): found for found in groups
        for run in (*found.runs.values(), *found.others)}
  with open(path, 'w', encoding='utf-8', newline='') as out:
    writer = csv.writer(out)
    writer.writerow(['run', *settings, *groups_lib.SEEDS, 'state', 'rounds',
                     'last', 'best', 'best_round', 'mean_of_last_10', 'target',
                     'rounds_to_target', 'seconds_per_round',
                     'seconds_of_rounds'])
    for run in runs:
      found = run.endpoints()
      accuracy = found['test_accuracy']
      writer.writerow([
          run.path, *(of[id(run)].settings[name] for name in settings),
          *(run.config[name] for name in groups_lib.SEEDS), run.state.kind,
          len(run.lines), accuracy['last'], accuracy['best'],
          accuracy['best_round'], accuracy['mean_of_last_10'], target,
          None if target is None else run.rounds_to(target),
          found.get('seconds_per_round'), found.get('seconds_of_rounds')])


if __name__ == '__main__':
  main()
