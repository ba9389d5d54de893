"""Trains prepared runs in one program, each in its work directory."""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import hashlib
import pathlib
import platform
import shutil
import time
from typing import Any

import jax
import platformdirs

from moon_jax.data import clients as clients_lib
from moon_jax.distributed import processes
from moon_jax.errors import DivergedError
from moon_jax.errors import InterruptedRun
from moon_jax.rundir import identity
from moon_jax.simulation import determinism
from moon_jax.simulation import memory_check
from moon_jax.simulation.round_spec import RoundSpec
from moon_jax.simulation.simulation import Simulation
from moon_jax.simulation.simulation import Simulations
from moon_jax.training import heatmap
from moon_jax.training import run_loggers
from moon_jax.training import summary as summary_lib
from moon_jax.training.prepare import fingerprint
from moon_jax.training.prepare import Prepared
from moon_jax.training.recorder import Recorder
from moon_jax.training.signals import Interrupt
from moon_jax.training.trainer import Trainer
from moon_jax.version import __version__
from moon_jax.view import run_log
from moon_jax.view.progress import Progress

Result = dict[str, Any] | DivergedError


def train(runs: Sequence[Prepared], callbacks: Sequence[Callable] = (),
          start: float | None = None, specs: Sequence[RoundSpec] = (),
          is_last: bool = True,
          loggers: Sequence[run_loggers.LoggerOrFactory] = ()
          ) -> list[Result]:
  """Trains unfinished runs together; returns their summaries.

  Args:
    runs: that may share a program.
    callbacks: see `moon_jax.training.run.run`.
    start: `time.perf_counter()` at which the runs began; None for now.
    specs: see `moon_jax.simulation.program.Runs`.
    is_last: whether nothing is left to interrupt once these runs have ended.
    loggers: see `moon_jax.training.run.run`; functions for several runs.

  Returns:
    For each run its summary, or the error of a loss that is not finite. Times
    in summaries are the run's equal share.

  Raises:
    UserError, OutOfMemory, InterruptedRun: see `moon_jax.training.run.run`.
  """
  start = time.perf_counter() if start is None else start
  made = [run_loggers.make(run.config, loggers) for run in runs]
  with contextlib.ExitStack() as stack:
    progress = stack.enter_context(Progress(
        _title(runs), len(runs), runs[0].config.quiet))
    for log in progress.logs:
      log.write(f'{run_log.command()}\nmoon_jax {__version__}, JAX '
                f'{jax.__version__}, Python {platform.python_version()}')
    with progress.phase('loading data'):
      federations = [run.build() for run in runs]
    directories = [str(run.workdir.path) for run in runs]
    use_compilation_cache()
    for run in runs:
      stack.enter_context(contextlib.closing(run.workdir))
    # Without it Python would raise KeyboardInterrupt, which JAX may ignore.
    with Interrupt() as interrupt, interrupt.nothing_to_save(
        'before training; the same command starts it'):
      with progress.phase('preparing the first round'):
        simulations = _simulations(federations, directories, specs, progress)
        recorders = _recorders(simulations, runs, callbacks, progress)
        for recorder, run, log, of_run in zip(
            recorders, runs, progress.logs, made):
          recorder.callbacks.append(stack.enter_context(contextlib.closing(
              run_loggers.RunLoggers(of_run, run.workdir, run.config, log))))
    summaries = {}
    trainer = Trainer(simulations, recorders, lambda recorder: (
        summaries.__setitem__(recorder.simulation, _finish(
            recorder, trainer.compile_seconds / len(runs),
            lambda: (time.perf_counter() - start) / len(runs)))), progress)
    if (number := trainer.train()) and not is_last:
      raise InterruptedRun(
          number, '; the same command trains the runs that are left')
    return [recorder.error or summaries[recorder.simulation]
            for recorder in recorders]


def _title(runs):
  """Returns the first line of the view."""
  config, path = runs[0].config, runs[0].workdir.path
  if len(runs) > 1:
    return f'{config.dataset}, {len(runs)} runs in {path.parent}'
  return f'{config.dataset}, {config.algorithm}, seed {config.seed}: {path}'


def _simulations(federations, directories, specs, progress):
  """Returns the simulations before their first round."""
  with memory_check.explained(federations[0], len(federations)):
    for federation, directory in zip(federations, directories):
      if federation.config.check_determinism:
        determinism.check(functools.partial(Simulation, federation, directory))
        progress.message('two rounds, trained twice, have the same bits')
    return Simulations(federations, directories, specs)


def _recorders(simulations, runs, callbacks, progress):
  """Returns the recorders of runs that have begun or resumed."""
  is_alone, path = len(runs) == 1, runs[0].workdir.path
  recorders = [
      Recorder(simulation, run.workdir, _fingerprints(simulation.federation),
               callbacks, '' if is_alone else f'{run.workdir.path.name}, ', log)
      for simulation, run, log in zip(simulations.runs, runs, progress.logs)]
  progress.message('\n'.join((
      summary_lib.header(simulations.runs[0]) if is_alone else
      summary_lib.header_of_runs(simulations),
      f'results in {path}' if is_alone else
      f'results in {len(runs)} directories in {path.parent}')))
  drawn: dict[bytes, pathlib.Path] = {}
  for recorder in recorders:
    _resume(recorder)
    if processes.is_first():
      _draw_partition(recorder, drawn)
  if done := [recorder.simulation.rounds_done for recorder in recorders
              if recorder.simulation.rounds_done]:
    progress.message(f'resuming after round {done[0]}' if is_alone else
                     f'resuming {len(done)} runs')
  return recorders


def _fingerprints(federation):
  """Returns hashes that identify a run in its checkpoints."""
  return {
      'dataset': federation.data.fingerprint(),
      'partition': fingerprint(
          federation.clients, federation.client_tests, federation.validation),
      'config': identity.fingerprint(
          dataclasses.replace(federation.config, num_rounds=1))}


def _resume(recorder):
  """Resumes a run, or begins it."""
  federation, workdir = recorder.simulation.federation, recorder.workdir
  recorder.resume(functools.partial(
      workdir.begin, federation.clients, federation.cohorts,
      federation.client_tests, federation.validation))


def _draw_partition(recorder, drawn):
  """Draws the partition of a run, unless `drawn` has an equal one's file."""
  federation, workdir = recorder.simulation.federation, recorder.workdir
  dataset, path = federation.data, workdir.path / 'partition.png'
  counts_CK = clients_lib.class_counts(
      dataset.train_labels, federation.clients, dataset.num_classes)
  equal = drawn.setdefault(counts_CK.tobytes(), path)
  with workdir.writing():
    if equal is path:
      heatmap.draw(counts_CK, dataset.class_names, path)
    else:
      shutil.copyfile(equal, path)


def _finish(recorder, compile_seconds, total_seconds):
  """Writes the final model and the summary of a run; returns the summary."""
  simulation, workdir = recorder.simulation, recorder.workdir
  federation = simulation.federation
  if not federation.algorithm.per_client_init:
    from moon_jax.rundir import export  # imports Orbax, which takes a second

    export.save(workdir.path, federation.config, federation.data,
                simulation.global_model())

  def end():
    summary = summary_lib.summarize(simulation, workdir.metrics.lines())
    summary['compile_seconds'] = round(compile_seconds, 2)
    summary['total_seconds'] = round(total_seconds(), 2)
    workdir.write_summary(summary)
    return summary

  return processes.run_on_first_process(end)


def use_compilation_cache() -> None:
  """Caches compiled programs in the user's cache, by type of machine.

  Programs for a CPU use its own instructions, so machines that share a home
  directory need separate directories. JAX_COMPILATION_CACHE_DIR overrides.
  """
  directory = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
  if directory is None:
    cpuinfo = pathlib.Path('/proc/cpuinfo')
    flags = [line for line in (cpuinfo.read_text() if cpuinfo.exists()
                               else '').splitlines()
             if line.startswith(('flags', 'Features'))][:1]
    machine = hashlib.sha256(
        repr((platform.machine(), flags)).encode()).hexdigest()[:8]
    jax.config.update(
        'jax_compilation_cache_dir',
        f'{platformdirs.user_cache_dir("moon_jax")}/xla-{machine}')
  jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.1)
