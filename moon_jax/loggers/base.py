"""The interface of loggers."""

from collections.abc import Mapping
import importlib.util
import math
import numbers
import pathlib
from typing import Any, NamedTuple

from moon_jax.errors import UserError
from moon_jax.simulation.records import Record


class RunInfo(NamedTuple):
  """A run that begins or resumes, for `Logger.start`.

  Attributes:
    path: its work directory.
    config: its configuration.
    rounds_done: rounds of earlier commands, which are not repeated.
    saved: values that the logger may change and finds again when the run
      resumes, such as the identifier of a remote run; JSON. "round" is the
      last round that the logger has logged, 0 if none.
  """

  path: pathlib.Path
  config: Mapping[str, Any]
  rounds_done: int
  saved: dict[str, Any]


class Logger:
  """Logs rounds. Subclasses define `log`.

  `moon_jax.run` calls `start`, `log` once for each round in order, and `close`.
  After the run resumes, it leaves out rounds that have been logged, and logs
  those that are missing. In a loop over `Simulation.rounds` a logger is a
  context manager that is called with each record.

  Attributes:
    rewrites: whether `start` removes all that earlier commands have logged;
      then all rounds are logged again, from round 1.

  Examples:
    >>> class Printer(moon_jax.loggers.Logger):
    ...   def log(self, line):
    ...     print(line['round'], line.get('test_accuracy'))
    >>> moon_jax.run(config, loggers=[Printer()])
  """

  rewrites = False

  def start(self, run: RunInfo) -> None:
    """Begins, or resumes, the log of a run. Loops do not call it."""
    del run

  def log(self, line: dict[str, Any]) -> None:
    """Logs a round.

    Args:
      line: of metrics.jsonl (docs/workdir.md); "round" counts from 1.
    """
    raise NotImplementedError

  def close(self) -> None:
    """Ends the log: the run has ended, or is interrupted."""

  def __call__(self, record: Record | Mapping[str, Any]) -> None:
    """Logs a record of `Simulation.rounds`, or a line of metrics.jsonl."""
    if isinstance(record, Record):
      record = {'round': record.round, **record.metrics,
                'seconds': record.seconds}
    self.log(dict(record))

  def __enter__(self):
    return self

  def __exit__(self, kind, error, trace):
    self.close()


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
  """Returns the metrics of a line that are numbers, and are finite."""
  return {name: float(value) for name, value in line.items()
          if name != 'round' and isinstance(value, numbers.Real)
          and not isinstance(value, bool) and math.isfinite(value)}


def distributions(line: Mapping[str, Any]) -> dict[str, list[float]]:
  """Returns the columns of a line's "clients", without missing values."""
  columns = {
      name: [float(value) for value in values
             if isinstance(value, numbers.Real) and math.isfinite(value)]
      for name, values in line.get('clients', {}).items()
      if name not in ('client', 'received')}
  return {name: values for name, values in columns.items() if values}


def require(package: str, logger: str) -> None:
  """Checks that a package is installed, without importing it.

  A directory of this name in the current one, where W&B and MLflow write their
  files, is not the package.

  Raises:
    UserError: with the command that installs it.
  """
  try:
    spec = importlib.util.find_spec(package)
  except (ImportError, ValueError):
    spec = None
  if spec is None or spec.origin is None:
    raise UserError(
        f'the logger {logger} needs the package {package}, which is not '
        f'installed; run: pip install {package}')
