"""Training examples, where the devices of a round read them.

All of them on each device, cores of a CPU sharing one copy; or, sharded, those
of the clients that a device trains in a round, moved to it from the host's
memory. The numbers are the same.
N examples of all, D devices.
"""

import math

import jax
from jax.sharding import Mesh
import numpy as np

from moon_jax.data.aligned import aligned
from moon_jax.distributed import devices
from moon_jax.distributed.devices import SPLIT
from moon_jax.distributed.devices import WHOLE
from moon_jax.engine.local import TrainData
from moon_jax.engine.schedule import Shape
from moon_jax.engine.schedule import Table


class TrainingSet:
  """See the module's docstring.

  Attributes:
    spec: how what `of_round` gives lies on the devices.
    device_bytes: bytes of training examples that each device reads.
  """

  def __init__(self, stored: TrainData, mesh: Mesh, shard_size: int = 0):
    """Places the examples, where they stay.

    Args:
      stored: all of them, numpy arrays.
      mesh: the devices.
      shard_size: examples that a device may need in a round (`shard_size`), to
        move them each round; 0 places all on each device.
    """
    self._mesh, self._size = mesh, shard_size
    self.spec = SPLIT if shard_size else WHOLE
    self._stored = stored if shard_size else devices.put(
        jax.tree.map(aligned, stored), mesh)
    each = sum(x.nbytes // len(x) for x in jax.tree.leaves(stored))
    self.device_bytes = each * (shard_size or len(stored.labels))

  def of_round(self, table: Table) -> tuple[Table, TrainData]:
    """A planned round, by indices into the examples that come with it.

    Args:
      table: by indices into all of them; with `own` where they are sharded.

    Returns:
      The table, and examples for `devices.put` with `spec`.
    """
    if not self._size:
      return table, self._stored
    ids_D = [np.unique(part[part >= 0])
             for part in np.split(table.own.index_JSB, self._mesh.size)]
    own = table.own._replace(index_JSB=_local(table.own.index_JSB, ids_D, 0))
    table = table._replace(
        examples_TLB=_local(table.examples_TLB, ids_D, 1), own=own)
    return table, jax.tree.map(
        lambda x_N: self._shards(x_N, ids_D), self._stored)

  def _shards(self, x_N, ids_D):
    """[D size, ...], filled in for the devices of this process."""
    shards = np.zeros((len(ids_D) * self._size, *x_N.shape[1:]), x_N.dtype)
    for d, (device, ids) in enumerate(zip(self._mesh.devices.flat, ids_D)):
      if device.process_index == jax.process_index():
        shards[d * self._size:d * self._size + len(ids)] = x_N[ids]
    return shards


def shard_size(shape: Shape, num_epochs: int, num_train: int) -> int:
  """Examples that the clients of a device have in a round, at most.

  A client leaves less than a batch out of each epoch.
  """
  steps = shape.num_rows * shape.num_lanes / shape.num_devices / num_epochs
  most = math.ceil(steps) + shape.jobs_per_device
  return min(num_train, most * shape.batch_size)


def _local(index, ids_D, axis):
  """Where indices are among those of their device, split along the axis."""
  return np.concatenate([
      np.where(part >= 0, np.searchsorted(ids, part), -1).astype(np.int32)
      for part, ids in zip(np.split(index, len(ids_D), axis), ids_D)], axis)
