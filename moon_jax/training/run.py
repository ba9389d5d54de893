"""A run from its configuration to its summary.

source > partition > cohort > schedule > engine > aggregate > evaluate > record
"""

import contextlib
import dataclasses
import functools
import hashlib
import pathlib
import platform
import time
from typing import Any

import numpy as np

from moon_jax import user_code
from moon_jax.config import Config
from moon_jax.data import cohort
from moon_jax.data import partition
from moon_jax.data import sources
from moon_jax.data.dataset import Dataset
from moon_jax.distributed import processes
from moon_jax.errors import UserError
from moon_jax.rundir.workdir import Workdir
from moon_jax.simulation import checks


def run(config: Config) -> dict[str, Any]:
  """Runs, or resumes, `config` in its work directory; returns its summary.

  Raises:
    UserError: before anything compiles, where the run cannot be done.
    OutOfMemory: where memory runs out; what was done is saved.
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
  summary = processes.run_on_first_process(
      lambda: Workdir(config, inputs).summary())
  workdir = Workdir(config, inputs, look=processes.is_first())
  if summary:
    print(f'{workdir.path} holds this run, done.')
    return summary
  dataset = dataset or sources.load(config.dataset, config.data_dir)
  checks.validate_dataset(config, dataset)
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
  if config.has_user_algorithm():
    from moon_jax import algorithms

    inputs['algorithm'] = user_code.source('algorithm', config.algorithm)
    algorithms.make(config, cohort_size=1)  # its mistakes first
  return {name: hashlib.sha256(content).hexdigest()[:8]
          for name, content in inputs.items()}


def _simulate(config, dataset, clients, cohorts, workdir, start):
  # JAX takes seconds to import: mistakes of the user's are told before.
  from moon_jax.report import heatmap
  from moon_jax.simulation import determinism
  from moon_jax.simulation import memory
  from moon_jax.simulation.simulation import Simulation
  from moon_jax.training import summary as summary_lib
  from moon_jax.training.trainer import Trainer

  make = lambda: Simulation(config, dataset, clients, cohorts)
  _use_compilation_cache()
  with memory.explained(config):
    if config.check_determinism:
      determinism.check(make)
      print('two rounds, trained twice, have the same bits', flush=True)
    simulation = make()
  fingerprints = {
      'dataset': dataset.fingerprint(), 'partition': _fingerprint(clients),
      'config': dataclasses.replace(config, num_rounds=1).fingerprint()}
  trainer = Trainer(config, cohorts, workdir, simulation, fingerprints)
  print(summary_lib.opening(config, dataset, clients, cohorts, simulation),
        f'results in {workdir.path}', sep='\n', flush=True)
  trainer.resume(functools.partial(workdir.begin, clients, cohorts))
  if processes.is_first():
    with workdir.writing():
      heatmap.draw(
          partition.class_counts(dataset.train_labels, clients,
                                 dataset.num_classes),
          dataset.class_names, workdir.path / 'partition.png')
  trainer.train()
  if simulation.has_one_model:
    from moon_jax.rundir import export

    export.save(workdir.path, config, dataset, simulation.global_model())

  def end():
    summary = summary_lib.summary(config, simulation, workdir.metrics.lines())
    summary['compile_seconds'] = round(trainer.compile_seconds, 2)
    summary['total_seconds'] = round(time.perf_counter() - start, 2)
    workdir.write_summary(summary)
    return summary

  return processes.run_on_first_process(end)


def _fingerprint(clients):
  """Eight hexadecimal digits that differ where who has what does."""
  digest = hashlib.sha256(repr([len(indices) for indices in clients]).encode())
  digest.update(np.concatenate(clients).astype(np.int64))
  return digest.hexdigest()[:8]


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
