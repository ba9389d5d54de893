"""Trains runs that share a program, each in its work directory."""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import os
import pathlib
import platform
import shlex
import shutil
import sys
import time

import jax

from moon_jax import loggers as loggers_lib
from moon_jax import platforms
from moon_jax.data import clients as clients_lib
from moon_jax.distributed import devices, processes
from moon_jax.errors import InterruptedRun, UserError
from moon_jax.runs import heatmap, run_loggers, timeline_plot
from moon_jax.runs import summary as summary_lib
from moon_jax.runs.prepare import Prepared
from moon_jax.runs.recorder import Recorder, Result
from moon_jax.runs.signals import Interrupt
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation import round_spec
from moon_jax.simulation.program import Program
from moon_jax.simulation.round_spec import RoundSpec
from moon_jax.simulation.simulation import Simulation
from moon_jax.version import __version__
from moon_jax.view.progress import Progress

_LONG_ROUND = 60.  # seconds before a line reports that a round is training


@dataclasses.dataclass
class Trainer:
  """Trains a program, whose runs have been resumed, until all have ended.

  `start` is `time.perf_counter()` when the runs began.
  """

  program: Program
  recorders: Sequence[Recorder]
  start: float
  progress: Progress
  interrupt: Interrupt
  compile_seconds: float = 0.

  def train(self) -> None:
    """Trains all remaining rounds; each run ends with its `Recorder.result`."""
    try:
      self._train()
    except InterruptedRun as error:
      raise InterruptedRun(error.number, self._save_and_close()) from None
    except Exception as error:
      if memory_lib.is_exhausted(error):
        raise self._out_of_memory(error) from error
      if processes.count() == 1:  # otherwise it would wait for lost peers
        self._leave(error)
      raise

  def _train(self):
    recorders, progress = self.recorders, self.progress
    unfinished = [r for r in recorders if r.is_unfinished]
    if unfinished:
      config = recorders[0].config
      with platforms.compiling(f'{config.algorithm}, {config.model}') as last:
        hint = f' ({last:.0f} s last time, less if cached)' if last else ''
        with progress.phase('compiling', hint):
          with self.interrupt.nothing_to_save(
              'while compiling; the same command resumes after round '
              f'{min(r.rounds_saved for r in recorders)}'):
            self.compile_seconds = self.program.compile()
          progress.message(f'compiled in {self.compile_seconds:.1f} s')
      for recorder in recorders:
        recorder.saved_at = time.monotonic()
    progress.training(
        sum(r.config.num_rounds for r in recorders),
        sum(r.simulation.rounds_done - (r.trained is not None)
            for r in recorders),
        recorders[0].workdir.lines() if len(recorders) == 1 else ())
    self._end_finished()
    while unfinished:
      self._train_round()
      lines = [recorder.record(self.interrupt, progress)
               for recorder in unfinished if recorder.trained]
      progress.rounds([line for line in lines if line],
                      self.program.lane_utilization())
      self.interrupt.check()
      self._end_finished()
      unfinished = [r for r in unfinished if r.is_unfinished]

  def _train_round(self):
    runs = [index for index, recorder in enumerate(self.recorders)
            if recorder.is_unfinished and not recorder.trained]
    if not runs:
      return
    done = self.recorders[runs[0]].simulation.rounds_done
    of_runs = f' of {len(runs)} runs' if len(self.recorders) > 1 else ''
    with self.progress.busy(
        f'round {done + 1}{of_runs}: training', _LONG_ROUND):
      outcomes = self.program.run_round(
          runs, self.interrupt.call,
          any(self.recorders[run].reads_local_models for run in runs))
      for index, outcome in zip(runs, outcomes):
        self.recorders[index].add(outcome)

  def _end_finished(self):
    share = 1 / len(self.recorders)  # of the times
    for recorder in self.recorders:
      if not recorder.is_unfinished and recorder.result is None:
        with self.progress.busy('saving the final model'):
          recorder.finish(self.compile_seconds * share, lambda: (
              time.perf_counter() - self.start) * share)

  def _out_of_memory(self, error):
    """Saves completed rounds; returns what to raise for an error of JAX."""
    program, recorders = self.program, self.recorders
    federation = recorders[0].simulation.federation
    where = ''
    if processes.count() == 1:  # otherwise it would wait for lost peers
      # Saving may fail as well; the first error is the one to report.
      with contextlib.suppress(Exception):
        where = self._save_and_close()
      try:
        self.interrupt.check()  # a signal may have come meanwhile
      except InterruptedRun as interrupted:
        return InterruptedRun(interrupted.number, where)
    return memory_lib.explain(
        error, federation, program.num_lanes, program.temporary_bytes(), where,
        num_runs=len(recorders))

  def _save_and_close(self):
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
        self._save_and_close()
    for recorder in self.recorders:
      with contextlib.suppress(UserError):
        recorder.close()


def train(runs: Sequence[Prepared], callbacks: Sequence[Callable] = (),
          specs_fn: Callable[[], Sequence[RoundSpec]] | None = None,
          is_last: bool = True,
          loggers: Sequence[loggers_lib.LoggerOrFactory] = ()
          ) -> list[Result]:
  """Trains unfinished runs together; returns their summaries.

  The runs may share a program; times in summaries are the run's equal share.
  `moon_jax.runs.run.run` describes `callbacks`, `loggers` and the errors,
  except that of a loss that is not finite, which is a result.

  Args:
    specs_fn: builds the runs and returns the specification of the rounds of
      each alone; None builds them here.
    is_last: whether nothing is left to interrupt once these runs have ended.
  """
  start = time.perf_counter()
  made = [loggers_lib.make(run.config, loggers) for run in runs]
  config, path = runs[0].config, runs[0].workdir.path
  title = (f'{config.dataset}, {config.algorithm}, seed {config.seed}: {path}'
           if len(runs) == 1 else
           f'{config.dataset}, {len(runs)} runs in {path.parent}')
  with contextlib.ExitStack() as stack:
    progress = stack.enter_context(Progress(title, len(runs)))
    command = shlex.join([
        os.path.basename(sys.executable), *sys.orig_argv[1:]])
    progress.log(f'{command}\nmoon_jax {__version__}, JAX {jax.__version__}, '
                 f'Python {platform.python_version()}' + ''.join(
                     f', {name}={value}' for name, value
                     in platforms.rounding_settings().items()))
    with progress.phase('loading data'):
      specs = specs_fn() if specs_fn else []
      federations = [spec.federation for spec in specs] or [
          run.build() for run in runs]
    for run in runs:
      stack.enter_context(contextlib.closing(run.workdir))
    # Without it Python would raise KeyboardInterrupt, which JAX may ignore.
    with Interrupt() as interrupt:
      with progress.phase('preparing the first round'), (
          interrupt.nothing_to_save(
              'before training; the same command starts it')):
        program = _make_program(federations, runs, specs)
        recorders = _recorders(program, runs, callbacks, progress)
        for recorder, run, log, of_run in zip(
            recorders, runs, progress.logs, made):
          # Another call in this process may resume an interrupted run.
          stack.callback(recorder.close)
          recorder.callbacks.append(stack.enter_context(contextlib.closing(
              run_loggers.RunLoggers(of_run, run.workdir, run.config, log))))
      Trainer(program, recorders, start, progress, interrupt).train()
    if interrupt.received and not is_last:
      raise InterruptedRun(interrupt.received,
                           '; the same command trains the runs that are left')
    return [recorder.result for recorder in recorders]


def _make_program(federations, runs, specs):
  with memory_lib.explained(federations[0], len(federations)):
    devices.check()
    return Program(
        federations, [str(run.workdir.path) for run in runs], specs or [
            round_spec.alone(
                federation, num_checkpoints=run.config.num_checkpoints())
            for federation, run in zip(federations, runs)])


def _recorders(program, runs, callbacks, progress):
  is_alone, path = len(runs) == 1, runs[0].workdir.path
  recorders = [
      Recorder(run.config, Simulation(program, run=index), run.workdir,
               callbacks, '' if is_alone else f'{run.workdir.path.name}, ', log)
      for index, (run, log) in enumerate(zip(runs, progress.logs))]
  progress.message(
      f'{summary_lib.header(runs[0].config, recorders[0].simulation)}\n'
      f'results in {path}' if is_alone else
      f'{summary_lib.header_of_runs([run.config for run in runs], program)}\n'
      f'results in {len(runs)} directories in {path.parent}')
  drawn: dict[bytes, pathlib.Path] = {}
  for recorder in recorders:
    recorder.resume()
    if processes.is_first():
      _draw_partition(recorder, drawn)
      _draw_timeline(recorder)
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


def _draw_partition(recorder, drawn):
  """Draws the partition of a run, unless `drawn` has an equal one's file."""
  federation, workdir = recorder.simulation.federation, recorder.workdir
  dataset, path = federation.data, workdir.path / 'partition.png'
  counts_CK = clients_lib.class_counts(
      dataset.train_labels, federation.clients, dataset.num_classes)
  names = clients_lib.names(federation.clients)
  equal = drawn.setdefault(counts_CK.tobytes() + repr(names).encode(), path)
  with workdir.writing():
    if equal is path:
      heatmap.draw(counts_CK, dataset.class_names, path, names)
    else:
      shutil.copyfile(equal, path)


def _draw_timeline(recorder):
  timeline = recorder.simulation.federation.rounds.timeline
  if timeline is not None and timeline.spans:
    with recorder.workdir.writing():
      timeline_plot.draw(timeline, recorder.workdir.path / 'timeline.png')
