"""Stores client state between rounds in a file, for `--client_state=disk`.

The file holds one record per client that has trained. All other clients have
their initial state, which is stored once. So memory does not depend on how many
clients have trained: it is the rows of a round and 8 bytes per client.

The file has no name: it disappears with the process, however that ends.
Checkpoints hold their own copy of the rows (`moon_jax.runs.checkpoint`).
"""

from collections.abc import Iterator
import pathlib
import tempfile
from typing import Any

import jax
import numpy as np

from moon_jax.errors import UserError

_NEVER_WRITTEN = -1
_CHUNK_BYTES = 2**26  # of rows that are read at once
_REMEDY = 'The same command resumes from the last checkpoint'


class DiskClients:
  """Client state [R, C, ...] in an unnamed file.

  Attributes:
    shape: (R, C).
    initial: the initial state of a client of each run, [R, ...].
    row_bytes: bytes of one client's state.
  """

  def __init__(self, initial: Any, num_clients: int, directory: pathlib.Path):
    """Stores the initial state; the first `write` creates the file.

    The file is in the absolute `directory`, or in the nearest existing one
    above it.
    """
    self.initial = jax.tree.map(np.asarray, initial)
    self._leaves, self._tree = jax.tree.flatten(self.initial)
    self.shape = (len(self._leaves[0]), num_clients)
    self.row_bytes = sum(x.nbytes // len(x) for x in self._leaves)
    self._directory = directory
    self._file: Any = None
    self.clear()

  @property
  def nbytes(self) -> int:
    """Bytes of the state of all clients, if all had trained."""
    return self.row_bytes * self.shape[0] * self.shape[1]

  def clear(self) -> None:
    """Resets all clients to their initial state."""
    # Where in the file the row of each client is, in rows.
    self._place_RC = np.full(self.shape, _NEVER_WRITTEN, np.int64)
    self._free: list[int] = []  # places that no client uses any more
    self._num_places = 0

  def read(self, run_J: np.ndarray, client_J: np.ndarray) -> Any:
    """Returns the state of clients, [J, ...]."""
    leaves = [x[run_J] for x in self._leaves]  # copies
    for j, place in enumerate(self._place_RC[run_J, client_J].tolist()):
      if place != _NEVER_WRITTEN:
        row, start = self._read_row(place), 0
        for x_J in leaves:
          part = row[start:start + x_J[j].nbytes]
          x_J[j] = np.frombuffer(part, x_J.dtype).reshape(x_J.shape[1:])
          start += len(part)
    return jax.tree.unflatten(self._tree, leaves)

  def write(self, run_J: np.ndarray, client_J: np.ndarray, rows: Any) -> None:
    """Replaces the state of clients, all or none.

    New rows are written next to the old ones, whose space is free afterwards.
    If the disk is full, a UserError is raised, and the state is unchanged. A
    client of a run may occur once.
    """
    leaves = [np.asarray(x_J, like.dtype) for x_J, like in zip(
        jax.tree.leaves(rows), self._leaves, strict=True)]
    reused = self._free[:len(run_J)]
    new = len(run_J) - len(reused)
    places = [*reused, *range(self._num_places, self._num_places + new)]
    try:
      if self._file is None:
        self._file = tempfile.TemporaryFile(dir=existing(self._directory))
      for j, place in enumerate(places):
        self._file.seek(place * self.row_bytes)
        self._file.write(b''.join(x_J[j].tobytes() for x_J in leaves))
      self._file.flush()
    except OSError as error:
      raise UserError(
          'client_state=disk', f'needs space in {existing(self._directory)}, '
          f'{self.row_bytes:,} bytes for each client that has trained',
          error.strerror or error, f'Free space. {_REMEDY}') from error
    old_J = self._place_RC[run_J, client_J]
    self._place_RC[run_J, client_J] = places
    self._num_places += new
    self._free = self._free[len(reused):] + (
        old_J[old_J != _NEVER_WRITTEN].tolist())

  def mark(self) -> Any:
    """Returns what `undo` needs to take back the next `write`."""
    return self._place_RC.copy(), self._free, self._num_places

  def undo(self, mark: Any) -> None:
    """Takes back the one `write` since a mark; needs no space."""
    self._place_RC, self._free, self._num_places = mark

  def written(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns the run and the index of each client that has trained."""
    run, client = np.nonzero(self._place_RC != _NEVER_WRITTEN)
    return run, client

  def rows(self) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
    """Yields (run_J, client_J, state [J, ...]) of the clients that trained.

    In ascending order, a limited number of bytes at a time.
    """
    run, client = self.written()
    count = max(1, _CHUNK_BYTES // self.row_bytes)
    for i in range(0, len(run), count):
      at = run[i:i + count], client[i:i + count]
      yield *at, self.read(*at)

  def _read_row(self, place):
    self._file.seek(place * self.row_bytes)
    row = self._file.read(self.row_bytes)
    if len(row) < self.row_bytes:  # another program has truncated it
      raise UserError(
          'client_state=disk', 'needs the rows that were written to the '
          f'file in {existing(self._directory)}', 'its end',
          _REMEDY)
    return row


def existing(directory: pathlib.Path) -> pathlib.Path:
  """Returns an absolute directory if it exists, or the nearest one above it."""
  return next(p for p in (directory, *directory.parents) if p.is_dir())
