"""Client state on disk in checkpoints: one file of rows per checkpoint.

With --client_state=disk a checkpoint does not hold the state of all clients. A
file next to the checkpoints, client_state/ROUND.rows, holds the rows of the
clients that have trained; all others have their initial state. The checkpoint
holds the hash of the file.

A file has one line of JSON that describes it, then `int64 [n]` with run * C +
client of each row in ascending order, then the n rows. A row is the client's
arrays, one after another.
"""

import hashlib
import itertools
import json
import math
import os
import pathlib
from typing import Any

import jax
import numpy as np

from moon_jax.engine import client_store
from moon_jax.engine.disk_store import DiskClients

_CHUNK_BYTES = 2**26  # that are read at once


class ClientRows:
  """The files of rows of one run, named by the round of their checkpoint."""

  def __init__(self, directory: pathlib.Path):
    """Stores the directory; only `save` creates it."""
    self._directory = directory

  def save(self, step: int, clients: DiskClients) -> str:
    """Writes the rows of all clients that have trained; returns their hash.

    The file is complete on disk when this function returns. It has the size of
    the rows, and memory holds a few of them at a time.

    Raises:
      OSError: if the file cannot be written.
    """
    self._directory.mkdir(exist_ok=True)
    path, digest = self._path(step), hashlib.sha256()
    part = path.with_name(path.name + '.part')
    with open(part, 'wb') as file:

      def write(content):
        digest.update(content)
        file.write(content)

      run, client = clients.written()
      write(_header(clients.initial, clients.shape, len(run)))
      write((run * clients.shape[1] + client).astype(np.int64).tobytes())
      for _, _, rows in clients.rows():
        write(_packed(rows))
      file.flush()
      os.fsync(file.fileno())
    os.replace(part, path)
    return digest.hexdigest()

  def load(self, step: int, digest: str, into: Any) -> None:
    """Reads the rows of a checkpoint into the state before the first round.

    Args:
      step: the round of the checkpoint.
      digest: the hash that `save` returned.
      into: client state, in memory or on disk; changed only if the file is
        undamaged. Rows of an earlier call are removed from a `DiskClients`.

    Raises:
      OSError, ValueError: if the file is missing, damaged or from another
        network, algorithm or number of clients.
    """
    with open(self._path(step), 'rb') as file:
      if hashlib.file_digest(file, 'sha256').hexdigest() != digest:
        raise ValueError(f'the hash of {self._path(step)} differs')
      file.seek(0)
      initial, shape = _likeness(into)
      num_rows = json.loads(line := file.readline())['rows']
      if line != _header(initial, shape, num_rows):
        raise ValueError(
            'it is from another network, algorithm or number of clients')
      index = np.fromfile(file, np.int64, num_rows)
      if isinstance(into, DiskClients):
        into.clear()
      row_bytes = sum(x.nbytes // len(x) for x in jax.tree.leaves(initial))
      count = max(1, _CHUNK_BYTES // row_bytes)
      for i in range(0, num_rows, count):
        at = index[i:i + count]
        content = np.fromfile(file, np.uint8, len(at) * row_bytes)
        client_store.write(into, *np.divmod(at, shape[1]), _unpacked(
            content.reshape(len(at), row_bytes), initial))

  def clean(self, steps: set[int]) -> None:
    """Removes the files of checkpoints that do not exist any more."""
    for path in self._directory.glob('*.rows*'):
      if path.suffix == '.part' or path.stem not in map(str, steps):
        path.unlink(missing_ok=True)

  def _path(self, step):
    return self._directory / f'{step}.rows'


def in_memory(clients: Any) -> Any:
  """Returns client state in memory; on disk, with its initial values."""
  return client_store.filled(clients.initial, clients.shape[1]) if isinstance(
      clients, DiskClients) else clients


def move(clients: Any, into: DiskClients) -> None:
  """Writes client state in memory to disk, except rows with initial values.

  Args:
    clients: client state, NumPy arrays [R, C, ...].
    into: the state before the first round.
  """
  into.clear()
  count = max(1, _CHUNK_BYTES // into.row_bytes)
  for run, start in itertools.product(
      range(into.shape[0]), range(0, into.shape[1], count)):
    rows = jax.tree.map(lambda x_RC: x_RC[run, start:start + count], clients)
    changed = np.any([
        (x_J != x_R[run]).reshape(len(x_J), -1).any(1) for x_J, x_R in zip(
            jax.tree.leaves(rows), jax.tree.leaves(into.initial), strict=True)
        ], axis=0)
    client = np.flatnonzero(changed)
    into.write(np.full(len(client), run), start + client,
               jax.tree.map(lambda x_J: x_J[client], rows))


def _likeness(clients):
  """Returns a tree of arrays [R, ...] as one client has them, and (R, C)."""
  if isinstance(clients, DiskClients):
    return clients.initial, clients.shape
  return (jax.tree.map(lambda x_RC: x_RC[:, 0], clients),
          jax.tree.leaves(clients)[0].shape[:2])


def _header(initial, shape, num_rows):
  arrays = [[jax.tree_util.keystr(path), x.dtype.str, x.shape[1:]]
            for path, x in jax.tree.leaves_with_path(initial)]
  return json.dumps({'rows': num_rows, 'runs': shape[0], 'clients': shape[1],
                     'arrays': arrays}).encode() + b'\n'


def _packed(rows):
  """Returns the bytes of rows [J, ...], the arrays of each one together."""
  return np.concatenate(
      [np.ascontiguousarray(x_J).reshape(len(x_J), -1).view(np.uint8)
       for x_J in jax.tree.leaves(rows)], axis=1).tobytes()


def _unpacked(content_JB, like):
  """Inverts `_packed`; `like` has arrays [R, ...]."""
  leaves, start = [], 0
  for x_R in jax.tree.leaves(like):
    size = x_R.itemsize * math.prod(x_R.shape[1:])
    part = np.ascontiguousarray(content_JB[:, start:start + size])
    leaves.append(part.view(x_R.dtype).reshape(-1, *x_R.shape[1:]))
    start += size
  return jax.tree.unflatten(jax.tree.structure(like), leaves)
