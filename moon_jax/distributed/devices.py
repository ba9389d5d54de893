"""The devices that run a round: one mesh axis, over which lanes are split.

Each device trains its part of the lanes, and one all-reduce per round sums over
the devices. They may belong to several processes on one or more machines.
"""

from collections.abc import Callable, Sequence
import functools
import queue
import threading
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from moon_jax.errors import UserError

AXIS = 'devices'
_PROCESS_AXIS = 'processes'
SPLIT = PartitionSpec(AXIS)  # split along the first axis
WHOLE = PartitionSpec()  # replicated on each device


def sharded(function: Callable, on: Mesh, in_specs: Any, out_specs: Any,
            is_plain: bool = False, **options: Any) -> Callable:
  """Returns `jax.jit` of `jax.shard_map`, or the function as it `is_plain`."""
  return function if is_plain else jax.jit(jax.shard_map(
      function, mesh=on, in_specs=in_specs, out_specs=out_specs,
      check_vma=False), **options)


def check() -> None:
  """Checks that JAX has devices.

  Raises:
    UserError: if there are none of the platform that JAX_PLATFORMS names.
  """
  try:
    jax.devices()
  except (RuntimeError, AssertionError) as error:  # it asserts without CUDA
    named = jax.config.jax_platforms  # type: ignore[attr-defined]
    reason = str(error).partition('\n')[0] or 'there is no such device'
    raise UserError(
        '', 'JAX_PLATFORMS must name devices that JAX can use',
        f'JAX_PLATFORMS={named or ""} ({reason})', 'Unset it, or install JAX '
        'for them: moon-jax doctor describes this machine') from error


def by_process() -> list[list[Any]]:
  """Returns the devices of each process, which may differ in their number."""
  parts: list[list[Any]] = [[] for _ in range(jax.process_count())]
  for device in jax.devices():
    parts[device.process_index].append(device)
  return parts


def mesh(num_lanes: int = 1, most: int | None = None) -> Mesh:
  """Returns a mesh of the most devices that divide the lanes evenly.

  Each process has `most` devices, or all of its own.
  """
  parts = by_process()
  counts = shares(num_lanes, [len(part[:most]) for part in parts])
  devices = [device for count, part in zip(counts, parts)
             for device in part[:count]]
  return Mesh(np.array(devices), AXIS, axis_types=(AxisType.Auto,))


def shares(num_lanes: int, num_devices: Sequence[int]) -> list[int]:
  """Returns how many devices of each process divide the lanes evenly.

  All processes have the same limit, the largest that works. Each process uses
  at least one device, and all its devices if it has fewer than the limit.
  """
  for limit in range(max(num_devices), 0, -1):
    used = [min(limit, count) for count in num_devices]
    if num_lanes % sum(used) == 0:
      return used
  raise ValueError(
      f'lanes must be a multiple of the {len(num_devices)} processes, got '
      f'{num_lanes}')


def put(tree: Any, on: Mesh, spec: PartitionSpec = WHOLE) -> Any:
  """Places arrays on the devices of a mesh, replicated (WHOLE) or SPLIT.

  Each process must have the whole arrays, and places the parts of its own
  devices. The cores of a CPU share replicated NumPy arrays without copies if
  these are aligned (`moon_jax.data.mapped`).
  """
  sharding = NamedSharding(on, spec)
  if sharding.is_fully_addressable:
    return jax.device_put(tree, sharding)
  return jax.tree.map(lambda x: _put_local(x, sharding), tree)


def _put_local(x, sharding):
  if jax.dtypes.issubdtype(getattr(x, 'dtype', None), jax.dtypes.prng_key):
    return jax.random.wrap_key_data(
        _put_local(jax.random.key_data(x), sharding))
  if isinstance(x, jax.Array) and not x.is_fully_addressable:
    return jax.device_put(x, sharding)
  x = np.asarray(x)
  return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])


def wait(tree: Any) -> None:
  """Waits until the outputs of a program are ready, or raises an error.

  If a device fails, the other devices never finish their all-reduce. So a
  separate thread waits for each device, and the first error counts.
  """
  shards = jax.tree.leaves(tree)[0].addressable_shards
  if len(shards) > 1:
    errors = queue.SimpleQueue()  # one entry per device, None if it succeeds

    def wait_for(shard):
      try:
        jax.block_until_ready(shard.data)
        errors.put(None)
      except Exception as error:
        errors.put(error)

    for shard in shards:
      threading.Thread(target=wait_for, args=(shard,), daemon=True).start()
    for _ in shards:
      if error := errors.get():
        raise error
  jax.block_until_ready(tree)


def read(tree: Any, on: Mesh) -> Any:
  """Returns whole NumPy arrays on the host of every process."""
  if jax.process_count() > 1:
    tree = _gather_fn(on)(tree)
  return jax.device_get(tree)


@functools.cache
def _gather_fn(on):
  return jax.jit(lambda tree: tree, out_shardings=NamedSharding(on, WHOLE))


def sum_over_processes(tree: Any) -> Any:
  """Returns the sums of the processes' arrays on the host of each process.

  It sums their bits as unsigned integers. So one process can send any numbers
  to the others if these pass zeros of the same shapes.
  """
  mesh = _process_mesh()
  split = NamedSharding(mesh, PartitionSpec(_PROCESS_AXIS))
  parts = jax.tree.map(
      lambda x: jax.make_array_from_process_local_data(
          split, x.view(f'u{x.itemsize}')[None]), tree)
  return jax.tree.map(lambda x, bits: np.asarray(bits).view(x.dtype),
                      tree, jax.device_get(_sum_fn(mesh)(parts)))


@functools.cache
def _process_mesh():
  first = {device.process_index: device for device in jax.devices()[::-1]}
  return Mesh(np.array([first[i] for i in sorted(first)]), _PROCESS_AXIS)


@functools.cache
def _sum_fn(mesh):
  return jax.jit(
      lambda tree: jax.tree.map(lambda x: x.sum(0, dtype=x.dtype), tree),
      out_shardings=NamedSharding(mesh, PartitionSpec()))
