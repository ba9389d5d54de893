"""Results of each client of a run."""

from collections.abc import Iterable, Sequence
from typing import Any, TYPE_CHECKING

import numpy as np

from moon_jax.errors import UserError
from moon_jax.results import stats
from moon_jax.results.read import Run
from moon_jax.results.tables import Table
from moon_jax.view import text as texts
from moon_jax.view.status import is_number

if TYPE_CHECKING:
  import pandas as pd

NO_VALUE = '-'
# Columns, the most important first.
COLUMNS = (
    'client', 'name', 'is_new', 'num_examples', 'times_sampled', 'round',
    'num_heldout', *stats.OF_CLIENTS, 'adapted_heldout_accuracy',
    'global_heldout_accuracy', 'test_accuracy',
    'validation_accuracy', 'train_loss', 'global_own_accuracy',
    'local_own_accuracy', 'local_test_accuracy', 'drift', 'cosine_with_mean',
    'test_loss', 'epsilon', 'update_cosine', 'contrastive_loss',
    'cross_entropy', 'proximal_term', 'learning_rate', 'clients_received')


def frame(run: Run) -> 'pd.DataFrame':
  """Returns the last results of each client; see `client_results`."""
  import pandas as pd

  rows: dict[int, dict] = {}
  for line in run.lines:
    columns = line.get('clients') or {}
    for i, client in enumerate(columns.get('client') or ()):
      rows[client] = {'round': line['round']} | {
          name: values[i] for name, values in columns.items()
          if name != 'client'}
  partition = run.arrays('partition.npz')
  known = {name: values for name, values in (
      ('name', partition.get('names')),
      ('num_examples', partition.get('sizes')),
      ('times_sampled', run.times_sampled()))
           if values is not None and len(values)}
  count = max([*map(len, known.values()), *(client + 1 for client in rows)],
              default=0)
  clients = [{name: values[i] for name, values in known.items()
              if i < len(values)} for i in range(count)]
  made = pd.DataFrame([rows.get(i, {}) | own for i, own in enumerate(clients)],
                      index=pd.RangeIndex(count, name='client'))
  return made[ordered(made.columns)].infer_objects()


def frames(runs: Iterable[Run]) -> 'pd.DataFrame':
  """Returns a row per client of several runs, by run and client."""
  import pandas as pd

  return pd.concat({str(run.path): frame(run) for run in runs}, names=['run'])


def table(run: Run, metric: str = '') -> Table:
  """Returns a row per client, the lowest values of a metric first.

  The metric is by default the accuracy of the clients' models, or the first one
  that is recorded.

  Raises:
    UserError: if the run has recorded nothing of its clients, or not the
      metric.
  """
  rows = frame(run)
  if 'round' not in rows:
    raise UserError(
        'clients', 'needs results of clients in metrics.jsonl', 'none',
        'Runs with --client_eval_every=N, or with held-out data of clients, '
        'record them')
  accuracies = [name for name in rows if 'accuracy' in name]
  key = metric or next(iter(accuracies), 'num_examples')
  if key not in rows:
    raise UserError('metric', 'must be one of what the run records of clients: '
                    f'{", ".join(rows.columns)}', metric)
  rows = rows.sort_values(key, kind='stable')  # those without a value last
  columns = {'client': [str(client) for client in rows.index]} | {
      stats.words(name): [cell(name, value) for value in column.tolist()]
      for name, column in rows.items()}
  if 'received' in rows and all(rows['received'].dropna()):
    del columns['received']
  rounds = rows['round'].dropna()
  if rounds.min() == rounds.max():
    del columns['round']
  return Table(
      f'{len(rows):,} clients by {stats.words(key)}, the lowest first; '
      f'results of round {stats.range_text(map(int, rounds))}', columns,
      num_names=1 + ('name' in columns))


def distribution(run: Run) -> Table | None:
  """Returns quantiles over clients of what they have recorded.

  The first row has the number of clients that have a value.
  """
  rows = frame(run)
  if 'round' not in rows:
    return None
  points = {'min': 0., '10%': .1, 'median': .5, '90%': .9, 'max': 1.}
  numbers = rows.drop(columns=['round']).select_dtypes(
      'number').dropna(axis='columns', how='all')
  return Table(
      'distribution over clients (--clients lists them)',
      {'': ['clients', *points]} | {stats.words(name): [
          f'{column.count():,}', *(
              cell(name, float(value)) for value in np.quantile(
                  column.dropna(), [*points.values()]))]
          for name, column in numbers.items()})


# Headers of statistics over clients, and endings of their metrics.
OVER_CLIENTS = {'mean': '', 'spread': '_std', 'worst tenth': '_worst_tenth',
                'worst client': '_worst'}


def over_clients(title: str, rows: Iterable[tuple[str, str, Iterable[Run]]]
                 ) -> Table:
  """Returns statistics over clients, after the last evaluation of runs.

  Rows are (label, metric, runs); the numbers of several runs are means.
  """
  rows = [(label, metric, [*runs]) for label, metric, runs in rows]
  return Table(title, {'': [label for label, *_ in rows]} | {
      header: [stats.metric_text(metric, [
          run.last(metric + ending) for run in runs
          if run.values(metric + ending)], NO_VALUE)
               for _, metric, runs in rows]
      for header, ending in OVER_CLIENTS.items()}, (
          'spread: standard deviation over clients; worst tenth: mean of the '
          'tenth of the clients with the worst values',))


def sorted_values(runs: Sequence[Run], metric: str) -> 'pd.DataFrame | None':
  """Returns a metric of clients, the lowest first, by rank and run.

  It is that of the last evaluation of each client, without new ones and those
  without a value; None if no client has one. If runs have different numbers of
  clients, ranks are those of the most. Accuracies are in percent.
  """
  import pandas as pd

  columns = {str(run.path): _last_values(run, metric).dropna() for run in runs}
  values = {name: np.sort(column) for name, column in columns.items()
            if len(column)}
  if not values:
    return None
  count = max(map(len, values.values()))
  return stats.scale(metric) * pd.DataFrame({
      name: np.interp(np.linspace(0, 1, count), np.linspace(0, 1, len(x)), x)
      for name, x in values.items()}, index=range(1, count + 1))


def counts(runs: Sequence[Run], metric: str) -> tuple[int, int]:
  """Returns how many clients of runs `sorted_values` has, and of how many."""
  columns = [_last_values(run, metric) for run in runs]
  return (sum(int(column.count()) for column in columns),
          sum(map(len, columns)))


def _last_values(run, metric):
  """Returns a metric of each client but new ones; empty if not recorded."""
  import pandas as pd

  made = frame(run)
  if 'is_new' in made:
    made = made[~made['is_new'].fillna(False).astype(bool)]
  return made.get(metric, pd.Series(dtype=float))


def ordered(names) -> list[str]:
  """Returns names of metrics in the order of columns."""
  return [*(name for name in COLUMNS if name in names),
          *sorted({*names} - {*COLUMNS})]


def cell(name: str, value: Any) -> str:
  """Returns a value of a metric as text."""
  if isinstance(value, bool):
    return 'yes' if value else 'no'
  if name == 'name':  # of a client
    return texts.short_names([value])[0]
  if not is_number(value):
    return NO_VALUE
  if name == 'seconds':
    return f'{value:.2f}'
  if isinstance(value, int) or name in (
      'num_examples', 'num_heldout', 'round', 'times_sampled'):
    return f'{value:,.0f}'
  return texts.metric(name, value)
