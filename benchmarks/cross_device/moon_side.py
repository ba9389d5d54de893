"""The moon_jax side: functions for a process (`benchmarks.common.run`)."""

import time

import numpy as np

from benchmarks import common, sides
from moon_jax.cli import command_line
from moon_jax.config import Config
from moon_jax.data import partition
from moon_jax.distributed import host


def _simulation(words):
  """Returns the configuration of the flags and its simulation."""
  host.share_cores()
  config = Config(**command_line.settings_of(words))
  from moon_jax.simulation import build
  from moon_jax.simulation.simulation import Simulation

  return config, Simulation(build.federation(config))


def write_inputs(words: list[str], path: str) -> dict:
  """Writes the data, the split, the cohorts and the initial weights to a file.

  Returns the settings that the other side needs, from the flags.

  Raises:
    ValueError: if a client's last batch would be short; moon_jax drops it, and
      pfl-research does not.
  """
  config, simulation = _simulation(words)
  federation = simulation.federation
  clients = federation.clients
  if not config.shuffle:  # moon_jax then sorts by class; pfl keeps the order
    clients = partition.sorted_by_class(
        clients, federation.data.train_labels)
  sizes = {len(indices) for indices in clients}
  if len(sizes) > 1 or min(sizes) % config.batch_size:
    raise ValueError('all clients must have the same number of examples, a '
                     f'multiple of --batch_size={config.batch_size}; got '
                     f'{sorted(sizes)}')
  data = federation.data
  params = simulation.global_model()['params']
  np.savez(
      path, clients=np.stack(clients),
      cohorts=np.array(federation.rounds.cohorts), mean=data.mean, std=data.std,
      train_inputs=data.train_inputs, train_labels=data.train_labels,
      test_inputs=data.test_inputs, test_labels=data.test_labels,
      **{f'{layer}/{name}': np.asarray(leaf)
         for layer, leaves in params.items() for name, leaf in leaves.items()})
  return {'num_rounds': config.num_rounds, 'eval_every': config.eval_every,
          'batch_size': config.batch_size, 'local_epochs': config.local_epochs,
          'learning_rate': config.learning_rate, 'seed': config.seed,
          'num_classes': data.num_classes}


def train(words: list[str]) -> dict:
  """Trains, and returns what `pfl_side.py` returns."""
  start = time.perf_counter()
  sides.start_jax()
  config, simulation = _simulation(words)
  compile_seconds = simulation.compile()
  setup_seconds = time.perf_counter() - start - compile_seconds
  evaluations = {0: simulation.evaluate()}
  round_seconds, evaluation_seconds, num_examples = [], [], 0
  for done in range(1, config.num_rounds + 1):
    record = simulation.run_round()
    round_seconds.append(record.seconds)
    num_examples = record.num_examples
    if done % config.eval_every == 0 or done == config.num_rounds:
      start = time.perf_counter()
      evaluations[done] = simulation.evaluate()
      evaluation_seconds.append(time.perf_counter() - start)
  return {
      'setup_seconds': setup_seconds, 'compile_seconds': compile_seconds,
      'round_seconds': round_seconds, 'evaluation_seconds': evaluation_seconds,
      'num_examples': num_examples,
      'accuracies': {n: e['test_accuracy'] for n, e in evaluations.items()},
      'losses': {n: e['test_loss'] for n, e in evaluations.items()},
      'num_parameters': simulation.num_parameters,
      'peak_bytes': sides.peak_bytes(),
      'num_processes': 1, 'threads': host.num_cores(),
      'lanes': simulation.num_lanes,
      'versions': {name: common.versions()[name]
                   for name in ('moon_jax', 'jax', 'flax')}}
