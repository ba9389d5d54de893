"""Results of runs: one reader, one definition of each statistic, one page.

`read` reads the directory of a run, `frames` makes data frames of runs, `stats`
and `paired` define the statistics, `figures` draws, `page` writes Markdown and
HTML. The commands `report`, `compare` and `inspect`, the table of a sweep and
experiments/full are views of them.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from moon_jax.results.frames import Results


def results(*places: str | os.PathLike) -> 'Results':
  """Returns runs as two data frames of pandas: per run, and per round.

  Args:
    *places: directories of runs, directories above them such as that of a
      sweep, or patterns such as 'runs/*moon*'. Runs may be unfinished.

  Returns:
    `Results`, a pair. `runs` has one row per run, by the path of its directory:
    `state`, its settings, `rounds`, the endpoints `last`, `best`, `best_round`
    and `mean_of_last_10` of the test accuracy (a fraction), the median
    `seconds_per_round` and the sum `seconds_of_rounds`. `rounds` has one row
    per run and round with all metrics that are numbers, NaN where a metric was
    not measured.

  Raises:
    UserError: if a place has no runs, or a file of a run is damaged.

  Examples:
    The accuracy of finished runs over seeds, and curves:

        runs, rounds = mj.results('runs')
        finished = runs[runs.state == 'finished']
        finished.groupby(['algorithm', 'mu'])['last'].agg(['mean', 'std'])
        rounds['test_accuracy'].unstack('run').plot()

  See also:
    `moon-jax compare`, which groups runs by the settings in which they differ.
  """
  from moon_jax.results import frames  # pandas takes a second to import
  from moon_jax.results import read

  return frames.of([read.read(path) for path in read.find(
      [os.fspath(place) for place in places])])
