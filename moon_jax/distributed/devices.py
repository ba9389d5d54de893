"""The devices that share a round: one mesh axis, over which lanes are split.

Every device trains its own lanes; sums over the lanes meet once a round. They
may be several processes', on one machine or many, of few devices or many.
"""

from collections.abc import Sequence
import functools
import queue
import threading
from typing import Any

import jax
from jax.sharding import AxisType
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np

AXIS = 'devices'
_PROCESSES = 'processes'
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
  used = shares(num_lanes, [len(devices) for devices in processes])
  devices = [device for count, of in zip(used, processes)
             for device in of[:count]]
  return Mesh(np.array(devices), AXIS, axis_types=(AxisType.Auto,))


def shares(num_lanes: int, num_devices: Sequence[int]) -> list[int]:
  """How many devices of each process share the lanes evenly; one at least.

  As many as there are of each, or as a limit on all allows.

  Args:
    num_lanes: of all devices together.
    num_devices: of each process.

  Raises:
    ValueError: where the lanes are no multiple of the processes.
  """
  for most in range(max(num_devices), 0, -1):
    used = [min(most, count) for count in num_devices]
    if num_lanes % sum(used) == 0:
      return used
  raise ValueError(
      f'{num_lanes} lanes are no multiple of {len(num_devices)} processes')


def put(tree: Any, on: Mesh, spec: PartitionSpec = WHOLE) -> Any:
  """Arrays, on each device or split over them by their first axis.

  Each process has them whole, and places what its own devices hold. Cores of a
  CPU share whole NumPy arrays that are `moon_jax.data.aligned`: none is copied.
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


def wait(tree: Any) -> None:
  """Returns when the outputs of a program are there.

  A device that fails leaves the others in a sum that never ends, so each is
  waited for by a thread of its own.

  Args:
    tree: arrays that one program gives.

  Raises:
    Exception: what any of the devices met, as soon as it did.
  """
  shards = jax.tree.leaves(tree)[0].addressable_shards
  if len(shards) > 1:
    ended = queue.SimpleQueue()

    def wait_for(shard):
      try:
        jax.block_until_ready(shard.data)
        ended.put(None)
      except Exception as error:
        ended.put(error)

    for shard in shards:
      threading.Thread(target=wait_for, args=(shard,), daemon=True).start()
    for _ in shards:
      if error := ended.get():
        raise error
  jax.block_until_ready(tree)


def read(tree: Any, on: Mesh) -> Any:
  """Arrays as every process can read them, whole, on the host."""
  if jax.process_count() > 1:
    tree = _gather(on)(tree)
  return jax.device_get(tree)


@functools.cache
def _gather(on):
  return jax.jit(lambda tree: tree, out_shardings=NamedSharding(on, WHOLE))


def sum_over_processes(tree: Any) -> Any:
  """Sums of what the processes have, on the host of each.

  Exact in unsigned integers; bits travel so, where all but one have zeros.

  Args:
    tree: numpy arrays, of one shape in all processes.
  """
  mesh = _processes()
  split = NamedSharding(mesh, PartitionSpec(_PROCESSES))
  parts = jax.tree.map(
      lambda x: jax.make_array_from_process_local_data(split, x[None]), tree)
  return jax.device_get(_add(mesh)(parts))


@functools.cache
def _processes():
  """A mesh of one device of each process."""
  first = {device.process_index: device for device in jax.devices()[::-1]}
  return Mesh(np.array([first[i] for i in sorted(first)]), _PROCESSES)


@functools.cache
def _add(mesh):
  return jax.jit(
      lambda tree: jax.tree.map(lambda x: x.sum(0, dtype=x.dtype), tree),
      out_shardings=NamedSharding(mesh, PartitionSpec()))
