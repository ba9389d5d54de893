"""Passes the rounds of a run to its loggers, each round once.

loggers.json in the work directory holds the last round that each logger has
logged. After a run resumes, its loggers get the rounds that they lack, from
metrics.jsonl, and no round that they have.
"""

from collections.abc import Iterable, Sequence
import contextlib
import copy
import dataclasses
import json
import sys
import traceback
from typing import Any

from moon_jax import loggers as loggers_lib
from moon_jax.config import Config
from moon_jax.distributed import processes
from moon_jax.errors import first_line, UserError
from moon_jax.loggers import Logger, LoggerOrFactory, RunInfo
from moon_jax.runs import identity
from moon_jax.runs.directory import InUse, Workdir
from moon_jax.runs.prepare import Prepared
from moon_jax.view.run_log import RunLog


def check_factories(given: Sequence[LoggerOrFactory]) -> None:
  """Checks that loggers can be made for each of several runs."""
  for entry in given:
    if isinstance(entry, Logger) or not callable(entry):
      name = type(entry).__name__
      raise UserError(
          'loggers', 'must be functions that return a logger, since each run '
          'of a sweep has its own', f'a {name}',
          f'Pass the class, or lambda: {name}(...)')


def replay(runs: Iterable[Prepared], given: Sequence[LoggerOrFactory] = ()
           ) -> None:
  """Passes the rounds of finished runs, which no process uses, to loggers."""
  for run in runs:
    if run.config.loggers or given:
      with contextlib.closing(run.workdir), contextlib.suppress(InUse):
        processes.run_on_first_process(run.workdir.lock)
        RunLoggers(loggers_lib.make(run.config, given), run.workdir, run.config,
                   RunLog()).close()


class RunLoggers:
  """The loggers of a run. Call it after each round, as a callback."""

  def __init__(self, loggers: Sequence[Logger], workdir: Workdir,
               config: Config, log: RunLog):
    """Starts the loggers, and passes the rounds that they lack.

    `workdir` is locked, and only the first process uses loggers.
    """
    self._log, self._workdir = log, workdir
    self._loggers: dict[str, Logger] = {}
    if not (loggers and processes.is_first()):
      return
    self._run = identity.contents(dataclasses.replace(config, num_rounds=1))
    self._saved = self._read()
    self._kept = copy.deepcopy(self._saved)  # what is JSON
    lines = workdir.lines()
    for logger in loggers:
      kind = type(logger).__name__
      same = sum(type(other).__name__ == kind
                 for other in self._loggers.values())
      name = kind + f'-{same + 1}' * (same > 0)
      self._loggers[name] = logger
      saved = self._saved.setdefault(name, {'round': 0})
      if logger.rewrites:
        saved['round'] = 0
      try:
        logger.start(RunInfo(workdir.path, config.to_dict(), len(lines), saved))
        self._keep(name)
        self._write()  # before rounds: it may identify a remote run
        for line in lines[saved['round']:]:
          logger.log(line)
          saved['round'] = line['round']
        self._keep(name)
      except Exception as error:
        with contextlib.suppress(TypeError, ValueError):
          self._keep(name)
        self._write()
        self.close()
        raise UserError(
            '', f'the logger {name} must start', first_line(error),
            'Remove it, or fix the reason') from error
    self._write()

  def __call__(self, simulation: Any, line: dict[str, Any]) -> None:
    """Logs a round. A logger that fails ends with a warning."""
    for name, logger in list(self._loggers.items()):
      if line['round'] <= self._saved[name]['round']:
        continue  # logged before the run was interrupted
      round_before = self._saved[name]['round']
      try:
        logger.log(line)
        self._saved[name]['round'] = line['round']
        self._keep(name)
      except Exception as error:
        self._saved[name]['round'] = round_before
        del self._loggers[name]
        self._warn(name, error, line['round'])
        with contextlib.suppress(Exception):
          logger.close()
    self._write()

  def close(self) -> None:
    """Ends the loggers; errors are warnings."""
    for name, logger in self._loggers.items():
      try:
        logger.close()
      except Exception as error:
        self._warn(name, error)
    self._loggers = {}

  def _warn(self, name, error, round_=None):
    when = f'in round {round_}' if round_ else 'at the end'
    print(f'warning: the logger {name} failed {when}: {first_line(error)}. '
          'The run continues without it; the same command, run again, logs the '
          'missing rounds', file=sys.stderr, flush=True)
    self._log.write(''.join(traceback.format_exception(error)))

  def _read(self):
    try:
      content = json.loads((self._workdir.path / 'loggers.json').read_bytes())
      loggers = content['loggers']
      if content['run'] == self._run and all(
          type(saved['round']) is int for saved in loggers.values()):
        return loggers
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
      pass  # absent, damaged, or of another run
    return {}

  def _write(self):
    if all(logger.rewrites for logger in self._loggers.values()):
      return  # they write all rounds again
    text = json.dumps({'run': self._run, 'loggers': self._kept}) + '\n'
    self._workdir.write('loggers.json', text.encode())

  def _keep(self, name):
    """Takes what a logger has saved, if it is JSON; otherwise it raises."""
    self._kept[name] = json.loads(json.dumps(self._saved[name]))
