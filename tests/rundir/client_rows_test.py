"""Checkpoints with client state on disk hold its rows, or are damaged."""

import dataclasses
import pathlib

import jax
import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.engine import client_store
from moon_jax.engine.disk_store import DiskClients
from moon_jax.engine.state import State
from moon_jax.errors import UserError
from moon_jax.rundir import checkpoint
from moon_jax.rundir.checkpoint import Checkpoints

NOTE = {'metrics': {'bytes': 3}}
LIKE = {'w': np.full((1, 40), 2, np.float32), 'n': np.zeros(1, np.int32)}
NUM_CLIENTS = 30
TRAINED = [[3, 29], [0, 3], [7]]  # clients of rounds 1 to 3


def fresh(kind, num_clients=NUM_CLIENTS):
  """Returns the state before the first round."""
  clients = client_store.filled(LIKE, num_clients) if kind == 'memory' else (
      DiskClients(LIKE, num_clients, pathlib.Path('/tmp')))
  return State({'params': np.ones((1, 5), np.float32)}, (), clients,
               np.array(0, np.int32), np.zeros((1, 2), np.uint32))


def train(state, round_index):
  client = np.array(TRAINED[round_index])
  client_store.write(state.clients, np.zeros(len(client), int), client, {
      'w': np.full((len(client), 40), 10 * round_index, np.float32)
      + client.astype(np.float32)[:, None],
      'n': np.full(len(client), round_index + 1, np.int32)})
  return state._replace(round=np.array(round_index + 1, np.int32))


def values(state):
  """Returns the state of all clients as arrays in memory."""
  if not isinstance(state.clients, DiskClients):
    return state.clients
  everyone = np.arange(NUM_CLIENTS)
  return jax.tree.map(lambda x: x[None], state.clients.read(
      np.zeros_like(everyone), everyone))


def expected(num_rounds):
  state = fresh('memory')
  for i in range(num_rounds):
    state = train(state, i)
  return state


def assert_is_after(restored, num_rounds):
  state, note = restored
  assert int(state.round) == num_rounds and note == NOTE
  jax.tree.map(np.testing.assert_array_equal, values(state),
               values(expected(num_rounds)))


def save(path, kind, rounds=(0, 1, 2), **fields):
  """Saves a checkpoint after each round; trains another round at the end."""
  writer = Checkpoints(path / 'checkpoints', dataclasses.replace(
      Config(), **fields))
  writer.open()
  state = fresh(kind)
  for i in rounds:
    state = train(state, i)
    writer.save(state, NOTE)
  # The run is ahead of its newest checkpoint when it is killed.
  client_store.write(state.clients, np.zeros(2, int), np.array([3, 11]), {
      'w': np.full((2, 40), -1, np.float32), 'n': np.full(2, -1, np.int32)})
  writer.close()


def restore(path, like):
  return Checkpoints(path / 'checkpoints', Config()).restore(like)


@pytest.mark.parametrize('before', ['memory', 'disk'])
@pytest.mark.parametrize('after', ['memory', 'disk'])
def test_a_run_resumes_with_either_kind(before, after, tmp_path):
  save(tmp_path, before)
  restored = restore(tmp_path, fresh(after))
  assert_is_after(restored, 3)
  if after == 'disk':  # other clients take no space
    assert restored[0].clients.written()[1].tolist() == [0, 3, 7, 29]


def test_rows_of_deleted_checkpoints_are_deleted(tmp_path):
  save(tmp_path, 'disk', checkpoint_keep=1, checkpoint_keep_every=2)
  names = lambda directory: sorted(
      path.name for path in (tmp_path / directory).iterdir())
  assert names('checkpoints') == ['2', '3']
  assert names('client_state') == ['2.rows', '3.rows']


def flip(path, at):
  content = bytearray(path.read_bytes())
  content[int(at * (len(content) - 1))] ^= 8
  path.write_bytes(bytes(content))


@pytest.mark.parametrize('damage', [
    lambda rows: rows.unlink(),
    lambda rows: rows.write_bytes(rows.read_bytes()[:-1]),
    lambda rows: flip(rows, 0),
    lambda rows: flip(rows, .5),
    lambda rows: rows.write_bytes((rows.parent / '2.rows').read_bytes()),
])
@pytest.mark.parametrize('kind', ['memory', 'disk'])
def test_damaged_rows_are_those_of_a_damaged_checkpoint(
    damage, kind, tmp_path, capsys):
  save(tmp_path, 'disk')
  damage(tmp_path / 'client_state' / '3.rows')
  assert_is_after(restore(tmp_path, fresh(kind)), 2)
  assert 'resumes after round 2' in capsys.readouterr().err


def test_all_rows_missing_is_an_error(tmp_path):
  save(tmp_path, 'disk')
  for path in (tmp_path / 'client_state').iterdir():
    path.unlink()
  with pytest.raises(UserError, match='damaged checkpoint .*rows'):
    restore(tmp_path, fresh('disk'))


def test_rows_of_another_number_of_clients_are_refused(tmp_path):
  save(tmp_path, 'disk')
  with pytest.raises(UserError, match='another network, algorithm or number'):
    restore(tmp_path, fresh('disk', NUM_CLIENTS + 1))


def test_rows_are_read_in_chunks(tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoint, '_CHUNK_BYTES', 1)
  for kind in 'memory', 'disk':
    (tmp_path / kind).mkdir()
    save(tmp_path / kind, kind)
    assert_is_after(restore(tmp_path / kind, fresh('disk')), 3)
