"""The local models of the last round, read from the devices one at a time."""

from collections.abc import Iterator
from collections.abc import Mapping

import jax
import numpy as np

from moon_jax.distributed import devices
from moon_jax.errors import UserError
from moon_jax.models.base import Variables
from moon_jax.simulation.federation import Federation


class LocalModels(Mapping[int, Variables]):
  """Maps each client that trained in a round to its model after training.

  Clients that diverged are left out; clients whose message was lost are not.
  Each access copies one model to the host, as numpy arrays; `dict(...)` copies
  all. With several processes, all must read the same clients in the same order,
  and each receives the whole model.

  Examples:
    >>> for client, variables in simulation.local_models().items():
    ...   np.save(f'{client}.npy', variables['params']['out']['kernel'])
  """

  def __init__(self, federation: Federation, last_round: tuple | None):
    """Copies nothing yet.

    Args:
      federation: the federation.
      last_round: table, examples, metrics and local models [J, ...] of it.

    Raises:
      UserError: if rounds do not return local models, or none was trained.
    """
    if not federation.keep_local_models or last_round is None:
      raise UserError(
          'local models need Federation(keep_local_models=True) and a round '
          'that this simulation trained, got none; they are not part of the '
          'state')
    table, _, metrics, self._models_J = last_round
    slots = np.flatnonzero((table.jobs.num_steps > 0) & metrics.finite_J)
    clients = zip(table.jobs.client[slots].tolist(), slots.tolist())
    self._slots = dict(sorted(clients))

  def __getitem__(self, client: int) -> Variables:
    j = self._slots[client]
    leaves_J, structure = jax.tree.flatten(self._models_J)
    rows = [_row(x_J, j) for x_J in leaves_J]
    if jax.process_count() > 1:
      rows = _shared(rows, leaves_J)
    return jax.tree.unflatten(structure, rows)

  def __iter__(self) -> Iterator[int]:
    return iter(self._slots)

  def __len__(self) -> int:
    return len(self._slots)


def _row(x_J, j):
  """Returns row j of an array, or None if another process has it."""
  for shard in x_J.addressable_shards:
    first = shard.index[0].start or 0
    if first <= j < first + len(shard.data):
      return np.asarray(shard.data[j - first])
  return None


def _shared(rows, leaves_J):
  """Returns the rows of the process that has them, on every process."""
  bits = [np.zeros(x_J.shape[1:], f'u{x_J.dtype.itemsize}') if row is None
          else row.view(f'u{row.dtype.itemsize}')
          for row, x_J in zip(rows, leaves_J)]
  return [np.asarray(sent).view(x_J.dtype) for sent, x_J in zip(
      devices.sum_over_processes(bits), leaves_J)]
