"""Describes a run: moon-jax inspect RUN.

RUN is the directory of a run, finished or still running. The output has at most
80 columns. docs/looking_at_runs.md describes it.
"""

import argparse
from collections.abc import Mapping, Sequence
import json
import sys
import time
from typing import Any

import numpy as np

from moon_jax.cli import file_command
from moon_jax.config import Config, FACTS
from moon_jax.results import read, stats
from moon_jax.results.read import Run
from moon_jax.runs.identity import IDENTITY
from moon_jax.view import text as texts
from moon_jax.view.status import is_number

_SPARK_WIDTH = 40
_SECONDS = 2.  # between two looks of --follow
MAX_ROWS = 20
_MAX_NAME = 24  # characters of a client's name that are shown
_NO_VALUE = '-'

# Columns of tables of rounds and of clients, the most important first.
_COLUMNS = (
    'client', 'name', 'num_examples', 'test_accuracy', 'validation_accuracy',
    'train_loss', 'global_heldout_accuracy', 'local_heldout_accuracy',
    'global_own_accuracy', 'local_own_accuracy', 'local_test_accuracy', 'drift',
    'test_loss', 'epsilon', 'update_cosine', 'contrastive_loss',
    'cross_entropy', 'proximal_term', 'learning_rate', 'clients_received')
_NUM_SPARKS = 8  # metrics that have a spark line
_QUANTILES = {'min': 0., '10%': .1, 'median': .5, '90%': .9, 'max': 1.}


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
      prog='moon-jax inspect', description='Describes a run: its settings, '
      'state, rounds, times and clients.')
  parser.add_argument('run', type=file_command.path, metavar='RUN',
                      help='directory of a run, finished or running')
  parser.add_argument('--plot', type=file_command.path, metavar='FILE.png',
                      help='draws accuracies, losses, drift and clients')
  parser.add_argument('--json', action='store_true',
                      help='prints the same as JSON, with all rounds')
  parser.add_argument('--follow', action='store_true',
                      help='prints again after each round until the run ends')
  file_command.start(parser, _inspect)


def _inspect(arguments: argparse.Namespace) -> None:
  is_unicode = 'utf' in (sys.stdout.encoding or '').lower()
  shown = None
  while True:
    run = read.read(arguments.run)
    now = len(run.lines), run.state.kind
    if now != shown:
      shown = now
      if arguments.follow and sys.stdout.isatty():
        print('\x1b[H\x1b[2J\x1b[3J', end='')
      print(to_json(run) if arguments.json else text(run, is_unicode),
            flush=True)
    if not arguments.follow or run.state.kind != 'running':
      break
    time.sleep(_SECONDS)
  if arguments.plot:
    from moon_jax.results import figures

    print(f'plot: {figures.draw(run, arguments.plot)}', file=sys.stderr)


def to_json(run: Run) -> str:
  """Returns what the text shows, and all rounds, as JSON."""
  times = {'rounds': len(run.lines)} | run.times() if run.lines else {}
  return json.dumps({
      'path': str(run.path), 'state': {
          'kind': run.state.kind, 'text': run.state.text},
      'config': run.config.to_dict(), 'inputs': run.inputs,
      'results': _endpoints(run) | times, 'summary': run.summary,
      'client_sizes': run.of_clients('sizes'),
      'client_names': run.of_clients('names'),
      'times_sampled': run.times_sampled(), 'rounds': run.lines
  }, indent=1, default=np.ndarray.tolist)


def text(run: Run, is_unicode: bool = True) -> str:
  """Returns the whole text."""
  parts = [_header(run), _results(run), _sparks(run, is_unicode),
           _rounds(run), _clients(run)]
  return '\n\n'.join('\n'.join(part) for part in parts if part)


def _header(run):
  config = run.config
  shown = {*FACTS} - {*IDENTITY} | {
               'dataset', 'algorithm', 'model', 'num_clients', 'partition',
               'seed', 'num_rounds'}
  defaults = Config().to_dict()
  changed = ' '.join(
      f'{name}={value}' for name, value in config.to_dict().items()
      if name not in shown and value != defaults[name])
  lines = [
      str(run.path),
      f'{config.algorithm}, {config.model}, {config.dataset}, '
      f'{config.num_clients:,} clients, {config.partition}, seed '
      f'{config.seed}',
      *([changed] if changed else []), f'{run.state.kind}: {run.state.text}']
  return [row for line in lines
          for row in texts.wrapped(' '.join(line.split()))]


def _endpoints(run):
  """Returns the endpoints of the accuracies, or losses, that a run has."""
  names = map(run.measure, ('test', 'validation', 'global_heldout'))
  return {name: run.endpoints(name) for name in names if name}


def _results(run):
  if not run.lines:
    return ['no metrics yet' if run.state.kind == 'running' else 'no metrics']
  found, times = _endpoints(run), run.times()
  counts = {min(len(run.values(name)), stats.LAST) for name in found}
  mean = f'mean of last {stats.range_text(counts, "..")}'
  lines = texts.aligned([['', 'last', 'best', mean, 'best in round'], *(
      [_words(name), *(texts.metric(name, value[key]) for key in (
          'last', 'best', 'mean_of_last_10')), str(value['best_round'])]
      for name, value in found.items())]) if found else ['no evaluation yet']
  if times:
    seconds, speed = times['seconds_per_round'], times['examples_per_second']
    shown = f'{seconds:.2f} s' if seconds < 60 else texts.duration(seconds)
    parts = [f'{shown} per round (median)', f'{speed:,.0f} examples/s',
             f'{texts.duration(times["seconds_of_rounds"])} in rounds']
    if is_number(run.summary.get('compile_seconds')):
      parts.append(f'{run.summary["compile_seconds"]:.1f} s compiling')
    lines += ['', *texts.wrapped('time: ' + ', '.join(parts))]
  return lines


def _sparks(run, is_unicode):
  """Returns metrics by round: the first value, a spark line, the last one."""
  found = [(name, values) for name in _metrics(run)
           if len({*(values := run.values(name))}) > 1]
  return texts.aligned([
      [_words(name), texts.metric(name, values[0]),
       texts.spark_line(values, _SPARK_WIDTH, is_unicode),
       texts.metric(name, values[-1])]
      for name, values in found[:_NUM_SPARKS]]) if found else []


def thinned(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
  """Returns at most 20 lines, evenly spaced, with the first and the last.

  Of more than 20 lines these are the ones with an evaluation, and the last one.
  """
  if len(lines) > MAX_ROWS:
    evaluated = [line for line in lines[:-1] if 'test_loss' in line]
    lines = [*evaluated, lines[-1]] if evaluated else lines
  chosen = np.unique(np.linspace(
      0, len(lines) - 1, min(len(lines), MAX_ROWS)).round().astype(int))
  return [lines[index] for index in chosen]


def _rounds(run):
  if not run.lines:
    return []
  lines = thinned(run.lines)
  few = ('' if len(lines) == len(run.lines)
         else f' ({len(lines)} of {len(run.lines)}; --json has all)')
  return [f'rounds{few}', *_table({
      name: [_cell(name, line.get(name)) for line in lines]
      for name in ('round', 'seconds', *_metrics(run))})]


def _clients(run):
  lines = []
  sizes = run.of_clients('sizes')
  if sizes is not None and len(sizes):
    lines.append(f'clients: {len(sizes):,} with {sizes.min():,} to '
                 f'{sizes.max():,} training examples, median '
                 f'{np.median(sizes):,.0f}')
  times = run.times_sampled()
  if times is not None and times.any():
    lines.append(f'sampled: {np.count_nonzero(times):,} of {len(times):,} '
                 f'clients so far, each {times.min()} to {times.max()} times')
  found = run.line_of_clients()
  if found is None:
    if run.lines and not run.config.client_eval_every:
      lines.append('columns of clients are recorded with --client_eval_every')
    return lines
  table = found['clients']
  names = _ordered(table)
  if all(table.get('received', [False])):
    names.remove('received')
  count = len(table['client'])
  if count > MAX_ROWS:
    columns = {'': list(_QUANTILES)}
    for name in names[1:]:
      numbers = [value for value in table[name] if is_number(value)]
      if numbers:  # names have no distribution
        columns[name] = [_cell(name, float(q)) for q in np.quantile(
            numbers, list(_QUANTILES.values()))]
    title = f'distribution over the {count:,} clients of round'
  else:
    order = np.argsort(table['client'], kind='stable')
    columns = {name: [_cell(name, table[name][i]) for i in order]
               for name in names}
    title = 'clients of round'
  return [*lines, '', f'{title} {found["round"]}', *_table(columns)]


# -------------------------------------------------------------- lines of text


def _metrics(run):
  """Returns the names of the metrics of rounds, in the order of columns."""
  return _ordered({
      name for line in run.lines for name, value in line.items()
      if is_number(value) and not name.endswith('_std')
      and name not in (
          'round', 'seconds', 'examples_per_second', 'test_examples')})


def _ordered(names):
  return [*(name for name in _COLUMNS if name in names),
          *sorted({*names} - {*_COLUMNS})]


def _words(name):
  return name.replace('global_heldout', 'held-out').replace('_', ' ')


def _table(columns):
  """Returns the columns with values that fit, the most important first."""
  shown, left_out = [], []
  for name, cells in columns.items():
    *first, last = _words(name.removeprefix('num_')).split() or ['']
    column = [' '.join(first), last, *cells]
    if {*cells} == {_NO_VALUE}:
      continue
    if max(map(len, texts.aligned([*zip(*shown, column)], 0))) <= texts.WIDTH:
      shown.append(column)
    else:
      left_out.append(_words(name))
  return [*filter(None, texts.aligned([*zip(*shown)], 0)), *(
      row for row in texts.wrapped(f'no room for {", ".join(left_out)}')
      if left_out)]


def _cell(name, value):
  if isinstance(value, bool):
    return 'yes' if value else 'no'
  if name == 'name':  # of a client
    return str(value)[:_MAX_NAME]
  if not is_number(value):
    return _NO_VALUE
  if name == 'seconds':
    return f'{value:.2f}'
  if isinstance(value, int) or name in ('num_examples', 'num_heldout'):
    return f'{value:,.0f}'
  return texts.metric(name, value)

