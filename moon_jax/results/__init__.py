"""Results of runs: one reader, one definition of each statistic, one page.

The commands `report`, `compare` and `inspect`, the table of a sweep and
experiments/full are views of them.
"""

import os
from typing import NamedTuple, TYPE_CHECKING

from moon_jax.errors import UserError

if TYPE_CHECKING:
  from collections.abc import Iterable

  import pandas as pd

  from moon_jax.results.read import Run


class Results(NamedTuple):
  """Runs and their rounds.

  Attributes:
    runs: one row per run, by the path of its directory.
    rounds: one row per run and round, by both.
  """

  runs: 'pd.DataFrame'
  rounds: 'pd.DataFrame'


def results(*places: str | os.PathLike) -> Results:
  """Returns runs as two data frames of pandas: per run, and per round.

  Args:
    *places: directories of runs, directories above them such as that of a
      sweep, or patterns such as 'runs/*moon*'. Runs may be unfinished.

  Returns:
    `Results`, a pair. `runs` has one row per run, by the path of its directory:
    `state`, its settings, `rounds`, the endpoints `last`, `best`, `best_round`
    and `mean_of_last_10` of the test accuracy (a fraction) or, for tasks
    without one, of the test loss, the medians `seconds_per_round` and
    `examples_per_second`, and the sum `seconds_of_rounds`. `rounds` has one row
    per run and round with all metrics that are numbers, NaN where a metric was
    not measured.

  Raises:
    UserError: if a place has no runs, or a file of a run is damaged.

  Examples:
    The accuracy of finished runs over seeds, and curves:

        runs, rounds = mj.results('runs')
        finished = runs[runs.state == 'finished']
        finished.groupby('algorithm')['last'].agg(['mean', 'std'])
        rounds['test_accuracy'].unstack('run').plot()

  See also:
    `moon-jax compare`, which groups runs by the settings in which they differ.
  """
  from moon_jax.results import read

  for place in places:
    if not isinstance(place, str | os.PathLike):
      raise UserError('results needs directories, one argument each; got '
                      f'{place!r:.60}. Pass results(*places)')
  found = read.find([os.fspath(place) for place in places])
  return frames(map(read.read, found))


def frames(runs: 'Iterable[Run]') -> Results:
  """Returns the data frames of runs that were read; see `results`."""
  import pandas as pd  # takes a second

  from moon_jax.view.status import is_number

  rows, lines = [], []
  for run in runs:
    name = {'run': str(run.path)}
    rows.append(
        name | {'state': run.state.kind} | run.config.to_dict()
        | {'rounds': len(run.lines)} | run.endpoints(run.measure())
        | run.times())
    lines += [name | {key: value for key, value in line.items()
                      if is_number(value)} for line in run.lines]
  return Results(
      pd.DataFrame(rows).set_index('run'),
      pd.DataFrame(lines, columns=None if lines else ['run', 'round'])
      .set_index(['run', 'round']))
