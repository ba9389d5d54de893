"""Client state on disk reads back what was written, and nothing else."""

import io
import os
import pathlib

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import numpy as np
import pytest

from moon_jax.engine import client_store
from moon_jax.engine.disk_store import DiskClients
from moon_jax.errors import UserError

LIKE = {'w': np.array([[1., 2.], [3., 4.]], np.float32),
        'n': np.array([0, 7], np.int32)}  # two runs


def rows_of(run, client, t):
  """Distinct rows for jobs in round t."""
  x = 1000 * t + 10 * client + run
  return {'w': np.stack([x, -x], 1).astype(np.float32),
          'n': x.astype(np.int32)}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 8)),
                         unique=True, max_size=6), max_size=8))
def test_it_equals_arrays_in_memory(rounds):
  on_disk = DiskClients(LIKE, 9, pathlib.Path('/tmp'))
  in_memory = client_store.filled(LIKE, 9)
  everyone = [x.ravel() for x in np.meshgrid([0, 1], range(9))]
  for t, jobs in enumerate(rounds, 1):
    run, client = np.array(jobs, np.int64).reshape(-1, 2).T
    for clients in on_disk, in_memory:
      client_store.write(clients, run, client, rows_of(run, client, t))
    jax.tree.map(np.testing.assert_array_equal, on_disk.read(*everyone),
                 jax.tree.map(lambda x: x[tuple(everyone)], in_memory))
  trained = sorted({job for jobs in rounds for job in jobs})
  assert list(zip(*on_disk.written())) == trained
  for run, client, rows in on_disk.rows():
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[run, client], y),
                 in_memory, rows)


@pytest.mark.parametrize('is_first', [True, False])
def test_rows_of_several_runs_are_written_or_none(
    tmp_path, monkeypatch, is_first):
  """The disk is full when the last of three runs is written."""
  one = lambda run: jax.tree.map(lambda x: x[run:run + 1], LIKE)
  stores = [DiskClients(one(0), 4, tmp_path), client_store.filled(one(1), 4),
            DiskClients(one(1), 4, tmp_path)]
  both = client_store.joined(stores)
  run, client = np.array([0, 1, 2, 0]), np.array([1, 1, 1, 3])
  if not is_first:
    both.write(run, client, rows_of(run, client, 1))
  before = both.read(run, client)

  def full(*_):
    raise UserError('client_state=disk', 'needs space')

  monkeypatch.setattr(stores[2], 'write', full)
  with pytest.raises(UserError, match='needs space'):
    both.write(run, client, rows_of(run, client, 2))
  jax.tree.map(np.testing.assert_array_equal, both.read(run, client), before)
  monkeypatch.undo()
  both.write(run, client, rows_of(run, client, 3))
  jax.tree.map(np.testing.assert_array_equal, both.read(run, client),
               rows_of(run, client, 3))


def test_a_copy_has_equal_rows_and_no_others():
  x = np.zeros((2, 300, 3), np.float32)
  x[1, 299], x[0, 7, 2] = 5, -0.
  copy = client_store.copied({'x': x, 'n': np.ones((2, 300), bool)})
  assert copy['x'].tobytes() == x.tobytes() and copy['n'].all()
  copy['x'][0] = 1
  assert not x[0].any()


def test_only_rows_that_were_written_take_space(tmp_path):
  like = {'w': np.zeros((1, 2**18), np.float32)}
  clients = DiskClients(like, 10**6, tmp_path / 'none' / 'yet')
  assert clients.nbytes == 10**6 * 2**20
  for t in range(5):  # the same three clients: old places are used again
    at = np.zeros(3, int), np.array([5, 10**6 - 1, 77])
    clients.write(*at, {'w': np.full((3, 2**18), t, np.float32)})
  used = os.fstat(clients._file.fileno()).st_blocks * 512
  assert 3 * 2**20 <= used <= 6 * 2**20 + 2**16
  assert (clients.read(*at)['w'] == 4).all()
  assert not list(tmp_path.iterdir())  # the file has no name
  clients.clear()
  assert not clients.read(*at)['w'].any()
  more = np.zeros(8, int), np.arange(8)  # no two of them share a place
  clients.write(*more, {'w': np.arange(8 * 2**18, dtype=np.float32).reshape(
      8, -1)})
  np.testing.assert_array_equal(
      clients.read(*more)['w'][:, 0], 2**18 * np.arange(8))


def test_a_full_disk_leaves_the_state_before_the_round(tmp_path):
  clients = DiskClients(LIKE, 9, tmp_path)
  at = np.array([0, 1, 1]), np.array([4, 4, 8])
  clients.write(*at, rows_of(*at, 1))

  class Full(io.BytesIO):
    """The rest of a file, on a disk that has no space for two rows."""

    def write(self, content):
      if self.tell() >= 4 * clients.row_bytes:
        raise OSError(28, 'No space left on device')
      return super().write(content)

  clients._file.seek(0)
  clients._file = Full(clients._file.read())
  with pytest.raises(UserError, match='No space left.*same command resumes'):
    clients.write(*at, rows_of(*at, 2))
  jax.tree.map(np.testing.assert_array_equal, clients.read(*at),
               rows_of(*at, 1))
