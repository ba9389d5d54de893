"""Trains runs in their work directories: one, or those of a sweep.

source > partition > cohort > schedule > engine > aggregate > evaluate > record

Runs that share a program train together, as a unit (`moon_jax.runs.unit`); a
single run is a unit of one. Configurations decide which runs may share a
program, then facts about their splits (`moon_jax.simulation.agreement`), then
memory. Federations are built one after another, since those of a whole sweep
may take gigabytes.

Several processes may train one sweep. Each takes one unit at a time, by locking
the work directories of its runs, from the first unfinished one on. The
operating system releases the locks of a process that ends, however it ends; so
another process then resumes its runs.
"""

import bisect
from collections.abc import Callable, Hashable, Iterator, Sequence
import contextlib
import math
import os
import pathlib
import sys
from typing import Any

from moon_jax.config import Config
from moon_jax.distributed import devices, host
from moon_jax.errors import require, setting, UserError, within
from moon_jax.runs import prepare, run_loggers, values
from moon_jax.runs.directory import InUse
from moon_jax.runs.grid import Sweep
from moon_jax.runs.prepare import Prepared
from moon_jax.runs.signals import wait
from moon_jax.simulation import agreement, checks, round_spec
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.round_spec import RoundSpec

_POLL_SECONDS = 2.  # between two looks at the runs of other processes


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
  require(isinstance(config, Config), 'config', 'must be a moon_jax.Config',
          f'a {type(config).__name__}',
          "Pass for example moon_jax.Config(dataset='digits')")
  _check_lists(callbacks, loggers)
  summary, = Runs([config]).train(callbacks, loggers)
  assert summary is not None  # it has ended, or an error was raised
  return summary


def run_sweep(sweep: Sweep, workdir: str = 'runs', max_runs: int = 0,
              part: tuple[int, int] = (0, 1),
              callbacks: Sequence[Callable] = (),
              loggers: Sequence[Callable] = ()
              ) -> list[dict[str, Any] | None]:
  """Trains, or resumes, the runs of a sweep; returns their summaries.

  Finished runs are not repeated. If other processes train runs of the sweep,
  it waits for them, and resumes their runs should they end early.

  Args:
    sweep: the runs.
    workdir: directory of the work directories of the runs, which have the
      names that single runs would have.
    max_runs: the most runs that train together; 0 for as many as fit in memory.
    part: (i, n) trains every n-th program only, from the i-th on, and waits for
      no other process.
    callbacks: see `moon_jax.run`; called after each round of each run.
    loggers: functions that return a logger, called for each run.

  Returns:
    For each run, in the order of sweep.configs, the content of its summary.json
    and its "workdir". A run that diverged has
    "diverged", the reason, and "rounds", the number of completed rounds. None
    for a run of another part that is not finished.

  Raises:
    UserError: before anything compiles, if a run is impossible.
    OutOfMemory, InterruptedRun: see `moon_jax.run`.

  Examples:
    >>> sweep = moon_jax.Sweep.grid(
    ...     moon_jax.Config(dataset='digits'), seed=range(3),
    ...     **{'algorithm.mu': [1, 5]})
    >>> summaries = moon_jax.run_sweep(sweep)
  """
  require(isinstance(sweep, Sweep), 'sweep', 'must be a moon_jax.Sweep',
          f'a {type(sweep).__name__}',
          'Pass for example moon_jax.Sweep.grid(config, seed=range(3))')
  _check_lists(callbacks, loggers)
  run_loggers.check_factories(loggers)
  require(isinstance(workdir, str | os.PathLike), 'workdir', 'must be a path',
          repr(workdir), "The default is workdir='runs'")
  require(isinstance(max_runs, int) and max_runs >= 0, 'max_runs',
          'must be an integer of 0 or more', repr(max_runs),
          'The default is max_runs=0')
  require(isinstance(part, tuple) and len(part) == 2 and all(
      isinstance(number, int) for number in part) and 0 <= part[0] < part[1],
          'part', 'must be integers (i, n) with 0 <= i < n', repr(part),
          'The default is part=(0, 1)')
  return Runs(sweep.configs, sweep.axes, workdir).train(
      callbacks, loggers, max_runs, part)


def _check_lists(callbacks, loggers):
  require(isinstance(callbacks, list | tuple) and all(map(callable, callbacks)),
          'callbacks', 'must be a list of functions of (simulation, line)',
          repr(callbacks), 'Pass callbacks=[function]')
  require(isinstance(loggers, list | tuple), 'loggers',
          'must be a list of moon_jax.loggers.Logger or of functions that '
          'return one', repr(loggers),
          'Pass loggers=[moon_jax.loggers.CSV()], or names in '
          "moon_jax.Config(loggers='csv')")


class Runs:
  """One run, or those of a sweep, and the units that train them.

  Attributes:
    runs: the runs, prepared.
    axes: the settings in which the runs of a sweep differ; None for one run.
    ended: indices of the runs that have ended.
  """

  def __init__(self, configs: Sequence[Config],
               axes: Sequence[str] | None = None, root: str = 'runs',
               call: Callable | None = None):
    """Checks the configurations, and their directories.

    Args:
      configs: of the runs.
      axes: names of the settings in which the runs of a sweep differ; None for
        a single run, whose configuration may name its work directory.
      root: directory of the work directories.
      call: reads files, see `prepare.once`.

    Raises:
      UserError: naming the run, if one is impossible.
    """
    host.share_cores()
    self.axes, self._root, self._is_sweep = axes, root, axes is not None
    require(not self._is_sweep or not pathlib.Path(root, 'config.json').exists(
        ), f'workdir={root}', 'must not be the directory of one run, in which '
            'moon-jax show would not find several', 'config.json there',
            f'Name another {setting("workdir")}')
    self._has_warned = False  # that there are no locks
    self.runs: list[Prepared] = []
    call = call or prepare.once()
    for config in configs:
      name = '' if axes is None else values.run_name(config, axes)
      with within(name):
        self.runs.append(prepare.prepare(
            checks.validate(config), call, root, name))
    self._check_directories()
    # Of a single run; other processes may train those of a sweep.
    self._summary = None if self._is_sweep else self.runs[0].summary
    self.ended = {index for index in range(len(self.runs))
                  if self.result(index)}

  def _check_directories(self):
    """Checks that only equal runs, as of copied files, share a directory."""
    first: dict[pathlib.Path, Prepared] = {}
    for run in self.runs:
      other = first.setdefault(run.workdir.path, run)
      if other.workdir.contents != run.workdir.contents:
        raise UserError(
            '', f'{other.name} and {run.name} must have directories of their '
            'own', f'{run.workdir.path} for both, since the hashes in their '
            'names are equal', f'Train one of them with another '
            f'{setting("workdir")}')

  def train(self, callbacks: Sequence[Callable] = (),
            loggers: Sequence[Callable] = (), max_runs: int = 0,
            part: tuple[int, int] = (0, 1)) -> list[dict[str, Any] | None]:
    """Trains the runs that have not ended; returns their results.

    `run_sweep` describes arguments and results. A single run that diverges
    raises the error.
    """
    planned = self.planned(max_runs, part[1])
    mine = planned[part[0]::part[1]]
    if self.ended:
      print(self.progress(), flush=True)
      run_loggers.replay([self.runs[index] for index in self.ended], loggers)
    is_waiting = False
    while unfinished := [unit for unit in mine if self.unfinished(unit)]:
      is_idle = True
      for unit in unfinished:
        if claimed := self.claim(unit, in_parts=is_waiting):
          is_idle = is_waiting = False
          self._train_unit(claimed, self._place(mine, unit), callbacks, loggers)
      if is_idle and (
          count := sum(len(self.unfinished(unit)) for unit in unfinished)):
        if not is_waiting:
          print(f'waiting for {count} run{"s" * (count > 1)} that other '
                'processes train', flush=True)
        is_waiting = True
        wait(_POLL_SECONDS, ' while other processes train; the same command '
             'waits for them again')
    return [self.result(index) for index in range(len(self.runs))]

  def _place(self, mine, unit):
    """Returns the arguments of `Unit.train` about the units after this one."""
    if not self._is_sweep:
      return {}
    index = mine.index(unit)
    return {'index': index, 'count': len(mine), 'rounds_later': sum(
        self.rounds_left(run) for other in mine[index + 1:]
        for run in other if run not in self.ended)}

  def rounds_left(self, index: int) -> int:
    """Returns the most rounds that a run that has not ended may train."""
    return self.runs[index].config.num_rounds

  def _train_unit(self, claimed, place, callbacks, loggers):
    """Trains locked runs, and unlocks them."""
    runs = [self.runs[index] for index in claimed]
    with contextlib.ExitStack() as stack:
      for run in runs:
        stack.enter_context(contextlib.closing(run.workdir))
      results = self._unit(claimed, callbacks, loggers).train(**place)
    for run, result in zip(runs, results):
      if not isinstance(result, Exception):
        self._summary = result
      elif not self._is_sweep:
        raise result
      else:
        print(f'{run.name}: {result}', file=sys.stderr, flush=True)
    self.ended.update(claimed)

  def _unit(self, claimed, callbacks, loggers):
    """Returns the `Unit` of locked runs."""
    from moon_jax.runs.unit import Unit  # imports Orbax, a second

    return Unit([self.runs[index] for index in claimed],
                lambda: list(self.specs(claimed)), callbacks, loggers)

  def progress(self) -> str:
    """Returns which runs have ended, in words."""
    if not self._is_sweep:
      path = self.runs[0].workdir.path
      return f'the run in {setting("workdir", path)} is complete'
    diverged = sum(
        'diverged' in (self.result(index) or ()) for index in self.ended)
    return (f'{len(self.ended) - diverged} of {len(self.runs)} runs are '
            'finished' + f', {diverged} diverged' * bool(diverged))

  def planned(self, max_runs: int, num_parts: int = 1) -> list[list[int]]:
    """Returns the programs, as lists of indices of runs.

    Parts of a sweep may start at any time. Their plan does not depend on which
    runs have ended, so that all parts with the same memory have the same one.
    Otherwise the plan has only unfinished runs, which train together.

    Args:
      max_runs: the most runs of a program; 0 for as many as fit in memory.
      num_parts: processes that share the programs; each part gets a program if
        there are as many runs.
    """
    if not self._is_sweep:
      return [[0]] if not self.ended else []
    # Files with other names and the same content make the same run.
    one_each = {run.workdir.path: index for index, run in enumerate(self.runs)}
    indices = [index for index in one_each.values()
               if num_parts > 1 or index not in self.ended]
    share = max(1, len(indices) // num_parts)
    by_key: dict[Hashable, list[int]] = {}
    for index in indices:
      key = agreement.program_key(self.runs[index].config)
      by_key.setdefault(key, []).append(index)
    planned = []
    for group in by_key.values():
      for runs, capacity in self._agreeing(group):
        most = min(capacity, max_runs or capacity, share)
        size = math.ceil(len(runs) / math.ceil(len(runs) / most))
        planned += [runs[i:i + size] for i in range(0, len(runs), size)]
    return planned

  def _agreeing(self, group):
    """Yields runs whose splits allow one program, and how many fit in it."""
    size_of = lambda spec: sum(need.size for need in memory_lib.needs(spec))
    members: dict[tuple, list[int]] = {}
    largest: dict[tuple, RoundSpec] = {}
    for index, spec in zip(group, self.specs(group)):
      facts = tuple(agreement.shared_values(spec).items())
      members.setdefault(facts, []).append(index)
      largest[facts] = max(largest.get(facts, spec), spec, key=size_of)
    for facts, runs in members.items():
      exceeds = lambda count: any(
          need.size > need.have
          for need in memory_lib.needs(*[largest[facts]] * count))
      yield runs, max(1, bisect.bisect_left(
          range(1, len(runs) + 1), True, key=exceeds))

  def specs(self, unit: Sequence[int]) -> Iterator[RoundSpec]:
    """Yields the specifications of the runs of a program, each alone.

    Runs with equal functions are traced once.
    """
    spec: RoundSpec | None = None
    for index in unit:
      run = self.runs[index]
      with within(run.name):
        federation = run.build()
        with memory_lib.explained(federation):
          devices.check()
          # A user's factory may make other functions for another configuration.
          is_alike = spec and agreement.trace_alike(spec.federation, federation)
          spec = round_spec.alone(federation, spec if is_alike else None,
                                  run.config.num_checkpoints())
        if index not in self.ended:
          memory_lib.check(spec)
      yield spec

  def unfinished(self, unit: Sequence[int]) -> list[int]:
    """Returns the runs of a program that have not ended."""
    self.ended.update(index for index in unit
                      if index not in self.ended and self.result(index))
    return [index for index in unit if index not in self.ended]

  def claim(self, unit: Sequence[int], in_parts: bool = False) -> list[int]:
    """Locks the unfinished runs of a program; returns those that it locked.

    If another process has the first of them, it probably has the program. Then
    the others are locked only `in_parts`. A single run locks itself when it
    begins, so that an impossible one leaves no directory.
    """
    if not self._is_sweep:
      return [*unit]
    claimed: list[int] = []
    with contextlib.ExitStack() as stack:  # unlocks the runs after an error
      for index in self.unfinished(unit):
        workdir = self.runs[index].workdir
        stack.enter_context(contextlib.closing(workdir))
        try:
          workdir.lock()
        except InUse:
          if not (claimed or in_parts):
            return []
          continue
        if not (workdir.has_locks or self._has_warned):
          self._has_warned = True
          print(f'warning: {self._root} has no file locks; start one '
                'process only, or give each its own '
                f'{setting("part")}', file=sys.stderr,
                flush=True)
        if self.result(index):  # it has ended since
          self.ended.add(index)
          workdir.close()
        else:
          claimed.append(index)
      stack.pop_all()
    return claimed

  def result(self, index: int) -> dict[str, Any] | None:
    """Returns what `run_sweep` returns for a run."""
    if not self._is_sweep:
      return self._summary
    workdir = self.runs[index].workdir
    result = workdir.summary()
    if result is None and (note := workdir.diverged()):
      result = {'diverged': note['error'], 'rounds': note['rounds']}
    return result and result | {'workdir': str(workdir.path)}
