"""The tunings (docs/sweeps.md) beside runs: trials, which are no results."""

from collections.abc import Iterable, Sequence
import csv
import pathlib
from typing import NamedTuple

from moon_jax.errors import UserError
from moon_jax.results import read

_READ = 'method', 'rounds_done', 'metric', 'value', 'is_trial', 'workdir'


class Tuning(NamedTuple):
  """What a tuning has written."""

  path: pathlib.Path  # of its table of trials, or before of their directories
  rows: list[dict[str, str]]
  report: list[str]  # lines

  def trials(self) -> set[pathlib.Path]:
    """Returns the directories of its trials, without those trained again."""
    root = self.path.parents[2].resolve()
    return {root / name for name in [*begun(self.path.parent), *(
        pathlib.Path(row['workdir']).name for row in self.rows
        if row['is_trial'] == 'True')]}


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
      yield Tuning(place / 'trials.txt', [], [
          f'{place.name}: {len(names)} trials so far; the tuning has not '
          'finished'])


def _read(path):
  """Reads a tuning that has finished."""
  try:
    with open(path, newline='', encoding='utf-8') as lines:
      rows = list(csv.DictReader(lines))
      if any(name not in row for row in rows for name in _READ):
        raise ValueError(f'lines without {", ".join(_READ)}')
    report = (path.parent / 'tune.txt').read_text(encoding='utf-8')
  except (OSError, ValueError) as error:
    raise UserError('', f'{path} must be a table of trials', error,
                    'Repeat the command that has written it') from error
  return Tuning(path, rows, report.splitlines())
