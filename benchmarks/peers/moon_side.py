"""moon_jax's side of the comparison, and the inputs that all sides share."""

from typing import Any

import numpy as np

from benchmarks import common, sides
from moon_jax.simulation import build


def train(fields: dict[str, Any]) -> dict[str, Any]:
  """Trains as for users; returns the measurements of this process."""
  sides.start_jax()
  from moon_jax.simulation.simulation import Simulation

  config, dataset, clients = sides.inputs({'config': fields})
  simulation = Simulation(build.federation(
      config, dataset, clients,
      [list(range(config.num_clients))] * config.num_rounds))
  compile_seconds = simulation.compile()
  return {'compile_seconds': compile_seconds,
          'round_seconds': [simulation.run_round().seconds
                            for _ in range(config.num_rounds)],
          'accuracy': float(simulation.evaluate()['test_accuracy']),
          'versions': common.versions()}


def write_inputs(fields: dict[str, Any], path: str) -> None:
  """Writes images, labels, and the indices of each client, one after another.
  """
  _, dataset, clients = sides.inputs({'config': fields})
  np.savez(path, train_inputs=dataset.train_inputs,
           train_labels=dataset.train_labels, test_inputs=dataset.test_inputs,
           test_labels=dataset.test_labels, mean=dataset.mean, std=dataset.std,
           sizes=[*map(len, clients)], clients=np.concatenate(clients))
