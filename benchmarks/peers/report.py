"""Formats the results of benchmarks/peers as tables."""

import math
import statistics

from benchmarks import common, sides

CLIENTS = 10  # of the first table
_LOOPS = 'PyTorch loop', 'PyTorch loop, processes'
_mean = statistics.fmean


def seconds_per_round(run: dict) -> float:
  """Returns the median over the rounds after the warm-up."""
  return statistics.median(run['round_seconds'][sides.WARM_UP:])


def markdown(results: dict) -> str:
  """Returns the tables for which there are runs."""
  runs = results['runs']
  few = [run for run in runs if run['clients'] == CLIENTS]
  sides_of = {run['side'] for run in few}
  return '\n\n'.join([*([by_method(few)] if few else []),
                      *([by_part(few)] if {'moon_jax', *_LOOPS} <= sides_of
                        else []),
                      *([by_clients(runs)] if len(few) < len(runs) else [])])


def without_reads(runs: list[dict]) -> list[dict]:
  """Returns the runs whose sides read files in rounds, without these seconds.
  """
  return [run | {
      'side': f'{run["side"]}, without its file reads', 'round_seconds': [
          total - read for total, read in zip(
              run['round_seconds'], run['read_seconds'], strict=True)]}
      for run in runs if 'read_seconds' in run]


def by_method(runs: list[dict]) -> str:
  return _table(runs + without_reads(runs), lambda run: run['algorithm'], {
      'test accuracy': lambda found: ', '.join(
          f'{name} {_mean(run["accuracy"] for run in of):.3f}'
          for name, of in found.items())})


def by_part(runs: list[dict]) -> str:
  """Returns the two factors of each ratio of FedAvg, a row per side.

  The loop has the same PyTorch network without a simulator: kernels is its time
  over that of moon_jax, and simulator that of the side over its. Sides that
  train in parallel are compared with the loop in processes.
  """
  rows = parts(runs)
  return common.table({
      'side': lambda side: side,
      'x': lambda side: f'{math.prod(rows[side]):.2f}',
      'kernels': lambda side: f'{rows[side][0]:.2f}',
      'simulator': lambda side: f'{rows[side][1]:.2f}'}, rows)


def parts(runs: list[dict]) -> dict[str, tuple[float, float]]:
  """Returns the factors kernels and simulator of each side, fastest first."""
  mean = side_means(runs, 'fedavg')
  return {side: (mean[loop_of(side)] / mean['moon_jax'],
                 mean[side] / mean[loop_of(side)])
          for side in sorted(mean, key=mean.get)
          if side not in ('moon_jax', 'FedJAX', *_LOOPS)}


def side_means(runs: list[dict], algorithm: str) -> dict[str, float]:
  """Returns each side's mean over runs of the seconds per round."""
  found: dict[str, list[float]] = {}
  for run in [*runs, *without_reads(runs)]:
    if run['algorithm'] == algorithm:
      found.setdefault(run['side'], []).append(seconds_per_round(run))
  return {side: _mean(seconds) for side, seconds in found.items()}


def loop_of(side: str) -> str:
  """Returns the PyTorch loop with the parallelism of a side."""
  return _LOOPS[side.endswith(('processes', 'threads', 'ray'))]


def spread(values: list[float]) -> str:
  """Returns the mean, and the range if there are several values."""
  return f'{_mean(values):.2f}' + (
      f' ({min(values):.2f} to {max(values):.2f})' if len(values) > 1 else '')


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
      's a round': lambda found, name: spread(seconds(found)),
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
