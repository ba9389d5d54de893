"""What clients keep between rounds, in the hosts' memory.

A federation may have thousands of clients of which a round needs few: only the
rows of a round's jobs are moved to the devices, and back. Where several
processes run, each client's row is one process's. C clients, J jobs, R runs.
"""

from typing import Any

import jax
from jax.sharding import Mesh
import numpy as np

from moon_jax.distributed import devices
from moon_jax.engine.schedule import Jobs

_EVERYONE = -1  # the owner of rows that all processes have


def take(clients: Any, jobs: Jobs) -> Any:
  """The rows of the jobs, [R, C, ...] -> [J, ...]; any row for padding."""
  return jax.tree.map(lambda x_RC: x_RC[jobs.run, jobs.client], clients)


def put(clients: Any, jobs: Jobs, rows: Any) -> None:
  """Writes the rows that jobs end with, in place, device by device.

  All are on the host before the first is written: none, where that fails.
  """
  on_host = [[(shard.index[0], np.asarray(shard.data))
              for shard in x_J.addressable_shards]
             for x_J in jax.tree.leaves(rows)]
  for x_RC, shards in zip(jax.tree.leaves(clients), on_host, strict=True):
    for index, x_J in shards:
      of_device = jax.tree.map(lambda of_J: of_J[index], jobs)
      n = np.count_nonzero(of_device.num_steps)  # padding comes last
      x_RC[of_device.run[:n], of_device.client[:n]] = x_J[:n]


def filled(like: Any, num_clients: int) -> Any:
  """A row for each of C clients, all as `like`: [R, ...] -> [R, C, ...].

  Zeros take no memory before they are written to.
  """
  def fill(x_R):
    x_R = np.asarray(x_R)
    x_RC = np.zeros((len(x_R), num_clients, *x_R.shape[1:]), x_R.dtype)
    if x_R.any():
      x_RC[...] = x_R[:, None]
    return x_RC

  return jax.tree.map(fill, like)


class Owners:
  """Which process has each client's row as it is now, where several run.

  A row goes where its client is trained next, and stays there. All processes
  plan alike, so all know who has what.
  """

  def __init__(self, clients: Any, mesh: Mesh):
    """Every process begins with all rows.

    Args:
      clients: what clients keep, [R, C, ...].
      mesh: the devices that share a round.
    """
    self._of_device = np.array([d.process_index for d in mesh.devices.flat])
    shape = [x.shape[:2] for x in jax.tree.leaves(clients)][:1]
    self._owner_RC = np.full(shape[0] if shape else (1, 0), _EVERYONE)
    self._is_alone = jax.process_count() == 1 or not shape

  def bring(self, clients: Any, jobs: Jobs) -> None:
    """Has the rows of the jobs where they run; in place."""
    if self._is_alone:
      return
    target_J = self._runs_at(jobs)
    source_J = np.where(
        jobs.num_steps > 0, self._owner_RC[jobs.run, jobs.client], _EVERYONE)
    source_J[source_J == target_J] = _EVERYONE
    _move(clients, jobs.run, jobs.client, source_J, target_J)

  def trained(self, jobs: Jobs) -> None:
    """Notes that the rows of the jobs are now where they ran."""
    if self._is_alone:
      return
    ran = jobs.num_steps > 0
    self._owner_RC[jobs.run[ran], jobs.client[ran]] = self._runs_at(jobs)[ran]

  def gather(self, clients: Any, num_at_once: int) -> None:
    """Has all rows everywhere; in place."""
    if self._is_alone:
      return
    run, client = np.nonzero(self._owner_RC != _EVERYONE)
    for i in range(0, len(run), num_at_once):
      at = np.resize(np.arange(len(run))[i:i + num_at_once], num_at_once)
      _move(clients, run[at], client[at], self._owner_RC[run[at], client[at]],
            np.full(num_at_once, _EVERYONE))
    self._owner_RC[:] = _EVERYONE

  def _runs_at(self, jobs):
    return np.repeat(
        self._of_device, len(jobs.run) // len(self._of_device))


def _move(clients, run_J, client_J, source_J, target_J):
  """Sends rows from process to process; nothing where all have them."""
  if (source_J == _EVERYONE).all():
    return
  here = jax.process_index()

  def bits_to_send(x_RC):
    x_J = x_RC[run_J, client_J]
    x_J[source_J != here] = 0
    return x_J.view(f'u{x_J.itemsize}')

  bits = devices.sum_over_processes(jax.tree.map(bits_to_send, clients))
  is_mine = (source_J != _EVERYONE) & (source_J != here) & (
      (target_J == here) | (target_J == _EVERYONE))

  def receive(x_RC, bits_J):
    x_J = bits_J.view(x_RC.dtype)
    x_RC[run_J[is_mine], client_J[is_mine]] = x_J[is_mine]

  jax.tree.map(receive, clients, bits)
