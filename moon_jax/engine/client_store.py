"""Client state between rounds, in the memory of the hosts or in a file.

In memory it is a tree of NumPy arrays [R, C, ...]. On disk it is a
`moon_jax.engine.disk_store.DiskClients`. Runs that differ in their clients have
a store each, in `RunStores`. A federation may have a million clients, and a
round trains only a few. Only the rows of a round's jobs move to the devices and
back. If several processes run, each client's current row belongs to one.
"""

from collections.abc import Sequence
import functools
from typing import Any

import jax
from jax.sharding import Mesh
import numpy as np

from moon_jax.distributed import devices
from moon_jax.engine.disk_store import DiskClients
from moon_jax.engine.schedule import Jobs
from moon_jax.errors import UserError

_ROWS = 64  # clients whose rows are copied together
_ALL_PROCESSES = -1  # the owner of a row that every process has


def read(clients: Any, run_J: np.ndarray, client_J: np.ndarray) -> Any:
  """Returns rows, [R, C, ...] -> [J, ...]."""
  if isinstance(clients, DiskClients | RunStores):
    return clients.read(run_J, client_J)
  return jax.tree.map(lambda x_RC: x_RC[run_J, client_J], clients)


def put(clients: Any, jobs: Jobs, rows: Any) -> None:
  """Writes the jobs' new rows into `clients` in place, device by device.

  Copies all rows to the host before it writes the first one, so that a failed
  transfer leaves `clients` unchanged.
  """
  leaves = jax.tree.leaves(rows)
  if isinstance(clients, DiskClients | RunStores):
    trained_J = jobs.num_steps > 0  # a single process has all rows
    clients.write(jobs.run[trained_J], jobs.client[trained_J],
                  [np.asarray(x_J)[trained_J] for x_J in leaves])
    return
  on_host = [[(shard.index[0], np.asarray(shard.data))
              for shard in x_J.addressable_shards] for x_J in leaves]
  for x_RC, shards in zip(jax.tree.leaves(clients), on_host, strict=True):
    for index, x_J in shards:
      device_jobs = jax.tree.map(lambda field_J: field_J[index], jobs)
      n = np.count_nonzero(device_jobs.num_steps)  # padding comes last
      x_RC[device_jobs.run[:n], device_jobs.client[:n]] = x_J[:n]


def write(clients: Any, run_J: np.ndarray, client_J: np.ndarray,
          rows: Any) -> None:
  """Writes rows, [J, ...], into `clients` in place."""
  if isinstance(clients, DiskClients | RunStores):
    clients.write(run_J, client_J, rows)
    return
  for x_RC, x_J in zip(
      jax.tree.leaves(clients), jax.tree.leaves(rows), strict=True):
    x_RC[run_J, client_J] = x_J


def copied(clients: Any) -> Any:
  """Returns a copy of arrays [R, C, ...]; rows of zeros take no memory."""
  def copy(x_RC):
    x_RC = np.asarray(x_RC)
    new_RC = np.zeros(x_RC.shape, x_RC.dtype)
    for run in range(x_RC.shape[0]):
      for first in range(0, x_RC.shape[1], _ROWS):
        at = run, slice(first, first + _ROWS)
        if x_RC[at].tobytes().strip(b'\0'):
          new_RC[at] = x_RC[at]
    return new_RC

  return jax.tree.map(copy, clients)


def filled(like: Any, num_clients: int) -> Any:
  """Returns C copies of each run's row, [R, ...] -> [R, C, ...].

  Rows of zeros take no memory until they are written.
  """
  def fill(x_R):
    x_R = np.asarray(x_R)
    x_RC = np.zeros((len(x_R), num_clients, *x_R.shape[1:]), x_R.dtype)
    if x_R.any():
      x_RC[...] = x_R[:, None]
    return x_RC

  return jax.tree.map(fill, like)


def joined(stores: Sequence[Any]) -> Any:
  """Returns the client state of R runs, of which each has [1, C, ...].

  A single run keeps its own arrays: their rows are written without copies, and
  several processes may share them.
  """
  return stores[0] if len(stores) == 1 else RunStores(stores)


class RunStores:
  """Client state of R runs of a single process, each in its own store.

  Runs may have different numbers of clients.

  Attributes:
    stores: for each run its client state, [1, C, ...].
  """

  def __init__(self, stores: Sequence[Any]):
    self.stores = list(stores)

  def read(self, run_J: np.ndarray, client_J: np.ndarray) -> Any:
    """Returns the state of clients, [J, ...]."""
    runs = np.unique(run_J)
    parts = [read(self.stores[run], np.zeros_like(client), client)
             for run in runs for client in [client_J[run_J == run]]]
    order = np.argsort(np.argsort(run_J, kind='stable'))
    return jax.tree.map(lambda *x: np.concatenate(x)[order], *parts)

  def write(self, run_J: np.ndarray, client_J: np.ndarray, rows: Any) -> None:
    """Replaces the state of clients by rows, [J, ...], of all runs or none."""
    leaves, undo = jax.tree.leaves(rows), []
    may_fail = any(isinstance(store, DiskClients) for store in self.stores)
    try:
      for run in np.unique(run_J):
        at = np.flatnonzero(run_J == run)
        place = self.stores[run], np.zeros_like(at), client_J[at]
        if may_fail:
          undo.append(_undo_of(*place))
        write(*place, [np.asarray(x_J)[at] for x_J in leaves])
    except UserError:  # a full disk
      for back in undo:
        back()
      raise


def _undo_of(store, run_J, client_J):
  """Returns a function that takes back the next write."""
  if isinstance(store, DiskClients):
    return functools.partial(store.undo, store.mark())
  return functools.partial(write, store, run_J, client_J,
                           jax.tree.leaves(read(store, run_J, client_J)))


class Owners:
  """Records which process has the current row of each client.

  A row moves to the process that trains its client next, and stays there. All
  processes compute the same plan, so all of them know every row's owner. With
  one process, all methods do nothing.
  """

  def __init__(self, clients: Any, mesh: Mesh):
    """Starts with all rows, [R, C, ...], on every process."""
    self._process_of_device = np.array(
        [d.process_index for d in mesh.devices.flat])
    leaves = jax.tree.leaves(clients)
    self._is_alone = jax.process_count() == 1 or not leaves
    if not self._is_alone:
      self._owner_RC = np.full(leaves[0].shape[:2], _ALL_PROCESSES)

  def bring(self, clients: Any, jobs: Jobs) -> None:
    """Moves each job's row to the process that runs the job, in place."""
    if self._is_alone:
      return
    target_J = self._process_of_jobs(jobs)
    source_J = np.where(
        jobs.num_steps > 0, self._owner_RC[jobs.run, jobs.client],
        _ALL_PROCESSES)
    source_J[source_J == target_J] = _ALL_PROCESSES
    _move(clients, jobs.run, jobs.client, source_J, target_J)

  def trained(self, jobs: Jobs) -> None:
    """Records that each process now has the rows of the jobs it trained."""
    if self._is_alone:
      return
    ran = jobs.num_steps > 0
    self._owner_RC[jobs.run[ran], jobs.client[ran]] = (
        self._process_of_jobs(jobs)[ran])

  def gather(self, clients: Any, num_at_once: int) -> None:
    """Copies all rows to every process, in place, some at once."""
    if self._is_alone:
      return
    run, client = np.nonzero(self._owner_RC != _ALL_PROCESSES)
    for i in range(0, len(run), num_at_once):
      at = np.resize(np.arange(len(run))[i:i + num_at_once], num_at_once)
      _move(clients, run[at], client[at], self._owner_RC[run[at], client[at]],
            np.full(num_at_once, _ALL_PROCESSES))
    self._owner_RC[:] = _ALL_PROCESSES

  def _process_of_jobs(self, jobs):
    return np.repeat(self._process_of_device,
                     len(jobs.run) // len(self._process_of_device))


def _move(clients, run_J, client_J, source_J, target_J):
  """Moves rows between processes.

  A row whose source is `_ALL_PROCESSES` is not sent. A row whose target is
  `_ALL_PROCESSES` is received by every process.
  """
  if (source_J == _ALL_PROCESSES).all():
    return
  process = jax.process_index()

  def sent(x_RC):
    x_J = x_RC[run_J, client_J]
    x_J[source_J != process] = 0
    return x_J

  rows_J = devices.sum_over_processes(jax.tree.map(sent, clients))
  is_mine = (source_J != _ALL_PROCESSES) & (source_J != process) & (
      (target_J == process) | (target_J == _ALL_PROCESSES))

  write(clients, run_J[is_mine], client_J[is_mine],
        jax.tree.map(lambda x_J: x_J[is_mine], rows_J))
