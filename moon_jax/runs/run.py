"""Runs a configuration in its work directory, from start to summary.

source > partition > cohort > schedule > engine > aggregate > evaluate > record
"""

from collections.abc import Callable, Sequence
from typing import Any

from moon_jax.config import Config
from moon_jax.distributed import host
from moon_jax.errors import setting, UserError
from moon_jax.runs import prepare


def run(config: Config, callbacks: Sequence[Callable] = (),
        loggers: Sequence[Callable] = ()) -> dict[str, Any]:
  """Runs, or resumes, `config` in its work directory; returns its summary.

  Args:
    config: the configuration.
    callbacks: called after each round, once its metrics are written, as
      callback(simulation, line): the `moon_jax.Simulation`, and the round's
      line of metrics.jsonl as a dict. Rounds done by an earlier, interrupted
      run are not repeated. With several processes each process calls them.
    loggers: `moon_jax.loggers.Logger`, besides those of config.loggers, or
      functions that return one. Unlike callbacks they log each round once,
      also if the run is interrupted or has finished earlier.

  Raises:
    UserError: before anything compiles, if the run is impossible.
    OutOfMemory: if memory is exhausted; completed rounds are saved.
    DivergedError: if a loss or a parameter is not finite.
    InterruptedRun: if a signal ends the run; completed rounds are saved.

  Examples:
    >>> moon_jax.run(moon_jax.Config(dataset='digits', algorithm='fedavg'),
    ...              callbacks=[lambda simulation, line: print(line)])
  """
  if not isinstance(config, Config):
    raise UserError('run needs a moon_jax.Config, such as moon_jax.Config('
                    f"dataset='digits'); got a {type(config).__name__}")
  check_lists(callbacks, loggers)
  host.share_cores()
  from moon_jax.simulation import checks  # imports JAX

  return run_validated(checks.validate(config), callbacks, loggers)


def check_lists(callbacks: Any, loggers: Any) -> None:
  """Checks that callbacks are functions in a list, and that loggers are one.

  Raises:
    UserError: otherwise.
  """
  is_list = isinstance(callbacks, list | tuple)
  if not is_list or not all(map(callable, callbacks)):
    raise UserError('callbacks must be a list of functions of (simulation, '
                    f'line); got {callbacks!r}. Pass callbacks=[function]')
  if not isinstance(loggers, list | tuple):
    raise UserError('loggers must be a list of moon_jax.loggers.Logger or of '
                    f'functions that return one; got {loggers!r}. Pass '
                    'loggers=[moon_jax.loggers.CSV()], or names in '
                    "moon_jax.Config(loggers='csv')")


def run_validated(config: Config, callbacks: Sequence[Callable] = (),
                  loggers: Sequence[Callable] = ()) -> dict[str, Any]:
  """`run`, for a configuration that `checks.validate` returned."""
  from moon_jax.runs import run_loggers

  prepared = prepare.prepare(config)
  if prepared.summary:
    print(f'the run in {setting("workdir", prepared.workdir.path)} is complete')
    run_loggers.replay([prepared], loggers)
    return prepared.summary
  from moon_jax.runs import trainer  # imports JAX

  result, = trainer.train([prepared], callbacks, loggers=loggers)
  if isinstance(result, Exception):
    raise result
  return result
