"""One run's rounds in its directory: trained, told, saved, gone on with."""

from collections.abc import Callable
import contextlib
import sys
import time

from moon_jax.config import Config
from moon_jax.distributed import processes
from moon_jax.errors import DivergedError
from moon_jax.errors import InterruptedRun
from moon_jax.errors import UserError
from moon_jax.rundir.workdir import Workdir
from moon_jax.simulation import memory
from moon_jax.simulation.simulation import RoundRecord
from moon_jax.simulation.simulation import Simulation
from moon_jax.training import summary as summary_lib
from moon_jax.training.progress import Progress
from moon_jax.training.signals import Interrupt

_LONG_ROUND = 60.  # seconds before a line reports that a round is training


class Trainer:
  """A simulation at work in its directory.

  Attributes:
    simulation: the federation.
    compile_seconds: that were spent.
  """

  def __init__(self, config: Config, cohorts: list[list[int]],
               workdir: Workdir, simulation: Simulation,
               fingerprints: dict[str, str]):
    """Changes nothing yet.

    Args:
      config: the configuration.
      cohorts: for each round the clients that take part.
      workdir: where it works.
      simulation: before its first round.
      fingerprints: of "dataset", "partition" and "config", for checkpoints to
        remember.
    """
    self._config, self._cohorts = config, cohorts
    self._workdir, self.simulation = workdir, simulation
    self._fingerprints = fingerprints
    self._checkpoints = None
    self.compile_seconds = 0.
    self._trained = None  # the RoundRecord of a round without its line yet

  def resume(self, begin: Callable[[], None]) -> None:
    """Goes on from the newest whole checkpoint, or from round 0.

    Args:
      begin: writes the first files, once what is there was looked at.

    Raises:
      UserError: where what is there does not fit together.
    """
    config, workdir = self._config, self._workdir
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
    if restored:
      self.simulation.restore(state)
      if note['trained']:
        self._trained = RoundRecord(**note['trained'])
      print(f'resuming after round {self.simulation.rounds_done}', flush=True)

  def train(self) -> None:
    """All rounds that are left, and the last checkpoint.

    Raises:
      DivergedError, InterruptedRun: see `run`.
      UserError: where files cannot be written.
      OutOfMemory: where memory runs out; what was done is saved.
    """
    with Interrupt() as interrupt:
      try:
        self._train(interrupt)
        self._close()
      except InterruptedRun as error:
        raise InterruptedRun(error.number, self._leave()) from None
      except DivergedError as error:
        raise DivergedError(f'{error}{self._kept()}') from None
      except Exception as error:
        if memory.is_exhausted(error):
          raise self._out_of_memory(error, interrupt) from error
        if processes.count() == 1:  # others may wait for what never comes
          with contextlib.suppress(UserError):
            self._close()
        raise

  def _train(self, interrupt):
    config = self._config
    with Progress(config.num_rounds, self.simulation.rounds_done) as progress:
      if self._is_unfinished():
        with progress.busy('compiling'):
          self._compile(interrupt)
      while self._is_unfinished():
        if not self._trained:
          done = self.simulation.rounds_done
          with progress.busy(f'round {done + 1}: training', _LONG_ROUND):
            self._trained = self.simulation.run_round(interrupt.call)
        line = _line(config, self.simulation, self._cohorts, self._trained,
                     interrupt, progress)
        if processes.is_first():
          self._workdir.append_metrics(line)
        self._trained = None
        progress.round(line)
        if _is_due(config.checkpoint_every, line['round'], config):
          self._save()
        interrupt.check()

  def _is_unfinished(self):
    return (self._trained is not None
            or self.simulation.rounds_done < self._config.num_rounds)

  def _compile(self, interrupt):
    kept = self._checkpoints.newest if self._checkpoints else 0
    with interrupt.nothing_to_save(
        f'while compiling; the same command goes on after round {kept}'):
      seconds = self.simulation.compile()
    self.compile_seconds += seconds
    print(f'compiled in {seconds:.1f} s', flush=True)

  def _out_of_memory(self, error, interrupt):
    """What to raise for an error of JAX's, with what was done saved."""
    config, simulation = self._config, self.simulation
    # A round that is trained already was within memory, lanes and all.
    can_retry = not (config.lanes or self._trained or processes.count() > 1)
    where = ''
    if processes.count() == 1:  # others may wait for what never comes
      # Of all that may fail now, too, the first error is to be told.
      with contextlib.suppress(Exception):
        if self._trained and _is_due(
            config.client_eval_every, simulation.rounds_done, config):
          self._close()  # local models are not saved, and would be missing
        else:
          where = self._leave()
      try:
        interrupt.check()  # a signal that came meanwhile
      except InterruptedRun as interrupted:
        return InterruptedRun(interrupted.number, where)
    return memory.explain(
        error, config, simulation.num_lanes, simulation.temporary_bytes(),
        where, fewer_lanes=simulation.num_lanes // 2 if can_retry else 0)

  def _save(self):
    """A checkpoint of what is done, where there is none of it."""
    if self.simulation.rounds_done == self._checkpoints.newest:
      return
    mark = self._workdir.mark_metrics() if processes.is_first() else None
    self._checkpoints.save(self.simulation.state_on_host(), {
        'fingerprints': self._fingerprints, 'metrics': mark,
        'trained': self._trained and self._trained._asdict()})

  def _leave(self):
    """Saves what was done; says so."""
    done = self.simulation.rounds_done
    if not self._config.checkpoint_every:
      self._close()
      return f' after round {done}; --checkpoint_every=0 keeps nothing of it'
    self._save()
    self._close()
    return (f' after round {done}; the same command goes on after round '
            f'{self._checkpoints.newest}')

  def _kept(self):
    if not self._checkpoints or not self._checkpoints.newest:
      return '. There is no checkpoint yet'
    try:
      self._close()
    except UserError as error:
      return f'. {error}'
    return f'. The checkpoint of round {self._checkpoints.newest} is kept'

  def _close(self):
    if self._checkpoints:
      self._checkpoints.close()

  def _check_same(self, fingerprints):
    """Raises UserError where a checkpoint is of other data."""
    config = self._config
    reasons = {
        'config': 'the run there had another configuration',
        'dataset': f'--dataset={config.dataset} --data_dir={config.data_dir} '
                   'has other examples than when the run began',
        'partition': f'--partition={config.partition} of the same seed and '
                     'data now gives other examples than when the run began'}
    for name, what in reasons.items():
      if fingerprints[name] != self._fingerprints[name]:
        raise UserError(f'--workdir={self._workdir.path}: {what}; mend that, '
                        'or name another --workdir')


def _is_due(every, rounds_done, config):
  """Whether after this round; `every` is 0 for never."""
  return every and (
      rounds_done % every == 0 or rounds_done == config.num_rounds)


def _line(config, simulation, cohorts, record, interrupt, progress):
  """Evaluates a round that was trained, where due; returns its metrics."""
  start = time.perf_counter()
  done = simulation.rounds_done
  for client, why in record.left_out.items() if processes.is_first() else ():
    print(f'round {done}: left client {client} out, whose {why}',
          file=sys.stderr, flush=True)
  line = {'round': done}
  has_clients = _is_due(config.client_eval_every, done, config)
  if _is_due(config.eval_every, done, config):
    with progress.busy(f'round {done}: evaluating on '
                       f'{simulation.num_test:,} examples'):
      # Local models are not saved: what needs them is waited for.
      line |= simulation.evaluate(*[] if has_clients else [interrupt.call])
    line |= summary_lib.privacy_spent(config, cohorts[:done])
  if has_clients:
    with progress.busy(f'round {done}: evaluating the local models on '
                       f'{simulation.num_test:,} examples'):
      line |= simulation.evaluate_clients()
  line |= record.metrics
  line['seconds'] = round(record.seconds + time.perf_counter() - start, 4)
  line['examples_per_second'] = round(record.num_examples / record.seconds, 1)
  return line
