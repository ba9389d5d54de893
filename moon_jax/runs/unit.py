"""Trains the runs of a program: its rounds, signals and errors."""

from collections.abc import Callable, Sequence
import contextlib
import os
import platform
import shlex
import sys
import time

import jax

from moon_jax import loggers as loggers_lib
from moon_jax import platforms
from moon_jax.distributed import processes
from moon_jax.errors import InterruptedRun, UserError
from moon_jax.runs import run_loggers
from moon_jax.runs import summary as summary_lib
from moon_jax.runs.prepare import Prepared
from moon_jax.runs.recorder import Recorder, Result
from moon_jax.runs.signals import Interrupt
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.program import Program
from moon_jax.simulation.round_spec import RoundSpec
from moon_jax.simulation.simulation import Simulation
from moon_jax.version import __version__
from moon_jax.view.progress import Progress

_LONG_ROUND = 60.  # seconds before a line reports that a round is training


class Unit:
  """Runs that share a program and train together, each in its directory.

  A single run is a unit of one.

  Attributes:
    recorders: of each run, once the program is made.
  """

  def __init__(self, runs: Sequence[Prepared],
               specs_fn: Callable[[], Sequence[RoundSpec]],
               callbacks: Sequence[Callable] = (),
               loggers: Sequence[loggers_lib.LoggerOrFactory] = (),
               until: Sequence[int] = (), program_fn: Callable = Program):
    """Stores the arguments; `moon_jax.run` describes callbacks and loggers.

    `specs_fn` builds the runs and returns the specification of the rounds of
    each alone. `until` has rounds after which runs pause, and `program_fn`
    returns their program, as `Program` does.
    """
    self._runs, self._specs_fn = runs, specs_fn
    self._until = until or [run.config.num_rounds for run in runs]
    self._program_fn = program_fn
    self._callbacks = callbacks
    self._loggers = [loggers_lib.make(run.config, loggers) for run in runs]
    loggers_lib.check_paths(self._loggers)
    self.recorders: list[Recorder] = []

  def train(self, index: int = 0, count: int = 0, rounds_later: int = 0
            ) -> list[Result]:
    """Trains the runs until all have ended; returns their summaries.

    Times in summaries are the run's equal share. A loss that is not finite is a
    result, and None that of a run that pauses, once it is saved. `moon_jax.run`
    describes the other errors.

    Args:
      index: of this unit among those of a sweep.
      count: number of these units; 0 for a single run.
      rounds_later: of the units after this one.
    """
    self._start, self._compile_seconds = time.perf_counter(), 0.
    with contextlib.ExitStack() as stack:
      self._progress = stack.enter_context(Progress(
          self._title(index, count), len(self._runs), rounds_later))
      self._log_command()
      for run in self._runs:
        stack.enter_context(contextlib.closing(run.workdir))
      # Without it Python would raise KeyboardInterrupt, which JAX may ignore.
      with Interrupt() as self._interrupt:
        with self._interrupt.nothing_to_save(
            'before training; the same command starts it'):
          with self._progress.phase('loading data'):
            specs = self._specs_fn()
          with self._progress.phase('preparing the first round'):
            self._make(specs, stack)
        self._start_loggers(stack)
        with self._saving_after_errors():
          if self._unfinished() and not self._program.is_compiled:
            self._compile()
          self._show_rounds()
          self._end_finished()
          while unfinished := self._unfinished():
            self._train_round(unfinished)
          for recorder in self.recorders:
            if recorder.is_paused:
              recorder.save_and_close()
      if self._interrupt.received and count:
        raise InterruptedRun(self._interrupt.received, (
            '; the same command trains the runs that are left'))
      return [recorder.result for recorder in self.recorders]

  def _title(self, index, count):
    config, path = self._runs[0].config, self._runs[0].workdir.path
    if count:
      methods = dict.fromkeys(str(run.config.algorithm) for run in self._runs)
      return (f'program {index + 1} of {count}: {config.dataset}, '
              f'{", ".join(methods)}, '
              f'{len(self._runs)} run{"s" * (len(self._runs) > 1)} in '
              f'{path.parent}')
    return f'{config.dataset}, {config.algorithm}, seed {config.seed}: {path}'

  def _log_command(self):
    command = shlex.join([
        os.path.basename(sys.executable), *sys.orig_argv[1:]])
    self._progress.log(
        f'{command}\nmoon_jax {__version__}, JAX {jax.__version__}, '
        f'Python {platform.python_version()}' + ''.join(
            f', {name}={value}' for name, value
            in platforms.rounding_settings().items()))

  def _make(self, specs, stack):
    """Makes the program, and resumes the runs."""
    federations = [spec.federation for spec in specs]
    with memory_lib.explained(federations[0], len(federations)):
      self._program = self._program_fn(
          federations, [str(run.workdir.path) for run in self._runs], specs)
    self.recorders = _recorders(
        self._program, self._runs, self._until, self._callbacks,
        self._progress)
    for recorder in self.recorders:
      # Another call in this process may resume an interrupted run.
      stack.callback(recorder.close)

  def _start_loggers(self, stack):
    for recorder, run, log, loggers in zip(
        self.recorders, self._runs, self._progress.logs, self._loggers):
      recorder.callbacks.append(stack.enter_context(contextlib.closing(
          run_loggers.RunLoggers(loggers, run.workdir, run.config, log))))

  def _unfinished(self):
    return [r for r in self.recorders if r.is_unfinished]

  def _compile(self):
    config, progress = self._runs[0].config, self._progress
    with platforms.compiling(f'{config.algorithm}, {config.model}') as last:
      hint = f' ({last:.0f} s last time, less if cached)' if last else ''
      with progress.phase('compiling', hint):
        with self._interrupt.nothing_to_save(
            'while compiling; the same command resumes after round '
            f'{min(r.rounds_saved for r in self.recorders)}'):
          self._compile_seconds = self._program.compile()
        progress.message(f'compiled in {self._compile_seconds:.1f} s')
    for recorder in self.recorders:
      recorder.saved_at = time.monotonic()

  def _show_rounds(self):
    self._progress.training(
        sum(r.until for r in self.recorders),
        sum(r.simulation.rounds_done - (r.trained is not None)
            for r in self.recorders),
        self._runs[0].workdir.lines() if len(self._runs) == 1 else ())

  def _train_round(self, unfinished):
    """Trains and records the next round of each unfinished run."""
    runs = [self.recorders.index(r) for r in unfinished if not r.trained]
    if runs:  # others have a trained round that is not recorded yet
      done = self.recorders[runs[0]].simulation.rounds_done
      of_runs = f' of {len(runs)} runs' if len(self._runs) > 1 else ''
      with self._progress.busy(
          f'round {done + 1}{of_runs}: training', _LONG_ROUND):
        outcomes = self._program.run_round(
            runs, self._interrupt.call,
            any(self.recorders[run].reads_local_models for run in runs))
        for index, outcome in zip(runs, outcomes):
          self.recorders[index].add(outcome)
    lines = [recorder.record(self._interrupt, self._progress)
             for recorder in unfinished if recorder.trained]
    self._progress.rounds([line for line in lines if line],
                          self._program.lane_utilization())
    self._interrupt.check()
    self._end_finished()

  def _end_finished(self):
    share = 1 / len(self._runs)  # of the times
    for recorder in self.recorders:
      if not (recorder.is_unfinished or recorder.is_paused) and (
          recorder.result is None):
        with self._progress.busy('saving the final model'):
          recorder.finish(self._compile_seconds * share, lambda: (
              time.perf_counter() - self._start) * share)

  @contextlib.contextmanager
  def _saving_after_errors(self):
    """Saves completed rounds if the body raises."""
    try:
      yield
    except InterruptedRun as error:
      raise InterruptedRun(error.number, self.save_and_close()) from None
    except Exception as error:
      if memory_lib.is_exhausted(error):
        raise self._out_of_memory(error) from error
      if processes.count() == 1:  # otherwise it would wait for lost peers
        self._leave(error)
      raise

  def _out_of_memory(self, error):
    """Saves completed rounds; returns what to raise for an error of JAX."""
    where = ''
    if processes.count() == 1:  # otherwise it would wait for lost peers
      # Saving may fail as well; the first error is the one to report.
      with contextlib.suppress(Exception):
        where = self.save_and_close()
      try:
        self._interrupt.check()  # a signal may have come meanwhile
      except InterruptedRun as interrupted:
        return InterruptedRun(interrupted.number, where)
    return memory_lib.explain(
        error, self.recorders[0].simulation.federation,
        self._program.num_lanes, self._program.temporary_bytes(), where,
        num_runs=len(self._runs))

  def save_and_close(self) -> str:
    """Saves completed rounds; returns a clause for the message."""
    clauses, errors = [], []
    for recorder in self.recorders:
      try:
        if recorder.needs_local_models:
          recorder.close()
        elif recorder.result is None:
          clauses.append(recorder.save_and_close())
      except Exception as error:
        errors.append(error)  # once the other runs are saved
    if errors:
      raise errors[0]
    if len(self.recorders) == 1:
      return ''.join(clauses)
    return (f' with {len(clauses)} of {len(self.recorders)} runs unfinished; '
            'the same command resumes them')

  def _leave(self, error):
    """Ends after an error of a run, which loses no round of the others."""
    if isinstance(error, UserError) and len(self.recorders) > 1:
      with contextlib.suppress(UserError):
        self.save_and_close()
    for recorder in self.recorders:
      with contextlib.suppress(UserError):
        recorder.close()


def _recorders(program, runs, until, callbacks, progress):
  is_alone, path = len(runs) == 1, runs[0].workdir.path
  recorders = [
      Recorder(run.config, Simulation(program, run=index), run.workdir,
               callbacks, f'{run.name}, ' if run.name else '', log)
      for index, (run, log) in enumerate(zip(runs, progress.logs))]
  progress.message(
      f'{summary_lib.header(runs[0].config, recorders[0].simulation)}\n'
      f'results in {path}' if is_alone else
      f'{summary_lib.header_of_runs(until, program)}\n'
      f'results in {len(runs)} directories in {path.parent}')
  for recorder, rounds in zip(recorders, until):
    recorder.until = rounds
    recorder.resume()
  if text := _resumed(recorders):
    progress.message(text)
  return recorders


def _resumed(recorders):
  """Returns where runs resume and what they repeat; '' if all begin."""
  begun = [r for r in recorders if r.simulation.rounds_done or r.num_lost]
  if not begun:
    return ''
  lost = sum(r.num_lost for r in begun)
  if len(recorders) > 1:
    text = f'resumes {len(begun)} of {len(recorders)} runs'
  else:
    run = begun[0].simulation
    text = (f'resumes after round {run.rounds_done} of '
            f'{begun[0].config.num_rounds}')
  return text + f'; rounds that are trained again: {lost}' * (lost > 0)
