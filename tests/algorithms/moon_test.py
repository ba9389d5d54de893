"""MOON's number of negatives, k."""

import numpy as np

from federation import Federation
from moon_jax.algorithms.moon import moon

# Client 1 trains in all rounds, so that pools of 1 and 2 are overwritten.
COHORTS = [(0, 1, 4, 5), (7, 2, 1, 3), (1, 5, 4, 0), (1, 2, 3, 4), (5, 1)]


def run(algorithm):
  """Returns the global model's weights after the rounds of `COHORTS`."""
  federated = Federation(algorithm)
  for cohort in COHORTS:
    federated.round(cohort)
  return federated.state.variables['params']['w']


def test_other_k_train_otherwise():
  assert np.abs(run(moon(1)) - run(moon(2))).max() > 1e-4
