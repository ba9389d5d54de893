"""The moon_jax side: one run of experiments/cross_device.flags in a process.

python -m benchmarks.cross_device.moon_side TASK ANSWER

TASK is a JSON file with the flags of the run and the file of shared inputs.
"inputs" writes that file; "train" trains and measures.
"""

import importlib.metadata
import json
import pathlib
import resource
import sys
import time

from absl import flags
import numpy as np

from moon_jax import version
from moon_jax.cli import command_line
from moon_jax.config import Config
from moon_jax.data import partition
from moon_jax.distributed import host

_PACKAGES = ('jax', 'flax')


def main() -> None:
  task_path, answer_path = map(pathlib.Path, sys.argv[1:])
  task = json.loads(task_path.read_text())
  host.share_cores()
  command_line.define_config()
  flags.FLAGS(['', *task['flags']])
  config = Config(**{name: flags.FLAGS[name].value
                     for name in Config.__dataclass_fields__})
  answer = {'inputs': _write_inputs, 'train': _train}[task['kind']](
      config, task['inputs'])
  answer_path.write_text(json.dumps(answer))


def _simulation(config):
  from moon_jax.simulation import build
  from moon_jax.simulation.simulation import Simulation

  return Simulation(build.federation(config))


def _write_inputs(config, path):
  """Writes the data, the split, the cohorts and the initial weights.

  Returns the settings that the other side needs, from the flags.

  Raises:
    ValueError: if a client's last batch would be short; moon_jax drops it, and
      pfl-research does not.
  """
  simulation = _simulation(config)
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
      cohorts=np.array(federation.cohorts), mean=data.mean, std=data.std,
      train_inputs=data.train_inputs, train_labels=data.train_labels,
      test_inputs=data.test_inputs, test_labels=data.test_labels,
      **{f'{layer}/{name}': np.asarray(leaf)
         for layer, leaves in params.items() for name, leaf in leaves.items()})
  return {'num_rounds': config.num_rounds, 'eval_every': config.eval_every,
          'batch_size': config.batch_size, 'local_epochs': config.local_epochs,
          'learning_rate': config.learning_rate, 'seed': config.seed,
          'num_classes': data.num_classes}


def _train(config, path):
  """Trains, and returns what `pfl_side.py` returns."""
  del path  # written by a run with the same flags
  start = time.perf_counter()
  import jax

  jax.config.update('jax_enable_compilation_cache', False)
  simulation = _simulation(config)
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
      'peak_bytes': resource.getrusage(
          resource.RUSAGE_SELF).ru_maxrss * 1024,
      'threads': host.num_cores(), 'lanes': simulation.num_lanes,
      'versions': {'moon_jax': version.__version__} | {
          name: importlib.metadata.version(name) for name in _PACKAGES}}


if __name__ == '__main__':
  main()
