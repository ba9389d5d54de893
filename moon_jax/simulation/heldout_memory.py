"""Memory of the held-out examples of clients, which are stored again."""

import math

from moon_jax.simulation.federation import Federation
from moon_jax.simulation.memory_estimate import Part
from moon_jax.simulation.round_spec import RoundSpec


def parts(run: RoundSpec) -> list[Part]:
  """Returns the held-out examples as a part of the memory; [] without them.

  Each device with its own memory holds a copy. CPU cores share one.
  """
  size = nbytes(run.federation)
  return [Part('held-out examples of clients', size,
               lambda fit: _fewer(run.flags, fit))] if size else []


def nbytes(federation: Federation) -> int:
  """Returns the bytes of the held-out examples of all clients."""
  tests, data = federation.client_tests, federation.data
  if tests is None:
    return 0
  example = data.train_inputs[:1].nbytes + data.train_labels[:1].nbytes
  return int(tests.sizes.sum()) * example


def _fewer(flags, fit):
  if fraction := flags.get('client_test_fraction'):
    most = math.floor(1e4 * fraction * fit) / 1e4
    return [f'lower --client_test_fraction={fraction} to {most}'] if most else (
        [])
  if 'client_eval_every' in flags:
    return ['give --client_eval_every=0']
  return ['hold out fewer examples']
