"""Places the training examples on the devices.

By default each device has all examples; the cores of a CPU share one copy. With
sharding, each round moves the examples of the clients that a device trains from
host memory, or from a memory-mapped file, to that device. Both give the same
results.
"""

import math

import jax
from jax.sharding import Mesh
import numpy as np

from moon_jax.data import mapped
from moon_jax.distributed import devices
from moon_jax.distributed.devices import SPLIT, WHOLE
from moon_jax.engine.local import TrainData
from moon_jax.engine.schedule import Shape, Table


class TrainingSet:
  """Training examples, replicated on the devices or sharded each round.

  Attributes:
    spec: the partition spec of the examples that `for_round` returns.
    frozen: the frozen weights of the network, on each device.
  """

  def __init__(self, stored: TrainData, mesh: Mesh, shard_size: int = 0):
    """Places all examples on each device, if there is no `shard_size`."""
    self._mesh, self._shard_size = mesh, shard_size
    self.frozen = devices.put(stored.frozen, mesh)
    stored = stored._replace(frozen=())
    self.spec = SPLIT if shard_size else WHOLE
    self._stored = stored if shard_size else devices.put(
        jax.tree.map(mapped.aligned, stored), mesh)

  def for_round(self, table: Table) -> tuple[Table, TrainData]:
    """Returns the table and the examples of a round.

    Its indices become those of each device's examples, if these are sharded.
    """
    if not self._shard_size:
      return table, self._stored._replace(frozen=self.frozen)
    ids_D = [np.unique(part[part >= 0])
             for part in np.split(table.own.index_JSB, self._mesh.size)]
    own = table.own._replace(index_JSB=_local(table.own.index_JSB, ids_D, 0))
    table = table._replace(
        examples_TLB=_local(table.examples_TLB, ids_D, 1), own=own)
    return table, jax.tree.map(
        lambda x_N: self._shards(x_N, ids_D), self._stored)._replace(
            frozen=self.frozen)

  def _shards(self, x_N, ids_D):
    """Returns all shards, [D * shard_size, ...], zeros of other processes."""
    size = self._shard_size
    shards = np.zeros((len(ids_D) * size, *x_N.shape[1:]), x_N.dtype)
    for d, (device, ids) in enumerate(zip(self._mesh.devices.flat, ids_D)):
      if device.process_index == jax.process_index():
        shards[d * size:d * size + len(ids)] = mapped.rows(x_N, ids)
    return shards


def shard_size(shape: Shape, num_epochs: int, num_train: int) -> int:
  """Returns the most examples that the clients of a device have in a round.

  A client has less than one batch more than it trains on in each epoch.
  """
  steps = shape.num_rows * shape.num_lanes / shape.num_devices / num_epochs
  max_batches = math.ceil(steps) + shape.jobs_per_device
  return min(num_train, max_batches * shape.batch_size)


def _local(index, ids_D, axis):
  """Maps indices, split along an axis, to positions in their device's ids."""
  return np.concatenate([
      np.where(part >= 0, np.searchsorted(ids, part), -1).astype(np.int32)
      for part, ids in zip(np.split(index, len(ids_D), axis), ids_D)], axis)
