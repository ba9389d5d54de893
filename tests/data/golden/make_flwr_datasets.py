"""Writes flwr_datasets.json: statistics of flwr-datasets' partitioners.

python tests/data/golden/make_flwr_datasets.py    (flwr-datasets 0.6.1)
"""

import importlib.metadata
import json
import pathlib

import datasets
from flwr_datasets.partitioner import InnerDirichletPartitioner
import numpy as np

LABELS = np.repeat(np.arange(10), 100)
SEEDS = 200


def concentration(num_clients, alpha, seed):
  """Returns the mean over clients of the sum of squared shares of classes."""
  made = InnerDirichletPartitioner(
      [len(LABELS) // num_clients] * num_clients, 'label', alpha, seed=seed)
  made.dataset = datasets.Dataset.from_dict({'label': LABELS})
  counts = np.stack([np.bincount(made.load_partition(i)['label'], minlength=10)
                     for i in range(num_clients)])
  return ((counts / counts.sum(1, keepdims=True))**2).sum(1).mean()


def main():
  cases = []
  for num_clients, alpha in (5, .5), (20, .5), (10, .1), (10, 5.):
    values = [concentration(num_clients, alpha, seed) for seed in range(SEEDS)]
    cases.append({'clients': num_clients, 'alpha': alpha,
                  'mean': np.mean(values),
                  'standard_error': np.std(values) / np.sqrt(SEEDS)})
  pathlib.Path(__file__).with_name('flwr_datasets.json').write_text(json.dumps({
      'flwr-datasets': importlib.metadata.version('flwr-datasets'),
      'inner_dirichlet': cases}, indent=1) + '\n', encoding='utf-8')


if __name__ == '__main__':
  main()
