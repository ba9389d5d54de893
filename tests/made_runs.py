"""Writes directories of runs that were never trained."""

import dataclasses
import json

import numpy as np

from moon_jax.config import Config
from moon_jax.data import cohort
from moon_jax.rundir import workdir as workdir_lib
from moon_jax.simulation import checks

CONFIG = Config(dataset='digits', num_clients=3, num_rounds=4)


def accuracy(round_, seed=0):
  return round(.2 * round_ + .01 * seed, 4)


def line(round_, value, num_clients=3, has_clients=True):
  clients = {'clients': {
      'client': list(range(num_clients))[::-1],
      'num_examples': [10] * num_clients, 'received': [True] * num_clients,
      'drift': [.5 + c for c in range(num_clients)],
      'local_test_accuracy': [None] + [.25] * (num_clients - 1)}}
  return {
      'round': round_, 'test_accuracy': value, 'test_loss': 2. / round_,
      'train_loss': 1. / round_, 'drift': .5, 'seconds': .25,
      'examples_per_second': 100., 'custom_metric': 7.,
  } | (clients if has_clients else {})


def write(path, values=None, is_finished=True, num_clients=3, **fields):
  """Writes a run with these accuracies; returns its directory."""
  config = checks.validate(dataclasses.replace(
      CONFIG, num_clients=num_clients, **fields))
  if values is None:
    values = [accuracy(r, config.seed)
              for r in range(1, config.num_rounds + 1)]
  path.mkdir(parents=True)
  (path / 'config.json').write_text(json.dumps(config.to_dict()))
  (path / 'metrics.jsonl').write_text(''.join(
      json.dumps(line(r, value, num_clients)) + '\n'
      for r, value in enumerate(values, 1)))
  (path / 'partition.npz').write_bytes(workdir_lib.partition_npz(
      [np.arange(5) for _ in range(num_clients)]))
  if is_finished:
    (path / 'summary.json').write_text(json.dumps({
        'rounds': config.num_rounds, 'compile_seconds': 3.}))
  (path / 'cohorts.txt').write_text(cohort.text_of(
      [[0, 1]] * config.num_rounds))
  return path
