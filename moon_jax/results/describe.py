"""Describes a run: its settings, its state, its rounds, times and clients.

docs/looking_at_runs.md describes the output.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from moon_jax.config import Config, FACTS
from moon_jax.results import clients, stats, tables
from moon_jax.results.page import Figure
from moon_jax.results.read import Run
from moon_jax.results.tables import Table
from moon_jax.runs.identity import IDENTITY
from moon_jax.view import text as texts
from moon_jax.view.status import is_number

_SPARK_WIDTH = 40
_MAX_ROWS = 20
_NUM_SPARKS = 8  # metrics that have a spark line


def text(run: Run, width: int = 80, is_unicode: bool = True) -> str:
  """Returns the whole text, of lines for a terminal of `width` columns."""
  nothing = 'no evaluation yet' if run.lines else 'no metrics' + ' yet' * (
      run.state.kind == 'running')
  return tables.terminal([
      header(run), endpoints(run) or [nothing], over_clients(run), times(run),
      _sparks(run, is_unicode), rounds(run), clients_seen(run),
      client_table(run)], width)


def sections(run: Run) -> list[str | Figure]:
  """Returns the parts of the page of a run."""
  return ['\n\n'.join(header(run)), *tables.sections({
      'Results': endpoints(run), 'Over clients': over_clients(run),
      'Rounds': rounds(run), 'Clients': client_table(run)})]


def header(run: Run) -> list[str]:
  """Returns what the run is, and what it does now."""
  config = run.config
  shown = {*FACTS} - {*IDENTITY} | {
               'dataset', 'algorithm', 'model', 'num_clients', 'partition',
               'seed', 'num_rounds'}
  defaults = Config().to_dict()
  changed = ' '.join(
      f'{name}={value}' for name, value in config.to_dict().items()
      if name not in shown and value != defaults[name])
  return [' '.join(line.split()) for line in (
      str(run.path),
      f'{config.algorithm}, {config.model}, {config.dataset}, '
      f'{config.num_clients:,} clients, {config.partition}, seed '
      f'{config.seed}', changed, f'{run.state.kind}: {run.state.text}') if line]


def endpoints(run: Run) -> Table | None:
  """Returns the endpoints of the accuracies, or losses, that a run has.

  The accuracy of the clients' models leads if the method is about these.
  """
  names = [*filter(None, map(run.measure, ('test', 'validation'))), *(
      name for name in (*stats.OF_CLIENTS, run.measure('global_heldout'))
      if name and run.values(name))]
  if run.is_personal:
    names.sort(key=lambda name: name not in stats.OF_CLIENTS)
  ends = {name: run.endpoints(name) for name in names}
  if not ends:
    return None
  return Table('', {'': [stats.words(name) for name in ends]} | {
      title: [_cell(name, value[key]) for name, value in ends.items()]
      for title, key in (
          ('last', 'last'), ('best', 'best'),
          ('mean of last 10', 'mean_of_last_10'))} | {
              'best in round': [_cell('round', value['best_round'])
                                for value in ends.values()]},
               stats.note_of_last(map(run.values, ends))
               + stats.note_of_missing(
                   x for value in ends.values() for x in value.values()))


def over_clients(run: Run) -> Table | None:
  """Returns the spread over clients, and the worst ones; None without any."""
  names = run.means_over_clients()
  return clients.over_clients('over clients, after the last evaluation', [
      (stats.label(name), name, [run]) for name in names]) if names else None


def times(run: Run) -> list[str]:
  """Returns lines of times and traffic; nothing before the first round."""
  medians = run.times()
  if not medians:
    return []
  seconds, speed = medians['seconds_per_round'], medians['examples_per_second']
  shown = f'{seconds:.2f} s' if seconds < 60 else texts.duration(seconds)
  parts = [f'{shown} per round (median)', f'{speed:,.0f} examples/s',
           f'{texts.duration(medians["seconds_of_rounds"])} in rounds']
  if is_number(run.summary.get('compile_seconds')):
    parts.append(f'{run.summary["compile_seconds"]:.1f} s compiling')
  sizes = [run.summary.get(name, 0) for name in (
      'bytes_per_round', 'bytes_between_servers')]
  flops = [run.summary.get(name, 0) for name in (
      'flops_per_client', 'flops_per_round')]
  return ['time: ' + ', '.join(parts),
          *['traffic: ' + texts.traffic_text(*sizes)] * bool(sizes[0]),
          *['compute: ' + texts.flops_text(*flops)] * bool(flops[1])]


def _sparks(run, is_unicode):
  """Returns metrics by round: the first value, a spark line, the last one."""
  series = {name: run.values(name) for name in _metrics(run)}
  chosen = [(name, values) for name, values in series.items()
            if len({*filter(is_number, values)}) > 1][:_NUM_SPARKS]
  lines = [texts.spark_line([*filter(is_number, values)], _SPARK_WIDTH,
                            is_unicode) for _, values in chosen]
  longest = max(map(len, lines), default=0)
  return Table('', {
      'metric': [stats.words(name) for name, _ in chosen],
      'first': [_cell(name, values[0]) for name, values in chosen],
      'by round': [line.ljust(longest) for line in lines],
      'last': [_cell(name, values[-1]) for name, values in chosen]}
               ) if chosen else None


def _cell(name, value):
  return (clients.cell(name, value) if is_number(value)
          else stats.NOT_FINITE)


def thinned(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
  """Returns at most 20 lines, evenly spaced, with the first and the last.

  Of more than 20 lines these are the ones with an evaluation, and the last one.
  """
  if len(lines) > _MAX_ROWS:
    evaluated = [line for line in lines[:-1] if 'test_loss' in line]
    lines = [*evaluated, lines[-1]] if evaluated else lines
  chosen = np.unique(np.linspace(
      0, len(lines) - 1, min(len(lines), _MAX_ROWS)).round().astype(int))
  return [lines[index] for index in chosen]


def rounds(run: Run) -> Table | None:
  """Returns the metrics of at most 20 rounds; None before the first."""
  lines = thinned(run.lines)
  few = ('' if len(lines) == len(run.lines)
         else f' ({len(lines)} of {len(run.lines)}; --out writes all)')
  return Table(f'rounds{few}', {
      stats.words(name): [clients.cell(name, line.get(name))
                            for line in lines]
      for name in ('round', 'seconds', *_metrics(run))}, is_cut=True
               ) if lines else None


def clients_seen(run: Run) -> list[str]:
  """Returns lines about the sizes and the selections of clients."""
  lines = []
  sizes = run.arrays('partition.npz').get('sizes', np.zeros(0, int))
  if len(sizes):
    lines.append(f'clients: {len(sizes):,} with {sizes.min():,} to '
                 f'{sizes.max():,} training examples, median '
                 f'{np.median(sizes):,.0f}')
  sampled = run.times_sampled()
  if sampled is not None and sampled.any():
    lines.append(f'sampled: {np.count_nonzero(sampled):,} of {len(sampled):,} '
                 f'clients so far, each {sampled.min()} to {sampled.max()} '
                 'times')
  if run.lines and run.line_of_clients() is None:
    lines.append('columns of clients are recorded with --client_eval_every')
  return lines


def client_table(run: Run) -> Table | None:
  """Returns the results of clients, of many their quantiles; None without."""
  if run.line_of_clients() is None:
    return None
  made = (clients.table(run) if run.config.num_clients <= _MAX_ROWS
          else clients.distribution(run))
  return made and made._replace(is_cut=True)


def _metrics(run):
  """Returns the names of the metrics of rounds, in the order of columns."""
  return clients.ordered({
      name for line in run.lines for name, value in line.items()
      if is_number(value) and not name.endswith(
          ('_std', '_weighted', '_worst_tenth', '_worst')) and name not in (
          'round', 'seconds', 'examples_per_second', 'test_examples')})
