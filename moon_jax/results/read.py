"""The reader of runs: finished, running, diverged or stopped.

It imports no JAX, so that commands that only look at runs start fast.
"""

from collections.abc import Iterable
import glob
import math
import pathlib
import re
import statistics
import sys
import time
from typing import Any, NamedTuple, TYPE_CHECKING
import zipfile

import numpy as np

from moon_jax.cli import toml_file
from moon_jax.config import Config
from moon_jax.config.methods import METHODS
from moon_jax.data.io import files
from moon_jax.errors import UserError
from moon_jax.results import pack, stats
from moon_jax.runs import directory as directory_lib
from moon_jax.simulation.metric_functions import is_better_lower
from moon_jax.view import status
from moon_jax.view.status import is_number
from moon_jax.view.text import duration

if TYPE_CHECKING:
  import pandas as pd

BUDGETS = ('smoke', 'small', 'full')  # of published tables
_TABLES = pathlib.Path('experiments', 'tables')
_MAX_DEPTH = 4  # of directories between an argument and its runs
_METRIC = int | float | None  # of a line of metrics.jsonl


class State(NamedTuple):
  """What a run does now."""

  kind: str  # finished, running, diverged, stopped
  text: str
  reason: str = ''  # why it diverged


class Run(NamedTuple):
  """A work directory."""

  path: pathlib.Path
  config: Config  # without fields of other versions
  inputs: dict[str, str]  # hashes of files, by flag
  lines: list[dict[str, Any]]  # of metrics.jsonl
  summary: dict[str, Any]  # of a finished run, else {}
  state: State

  @property
  def is_personal(self) -> bool:
    """Whether the run is about models of clients, or of their clusters."""
    method = METHODS.get(self.config.algorithm.name)
    return method is not None and method.kind == 'personal' or (
        self.config.topology.name in ('ifca', 'cfl'))

  def arrays(self, name: str) -> dict[str, np.ndarray]:
    """Returns the arrays of partition.npz or timeline.npz; {} if unreadable."""
    try:
      with np.load(self.path / name) as arrays:
        return dict(arrays)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
      return {}

  def times_sampled(self) -> np.ndarray | None:
    """Returns selections of each client so far, int [C]; None if unknown."""
    try:
      selected = [line['clients_selected'] for line in self.lines
                  if 'clients_selected' in line]
      if not selected:
        # The file has the cohorts of all rounds from the start on.
        text = (self.path / 'cohorts.txt').read_text()
        selected = [map(int, row.split())
                    for row in text.splitlines()[:len(self.lines)]]
      clients = [client for cohort in selected for client in cohort]
      return np.bincount(clients, minlength=self.config.num_clients)
    except (OSError, ValueError, TypeError):
      return None

  def line_of_clients(self) -> dict[str, Any] | None:
    """Returns the last line with columns of clients; None without any."""
    return next((line for line in reversed(self.lines)
                 if line.get('clients', {}).get('client')), None)

  def series(self, name: str) -> list[tuple[int, float]]:
    """Returns the rounds that have recorded a metric, and its values.

    A value that was not finite is NaN, such as the mean over clients if the
    model of one has diverged.
    """
    return [(line['round'],
             float(line[name]) if is_number(line[name]) else math.nan)
            for line in self.lines
            if isinstance(line.get(name, ''), _METRIC)]

  def values(self, name: str) -> list[float]:
    """Returns a metric in the rounds that have recorded it; see `series`."""
    return [value for _, value in self.series(name)]

  def last(self, name: str) -> float:
    """Returns a metric in its last round; NaN if it is not finite, or none."""
    return (self.values(name) or [math.nan])[-1]

  def means_over_clients(self) -> list[str]:
    """Returns the metrics whose distribution over clients is recorded."""
    names = {name.removesuffix('_worst_tenth') for line in self.lines
             for name in line if name.endswith('_worst_tenth')}
    return sorted(names, key=lambda name: (
        'accuracy' not in name, [*stats.OF_CLIENTS, name].index(name), name))

  def measure(self, part: str = 'test') -> str | None:
    """Returns `status.measure`; None if the run has none yet."""
    return status.measure({name for line in self.lines for name in line}, part)

  def endpoints(self, measure: str | None) -> dict[str, float]:
    """Returns the endpoints of a `measure`; {} if the run does not have it.

    Accuracies are fractions. The last value, and the mean of the last ones, are
    NaN if one of them is not finite; the best one is that of the other rounds.
    """
    if measure is None or not (series := self.series(measure)):
      return {}
    values = [value for _, value in series]
    best_round, best = (min if is_better_lower(measure) else max)(
        [pair for pair in series if is_number(pair[1])],
        key=lambda pair: pair[1], default=(math.nan, math.nan))
    return {'last': values[-1], 'best': best, 'best_round': best_round,
            'mean_of_last_10': stats.mean_of_last(values)}

  def times(self) -> dict[str, float]:
    """Returns seconds, and medians over rounds; {} before any round."""
    seconds = self.values('seconds')
    return {
        'seconds_per_round': statistics.median(seconds),
        'seconds_of_rounds': sum(seconds),
        'examples_per_second': statistics.median(
            self.values('examples_per_second'))} if seconds else {}

  def rounds_to(self, target: float, window: int = 1,
                measure: str = 'test_accuracy') -> int | None:
    """Returns the first round in which a `measure` reaches a target.

    `window` is that of `stats.first_reached`. Accuracies are fractions.
    """
    rounds, values = zip(*self.series(measure))
    # A loss falls to its target.
    sign = -1 if is_better_lower(measure) else 1
    position = stats.first_reached(
        [sign * value for value in values], sign * target, window)
    return None if position is None else rounds[position]


def metric_of(runs: Iterable[Run]) -> str:
  """Returns the metric by which runs are compared if none is named.

  It is the accuracy of clients' models, if all runs with an evaluation record
  it and a method is about these models; otherwise the test accuracy if any run
  has it, and the test loss if none has.
  """
  evaluated = [run for run in runs if run.measure()]
  if any(run.is_personal for run in evaluated):
    for metric in stats.OF_CLIENTS:
      if all(run.values(metric) for run in evaluated):
        return metric
  return ('test_accuracy' if any(
      run.measure() == 'test_accuracy' for run in evaluated) else 'test_loss')


def read(path: pathlib.Path) -> Run:
  """Reads a run.

  Raises:
    UserError: if the directory holds no run, or its files are damaged.
  """
  if not path.is_dir():
    raise UserError('', f'{path} must be the directory of a run',
                    'a file' if path.exists() else 'nothing there')
  content = _json(path / 'config.json')
  if content is None:
    inside = len(_runs_in(path, _MAX_DEPTH))
    raise UserError(
        '', f'{path} must be the directory of a run, with config.json', 'none',
        f'It holds {inside} runs: name one of them' * bool(inside))
  # A run may end, or begin to be extended, meanwhile. It writes its last line,
  # then its summary, and then it releases its lock: they are read backwards.
  holder = _lock_holder(path / directory_lib.LOCK)
  summary = _json(path / 'summary.json') or {}
  try:
    lines = directory_lib.read_lines(path)
  except UserError as error:
    raise UserError('', f'{path} {error.requirement}', error.got, error.remedy
                    ) from error
  inputs = content.pop('inputs', {})
  try:
    config = Config(**{name: value for name, value in content.items()
                       if name in Config.__dataclass_fields__})
    config = Config(**config.to_dict())  # in their types
  except (TypeError, ValueError, OverflowError) as error:
    raise UserError('', f'{path}/config.json must be the configuration of a '
                    'run', error, 'Restore it from a copy') from error
  rounds = summary.get('rounds')
  if summary and rounds != len(lines):
    if (_json(path / 'summary.json') or {}) != summary:
      return read(path)
    raise UserError('', f'{path}/metrics.jsonl must have the {rounds} rounds '
                    'of summary.json', len(lines), 'Restore it from a copy')
  return Run(path, config, inputs if isinstance(inputs, dict) else {}, lines,
             summary, _state(path, config, lines, summary, holder))


def runs_frame(runs: Iterable[Run], metric: str = '') -> 'pd.DataFrame':
  """Returns one row per run; see `results.results`."""
  import pandas as pd

  return pd.DataFrame([
      {'run': str(run.path), 'state': run.state.kind} | run.config.to_dict()
      | {'rounds_done': len(run.lines)} | run.endpoints(metric or run.measure())
      | run.times() for run in runs]).set_index('run')


def rounds_frame(runs: Iterable[Run]) -> 'pd.DataFrame':
  """Returns one row per run and round; see `results.results`."""
  import pandas as pd

  lines = [{'run': str(run.path)} | {
      key: value for key, value in line.items() if is_number(value)}
      for run in runs for line in run.lines]
  return pd.DataFrame(lines, columns=None if lines else ['run', 'round']
                      ).set_index(['run', 'round'])


def find(arguments: Iterable[str]) -> list[pathlib.Path]:
  """Returns the directories of runs, each once.

  Args:
    arguments: directories of runs, directories above them such as that of a
      sweep, files of `pack.write`, or patterns such as 'runs/*moon*'.

  Raises:
    UserError: if an argument has no runs.
  """
  paths: dict[pathlib.Path, pathlib.Path] = {}
  for argument in arguments:
    path = files.user_path(argument)
    places = [path] if path.exists() else [
        pathlib.Path(name) for name in sorted(glob.glob(str(path)))]
    places = [pack.extract(place) if place.suffix == '.zip' and place.is_file()
              else place for place in places]
    runs = [run for place in places for run in _runs_in(place, _MAX_DEPTH)]
    if not runs:
      raise UserError(
          '', f'{argument} must be, or hold, directories of runs (each with a '
          'config.json)', 'none' if places else 'no such directory')
    for run in runs:
      paths.setdefault(run.resolve(), run)
  return list(paths.values())


def tables(argument: str) -> list[pathlib.Path]:
  """Returns the files of the published tables that an argument names, if any.

  It is a TOML file, a directory of such files, or the name of one in
  experiments/tables. Files of budgets are no tables.
  """
  path = files.user_path(argument)
  if path.suffix == '.toml':
    return [path]
  if path.is_dir():
    return [file for file in sorted(path.glob('*.toml'))
            if not toml_file.content(file).keys() <= {*BUDGETS}]
  file = _TABLES / f'{argument}.toml'
  return [file] if not path.exists() and file.exists() else []


def is_run(path: str | pathlib.Path) -> bool:
  """Returns whether a path is the directory of a run."""
  return (files.user_path(path) / 'config.json').exists()


def _runs_in(path, depth):
  try:
    if is_run(path):
      return [path]
    children = sorted(path.iterdir()) if depth and path.is_dir() else []
  except PermissionError as error:
    print(f'left out: {error.strerror}: {path}', file=sys.stderr)
    return []
  return [run for child in children
          if not child.name.startswith('.')  # a copy that is not complete
          for run in _runs_in(child, depth - 1)]


def _json(path):
  """Returns a JSON object; None if the file does not exist."""
  try:
    return files.read_json_object(path)
  except (OSError, ValueError, RecursionError) as error:
    remedy = ('Restore it from a copy' if path.name == 'config.json' else
              'Delete this file; the command of the run writes it again')
    raise UserError('', f'{path} must be a readable JSON object',
                    f'{type(error).__name__}: {error}', remedy) from error


def _state(path, config, lines, summary, holder):
  """Finds out what a run does now; an active one has a lock `holder`."""
  total = config.num_rounds
  rounds = f'{len(lines)} of {total} rounds'
  age = f'written {_ago(path)}'
  if holder:
    return State('running', f'{rounds}; {holder} holds the lock of '
                 f'metrics.jsonl, {age}')
  if summary.get('stopped_early') or (
      summary and summary.get('rounds') == total):
    early = ' (early stopping)' if summary.get('stopped_early') else ''
    return State('finished', f'{rounds}{early}, {age}')
  file = path / 'diverged.txt'  # written by experiments.full.run
  diverged = _json(path / 'diverged.json') or (
      {'error': file.read_text(encoding='utf-8')} if file.exists() else None)
  if diverged:
    reason = str(diverged.get('error', '')).strip()
    return State('diverged', f'after {rounds}: {reason}', reason)
  saved = max(directory_lib.saved_rounds(path / 'checkpoints'), default=0)
  again = f'resumes after round {saved}' if saved else 'starts again'
  return State('stopped', f'after {rounds}, {age}; no process of this machine '
               f'holds its lock. Its command {again}')


def _lock_holder(path) -> str:
  """Returns which process has locked a file, '' if none."""
  try:
    with open(path, 'rb') as file:
      # Shared, and released at once; a run that starts now tries again.
      if directory_lib.try_lock(file, is_shared=True):
        return ''
  except OSError:
    return ''  # no file, or a file system without locks
  try:
    match = re.search(rf'FLOCK .* ([1-9]\d*) \S+:{path.stat().st_ino} ',
                      pathlib.Path('/proc/locks').read_text('utf-8'))
    return f'process {match[1]}' if match else 'a process'
  except OSError:
    return 'a process'  # not Linux


def _ago(path):
  """Returns how long ago the metrics or the log of a run were written."""
  times = [(path / name).stat().st_mtime for name in (
      'metrics.jsonl', 'log.txt', 'summary.json') if (path / name).exists()]
  if not times:
    return 'never'
  return f'{duration(max(time.time() - max(times), 0))} ago'
