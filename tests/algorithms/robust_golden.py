"""Writes robust_golden.json: rules of ByzFL and Flower on the same messages.

    pip install byzfl flwr torch && python tests/algorithms/robust_golden.py

ByzFL's Krum sums n - f - 1 distances instead of the paper's n - f - 2, so only
Flower's is compared. ByzFL's geometric median begins at 0 and ours at the mean:
both converge. Both libraries take unweighted messages.
"""

import importlib.metadata
import json
import pathlib

import byzfl
from flwr.server.strategy import aggregate
import numpy as np

F = 2  # hostile clients that the rules assume


def flower(updates):
  """Flower's rules; 1 example per client."""
  results = [([u], 1) for u in updates]
  return {
      'median': aggregate.aggregate_median(results)[0],
      'trimmed_mean': aggregate.aggregate_trimmed_avg(
          results, F / len(updates) + 1e-9)[0],
      'krum': aggregate.aggregate_krum(results, F, 0)[0],
      'multi_krum': aggregate.aggregate_krum(results, F, 4)[0],
      'bulyan': aggregate.aggregate_bulyan(
          list(results), F, aggregate.aggregate_krum, to_keep=0)[0]}


def byzfl_rules(updates):
  return {
      'median': byzfl.Median()(updates),
      'trimmed_mean': byzfl.TrMean(f=F)(updates),
      'geometric_median': byzfl.GeometricMedian(nu=.1, T=1000)(updates),
      'centred_clipping': byzfl.CenteredClipping(L=1, tau=1.)(updates)}


def main():
  updates = np.random.default_rng(0).normal(size=(12, 5)).round(4)
  found = {'flower': flower(updates), 'byzfl': byzfl_rules(updates)}
  golden = {
      'versions': {'flower': importlib.metadata.version('flwr'),
                   'byzfl': importlib.metadata.version('byzfl')},
      'updates': updates.tolist(),
      **{library: {name: np.round(x, 9).tolist() for name, x in rules.items()}
         for library, rules in found.items()}}
  path = pathlib.Path(__file__).with_suffix('.json')
  path.write_text(json.dumps(golden, indent=1).replace('\n   ', ' ') + '\n')


if __name__ == '__main__':
  main()
