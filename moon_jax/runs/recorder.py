"""Records the rounds of one run in its work directory.

Makes and writes the lines of metrics.jsonl, and saves checkpoints, the best
models and the local models of the last round. Checkpoints do not hold local
models: a round that may need them is not interrupted before its line is
written, and is trained again if it fails before that.
"""

from collections.abc import Callable, Sequence
import dataclasses
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.config import Config
from moon_jax.distributed import processes
from moon_jax.errors import DivergedError, require, setting, UserError
from moon_jax.runs import directory as directory_lib
from moon_jax.runs import identity, saved_models
from moon_jax.runs import summary as summary_lib
from moon_jax.runs.checkpoint import Checkpoints
from moon_jax.runs.directory import Workdir
from moon_jax.runs.prepare import fingerprint
from moon_jax.runs.run_loggers import RunLoggers
from moon_jax.runs.signals import Interrupt
from moon_jax.simulation.records import RoundRecord
from moon_jax.simulation.simulation import Simulation
from moon_jax.view.progress import Progress, round_text
from moon_jax.view.run_log import RunLog
from moon_jax.view.text import metric

Result = dict[str, Any] | DivergedError

_SAVE_SECONDS = 30.  # after which a round is saved, if that is cheap:
_SAVE_SHARE = .02  # the most of the time that such saves take
_DECIDING = 'round', *(  # of a line
    name for names in summary_lib.MEASURES.values() for name in names)


class Recorder:
  """Writes metrics, checkpoints and models of a run to its directory.

  Attributes:
    config: the configuration of the run.
    simulation: its simulation.
    workdir: its work directory.
    callbacks: called after each round, see `moon_jax.runs.run.run`.
    trained: the record of a round that has no line of metrics yet, or None.
    result: of a run that has ended: its summary, or the error of a loss that is
      not finite; None before.
    until: the round up to which it trains now; `num_rounds`, unless it pauses.
    num_lost: rounds of an earlier command that are trained again.
    saved_at: when training began or the run was saved, in `time.monotonic`.
  """

  def __init__(self, config: Config, simulation: Simulation, workdir: Workdir,
               callbacks: Sequence[Callable], name: str, log: RunLog):
    """Stores the arguments; `name` begins messages about a round."""
    federation = simulation.federation
    self.config = config
    self.workdir, self.simulation = workdir, simulation
    self.callbacks, self._name, self._log = list(callbacks), name, log
    self._fingerprints = {
        'dataset': federation.data.fingerprint(),
        'partition': fingerprint(
            federation.clients, federation.client_tests, federation.validation),
        'config': identity.contents(
            dataclasses.replace(config, num_rounds=1)),
        # Norms: if they are drawn, devices draw other last bits.
        'frozen weights': [
            float(jnp.linalg.norm(x.addressable_data(0).astype(jnp.float32)))
            for x in jax.tree.leaves(simulation.frozen_weights)]}
    self._checkpoints: Checkpoints | None = None
    self._selection = Selection(config, simulation, workdir)
    self.trained: RoundRecord | None = None
    self.result: Result | None = None
    self.until = config.num_rounds
    self.num_lost, self.saved_at, self._save_seconds = 0, time.monotonic(), 0.

  @property
  def is_unfinished(self) -> bool:
    """Whether the run has rounds to train or to record now."""
    return self.result is None and (
        self.trained is not None or self._has_rounds(self.until))

  @property
  def is_paused(self) -> bool:
    """Whether the run has rounds left, and trains none of them now."""
    return not self.is_unfinished and self.result is None and (
        self._has_rounds(self.config.num_rounds))

  def _has_rounds(self, until):
    return self.simulation.rounds_done < until and not (
        self._selection.is_stopped)

  @property
  def rounds_saved(self) -> int:
    """Rounds of the newest checkpoint; 0 without one."""
    return self._checkpoints.newest if self._checkpoints else 0

  def resume(self) -> None:
    """Resumes from the newest intact checkpoint, or begins with round 0.

    Raises:
      UserError: if existing files do not belong to this run.
    """
    config, workdir = self.config, self.workdir
    federation = self.simulation.federation

    def lock():
      workdir.lock()
      return len(workdir.lines())

    num_lines = processes.run_on_first_process(lock)
    restored = None
    if config.checkpoint_every or workdir.checkpoints.exists():
      self._checkpoints = Checkpoints(workdir.checkpoints, config)
      require(self.rounds_saved == processes.run_on_first_process(
          lambda: self.rounds_saved), f'workdir={workdir.path}',
              'must be the same directory for all processes',
              'different checkpoints', 'Name one that they share')
      restored = self._checkpoints.restore(self._state())
    state, note = restored or (None, {'metrics': None, 'trained': None})
    if restored:
      self._check_same(note['fingerprints'])

    def begin():
      workdir.begin(federation, note['metrics'])
      self._log.open(workdir.path / 'log.txt')

    def cut():
      workdir.cut_metrics(note['metrics'])
      return self._selection.begin()

    processes.run_on_first_process(begin)
    if config.checkpoint_every:
      self._checkpoints.open()
    self._selection.lines = processes.run_on_first_process(cut)
    if restored:
      self.simulation.program.restore(
          self.simulation.index, state, takes_over=True)
    if note['trained']:
      self.trained = RoundRecord(**note['trained'])
    self.num_lost = max(num_lines - self.simulation.rounds_done, 0)
    if config.save_local_models and self.is_unfinished:
      processes.run_on_first_process(workdir.remove_local_models)

  def _check_same(self, fingerprints):
    config, own = self.config, self._fingerprints
    is_same = {name: fingerprints[name] == x for name, x in own.items()}
    norms, own_norms = fingerprints['frozen weights'], own['frozen weights']
    is_same['frozen weights'] = len(norms) == len(own_norms) and np.allclose(
        norms, own_norms, rtol=1e-4, atol=0)
    for name, reason in {
        'config': 'the configuration is another one',
        'dataset': f'{setting("dataset", config.dataset)} '
                   f'{setting("data_dir", config.data_dir)} has changed since '
                   'the run began',
        'partition': f'{setting("partition", config.partition)} gives other '
                     'clients than when the run began',
        'frozen weights': 'the frozen part of '
                          f'{setting("model", config.model)} has changed since '
                          'the run began'}.items():
      require(is_same[name], f'workdir={self.workdir.path}',
              'must hold this run', f'one of which {reason}',
              f'Restore what has changed, or name another {setting("workdir")}')

  def add(self, outcome: RoundRecord | DivergedError) -> None:
    """Takes the outcome of a round."""
    if isinstance(outcome, DivergedError):
      self._diverge(outcome)
    else:
      self.trained = outcome

  def record(self, interrupt: Interrupt, progress: Progress) -> dict | None:
    """Evaluates the trained round, writes its line, and saves if that is due.

    Returns the line of metrics.jsonl; None if the evaluation diverged.
    """
    config, done = self.config, self.simulation.rounds_done
    for client, reason in self.trained.left_out.items() if (
        processes.is_first()) else ():
      print(f'{self._name}round {done}: left out client {client}: its {reason}',
            file=sys.stderr, flush=True)
    try:
      line = metrics_line(
          self.config, self.simulation, self.trained, interrupt, progress)
    except DivergedError as error:
      self.trained = None
      self._diverge(error)
      return None
    self._selection.add(line)  # before the line, which makes it final
    is_stopped = self._selection.is_stopped
    if is_stopped and config.client_eval_every and 'clients' not in line:
      line |= self.simulation.evaluate_clients()
    if config.save_local_models and (is_stopped or done == config.num_rounds):
      self._save_local_models()
    if processes.is_first():
      self.workdir.replace_results()
      self.workdir.append_metrics(line)
      self._log.write(round_text(line, config.num_rounds))
    self.trained = None
    if config.checkpoint_every and (
        is_due(config.checkpoint_every, done, config)
        or self._is_save_late(progress.status.num_runs)):
      with progress.busy(f'round {done}: saving a checkpoint'):
        self._save()
    for callback in self.callbacks:
      callback(self.simulation, line)
    return line

  def _is_save_late(self, num_runs):
    """Returns whether to save by time; the same in all processes."""
    seconds = time.monotonic() - self.saved_at
    least = max(_SAVE_SECONDS, num_runs * self._save_seconds / _SAVE_SHARE)
    return bool(processes.max_over_processes(int(seconds > least)))

  def _diverge(self, error):
    try:
      self.close()
      where = ('There is no checkpoint yet' if not self.rounds_saved else
               f'The last checkpoint is that of round {self.rounds_saved}')
    except UserError as failure:
      where = failure
    remedies = summary_lib.advice(self.config), error.remedy, str(where)
    self.result = DivergedError(error.reason, '. '.join(filter(None, remedies)))

    def end():
      self.workdir.replace_results()
      self.workdir.write_diverged(len(self.workdir.lines()), str(self.result))
      self._log.write(str(self.result))

    processes.run_on_first_process(end)

  def finish(self, compile_seconds: float,
             total_seconds: Callable[[], float]) -> None:
    """Saves the last round, the final model and the summary, the result."""
    simulation, workdir = self.simulation, self.workdir
    federation = simulation.federation
    processes.run_on_first_process(workdir.replace_results)
    if self.config.checkpoint_every:
      self._save()
    self._selection.end(self._name)
    self.close()
    if not federation.algorithm.per_client_init:
      variables = simulation.global_model()  # computed by all processes
      processes.run_on_first_process(lambda: workdir.write(
          'model.safetensors', self._encoded(variables)))

    def end():
      summary = summary_lib.summarize(
          self.config, simulation, workdir.lines()) | {
          'compile_seconds': round(compile_seconds, 2),
          'total_seconds': round(total_seconds(), 2)}
      workdir.write_summary(summary)
      return summary

    self.result = processes.run_on_first_process(end)

  @property
  def reads_local_models(self) -> bool:
    """Whether the next round's local models may be read, also by callbacks."""
    return any(not isinstance(callback, RunLoggers)
               for callback in self.callbacks) or _needs_local_models(
                   self.config, self.simulation.rounds_done + 1)

  @property
  def needs_local_models(self) -> bool:
    """Whether a round is trained whose line may need its local models."""
    return self.trained is not None and _needs_local_models(
        self.config, self.simulation.rounds_done)

  def _save_local_models(self):
    for client, variables in self.simulation.local_models().items():
      processes.run_on_first_process(
          lambda client=client, variables=variables: self.workdir.write(
              f'local_models/{client}.safetensors',
              self._encoded(variables, client=client)))

  def _encoded(self, variables, **more):
    return saved_models.to_safetensors(
        self.config, self.simulation.federation.data, variables, **more)

  def _save(self):
    if self.simulation.rounds_done == self._checkpoints.newest:
      return
    start = time.monotonic()
    mark = self.workdir.mark_metrics() if processes.is_first() else None
    self._checkpoints.save(self._state(), {
        'fingerprints': self._fingerprints, 'metrics': mark,
        'trained': self.trained and self.trained._asdict()})
    self.saved_at = time.monotonic()
    self._save_seconds = self.saved_at - start

  def _state(self):
    """Returns the state, which the next round may change."""
    simulation = self.simulation
    return simulation.program.state_on_host(simulation.index, is_live=True)

  def save_and_close(self) -> str:
    """Saves completed rounds; returns a clause on where the run resumes."""
    after = f' after round {self.simulation.rounds_done}; '
    if not self.config.checkpoint_every:
      self.close()
      return (f'{after}{setting("checkpoint_every", 0)} saves no checkpoint to '
              'resume from')
    self._save()
    self.close()
    return f'{after}the same command resumes after round {self.rounds_saved}'

  def close(self) -> None:
    """Waits until checkpoints are written."""
    if self._checkpoints:
      self._checkpoints.close()


class Selection:
  """Keeps the best model and decides when to stop.

  best/ROUND.safetensors is the best model up to a round. A run resumes from any
  checkpoint that it has kept, so the model that was the best at that checkpoint
  must still exist. All processes take the same decisions; the first one writes
  the files.

  Attributes:
    lines: the fields that decide, of the lines so far.
  """

  def __init__(self, config: Config, simulation: Simulation, workdir: Workdir):
    self.config = config
    self._simulation, self._workdir = simulation, workdir
    self.lines: list[dict[str, Any]] = []

  @property
  def is_stopped(self) -> bool:
    """Whether --early_stopping ends the run after the lines so far."""
    return summary_lib.is_stopped(self.config, self.lines)

  def begin(self) -> list[dict[str, Any]]:
    """Returns the lines in the file; removes models of later rounds."""
    if not self.config.validation_fraction:
      return []
    lines = [_deciding(line) for line in self._workdir.lines()]
    self._remove(lambda number: number > len(lines))
    return lines

  def add(self, line: dict[str, Any]) -> None:
    """Records the line of a round, and saves its model if it is the best.

    Call it before the line is written: a run that is killed in between repeats
    the round, and replaces or removes the model.
    """
    if not self.config.validation_fraction:
      return
    self.lines.append(_deciding(line))
    best = summary_lib.best_line(self.lines)
    if not self.config.keep_best or best is not self.lines[-1]:
      return
    variables = self._simulation.global_model()  # computed by all processes
    if processes.is_first():
      self.save(line['round'], self._encoded(variables))

  def save(self, number: int, content: bytes) -> None:
    """Writes the best model so far; removes those that no checkpoint needs."""
    self._workdir.write(f'best/{number}.safetensors', content)
    saved = directory_lib.saved_rounds(
        self._workdir.checkpoints, unfinished=True)
    # A signal during an evaluation saves a round before its line is written.
    needed = {number} | {
        best['round'] for step in saved for n in (step - 1, step)
        if (best := summary_lib.best_line(self.lines[:n]))}
    self._remove(lambda other: other not in needed)

  def _encoded(self, variables):
    return saved_models.to_safetensors(
        self.config, self._simulation.federation.data, variables)

  def _remove(self, is_removed):
    with self._workdir.writing():
      for path in self._workdir.path.glob('best/*.safetensors'):
        if path.stem.isdigit() and is_removed(int(path.stem)):
          path.unlink()

  def end(self, name: str = '') -> None:
    """Writes best.safetensors, and prints which round was the best.

    `name` begins the messages.
    """
    line = summary_lib.best_line(self.lines)
    if line is None or not processes.is_first():
      return
    if self.config.keep_best:
      # Encoded again: a resumed run may have other flags, such as num_rounds.
      _, variables = saved_models.load(
          self._workdir.path / f'best/{line["round"]}.safetensors')
      self._workdir.write('best.safetensors', self._encoded(variables))
    names = [summary_lib.measure(line, part) for part in ('validation', 'test')]
    shown = [name.replace('_', ' ') for name in names]
    values = [metric(name, line[name]) for name in names]
    if self.is_stopped:
      print(f'{name}stopped after round {len(self.lines)}: no better '
            f'{shown[0]} in {self.config.early_stopping} evaluations')
    print(f'{name}best {shown[0]} {values[0]} after round {line["round"]}, '
          f'with {shown[1]} {values[1]}', flush=True)


def _deciding(line):
  return {name: line[name] for name in _DECIDING if name in line}


def is_due(every, rounds_done, config):
  """Returns whether to act after this round; 0 means never."""
  return every and (
      rounds_done % every == 0 or rounds_done == config.num_rounds)


def _needs_local_models(config, rounds_done):
  """Returns whether the line of a round may need its local models.

  Early stopping decides after the evaluation which round is the last one.
  """
  may_be_last = config.early_stopping or rounds_done == config.num_rounds
  return bool(
      may_be_last and (config.save_local_models or config.client_eval_every)
      or is_due(config.client_eval_every, rounds_done, config))


def metrics_line(config, simulation, record, interrupt, progress):
  """Evaluates a trained round if it is due; returns its line of metrics.jsonl.

  The line has the metrics of training (`simulation.records.round_metrics`), of
  evaluations (`Evaluator.test`, `Evaluator.test_clients`), the privacy loss
  (`summary.privacy_spent`) and the times.
  """
  start = time.perf_counter()
  federation, done = simulation.federation, simulation.rounds_done
  line = {'round': done}
  on_test = f'on {federation.num_test:,} examples'
  if is_due(config.eval_every, done, config):
    with progress.busy(f'round {done}: evaluating {on_test}'):
      wait = [] if _needs_local_models(config, done) else [interrupt.call]
      line |= simulation.evaluate(*wait)
    line |= summary_lib.privacy_spent(config, simulation, done)
  if is_due(config.client_eval_every, done, config):
    models = ('the models of all clients' if federation.evaluate_all else
              f'the local models {on_test}')
    with progress.busy(f'round {done}: evaluating {models}'):
      line |= simulation.evaluate_clients()
  if federation.metrics and (clash := line.keys() & record.metrics.keys()):
    raise UserError(f'metrics={config.metrics}', 'must record other names than '
                    f'{setting("algorithm", config.algorithm)}',
                    f'{sorted(clash)[0]} from both', 'Rename one of them')
  line |= record.metrics
  line['seconds'] = round(record.seconds + time.perf_counter() - start, 4)
  line['examples_per_second'] = round(record.num_examples / record.seconds, 1)
  return line
