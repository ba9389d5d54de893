"""What clients keep between rounds, in the host's memory.

A federation may have thousands of clients of which a round needs few: only the
rows of a round's jobs are moved to the devices, and back. C clients, J jobs.
"""

from typing import Any

import jax
import numpy as np

from moon_jax.engine.schedule import Jobs


def take(clients: Any, jobs: Jobs) -> Any:
  """The rows of the jobs, [R, C, ...] -> [J, ...]; any row for padding."""
  return jax.tree.map(lambda x_RC: x_RC[jobs.run, jobs.client], clients)


def put(clients: Any, jobs: Jobs, rows: Any) -> None:
  """Writes the rows that jobs end with, in place, device by device."""
  def write(x_RC, x_J):
    for shard in x_J.addressable_shards:
      of_device = jax.tree.map(lambda of_J: of_J[shard.index[0]], jobs)
      n = np.count_nonzero(of_device.num_steps)  # padding comes last
      x_RC[of_device.run[:n], of_device.client[:n]] = np.asarray(
          shard.data)[:n]

  jax.tree.map(write, clients, rows)


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
