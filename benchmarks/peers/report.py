"""Formats the results of benchmarks/peers as tables."""

import statistics

from benchmarks import common, sides

CLIENTS = 10  # of the first table
_mean = statistics.fmean


def seconds_per_round(run: dict) -> float:
  """Returns the median over the rounds after the warm-up."""
  return statistics.median(run['round_seconds'][sides.WARM_UP:])


def markdown(results: dict) -> str:
  """Returns the tables for which there are runs."""
  runs = results['runs']
  few = [run for run in runs if run['clients'] == CLIENTS]
  return '\n\n'.join([*([by_method(few)] if few else []),
                      *([by_clients(runs)] if len(few) < len(runs) else [])])


def by_method(runs: list[dict]) -> str:
  return _table(runs, lambda run: run['algorithm'], {
      'test accuracy': lambda found: ', '.join(
          f'{name} {_mean(run["accuracy"] for run in of):.3f}'
          for name, of in found.items())})


def by_clients(runs: list[dict]) -> str:
  return _table([run for run in runs if run['algorithm'] == 'fedavg'],
                lambda run: f'{run["clients"]:,} clients')


def _table(runs, group, more=None):
  """Returns a table: a row per side, the fastest first, columns by group.

  Seconds are medians over a run's rounds: their mean, and range if there are
  several runs.
  Memory is the largest of the runs. `more` has columns that are computed from
  all groups of a side.
  """
  rows = {}
  for run in runs:
    rows.setdefault(run['side'], {}).setdefault(group(run), []).append(run)
  seconds = lambda found: [*map(seconds_per_round, found)]
  first = rows.get('moon_jax', {})
  cells = {
      's a round': lambda found, name: (
          f'{_mean(seconds(found)):.2f}' + (
              f' ({min(seconds(found)):.2f} to {max(seconds(found)):.2f})'
              if len(found) > 1 else '')),
      'x': lambda found, name: (
          f'{_mean(seconds(found)) / _mean(seconds(first[name])):.1f}'
          if name in first else ''),
      'GB': lambda found, name: (
          f'{max(run["peak_bytes"] for run in found) / 1e9:.1f}')}
  columns = {'side': lambda side: side} | {
      f'{name}, {unit}': lambda side, name=name, cell=cell: (
          cell(rows[side][name], name) if name in rows[side] else '')
      for name in dict.fromkeys(map(group, runs))
      for unit, cell in cells.items()} | {
          name: lambda side, cell=cell: cell(rows[side])
          for name, cell in (more or {}).items()}
  return common.table(columns, sorted(rows, key=lambda side: min(
      _mean(seconds(found)) for found in rows[side].values())))
