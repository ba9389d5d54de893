"""Writes directories of runs that were never trained."""

import dataclasses
import json

import numpy as np

from moon_jax.config import Config
from moon_jax.data import cohort
from moon_jax.runs import directory as directory_lib
from moon_jax.simulation import checks

CONFIG = Config(dataset='digits', num_clients=3, num_rounds=4)
SUMMARY = {
    'compile_seconds': 3., 'examples_per_second': 1000.,
    'bytes_per_round': 4_000_000, 'device': 'invented', 'command': '',
    'versions': {'moon_jax': '0', 'jax': '0'}, 'arithmetic': 'float32'}


def accuracy(round_, seed=0):
  return round(.2 * round_ + .01 * seed, 4)


def line(round_, value, num_clients=3):
  """Returns the metrics of a round; a value of None is no evaluation."""
  found = {
      'round': round_, 'train_loss': 1. / round_, 'drift': .5, 'seconds': .25,
      'examples_per_second': 100., 'custom_metric': 7., 'clients': {
          'client': list(range(num_clients))[::-1],
          'num_examples': [10] * num_clients, 'received': [True] * num_clients,
          'drift': [.5 + c for c in range(num_clients)],
          'local_test_accuracy': [None] + [.25] * (num_clients - 1)}}
  return found if value is None else found | {
      'test_accuracy': value, 'test_loss': 2. / round_}


def write(path, values=None, is_finished=True, diverged='', more=None,
          **fields):
  """Writes a run with these accuracies by round; returns its directory.

  Each round has the metrics `more`, too. Fewer accuracies than rounds are those
  of the last rounds of a finished run.
  """
  config = checks.validate(dataclasses.replace(CONFIG, **fields))
  if values is None:
    values = [accuracy(r, config.seed)
              for r in range(1, config.num_rounds + 1)]
  elif is_finished and not diverged:
    values = [None] * (config.num_rounds - len(values)) + [*values]
  path.mkdir(parents=True)
  files = {
      'config.json': config.to_dict(), 'cohorts.txt': cohort.text_of(
          [[0, 1]] * config.num_rounds),
      'metrics.jsonl': ''.join(
          json.dumps(line(r, value, config.num_clients) | (more or {}))
          + '\n' for r, value in enumerate(values, 1))}
  if diverged:
    files['diverged.json'] = {'error': diverged, 'rounds': len(values)}
  elif is_finished:
    files['summary.json'] = SUMMARY | {
        'rounds': config.num_rounds, 'test_accuracy': (*values, None)[-2],
        'seconds_per_round': 2. + config.seed}
  for name, content in files.items():
    (path / name).write_text(
        content if isinstance(content, str) else json.dumps(content))
  (path / 'partition.npz').write_bytes(directory_lib.partition_npz(
      [np.arange(5) for _ in range(config.num_clients)]))
  return path


def remove_accuracies(path):
  """Makes a run one of a regression, whose loss falls as 2, 1, .67, .5."""
  lines = map(json.loads, (path / 'metrics.jsonl').read_text().splitlines())
  (path / 'metrics.jsonl').write_text(''.join(json.dumps({
      'test_mse' if name == 'test_accuracy' else name: value
      for name, value in line.items()}) + '\n' for line in lines))


def write_all(directory, configs, values):
  """Writes the runs of configurations to a directory, which it returns.

  `values` returns the accuracies of a configuration, or a pair of these and the
  reason why the run diverged.
  """
  directory.mkdir(parents=True, exist_ok=True)
  for i, config in enumerate(configs):
    found, diverged = values(config), ''
    if isinstance(found, tuple):
      found, diverged = found
    write(directory / f'run{i}', found, diverged=diverged, **config.to_dict())
  return directory
