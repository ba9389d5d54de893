"""Formats the results of benchmarks/peers as a table."""

import statistics

from benchmarks import common, sides


def seconds_per_round(run: dict) -> float:
  """Returns the median over the rounds after the warm-up."""
  return statistics.median(run['round_seconds'][sides.WARM_UP:])


def markdown(results: dict) -> str:
  """Returns a table: a row per side, the fastest first.

  Seconds are medians over a run's rounds: their mean and range over runs.
  """
  runs = {}
  for run in results['runs']:
    runs.setdefault(run['side'], {}).setdefault(
        run['algorithm'], []).append(run)
  seconds = {side: {name: [*map(seconds_per_round, found)]
                    for name, found in of.items()} for side, of in runs.items()}

  mean = lambda side, name: statistics.fmean(seconds[side][name])
  columns = {'side': str}
  for name in dict.fromkeys(run['algorithm'] for run in results['runs']):
    columns |= {
        f'{name}, s a round': lambda side, name=name: (
            f'{mean(side, name):.2f} ({min(seconds[side][name]):.2f} to '
            f'{max(seconds[side][name]):.2f})'),
        f'{name}, x': lambda side, name=name: (
            f'{mean(side, name) / mean("moon_jax", name):.1f}'
            if 'moon_jax' in seconds else '')}
  columns['test accuracy'] = lambda side: ', '.join(
      f'{name} {statistics.fmean(run["accuracy"] for run in found):.3f}'
      for name, found in runs[side].items())
  return common.table(columns, sorted(
      seconds, key=lambda side: min(map(min, seconds[side].values()))))
