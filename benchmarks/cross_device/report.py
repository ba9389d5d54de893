"""Formats the results of benchmarks/cross_device as a table."""

import statistics

from benchmarks import common


def seconds_per_round(run: dict) -> float:
  """Returns the median over the rounds after the first, which warms up."""
  return statistics.median(run['round_seconds'][1:])


def accuracy(run: dict) -> float:
  """Returns the test accuracy after the last round, a fraction."""
  return list(run['accuracies'].values())[-1]


_NAMES = {
    'moon_jax': 'moon_jax',
    'pfl_threads': 'pfl-research, 1 process, all threads',
    'pfl_processes': 'pfl-research, 1 process per core, 1 thread each'}
_COLUMNS = (  # heading, value of a run, format
    ('seconds per round', seconds_per_round, '{:.2f}'),
    ('examples/s', lambda run: run['num_examples'] / seconds_per_round(run),
     '{:,.0f}'),
    ('all rounds and evaluations, s', lambda run: sum(
        run['round_seconds']) + sum(run['evaluation_seconds']), '{:.1f}'),
    ('an evaluation, s', lambda run: statistics.median(
        run['evaluation_seconds']), '{:.2f}'),
    ('compiling, s', lambda run: run['compile_seconds'], '{:.1f}'),
    ('other setup, s', lambda run: run['setup_seconds'], '{:.1f}'),
    ('test accuracy', accuracy, '{:.4f}'),
    ('peak memory, MB', lambda run: run['peak_bytes'] / 1e6, '{:,.0f}'),
)


def markdown(results: dict) -> str:
  """Returns a table with one row per side: medians over its runs."""
  columns = {'side': lambda side: _NAMES[side[0]]} | {
      heading: lambda side, value=value, form=form: form.format(
          statistics.median(map(value, side[1])))
      for heading, value, form in _COLUMNS} | {
          'versions': lambda side: ', '.join(
              ' '.join(v) for v in side[1][0]['versions'].items())}
  rows = [common.table(columns, results['sides'].items())]
  rows += ['', *ratios(results['sides'])]
  if 'agreement' in results:
    rows += ['- Without dropout the test losses of all sides differ by at most '
             f'{common.bound(results["agreement"]["difference"])} in the first '
             'rounds.']
  if results['pfl'] != 'measured':
    rows += [f'pfl-research: {results["pfl"]}.']
  return '\n'.join(rows)


def ratios(sides: dict[str, list[dict]]) -> list[str]:
  """Returns a line per other side: its seconds per round over moon_jax's.

  A ratio is the median over the repeats, each of which is a pair of runs.
  """
  lines = []
  for name, runs in sides.items():
    if name != 'moon_jax' and 'moon_jax' in sides:
      pairs = [seconds_per_round(theirs) / seconds_per_round(ours)
               for ours, theirs in zip(sides['moon_jax'], runs)]
      lines.append(
          f'- {_NAMES[name]}: {statistics.median(pairs):.2f} times the seconds '
          f'a round of moon_jax ({min(pairs):.2f} to {max(pairs):.2f}).')
  return lines
