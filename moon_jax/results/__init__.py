"""Results of runs: one reader, one definition of each statistic, one page.

`moon-jax show`, the table of a sweep and experiments/full are views of them.
"""

import os
from typing import NamedTuple, TYPE_CHECKING

from moon_jax.errors import UserError

if TYPE_CHECKING:
  import pandas as pd

_MAX_ROWS = 60
# Columns that a notebook shows; of the others those in which runs differ.
_ALWAYS = 'state', 'dataset', 'algorithm', 'rounds_done', 'last', 'best'


class Results(NamedTuple):
  """Runs and their rounds.

  Attributes:
    runs: one row per run, by the path of its directory.
    rounds: one row per run and round, by both.
  """

  runs: 'pd.DataFrame'
  rounds: 'pd.DataFrame'

  def _repr_html_(self) -> str:
    shown = self.runs.loc[:, [name for name in self.runs if (
        name in _ALWAYS or self.runs[name].astype(str).nunique() > 1)]]
    return shown.to_html(max_rows=_MAX_ROWS)


def results(*places: str | os.PathLike, metric: str = '') -> Results:
  """Returns runs as two data frames of pandas: per run, and per round.

  Args:
    *places: directories of runs, directories above them such as that of a
      sweep, or patterns such as 'runs/*moon*'. Runs may be unfinished. Trials
      of a tuning are left out, unless a single one is named.
    metric: name of a metric of rounds, of which the endpoints are; by default
      the test accuracy or, for tasks without one, the test loss.

  Returns:
    `Results`, a pair. `runs` has one row per run, by the path of its directory:
    `state`, its settings, `rounds_done`, the endpoints `last`, `best`,
    `best_round` and `mean_of_last_10` of `metric` (accuracies are fractions),
    the medians `seconds_per_round` and `examples_per_second`, and the sum
    `seconds_of_rounds`. `last` and `mean_of_last_10` are NaN if the metric was
    not finite there, as when the model of a client has diverged. `rounds` has
    one row per run and round with all metrics that are numbers, NaN where a
    metric was not measured.

  Raises:
    UserError: if a place has no runs, all are trials, or a file is damaged.

  Examples:
    The accuracy of finished runs over seeds, and curves:

        runs, rounds = mj.results('runs')
        finished = runs[runs.state == 'finished']
        finished.groupby('algorithm')['last'].agg(['mean', 'std'])
        rounds['test_accuracy'].unstack('run').plot()

  See also:
    `client_results`, with a row per client; `moon-jax show`, which groups runs
    by the settings in which they differ.
  """
  from moon_jax.results import read

  runs = _read(places)
  if metric and not any(run.values(metric) for run in runs):
    names = sorted({name for run in runs for line in run.lines for name in line
                    if run.values(name)})
    raise UserError('metric', 'must be recorded by a run; they have '
                    f'{", ".join(names)}', metric)
  frame = read.runs_frame(runs, metric)
  frame['metric'] = [metric or run.measure() for run in runs]
  return Results(frame, read.rounds_frame(runs))


# `moon_jax.results` is the function where it was used before, so Python looks
# for `import moon_jax.results.read as read` by its name.
results.__name__ = __name__


def client_results(*places: str | os.PathLike) -> 'pd.DataFrame':
  """Returns the last results of each client of runs, one row per client.

  Args:
    *places: directories of runs, as for `results`, that have evaluated clients
      (`client_eval_every`, or held-out data). Trials are left out in the same
      way.

  Returns:
    A data frame of pandas by the path of the run and the number of the client:
    `name` (if clients have names), `round` of the results, `num_examples`,
    `times_sampled` and all that the run has recorded of its clients, such as
    `local_heldout_accuracy`, a fraction. A client that was not in the last
    evaluation has the results of its last one, NaN without any. With
    client_eval='both' all are in each evaluation, so that results of local
    models are NaN for clients that did not train in the last one.

  Raises:
    UserError: if a place has no runs, all are trials, or a file is damaged.

  Examples:
    The ten clients with the lowest accuracies:

        mj.client_results('runs/one').nsmallest(10, 'local_heldout_accuracy')
  """
  from moon_jax.results import clients

  return clients.frames(_read(places))


def _read(places):
  from moon_jax.results import read, trials

  for place in places:
    if not isinstance(place, str | os.PathLike):
      raise UserError(
          'places', 'must be directories, one argument each',
          f'{place!r:.60}', 'Write results(*places)')
  paths, tunings = trials.find([os.fspath(place) for place in places])
  if tunings and not paths:
    raise UserError('places', 'must have a run that is no trial of a tuning',
                    'only trials', f'Read {tunings[0].path}, or name one trial')
  return [read.read(path) for path in paths]
