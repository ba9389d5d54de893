"""Records the rounds of one run in its work directory, with checkpoints."""

from collections.abc import Callable
from collections.abc import Sequence
import sys

from moon_jax.distributed import processes
from moon_jax.errors import DivergedError
from moon_jax.errors import UserError
from moon_jax.rundir.workdir import Workdir
from moon_jax.simulation.records import RoundRecord
from moon_jax.simulation.simulation import Simulation
from moon_jax.training import local_models
from moon_jax.training.metrics_line import is_due
from moon_jax.training.metrics_line import metrics_line
from moon_jax.training.metrics_line import needs_local_models
from moon_jax.training.selection import Selection
from moon_jax.training.signals import Interrupt
from moon_jax.view import lines
from moon_jax.view.progress import Progress
from moon_jax.view.run_log import RunLog


class Recorder:
  """Writes metrics, checkpoints and models of a run to its directory.

  Attributes:
    simulation: the simulation, built from a configuration.
    workdir: its work directory.
    callbacks: called after each round, see `moon_jax.training.run.run`.
    trained: the record of a round that has no line of metrics yet, or None.
    error: why the run ended early: a loss that is not finite; None otherwise.
  """

  def __init__(self, simulation: Simulation, workdir: Workdir,
               fingerprints: dict[str, str],
               callbacks: Sequence[Callable] = (), name: str = '',
               log: RunLog | None = None):
    """Stores the arguments; `resume` reads and writes files.

    Args:
      simulation: before its first round.
      workdir: the work directory.
      fingerprints: of "dataset", "partition" and "config", saved with each
        checkpoint.
      callbacks: see `moon_jax.training.run.run`.
      name: the beginning of messages about a round, if there are several runs.
      log: opened once the directory is locked; None for a log that is not
        written.
    """
    self._config = simulation.federation.config
    self.workdir, self.simulation = workdir, simulation
    self._fingerprints, self.callbacks = fingerprints, list(callbacks)
    self._name, self._log = name, log or RunLog()
    self._checkpoints = None
    self._selection = Selection(simulation, workdir)
    self.trained: RoundRecord | None = None
    self.error: DivergedError | None = None

  @property
  def is_unfinished(self) -> bool:
    """Whether the run has rounds to train or to record."""
    return self.error is None and (self.trained is not None or (
        self.simulation.rounds_done < self._config.num_rounds
        and not self._selection.is_stopped))

  def resume(self, begin: Callable[[], None]) -> None:
    """Resumes from the newest intact checkpoint, or begins with round 0.

    Args:
      begin: writes the first files; called once the existing ones are checked.

    Raises:
      UserError: if existing files do not belong to this run.
    """
    config, workdir = self._config, self.workdir
    processes.run_on_first_process(workdir.lock)
    restored = mark = None
    if config.checkpoint_every or workdir.checkpoints.exists():
      from moon_jax.rundir.checkpoint import Checkpoints  # a second to import

      self._checkpoints = Checkpoints(workdir.checkpoints, config)
      if self._checkpoints.newest != processes.run_on_first_process(
          lambda: self._checkpoints.newest):
        raise UserError(f'--workdir={workdir.path} is not the same directory '
                        'for all processes; name one that they share')
      restored = self._checkpoints.restore(self.simulation.state_on_host())
    if restored:
      state, note = restored
      self._check_same(note['fingerprints'])
      mark = note['metrics']
    processes.run_on_first_process(lambda: workdir.metrics.check(mark))
    processes.run_on_first_process(begin)
    if config.checkpoint_every:
      self._checkpoints.open()
    processes.run_on_first_process(lambda: workdir.cut_metrics(mark))
    if processes.is_first():
      self._log.open(workdir.path / 'log.txt')
    self._selection.resume()
    if restored:
      self.simulation.restore(state)
      if note['trained']:
        self.trained = RoundRecord(**note['trained'])

  def start(self) -> None:
    """Prepares the directory for further rounds."""
    if self._config.save_local_models and (
        self.simulation.rounds_done < self._config.num_rounds):
      local_models.clear(self.workdir)

  def add(self, outcome: RoundRecord | DivergedError) -> None:
    """Takes the outcome of a round; saves local models if they are due."""
    if isinstance(outcome, DivergedError):
      self._diverge(outcome)
      return
    self.trained = outcome
    if local_models.is_due(self.simulation):
      local_models.save(self.simulation, self.workdir)

  def record(self, interrupt: Interrupt, progress: Progress) -> dict | None:
    """Evaluates the trained round, writes its line, and saves if that is due.

    Returns:
      The line of metrics.jsonl; None if the evaluation diverged.
    """
    config = self._config
    for client, reason in self.trained.left_out.items() if (
        processes.is_first()) else ():
      print(f'{self._name}round {self.simulation.rounds_done}: left out client '
            f'{client}: its {reason}', file=sys.stderr, flush=True)
    try:
      line = metrics_line(self.simulation, self.trained, interrupt, progress)
    except DivergedError as error:
      self.trained = None
      self._diverge(error)
      return None
    self._selection.add(line)  # before the line, which makes it final
    if self._selection.is_stopped:
      line |= self._end_early(line)
    if processes.is_first():
      self.workdir.append_metrics(line)
      self._log.write(lines.of_round(line, config.num_rounds))
    self.trained = None
    if is_due(config.checkpoint_every, line['round'], config):
      with progress.busy(f'round {line["round"]}: saving a checkpoint'):
        self._save()
    for callback in self.callbacks:
      callback(self.simulation, line)
    return line

  def _diverge(self, error):
    """Ends the run with an error, which the work directory keeps."""
    self.error = DivergedError(f'{error}{self._last_checkpoint()}')
    processes.run_on_first_process(lambda: self.workdir.write_diverged(
        self.simulation.rounds_done, str(self.error)))

  def finish(self) -> None:
    """Saves the last round, which early stopping chooses."""
    if self._config.checkpoint_every:
      self._save()
    self._selection.end()

  def _end_early(self, line):
    """Saves and evaluates the local models of the round that stops the run."""
    if self._config.save_local_models:
      local_models.save(self.simulation, self.workdir)
    has_them = 'clients' in line or not self._config.client_eval_every
    return {} if has_them else self.simulation.evaluate_clients()

  def needs_local_models(self, are_saved: bool) -> bool:
    """Returns whether to train the last round again for its local models.

    Checkpoints do not hold them.

    Args:
      are_saved: whether those that are due have been saved for certain.
    """
    return self.trained is not None and (
        needs_local_models(self._config, self.simulation.rounds_done)
        or not are_saved and local_models.is_due(self.simulation))

  @property
  def rounds_saved(self) -> int:
    """Rounds of the newest checkpoint; 0 without one."""
    return self._checkpoints.newest if self._checkpoints else 0

  def _save(self):
    """Saves a checkpoint, unless the newest one has the same round."""
    if self.simulation.rounds_done == self._checkpoints.newest:
      return
    mark = self.workdir.mark_metrics() if processes.is_first() else None
    self._checkpoints.save(self.simulation.state_on_host(), {
        'fingerprints': self._fingerprints, 'metrics': mark,
        'trained': self.trained and self.trained._asdict()})

  def save_and_close(self) -> str:
    """Saves completed rounds; returns a clause with the round to resume from.
    """
    done = self.simulation.rounds_done
    if not self._config.checkpoint_every:
      self.close()
      return (f' after round {done}; --checkpoint_every=0 saves no checkpoint '
              'to resume from')
    self._save()
    self.close()
    return (f' after round {done}; the same command resumes after round '
            f'{self._checkpoints.newest}')

  def _last_checkpoint(self):
    try:
      self.close()
    except UserError as error:
      return f'. {error}'
    if not self.rounds_saved:
      return '. There is no checkpoint yet'
    return f'. The last checkpoint is that of round {self._checkpoints.newest}'

  def close(self) -> None:
    """Waits until checkpoints are written."""
    if self._checkpoints:
      self._checkpoints.close()

  def _check_same(self, fingerprints):
    """Raises UserError if a checkpoint belongs to another run."""
    config = self._config
    reasons = {
        'config': 'the run in it has a different configuration',
        'dataset': f'--dataset={config.dataset} --data_dir={config.data_dir} '
                   'has changed since the run began',
        'partition': f'--partition={config.partition_file or config.partition}'
                     ' gives other clients than when the run began'}
    for name, reason in reasons.items():
      if fingerprints[name] != self._fingerprints[name]:
        raise UserError(f'--workdir={self.workdir.path}: {reason}; '
                        'restore it, or name another --workdir')
