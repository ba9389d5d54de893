"""Describes a run: python -m moon_jax.inspect RUN.

RUN is the directory of a run, finished or still running. The output has at most
80 columns. docs/looking_at_runs.md describes it.
"""

import argparse
from collections.abc import Mapping, Sequence
import json
import pathlib
import sys
import textwrap
import time
from typing import Any

import numpy as np

from moon_jax.cli import file_command
from moon_jax.config import Config
from moon_jax.results import read, stats
from moon_jax.results.read import Run
from moon_jax.rundir.identity import FREE_FIELDS
from moon_jax.view import curves

_SECONDS = 2.  # between two looks of --follow
MAX_ROWS = 20
_NO_VALUE = '-'
WIDTH = 80  # columns of a terminal

# Columns of the table of rounds, the most important first.
_COLUMNS = ('test_accuracy', 'validation_accuracy', 'train_loss',
            'global_heldout_accuracy', 'drift', 'local_test_accuracy',
            'local_own_accuracy', 'test_loss', 'epsilon', 'update_cosine',
            'contrastive_loss', 'cross_entropy', 'proximal_term',
            'local_heldout_accuracy', 'learning_rate', 'clients_received')
_CURVES = {'test_accuracy': 'test accuracy',
           'validation_accuracy': 'validation accuracy',
           'global_heldout_accuracy': 'held-out accuracy',
           'local_test_accuracy': 'local models, test accuracy'}
_SPARKS = ('train_loss', 'test_loss', 'contrastive_loss', 'drift',
           'update_cosine')
_QUANTILES = {'min': 0., '10%': .1, 'median': .5, '90%': .9, 'max': 1.}


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
      prog='moon-jax inspect', description='Describes a run: its settings, '
      'state, rounds, times and clients.')
  parser.add_argument('run', type=pathlib.Path, metavar='RUN',
                      help='directory of a run, finished or running')
  parser.add_argument('--plot', type=pathlib.Path, metavar='FILE.png',
                      help='draws accuracies, losses, drift and clients')
  parser.add_argument('--json', action='store_true',
                      help='prints the same as JSON, with all rounds')
  parser.add_argument('--follow', action='store_true',
                      help='prints again after each round until the run ends')
  file_command.start(parser, _inspect)


def _inspect(arguments: argparse.Namespace) -> None:
  path = arguments.run.expanduser()
  is_unicode = 'utf' in (sys.stdout.encoding or '').lower()
  shown = None
  while True:
    run = read.read(path)
    now = len(run.lines), run.state.kind
    if now != shown:
      shown = now
      if arguments.follow and sys.stdout.isatty():
        print('\x1b[H\x1b[2J\x1b[3J', end='')
      print(json.dumps(to_json(run), indent=1) if arguments.json
            else text(run, is_unicode), flush=True)
    if not arguments.follow or run.state.kind != 'running':
      break
    time.sleep(_SECONDS)
  if arguments.plot:
    from moon_jax.results import figures

    figures.draw(run, arguments.plot)
    print(f'plot: {arguments.plot}', file=sys.stderr)


def to_json(run: Run) -> dict[str, object]:
  """Returns what the text shows, and all rounds, as JSON."""
  sizes, times = run.client_sizes, run.times_sampled
  return {
      'path': str(run.path), 'state': {
          'kind': run.state.kind, 'text': run.state.text},
      'config': run.config, 'inputs': run.inputs, 'results': run.endpoints(),
      'summary': run.summary,
      'client_sizes': None if sizes is None else sizes.tolist(),
      'times_sampled': None if times is None else times.tolist(),
      'rounds': run.lines}


def text(run: Run, is_unicode: bool = True) -> str:
  """Returns the whole text."""
  parts = [_header(run), _results(run), _plot(run, is_unicode),
           _rounds(run), _clients(run)]
  return '\n\n'.join('\n'.join(part) for part in parts if part)


def _header(run):
  config = run.config
  default = Config().to_dict()
  shown = {'dataset', 'algorithm', 'model', 'num_clients', 'partition', 'seed',
           'num_rounds'}
  split = config['partition_file'] or config['partition']
  if split == 'dirichlet':
    split += f' {config["beta"]:g}'
    shown.add('beta')
  changed = ' '.join(
      f'{name}={value}' for name, value in config.items()
      if name in default and value != default[name]
      and name not in shown | set(FREE_FIELDS))
  lines = [
      str(run.path),
      f'{config["algorithm"]}, {config["model"]}, {config["dataset"]}, '
      f'{config["num_clients"]:,} clients, {split}, seed {config["seed"]}',
      *([changed] if changed else []), f'{run.state.kind}: {run.state.text}']
  return [row for line in lines for row in wrapped(' '.join(line.split()))]


def _results(run):
  found = run.endpoints()
  if not found:
    return ['no metrics yet' if run.state.kind == 'running' else 'no metrics']
  rows = [[name.replace('global_heldout', 'held-out').replace('_', ' '),
           *(f'{value[key]:.4f}' for key in (
               'last', 'best', 'mean_of_last_10')), str(value['best_round'])]
          for name, value in found.items() if isinstance(value, dict)]
  num_evaluated = len(run.values('test_accuracy'))
  mean = f'mean of last {min(num_evaluated, stats.LAST)}'
  lines = aligned([
      ['', 'last', 'best', mean, 'best in round'],
      *rows]) if rows else ['no accuracy yet']
  if 'seconds_per_round' in found:
    speed = found.get('examples_per_second')
    seconds = found['seconds_per_round']
    shown = f'{seconds:.2f} s' if seconds < 60 else curves.duration(seconds)
    parts = [f'{shown} per round (median)',
             *([f'{speed:,.0f} examples/s'] if speed else []),
             f'{curves.duration(found["seconds_of_rounds"])} in rounds']
    if read.is_number(run.summary.get('compile_seconds')):
      parts.append(f'{run.summary["compile_seconds"]:.1f} s compiling')
    lines += ['', *wrapped('time: ' + ', '.join(parts))]
  return lines


def _plot(run, is_unicode):
  """Curves of accuracies, and spark lines of other metrics."""
  shown = {label: series for name, label in _CURVES.items()
           if len(series := run.series(name)) > 1}
  lines = curves.draw(list(shown.values()), WIDTH, 10, is_unicode)
  if len(shown) > 1:
    lines += ['', *curves.legend(list(shown))]
  elif shown:
    lines = [*shown, *lines]
  if sparks := {name: [value for _, value in series] for name in _SPARKS
                if len(series := run.series(name)) > 1}:
    width = max(map(len, sparks)) + 2
    lines += [''] * bool(lines) + [
        f'{name.replace("_", " "):{width}}{values[0]:8.4g} '
        f'{curves.spark_line(values, 40, is_unicode)} {values[-1]:.4g}'
        for name, values in sparks.items()]
  return lines


def thinned(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
  """Returns at most 20 lines, evenly spaced, with the first and the last.

  If rounds are not all evaluated, the lines have evaluations.
  """
  evaluated = [line for line in lines if 'test_accuracy' in line]
  if len(evaluated) > 1 and lines[-1] is not evaluated[-1]:
    evaluated.append(lines[-1])
  if len(lines) > MAX_ROWS and len(evaluated) > 1:
    lines = evaluated
  chosen = np.unique(np.linspace(
      0, len(lines) - 1, min(len(lines), MAX_ROWS)).round().astype(int))
  return [lines[index] for index in chosen]


def _rounds(run):
  if not run.lines:
    return []
  lines = thinned(run.lines)
  others = sorted({
      name for line in run.lines for name, value in line.items()
      if read.is_number(value) and not name.endswith('_std')} - {
          *_COLUMNS, 'round', 'seconds', 'examples_per_second',
          'test_examples'})
  columns = {'round': [f'{line["round"]}' for line in lines]}
  last = {'s': [_number(line.get('seconds'), 'seconds') for line in lines]}
  for name in (*_COLUMNS, *others):
    cells = [_number(line.get(name), name) for line in lines]
    wider = columns | {name: cells}
    if {*cells} != {_NO_VALUE} and _fits(wider | last):
      columns = wider
  few = ('' if len(lines) == len(run.lines)
         else f' ({len(lines)} of {len(run.lines)})')
  return [f'rounds{few}', *_table(columns | last)]


def _clients(run):
  lines = []
  sizes = run.client_sizes
  if sizes is not None and len(sizes):
    lines.append(f'clients: {len(sizes):,} with {sizes.min():,} to '
                 f'{sizes.max():,} training examples, median '
                 f'{np.median(sizes):,.0f}')
  times = run.times_sampled
  if times is not None and times.any():
    lines.append(f'sampled: {np.count_nonzero(times):,} of {len(times):,} '
                 f'clients so far, each {times.min()} to {times.max()} times')
  found = next((line for line in reversed(run.lines)
                if line.get('clients', {}).get('client')), None)
  if found is None:
    if run.lines and not run.config['client_eval_every']:
      lines.append('columns of clients are recorded with --client_eval_every')
    return lines
  table = dict(found['clients'])
  if all(table.get('received', ())):
    table.pop('received', None)
  count = len(table['client'])
  if count > MAX_ROWS:
    columns = {'': list(_QUANTILES)}
    for name, values in table.items():
      numbers = [value for value in values if read.is_number(value)]
      if numbers and name != 'client':
        columns[name] = [_number(float(q), name) for q in np.quantile(
            numbers, list(_QUANTILES.values()))]
    title = f'distribution over the {count:,} clients of round'
  else:
    order = np.argsort(table['client'], kind='stable')
    columns = {name: [_number(values[i], name) for i in order]
               for name, values in table.items()}
    title = 'clients of round'
  while not _fits(columns):
    columns.popitem()
  return [*lines, '', f'{title} {found["round"]}', *_table(columns)]


# -------------------------------------------------------------- lines of text


def wrapped(line: str) -> list[str]:
  """Returns a line in lines that fit on a terminal."""
  return (textwrap.wrap(line, WIDTH, subsequent_indent='  ')
          if len(line) > WIDTH else [line])


def aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
  """Returns rows with columns of equal width.

  Args:
    rows: of cells, each with as many.
    left: columns, from the first, whose cells begin at the left.
  """
  widths = [max(map(len, column)) for column in zip(*rows)]
  return ['  '.join(
      cell.ljust(width) if index < left else cell.rjust(width)
      for index, (cell, width) in enumerate(zip(row, widths))).rstrip()
          for row in rows]


def _table(columns):
  heads = []
  for name in columns:
    words = name.replace('global_heldout', 'held-out').replace(
        'cosine_with_mean', 'cosine with_mean').replace('num_', '').replace(
        'global_own', 'global own').replace('_', ' ').split() or ['']
    heads.append((' '.join(words[:-1]), words[-1]))
  return [line for line in aligned([*zip(*heads), *zip(*columns.values())], 0)
          if line]


def _fits(columns):
  return max(map(len, _table(columns))) <= WIDTH


def _number(value, name):
  if isinstance(value, bool):
    return 'yes' if value else 'no'
  if not read.is_number(value):
    return _NO_VALUE
  if name == 'seconds':
    return f'{value:.1f}' if value >= 10 else f'{value:.2f}'
  if isinstance(value, int) or name in ('num_examples', 'num_heldout'):
    return f'{value:,.0f}'
  return f'{value:.4f}' if abs(value) < 1e4 else f'{value:.3g}'


if __name__ == '__main__':
  main()
