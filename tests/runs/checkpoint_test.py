"""Checkpoints hold the saved state, or are reported as damaged."""

import dataclasses
import hashlib
import json
import logging
import pathlib
import shutil

import jax
import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.engine import client_store
from moon_jax.engine.disk_store import DiskClients
from moon_jax.engine.state import State
from moon_jax.errors import UserError
from moon_jax.runs import checkpoint
from moon_jax.runs import directory as directory_lib
from moon_jax.runs.checkpoint import Checkpoints, digest

pytestmark = pytest.mark.usefixtures('of_command')

NOTE = {'fingerprints': {'dataset': 'ab'}, 'metrics': {'bytes': 3}}


def state(rounds_done, seed=0):
  random = np.random.RandomState(seed + rounds_done)
  return State(
      variables={'params': {'w': random.randn(1, 300, 4).astype(np.float32)}},
      server=(), clients={'c': random.randn(1, 5, 900).astype(np.float32)},
      round=np.array([rounds_done], np.int32),
      key=jax.device_get(jax.random.key_data(jax.random.key(3)))[None])


def checkpoints(path, **fields):
  return Checkpoints(path, dataclasses.replace(Config(), **fields))


def save_rounds(path, rounds, **fields):
  """Saves checkpoints; returns the numbers of those that are kept."""
  writer = checkpoints(path, **fields)
  writer.open()
  for number in rounds:
    writer.save(state(number), NOTE)
  writer.close()
  return sorted(int(x.name) for x in path.iterdir() if x.name.isdecimal())


def assert_is_state_of(restored, rounds_done):
  actual, note = restored
  jax.tree.map(np.testing.assert_array_equal, actual, state(rounds_done))
  assert note == NOTE


def hashes_of_files(path):
  return {str(file.relative_to(path)): hashlib.md5(file.read_bytes()).digest()
          for file in sorted(path.rglob('*')) if file.is_file()}


def test_the_hash_of_a_note_is_that_of_what_is_read():
  """JSON has words as keys, in another order: 10 before 2."""
  note = {'left_out': {2: 'loss', 10: 'drift'}}
  assert digest({}, note) == digest({}, json.loads(json.dumps(note)))


@pytest.fixture(scope='module')
def two_checkpoints(tmp_path_factory):
  """A directory with the checkpoints of rounds 1 and 2."""
  path = tmp_path_factory.mktemp('two') / 'checkpoints'
  assert save_rounds(path, (1, 2)) == [1, 2]
  return path


@pytest.fixture
def copy(two_checkpoints, tmp_path):
  shutil.copytree(two_checkpoints, tmp_path / 'copy')
  return tmp_path / 'copy'


def test_the_newest_are_kept(tmp_path):
  path = tmp_path / 'checkpoints'
  assert save_rounds(path, range(1, 9), checkpoint_keep=3) == [6, 7, 8]
  assert save_rounds(tmp_path / 'one', range(1, 4), checkpoint_keep=1) == [3]
  again = checkpoints(path)
  assert again.newest == 8
  assert_is_state_of(again.restore(state(0)), 8)


def test_a_path_with_characters_of_patterns_holds_a_checkpoint(tmp_path):
  """`Workdir.check` refuses the paths that Orbax cannot read."""
  path = tmp_path / 'a[b' / 'c]d?e*f' / 'x[]' / 'checkpoints'
  directory_lib.Workdir(Config(workdir=str(path.parent))).check()
  save_rounds(path, [1])
  assert_is_state_of(checkpoints(path).restore(state(0)), 1)


def test_logging_stays_as_the_program_has_set_it(copy, caplog):
  """Orbax is silenced, and nothing else."""
  import absl.logging

  level = logging.root.manager.disable
  try:
    logging.disable(logging.DEBUG)
    assert checkpoints(copy).restore(state(0))
    assert logging.root.manager.disable == logging.DEBUG
  finally:
    logging.disable(level)
  assert not [record for record in caplog.records
              if 'orbax' in record.pathname]
  absl.logging.warning('of the program')
  assert 'of the program' in caplog.text


def test_a_missing_directory_is_no_error(tmp_path):
  empty = checkpoints(tmp_path / 'none')
  assert empty.newest == 0 and empty.restore(state(0)) is None
  assert not (tmp_path / 'none').exists()  # reading changes nothing


def test_changes_after_save_returns_are_not_saved(tmp_path):
  """A round writes to the client state while a checkpoint is written."""
  writer = checkpoints(tmp_path)
  writer.open()
  given = state(4)
  writer.save(given, NOTE)
  given.clients['c'][:] = np.nan
  given.variables['params']['w'][:] = np.nan
  writer.close()
  assert_is_state_of(checkpoints(tmp_path).restore(state(0)), 4)


def flip(path, at, bit=3):
  content = bytearray(path.read_bytes())
  content[int(at * (len(content) - 1))] ^= 1 << bit
  path.write_bytes(bytes(content))


def damage_metadata(change):
  def damage(step):
    path = step / '_CHECKPOINT_METADATA'
    metadata = json.loads(path.read_text())
    change(metadata['custom_metadata'])
    path.write_text(json.dumps(metadata))
  return damage


def largest(step):
  return max(step.rglob('*'), key=lambda path: path.stat().st_size)


@pytest.mark.parametrize('damage', [
    lambda step: flip(largest(step), .5),
    lambda step: largest(step).unlink(),
    lambda step: (step / '_CHECKPOINT_METADATA').write_text('[[1'),
    damage_metadata(lambda saved: saved['note']['metrics'].update(bytes=4)),
    damage_metadata(lambda saved: saved.clear()),
    lambda step: (shutil.rmtree(step), step.write_text('a file')),
])
def test_a_damaged_newest_is_reported_and_the_previous_one_restored(
    damage, copy, capsys):
  damage(copy / '2')
  before = hashes_of_files(copy)
  reader = checkpoints(copy)
  assert_is_state_of(reader.restore(state(0)), 1)
  message = capsys.readouterr().err
  assert f'damaged checkpoint {copy / "2"} (' in message
  assert 'resumes after round 1' in message and message.count('\n') == 1
  assert hashes_of_files(copy) == before
  assert reader.newest == 1
  reader.open()
  assert (copy / 'damaged-2-0').exists() and not (copy / '2').exists()
  reader.save(state(2), NOTE)
  reader.close()
  assert_is_state_of(checkpoints(copy).restore(state(0)), 2)


def test_if_all_are_damaged_no_file_changes(copy):
  for step in '1', '2':
    flip(largest(copy / step), .7)
  before = hashes_of_files(copy)
  with pytest.raises(UserError, match='2 .*1 .*, and there is no other'):
    checkpoints(copy).restore(state(0))
  assert hashes_of_files(copy) == before


@pytest.mark.parametrize('changes', [
    dict(clients={'c': np.zeros((1, 6, 900), np.float32)}),
    dict(round=np.array(0, np.int32))])  # as in earlier versions
def test_a_state_of_another_shape_is_not_restored(changes, copy):
  with pytest.raises(UserError, match='damaged.*number of clients or version'):
    checkpoints(copy).restore(state(0)._replace(**changes))


def test_incompletely_written_checkpoints_are_ignored(copy):
  shutil.copytree(copy / '2', copy / '3.orbax-checkpoint-tmp-17')
  reader = checkpoints(copy)
  assert_is_state_of(reader.restore(state(0)), 2)
  reader.open()
  reader.save(state(3), NOTE)
  reader.close()
  assert not (copy / '3.orbax-checkpoint-tmp-17').exists()


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path):
  (tmp_path / 'file').write_text('')
  with pytest.raises(
      UserError, match='--workdir must be writable.*; got .*file'):
    save_rounds(tmp_path / 'file' / 'checkpoints', (1,))


def test_no_flipped_bit_changes_the_state_silently(copy):
  random = np.random.RandomState(0)
  num_undamaged = 0
  files = [path for path in sorted((copy / '2').rglob('*')) if path.is_file()]
  for path in files:
    content = path.read_bytes()
    for at in random.rand(2):
      flip(path, at, random.randint(8))
      restored, note = checkpoints(copy).restore(state(0))
      step = int(restored.round[0])
      assert_is_state_of((restored, note), step)  # 2 if the bit has no meaning
      num_undamaged += step == 2
      path.write_bytes(content)
  assert 0 < num_undamaged < 2 * len(files)


def test_a_digest_depends_on_everything_that_is_saved():
  x = np.arange(6, dtype=np.float32).reshape(2, 3)
  trees = [{'a': x}, {'b': x}, {'a': x.reshape(3, 2)}, {'a': x.T.copy()},
           {'a': x.view(np.int32)}, {'a': x + 1}, {'a': {'a': x}}, {}]
  digests = [digest(tree, NOTE) for tree in trees] + [digest(trees[0], {})]
  assert len(set(digests)) == len(digests)
  assert digest({'a': np.asfortranarray(x)}, NOTE) == digests[0]


# Client state on disk: its rows are next to the checkpoint.

LIKE = {'w': np.full((1, 40), 2, np.float32), 'n': np.zeros(1, np.int32)}
NUM_CLIENTS = 30
TRAINED = [[3, 29], [0, 3], [7]]  # clients of rounds 1 to 3


def fresh(kind, num_clients=NUM_CLIENTS):
  """Returns the state before the first round."""
  clients = client_store.filled(LIKE, num_clients) if kind == 'memory' else (
      DiskClients(LIKE, num_clients, pathlib.Path('/tmp')))
  return State({'params': np.ones((1, 5), np.float32)}, (), clients,
               np.zeros(1, np.int32), np.zeros((1, 2), np.uint32))


def train(state, round_index):
  client = np.array(TRAINED[round_index])
  client_store.write(state.clients, np.zeros(len(client), int), client, {
      'w': np.full((len(client), 40), 10 * round_index, np.float32)
      + client.astype(np.float32)[:, None],
      'n': np.full(len(client), round_index + 1, np.int32)})
  return state._replace(round=np.array([round_index + 1], np.int32))


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
  assert state.round.tolist() == [num_rounds] and note == NOTE
  jax.tree.map(np.testing.assert_array_equal, values(state),
               values(expected(num_rounds)))


def save_clients(path, kind, rounds=(0, 1, 2), **fields):
  """Saves a checkpoint after each round; trains another round at the end."""
  writer = checkpoints(path / 'checkpoints', **fields)
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
  return checkpoints(path / 'checkpoints').restore(like)


@pytest.mark.parametrize('before', ['memory', 'disk'])
@pytest.mark.parametrize('after', ['memory', 'disk'])
def test_a_run_resumes_with_either_kind(before, after, tmp_path, monkeypatch):
  """Whose rows are read in several chunks."""
  monkeypatch.setattr(checkpoint, '_CHUNK_BYTES', 400)  # two rows
  save_clients(tmp_path, before)
  restored = restore(tmp_path, fresh(after))
  assert_is_after(restored, 3)
  if after == 'disk':  # other clients take no space
    assert restored[0].clients.written()[1].tolist() == [0, 3, 7, 29]


def test_rows_of_deleted_checkpoints_are_deleted(tmp_path):
  save_clients(tmp_path, 'disk', checkpoint_keep=2)
  names = lambda directory: sorted(
      path.name for path in (tmp_path / directory).iterdir())
  assert names('checkpoints') == ['2', '3']
  assert names('client_state') == ['2.rows', '3.rows']


@pytest.mark.parametrize('damage', [
    lambda rows: rows.unlink(),
    lambda rows: rows.write_bytes(rows.read_bytes()[:-1]),
    lambda rows: flip(rows, .5),
    lambda rows: rows.write_bytes((rows.parent / '2.rows').read_bytes()),
])
@pytest.mark.parametrize('kind', ['memory', 'disk'])
def test_damaged_rows_are_those_of_a_damaged_checkpoint(
    damage, kind, tmp_path, capsys):
  save_clients(tmp_path, 'disk')
  damage(tmp_path / 'client_state' / '3.rows')
  assert_is_after(restore(tmp_path, fresh(kind)), 2)
  assert 'resumes after round 2' in capsys.readouterr().err


def test_rows_of_another_number_of_clients_are_refused(tmp_path):
  save_clients(tmp_path, 'disk')
  with pytest.raises(UserError, match='another network, algorithm, number'):
    restore(tmp_path, fresh('disk', NUM_CLIENTS + 1))
