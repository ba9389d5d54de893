"""Tunings (docs/sweeps.md) beside runs: trials, which are no results."""

from collections.abc import Iterable, Sequence
import functools
import pathlib
from typing import NamedTuple, TYPE_CHECKING

from moon_jax.errors import UserError
from moon_jax.results import read, stats
from moon_jax.results.page import Figure

if TYPE_CHECKING:
  import pandas as pd

_READ = 'method', 'rounds_done', 'metric', 'value', 'is_trial', 'workdir'
_LOG = 20  # a range with this ratio of its ends is drawn on a logarithmic axis


class Tuning(NamedTuple):
  """What a tuning has written."""

  path: pathlib.Path  # of its table of trials, or before of their directories
  rows: 'pd.DataFrame | None'  # None before it has finished
  report: list[str]  # lines

  def trials(self) -> set[pathlib.Path]:
    """Returns the directories of its trials, without those trained again."""
    root = self.path.parents[2].resolve()
    ended = () if self.rows is None else self.rows.workdir[self.rows.is_trial]
    return {root / name for name in [
        *begun(self.path.parent), *(pathlib.Path(x).name for x in ended)]}


def find(arguments: Sequence[str]) -> tuple[list[pathlib.Path], list[Tuning]]:
  """Returns the directories of runs without trials, and the tunings of these.

  The best of many trials is no measurement. Only a run that is the one argument
  is returned in any case, without a tuning.

  Args:
    arguments: those of `read.find`.

  Raises:
    UserError: if an argument has no runs, or a file of a tuning is damaged.
  """
  paths = read.find(arguments)
  if len(arguments) == 1 and read.is_run(arguments[0]):
    return paths, []
  tunings = [tuning for root in dict.fromkeys(
      path.resolve().parent for path in paths) for tuning in _beside(root)]
  trials = {trial for tuning in tunings for trial in tuning.trials()}
  return [path for path in paths if path.resolve() not in trials], tunings


def begun(path: pathlib.Path) -> list[str]:
  """Returns the names of directories of trials, also of those that train."""
  file = path / 'trials.txt'
  return file.read_text('utf-8', 'replace').splitlines() if (
      file.exists()) else []


def _beside(root: pathlib.Path) -> Iterable[Tuning]:
  """Yields the tunings whose trials are in a directory."""
  for place in sorted(root.glob('tuning/*')):
    if (place / 'tune.csv').exists():
      yield _read(place / 'tune.csv')
    elif names := begun(place):
      yield Tuning(place / 'trials.txt', None, [
          f'{place.name}: {len(names)} trials so far; the tuning has not '
          'finished'])


def _read(path):
  """Reads a tuning that has finished."""
  import pandas as pd

  try:
    rows = pd.read_csv(path, keep_default_na=False, na_values=[''])
    if not {*_READ} <= {*rows}:
      raise ValueError(f'lines without {", ".join(_READ)}')
    report = (path.parent / 'tune.txt').read_text(encoding='utf-8')
  except (OSError, ValueError) as error:
    raise UserError('', f'{path} must be a table of trials', error,
                    'Repeat the command that has written it') from error
  return Tuning(path, rows, report.splitlines())


def sections(tunings: Sequence[Tuning]) -> list[str | Figure]:
  """Returns the report and the figure of each tuning."""
  made: list[str | Figure] = []
  for tuning in tunings:
    made += [f'## Tuning {tuning.path.parent.name}',
             '\n'.join(['```text', *tuning.report, '```'])]
    if tuning.rows is not None:
      made.append(_figure(tuning.rows, f'tuning-{len(made) - 2}'))
  return made


def _figure(rows, name):
  from moon_jax.results import figures

  columns, known = [*rows], rows[rows.value.notna() & rows.is_trial]
  searched = columns[1:columns.index('seed')]  # after the method
  label = ' or '.join(map(stats.words, known.metric.unique()))
  return Figure(
      name, figures.svg(functools.partial(
          _draw, rows=known, searched=searched),
                        2.4 * (1 + len(searched)), name),
      f'Points: the {label} of {len(known)} trials over their number and over '
      f'{", ".join(searched)}.',
      f'The last {label} of each trial. The larger a point, the more rounds '
      'has the trial; the chosen one has a ring.')


def _draw(figure, rows, searched):
  from moon_jax.results import figures

  axes = figure.subplots(1 + len(searched), squeeze=False)[:, 0]
  rows = rows.assign(**{'': range(1, len(rows) + 1)})
  values = rows.value * rows.metric.map(stats.scale)
  sizes = 12 + 48 * rows.rounds_done / rows.rounds_done.max()
  methods = list(dict.fromkeys(rows.method))
  for ax, name in zip(axes, ['', *searched]):
    places = rows[name].dropna()
    is_number = places.dtype.kind in 'if'
    if not is_number:
      places = places.astype(str)
      ax.xaxis.update_units(sorted({*places}))
    for color, method in zip(figures.shades(methods), methods):
      if len(at := places[rows.method == method]):
        ax.scatter(at, values[at.index], sizes[at.index], color, label=method,
                   linewidths=2 * rows.chosen[at.index], edgecolors='#333333')
    ax.set(xlabel=name or 'trial, the best of most rounds first',
           ylabel=' or '.join(map(stats.label, rows.metric.unique())))
    if name and is_number and 0 < _LOG * places.min() < places.max():
      ax.set_xscale('log')
  if len(methods) > 1:
    figure.legend(handles=axes[0].collections, loc='outside lower center')
