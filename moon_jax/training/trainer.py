"""Trains runs that share a program, and records each in its work directory."""

from collections.abc import Callable
from collections.abc import Sequence
import contextlib

from moon_jax.distributed import processes
from moon_jax.errors import InterruptedRun
from moon_jax.errors import UserError
from moon_jax.simulation import memory_check
from moon_jax.simulation.simulation import Simulations
from moon_jax.training.recorder import Recorder
from moon_jax.training.signals import Interrupt
from moon_jax.view.progress import Progress

_LONG_ROUND = 60.  # seconds before a line reports that a round is training


class Trainer:
  """Trains simulations until all their runs have ended.

  Attributes:
    compile_seconds: spent on compilation so far.
  """

  def __init__(self, simulations: Simulations, recorders: Sequence[Recorder],
               finish: Callable[[Recorder], None], progress: Progress):
    """Stores the arguments.

    Args:
      simulations: whose runs have been resumed.
      recorders: of each run.
      finish: called once a run has ended with all its rounds and checkpoints.
      progress: shows the rounds.
    """
    self._simulations, self._recorders = simulations, list(recorders)
    self._finish, self._progress = finish, progress
    self._ended: list[Recorder] = []
    self.compile_seconds = 0.

  def train(self) -> int:
    """Trains all remaining rounds and saves the last checkpoints.

    A run that diverges ends alone, with `Recorder.error`.

    Returns:
      The number of a signal that came while the last run ended; 0 if none did.

    Raises:
      InterruptedRun: see `moon_jax.training.run.run`.
      UserError: if files cannot be written.
      OutOfMemory: if memory is exhausted; completed rounds are saved.
    """
    with Interrupt() as interrupt:
      try:
        self._train(interrupt)
      except InterruptedRun as error:
        raise InterruptedRun(error.number, self._save_and_close()) from None
      except Exception as error:
        if memory_check.is_exhausted(error):
          raise self._out_of_memory(error, interrupt) from error
        if processes.count() == 1:  # otherwise it would wait for lost peers
          self._leave(error)
        raise
      return interrupt.received

  def _train(self, interrupt):
    recorders = self._recorders
    configs = [r.simulation.federation.config for r in recorders]
    recorded = sum(r.simulation.rounds_done - (r.trained is not None)
                   for r in recorders)
    progress = self._progress
    unfinished = [r for r in recorders if r.is_unfinished]
    if unfinished:
      with progress.phase('compiling'):
        self._compile(interrupt)
    for recorder in recorders:
      recorder.start()
    progress.training(
        sum(config.num_rounds for config in configs), recorded,
        recorders[0].workdir.metrics.lines() if len(recorders) == 1 else ())
    self._end_finished()
    while unfinished:
      self._train_round(interrupt)
      lines = [recorder.record(interrupt, progress)
               for recorder in unfinished if recorder.trained]
      progress.rounds([line for line in lines if line],
                      self._simulations.lane_utilization())
      interrupt.check()
      self._end_finished()
      unfinished = [r for r in unfinished if r.is_unfinished]

  def _train_round(self, interrupt):
    """Trains a round of the runs whose last round is recorded."""
    runs = [index for index, recorder in enumerate(self._recorders)
            if recorder.is_unfinished and not recorder.trained]
    if not runs:
      return
    done = self._recorders[runs[0]].simulation.rounds_done
    of_runs = f' of {len(runs)} runs' if len(self._recorders) > 1 else ''
    with self._progress.busy(
        f'round {done + 1}{of_runs}: training', _LONG_ROUND):
      outcomes = self._simulations.run_round(runs, interrupt.call)
      for index, outcome in zip(runs, outcomes):
        self._recorders[index].add(outcome)

  def _end_finished(self):
    """Completes the files of the runs that have trained all their rounds."""
    for recorder in self._recorders:
      if not (recorder.is_unfinished or recorder.error
              or recorder in self._ended):
        with self._progress.busy('saving the final model'):
          recorder.finish()
          recorder.close()
        self._ended.append(recorder)
        self._finish(recorder)

  def _compile(self, interrupt):
    saved = min(r.rounds_saved for r in self._recorders)
    with interrupt.nothing_to_save(
        f'while compiling; the same command resumes after round {saved}'):
      seconds = self._simulations.compile()
    self.compile_seconds += seconds
    self._progress.message(f'compiled in {seconds:.1f} s')

  def _out_of_memory(self, error, interrupt):
    """Saves completed rounds; returns what to raise for an error of JAX's."""
    simulations, recorders = self._simulations, self._recorders
    federation = recorders[0].simulation.federation
    # A round that is trained already fits in memory with its lanes.
    can_retry = not (federation.lanes or any(r.trained for r in recorders)
                     or processes.count() > 1)
    where = ''
    if processes.count() == 1:  # otherwise it would wait for lost peers
      # Saving may fail as well; the first error is the one to report.
      with contextlib.suppress(Exception):
        where = self._save_and_close(are_saved=False)
      try:
        interrupt.check()  # a signal may have come meanwhile
      except InterruptedRun as interrupted:
        return InterruptedRun(interrupted.number, where)
    num_lanes = simulations.num_lanes
    return memory_check.explain(
        error, federation, num_lanes, simulations.temporary_bytes(), where,
        fewer_lanes=num_lanes // 2 if can_retry else 0,
        num_runs=len(recorders))

  def _save_and_close(self, are_saved=True):
    """Saves completed rounds; returns a clause for the message."""
    clauses, errors = [], []
    for recorder in self._recorders:
      try:
        if recorder.needs_local_models(are_saved):
          recorder.close()
        elif not (recorder.error or recorder in self._ended):
          clauses.append(recorder.save_and_close())
      except Exception as error:
        errors.append(error)  # once the other runs are saved
    if errors:
      raise errors[0]
    if len(self._recorders) == 1:
      return ''.join(clauses)
    return (f' with {len(clauses)} of {len(self._recorders)} runs unfinished; '
            'the same command resumes them')

  def _leave(self, error):
    """Ends after an error of a run, which loses no round of the others."""
    if isinstance(error, UserError) and len(self._recorders) > 1:
      with contextlib.suppress(UserError):
        self._save_and_close(are_saved=False)
    for recorder in self._recorders:
      with contextlib.suppress(UserError):
        recorder.close()
