"""The devices that share a round: one mesh axis, over which lanes are split.

Every device trains its own lanes; sums over the lanes meet once a round. They
may be several processes', on one machine or many: as many of each.
"""

import functools
from typing import Any

import jax
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

AXIS = 'devices'
SPLIT = PartitionSpec(AXIS)  # by the first axis
WHOLE = PartitionSpec()  # the same on each device


def mesh(num_lanes: int = 1) -> Mesh:
  """As many devices as there are, and as divide the lanes evenly.

  Raises:
    ValueError: where the lanes are no multiple of the processes.
  """
  processes = [[] for _ in range(jax.process_count())]
  for device in jax.devices():
    processes[device.process_index].append(device)
  count = of_process(
      num_lanes, len(processes), min(len(devices) for devices in processes))
  devices = [device for of in processes for device in of[:count]]
  return Mesh(np.array(devices), AXIS, axis_types=(AxisType.Auto,))


def of_process(num_lanes: int, num_processes: int, most: int) -> int:
  """How many devices of each process share the lanes evenly; `most` at most.

  Raises:
    ValueError: where the lanes are no multiple of the processes.
  """
  lanes, rest = divmod(num_lanes, num_processes)
  if rest:
    raise ValueError(
        f'{num_lanes} lanes are no multiple of {num_processes} processes')
  return max(n for n in range(1, most + 1) if lanes % n == 0)


def put(tree: Any, on: Mesh, spec: PartitionSpec = WHOLE) -> Any:
  """Arrays, on each device or split over them by their first axis.

  Each process has them whole, and places what its own devices hold.
  """
  sharding = NamedSharding(on, spec)
  if sharding.is_fully_addressable:
    return jax.device_put(tree, sharding)
  return jax.tree.map(lambda x: _put_mine(x, sharding), tree)


def _put_mine(x, sharding):
  if isinstance(x, jax.Array) and not x.is_fully_addressable:
    return jax.device_put(x, sharding)
  if jax.dtypes.issubdtype(getattr(x, 'dtype', None), jax.dtypes.prng_key):
    return jax.random.wrap_key_data(
        _put_mine(jax.random.key_data(x), sharding))
  x = np.asarray(x)
  return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def read(tree: Any, on: Mesh) -> Any:
  """Arrays as every process can read them, whole, on the host."""
  if jax.process_count() > 1:
    tree = _gather(on)(tree)
  return jax.device_get(tree)


@functools.cache
def _gather(on):
  return jax.jit(lambda tree: tree, out_shardings=NamedSharding(on, WHOLE))
