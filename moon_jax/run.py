"""A run from its configuration to its summary.

source > partition > cohort > schedule > engine > aggregate > evaluate > record
"""

import contextlib
import dataclasses
import functools
import hashlib
import pathlib
import platform
import sys
import time
from typing import Any

import numpy as np

from moon_jax import checks
from moon_jax import hosts
from moon_jax import user_code
from moon_jax.config import Config
from moon_jax.data import cohort
from moon_jax.data import partition
from moon_jax.data import sources
from moon_jax.data.dataset import Dataset
from moon_jax.errors import DivergedError
from moon_jax.errors import InterruptedRun
from moon_jax.errors import UserError
from moon_jax.interrupt import Interrupt
from moon_jax.progress import Progress
from moon_jax.workdir import Workdir


def run(config: Config) -> dict[str, Any]:
  """Runs, or resumes, `config` in its work directory; returns its summary.

  Raises:
    UserError: before anything compiles, where the run cannot be done.
    DivergedError: where a loss or a parameter is no longer a finite number.
    InterruptedRun: where a signal ends it; what was done is saved.
  """
  start = time.perf_counter()
  config = checks.validate(config)
  cohorts = cohort.make(config)
  inputs = _inputs(config)
  dataset = None
  if sources.varies(config.dataset):
    dataset = sources.load(config.dataset, config.data_dir)
    inputs['dataset'] = dataset.fingerprint()
  summary = hosts.of_first(lambda: Workdir(config, inputs).summary())
  workdir = Workdir(config, inputs, look=hosts.is_first())
  if summary:
    print(f'{workdir.path} holds this run, done.')
    return summary
  dataset = dataset or sources.load(config.dataset, config.data_dir)
  clients = split(config, dataset)
  with contextlib.closing(workdir):
    return _simulate(config, dataset, clients, cohorts, workdir, start)


def split(config: Config, dataset: Dataset) -> list[np.ndarray]:
  """For each client the indices of its training examples.

  Raises:
    UserError: where the data set cannot be split so.
  """
  if config.partition == 'feature_noise' and dataset.num_tokens:
    raise UserError(f'--partition=feature_noise has no meaning for the tokens '
                    f'of --dataset={config.dataset}; give another --partition')
  labels, clients = dataset.train_labels, config.num_clients
  seed = config.split_seed()
  return {
      'iid': lambda: partition.iid(len(labels), clients, seed),
      'dirichlet': lambda: partition.dirichlet(
          labels, clients, config.beta, seed),
      'shards': lambda: partition.shards(
          labels, clients, config.shards_per_client, seed),
      'quantity': lambda: partition.quantity(
          len(labels), clients, config.beta, seed),
      'feature_noise': lambda: partition.iid(len(labels), clients, seed),
      'natural': lambda: partition.natural(
          dataset.train_clients, clients, seed),
  }[config.partition]()


def _inputs(config):
  """Hashes of what decides the run and is not in its configuration."""
  inputs = {}
  if config.cohorts_file:
    inputs['cohorts_file'] = pathlib.Path(
        config.cohorts_file).expanduser().read_bytes()
  if config.is_custom():
    from moon_jax import algorithms

    inputs['algorithm'] = user_code.source('algorithm', config.algorithm)
    algorithms.make(config, cohort_size=1)  # its mistakes first
  return {name: hashlib.sha256(content).hexdigest()[:8]
          for name, content in inputs.items()}


def _simulate(config, dataset, clients, cohorts, workdir, start):
  # JAX takes seconds to import: mistakes of the user's are told before.
  from moon_jax import determinism
  from moon_jax import memory
  from moon_jax import told
  from moon_jax.report import heatmap
  from moon_jax.simulation import Simulation

  def make(num_lanes=config.lanes):
    with memory.explained(config):
      return Simulation(dataclasses.replace(config, lanes=num_lanes),
                        dataset, clients, cohorts)

  _use_compilation_cache()
  if config.check_determinism:
    with memory.explained(config):
      determinism.check(make)
    print('two rounds, trained twice, have the same bits', flush=True)
  fingerprints = {
      'dataset': dataset.fingerprint(), 'partition': _fingerprint(clients),
      'config': dataclasses.replace(config, num_rounds=1).fingerprint()}
  at_work = _Run(config, cohorts, workdir, make, fingerprints)
  print(told.opening(config, dataset, clients, cohorts, at_work.simulation),
        f'results in {workdir.path}', sep='\n', flush=True)
  at_work.resume(functools.partial(workdir.begin, clients, cohorts))
  if hosts.is_first():
    with workdir.writing():
      heatmap.draw(
          partition.class_counts(dataset.train_labels, clients,
                                 dataset.num_classes),
          dataset.class_names, workdir.path / 'partition.png')
  at_work.train()
  simulation = at_work.simulation
  if simulation.has_one_model:
    from moon_jax import export

    export.save(workdir.path, config, dataset, simulation.global_model())

  def end():
    summary = told.summary(config, simulation, workdir.metrics.lines())
    summary['compile_seconds'] = round(at_work.compile_seconds, 2)
    summary['total_seconds'] = round(time.perf_counter() - start, 2)
    workdir.write_summary(summary)
    return summary

  return hosts.of_first(end)


class _Run:
  """A simulation at work in its directory.

  Attributes:
    simulation: the `moon_jax.simulation.Simulation`; another one after memory
      was too small for its lanes.
    compile_seconds: that were spent.
  """

  def __init__(self, config, cohorts, workdir, make, fingerprints):
    """Makes the simulation, before its first round.

    Args:
      config: the configuration.
      cohorts: for each round the clients that take part.
      workdir: where it works.
      make: returns a `Simulation`, of as many lanes as it is told.
      fingerprints: of data and partition, for checkpoints to remember.
    """
    self._config, self._cohorts = config, cohorts
    self._workdir, self._make = workdir, make
    self._fingerprints = fingerprints
    self._checkpoints = None
    self.simulation = make()
    self.compile_seconds = 0.
    self._trained = None  # the RoundRecord of a round without its line yet

  def resume(self, begin) -> None:
    """Goes on from the newest whole checkpoint, or from round 0.

    What is there is looked at first; `begin` writes the first files.

    Raises:
      UserError: where what is there does not fit together.
    """
    config, workdir = self._config, self._workdir
    hosts.of_first(workdir.lock)
    restored = mark = None
    if config.checkpoint_every or workdir.checkpoints.exists():
      from moon_jax.checkpoint import Checkpoints  # a second to import

      self._checkpoints = Checkpoints(workdir.checkpoints, config)
      if self._checkpoints.newest != hosts.of_first(
          lambda: self._checkpoints.newest):
        raise UserError(f'--workdir={workdir.path} is not the same directory '
                        'for all processes; name one that they share')
      restored = self._checkpoints.restore(self.simulation.state_on_host())
    if restored:
      state, note = restored
      self._check_same(note['fingerprints'])
      mark = note['metrics']
    hosts.of_first(lambda: workdir.metrics.check(mark))
    hosts.of_first(begin)
    if config.checkpoint_every:
      self._checkpoints.open()
    hosts.of_first(lambda: workdir.cut_metrics(mark))
    if restored:
      self.simulation.restore(state)
      if note['trained']:
        self._trained = _record(note['trained'])
      print(f'resuming after round {self.simulation.rounds_done}', flush=True)

  def train(self) -> None:
    """All rounds that are left, and the last checkpoint.

    Raises:
      DivergedError, InterruptedRun: see `run`.
      UserError: where files cannot be written, or memory is too small.
    """
    with Interrupt() as interrupt:
      try:
        self._train(interrupt)
        self._close()
      except InterruptedRun as error:
        raise InterruptedRun(error.number, self._leave()) from None
      except DivergedError as error:
        raise DivergedError(f'{error}{self._kept()}') from None
      except Exception:
        if hosts.count() == 1:  # others may wait for what never comes
          with contextlib.suppress(UserError):
            self._close()
        raise

  def _train(self, interrupt):
    config = self._config
    with Progress(config.num_rounds, self.simulation.rounds_done) as progress:
      while self._is_unfinished():
        try:
          self._compile(interrupt)
          while self._is_unfinished():
            if not self._trained:
              self._trained = self.simulation.run_round(interrupt.call)
            line = _line(config, self.simulation, self._cohorts, self._trained,
                         interrupt)
            if hosts.is_first():
              self._workdir.append_metrics(line)
            self._trained = None
            progress.round(line)
            if _is_due(config.checkpoint_every, line['round'], config):
              self._save()
            interrupt.check()
          return
        except Exception as error:
          fewer = self._fewer_lanes(error)
        self._start_again(fewer)

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

  def _fewer_lanes(self, error):
    """How many to try after an error for want of memory; raises others."""
    from moon_jax import memory

    if not memory.is_exhausted(error):
      raise error
    simulation = self.simulation
    fewer = simulation.num_lanes // 2
    why = memory.explain(error, self._config, simulation.num_lanes,
                         simulation.temporary_bytes())
    if (self._config.lanes or not fewer or self._trained
        or hosts.count() > 1):
      raise why from error
    print(f'{why}\ntrying again with {fewer} lane(s)', file=sys.stderr,
          flush=True)
    return fewer

  def _start_again(self, num_lanes):
    """The same state on other lanes; the old ones are let go of first."""
    if self._config.checkpoint_every:  # a signal would find nothing to save
      self._save()
      self._checkpoints.wait()
    state = self.simulation.state_on_host()
    self.simulation = None
    self.simulation = self._make(num_lanes)
    self.simulation.restore(state)

  def _save(self):
    """A checkpoint of what is done, where there is none of it."""
    if self.simulation.rounds_done == self._checkpoints.newest:
      return
    mark = self._workdir.mark_metrics() if hosts.is_first() else None
    self._checkpoints.save(self.simulation.state_on_host(), {
        'fingerprints': self._fingerprints, 'metrics': mark,
        'trained': self._trained and self._trained._asdict()})

  def _leave(self):
    """Saves what was done, where this process alone has it; says so."""
    done = self.simulation.rounds_done
    if not self._config.checkpoint_every:
      self._close()
      return f' after round {done}; --checkpoint_every=0 keeps nothing of it'
    if hosts.count() == 1:
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
    told = {
        'config': 'the run there had another configuration',
        'dataset': f'--dataset={config.dataset} --data_dir={config.data_dir} '
                   'has other examples than when the run began',
        'partition': f'--partition={config.partition} of the same seed and '
                     'data now gives other examples than when the run began'}
    for name, what in told.items():
      if fingerprints[name] != self._fingerprints[name]:
        raise UserError(f'--workdir={self._workdir.path}: {what}; mend that, '
                        'or name another --workdir')


def _record(saved):
  """The `RoundRecord` that a checkpoint remembers."""
  from moon_jax.simulation import RoundRecord

  return RoundRecord(**saved)


def _fingerprint(clients):
  """Eight hexadecimal digits that differ where who has what does."""
  digest = hashlib.sha256(repr([len(indices) for indices in clients]).encode())
  digest.update(np.concatenate(clients).astype(np.int64))
  return digest.hexdigest()[:8]


def _is_due(every, rounds_done, config):
  """Whether after this round; `every` is 0 for never."""
  return every and (
      rounds_done % every == 0 or rounds_done == config.num_rounds)


def _line(config, simulation, cohorts, record, interrupt):
  """Evaluates a round that was trained, where due; returns its metrics."""
  start = time.perf_counter()
  done = simulation.rounds_done
  for client, why in record.left_out.items() if hosts.is_first() else ():
    print(f'round {done}: left client {client} out, whose {why}',
          file=sys.stderr, flush=True)
  line = {'round': done}
  has_clients = _is_due(config.client_eval_every, done, config)
  if _is_due(config.eval_every, done, config):
    # Local models are not saved: what needs them is waited for.
    line |= simulation.evaluate(*[] if has_clients else [interrupt.call])
    line |= privacy_spent(config, cohorts[:done])
  if has_clients:
    line |= simulation.evaluate_clients()
  line |= record.metrics
  line['seconds'] = round(record.seconds + time.perf_counter() - start, 4)
  line['examples_per_second'] = round(record.num_examples / record.seconds, 1)
  return line


def privacy_spent(config: Config, cohorts: list[list[int]]
                  ) -> dict[str, float]:
  """Epsilon of these rounds, where there is one."""
  if not config.dp_noise_multiplier:
    return {}
  from moon_jax import accounting

  return {'epsilon': accounting.epsilon(config, cohorts)}


def _use_compilation_cache() -> None:
  """Keeps compiled programs in the user's cache, one directory a machine type.

  A CPU's programs use its own instructions, so a home directory shared by
  unlike machines needs them apart. JAX_COMPILATION_CACHE_DIR overrides.
  """
  import jax
  import platformdirs

  if jax.config.jax_compilation_cache_dir is None:
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
