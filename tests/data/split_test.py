"""Splits: validation examples, subsets, and partitions of your own."""

import dataclasses

import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import clients as clients_lib
from moon_jax.data import partition, split
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError
from moon_jax.runs import run
from moon_jax.simulation import checks

pytestmark = pytest.mark.usefixtures('of_command')

N = 400
CONFIG = Config(num_clients=5, validation_fraction=.1, seed=3)
DATA = Dataset(
    'toy', np.zeros((N, 3), np.float32), np.arange(N, dtype=np.int32) % 4,
    np.zeros((5, 3), np.float32), np.zeros(5, np.int32), ('a', 'b', 'c', 'd'),
    train_clients=np.arange(N, dtype=np.int32) // 50)


@pytest.mark.parametrize('name', [
    'iid', 'dirichlet', 'shards', 'quantity', 'feature_noise', 'natural'])
def test_no_client_has_validation_examples(name):
  config = dataclasses.replace(CONFIG, partition=name)
  clients, _, validation, _, _ = split.make(config, DATA)
  assert len(validation) == len(np.unique(validation)) == 40
  used = np.concatenate(clients)
  assert len(np.unique(used)) == len(used)
  assert not np.isin(validation, used).any()
  if name == 'natural':  # five of eight clients, each with its own examples
    owners = DATA.train_clients
    assert all(len(np.unique(owners[indices])) == 1 for indices in clients)
    expected = np.isin(owners, owners[used])
    expected[validation] = False
    np.testing.assert_array_equal(np.sort(used), np.flatnonzero(expected))
  else:
    np.testing.assert_array_equal(
        np.sort(np.concatenate([used, validation])), np.arange(N))


def test_the_other_examples_are_partitioned_by_their_labels():
  config = dataclasses.replace(CONFIG, partition='shards')
  clients, _, validation, _, _ = split.make(config, DATA)
  rest = np.setdiff1d(np.arange(N), validation)
  alone = partition.shards(DATA.train_labels[rest], 5, 2, config.seed)
  for indices, of_rest in zip(clients, alone):
    np.testing.assert_array_equal(indices, rest[of_rest])


def test_the_draw_follows_the_seed_of_the_split():
  draw = lambda **changes: split.make(
      dataclasses.replace(CONFIG, **changes), DATA).validation
  first = draw()
  np.testing.assert_array_equal(first, draw(partition='dirichlet(beta=5)'))
  np.testing.assert_array_equal(first, draw(partition='iid'))
  np.testing.assert_array_equal(first, draw(seed=9, partition_seed=3))
  assert (first != draw(seed=4)).any()
  # It is not the beginning of a partition's permutation.
  assert not np.isin(np.random.RandomState(3).permutation(N)[:40], first).all()


@pytest.mark.parametrize('changes, words', [
    (dict(validation_fraction=.001), 'got 0.001, which is 0 of 4'),
    (dict(validation_fraction=.999), 'got 0.999, which is 400 of 4'),
    (dict(num_clients=37),
     'at most 36, .*10 of the 360 training examples; got 37'),
    (dict(train_examples=N + 1), 'at most the 400 training.*got 401')])
def test_impossible_splits_are_refused(changes, words):
  with pytest.raises(UserError, match=words):
    split.make(dataclasses.replace(CONFIG, **changes), DATA)


@pytest.mark.parametrize('labels', ['noise(rate=.99)', 'shift(groups=2)'])
def test_held_out_examples_have_the_labels_of_their_client(labels):
  """Shifted first and held out then: both parts are of one distribution."""
  config = dataclasses.replace(
      CONFIG, partition='iid', client_test_fraction=.25, labels=labels)
  clients, tests, _, new, _ = split.make(config, DATA)
  changed = new != DATA.train_labels
  for client, (train, held_out) in enumerate(zip(clients, tests.indices)):
    is_shifted = 'noise' in labels or client % 2 == 1
    assert changed[train].any() == changed[held_out].any() == is_shifted


def test_a_run_on_fewer_training_examples():
  """The draw is that of NumPy's legacy generator, for all seeds and methods."""
  few = np.sort(np.random.RandomState([0, 0, 2]).permutation(N)[:300])
  for changes in dict(seed=0), dict(partition='iid', algorithm='solo'):
    config = dataclasses.replace(
        CONFIG, train_examples=300, **changes)
    clients, _, validation, _, _ = split.make(config, DATA)
    assert len(validation) == 30
    np.testing.assert_array_equal(
        np.sort(np.concatenate([*clients, validation])), few)
  every, all_ = (split.make(dataclasses.replace(
      CONFIG, train_examples=count), DATA).clients for count in (N, 0))
  for indices, expected in zip(every, all_):
    np.testing.assert_array_equal(indices, expected)
  config = dataclasses.replace(
      CONFIG, train_examples=300, validation_fraction=0., partition='shards')
  alone = partition.shards(DATA.train_labels[few], 5, 2, config.seed)
  for indices, of_few in zip(split.make(config, DATA).clients, alone):
    np.testing.assert_array_equal(indices, few[of_few])


# Partitions of your own, from functions and from files.

_HEADER = '''
import numpy as np
from moon_jax import FromRun

def make(dataset: FromRun, num_clients: FromRun[int], seed: FromRun[int]):
'''
# The last client shares examples with the first.
_GOOD = _HEADER + '''
  order = np.random.default_rng(seed).permutation(len(dataset.train_labels))
  parts = np.array_split(order, num_clients)
  return [*parts[:-1], parts[0][:7]]
'''
OWN = Config(
    dataset='digits', model='mlp', algorithm='fedavg', num_clients=4,
    num_rounds=1, local_epochs=1, checkpoint_every=0, partition_seed=3)


@pytest.fixture
def written(tmp_path, monkeypatch):
  """Writes the source of a module; returns the name of its function."""
  monkeypatch.syspath_prepend(tmp_path)
  names = iter(range(100))

  def write(source):
    module = f'own_{tmp_path.name.replace("-", "_")}_{next(names)}'
    (tmp_path / f'{module}.py').write_text(source)
    return f'{module}:make'

  return write


def test_a_function_partitions(written):
  name = written(_GOOD)
  config = dataclasses.replace(OWN, partition=name)
  found = split.make(config, DATA).clients
  order = np.random.default_rng(3).permutation(N)
  parts = np.array_split(order, 4)
  for part, expected in zip(found, [*parts[:3], parts[0][:7]], strict=True):
    assert part.dtype == np.int64
    np.testing.assert_array_equal(part, expected)
  generator = written(f'{_HEADER}  return ([i] for i in range(num_clients))\n')
  found = split.make(dataclasses.replace(
      OWN, partition=generator, num_clients=2), DATA).clients
  assert [i.tolist() for i in found] == [[0], [1]]


@pytest.mark.parametrize('body, words', [
    ('return {"ann": [1]}', ['--num_clients=4 clients; got 1 clients of',
     'line 5']),
    ('return dict(a=[1], b=[], c=[2], d=[3])', ["client 1 ('b')", 'none']),
    ('return [[0], [1], [2], [.5]]', ['client 3', 'float64', 'line 5']),
    ('return [[0], [1], [2], [[3]]]', ['client 3', '[1, 1]', 'line 5']),
    ('return [[0], [1], [2], [[3], [4, 5]]]', ['client 3', 'a list']),
    ('yield [0]\n  yield [1 // 0]', ['ZeroDivisionError', 'line 7']),
])
def test_invalid_partitions_are_refused(body, words, written):
  name = written(f'{_HEADER}  {body}\n')
  with pytest.raises(UserError) as error:
    split.make(dataclasses.replace(OWN, partition=name), DATA)
  for word in ('--partition', name, *words):
    assert word in str(error.value)


def test_a_file_of_a_run_gives_its_partition(tmp_path, written):
  """And the content of function and file belongs to the run."""
  name = written(_GOOD)
  config = dataclasses.replace(
      OWN, partition=name, workdir=str(tmp_path / 'first'))
  summary = run.run(config)
  path = tmp_path / 'first' / 'partition.npz'
  other = dataclasses.replace(
      OWN, partition=f'file(path={path})', workdir=str(tmp_path / 'second'))
  assert run.run(other)['test_accuracy'] == summary['test_accuracy']
  with np.load(path) as file:
    arrays = dict(file)
  with np.load(tmp_path / 'second' / 'partition.npz') as file:
    for key, array in arrays.items():
      np.testing.assert_array_equal(file[key], array)
  # A moved and rewritten file with the same arrays continues the run.
  moved = tmp_path / 'moved.npz'
  np.savez(moved, **{k: v.astype(np.int64) for k, v in arrays.items()})
  run.run(dataclasses.replace(other, partition=f'file(path={moved})'))
  arrays['indices'][:2] = arrays['indices'][1::-1]
  np.savez(moved, **arrays)
  with pytest.raises(UserError, match='--partition.path=.* had other content'):
    run.run(dataclasses.replace(other, partition=f'file(path={moved})'))
  module = tmp_path / f'{name.partition(":")[0]}.py'
  module.write_text(_GOOD + '# changed\n')
  with pytest.raises(UserError, match='--partition=.* had other content'):
    run.run(config)


def test_invalid_files_are_refused(tmp_path):
  path = tmp_path / 'partition.npz'
  good = {'sizes': np.array([2, 1]), 'indices': np.array([5, 6, 7])}

  def message(**changes):
    np.savez(path, **{k: v for k, v in {**good, **changes}.items()
                      if v is not None})
    with pytest.raises(UserError) as error:
      clients_lib.checked(split.read_file(str(path), 2), 100,
                          f'--partition=file(path={path}): client {{}}')
    assert str(path) in str(error.value)
    return str(error.value)

  assert 'sizes' in message(sizes=None)
  assert 'sum to 4' in message(sizes=np.array([2, 2]))
  assert 'below 1' in message(sizes=np.array([3, 0]))
  assert 'float64' in message(sizes=np.array([1.5, 1.5]))
  assert '1 names of 2' in message(names=np.array(['a']))
  assert 'float64' in message(indices=np.array([5., 6., 7.]))
  assert 'pickle' in message(indices=np.array([object()] * 3))
  assert '0 to 99; got 100' in message(indices=np.array([5, 6, 100]))
  assert 'index 5 more than once' in message(indices=np.array([5, 5, 7]))
  assert 'Give --num_clients=3' in message(sizes=np.array([1, 1, 1]))
  for damaged in path.read_bytes()[:-40], b'', b'\x80\x04.':
    path.write_bytes(damaged)
    with pytest.raises(UserError, match='file with the arrays sizes and'):
      split.read_file(str(path), 2)


def test_new_clients_are_drawn_with_the_seed_of_the_partition(digits):
  """Nobody else has their examples, and they hold out a part of them."""
  config = checks.validate(Config(
      dataset='digits', model='mlp', algorithm='fedavg', num_clients=6,
      new_clients=.5, client_test_fraction=.2, client_eval='all',
      client_eval_every=1))
  found = split.make(config, digits)
  assert len(found.clients) == 6 and len(found.new_clients) == 3
  every = [*found.clients, *found.new_clients, *found.client_tests.indices]
  assert len(found.client_tests.indices) == 9
  assert np.sort(np.concatenate(every)).tolist() == list(
      range(len(digits.train_labels)))
  plain = split.make(dataclasses.replace(
      config, new_clients=0., num_clients=9), digits)
  sizes = lambda parts: sorted(map(len, parts))
  whole = lambda clients, tests: sizes(
      [np.concatenate(x) for x in zip(clients, tests.indices)])
  assert whole([*found.clients, *found.new_clients], found.client_tests) == (
      whole(plain.clients, plain.client_tests))


@pytest.mark.parametrize('changes, words', [
    ({'client_test_fraction': 0.}, 'Give .*client_test_fraction=0.2'),
    ({'client_eval': 'cohort'}, 'Give .*client_eval=all'),
    ({'labels': 'noise'}, 'needs .*labels=clean')])
def test_new_clients_need_their_evaluation(digits, changes, words):
  config = Config(
      dataset='digits', model='mlp', num_clients=6, new_clients=.5,
      client_eval='all', client_test_fraction=.2, client_eval_every=1,
      algorithm='fedavg')
  with pytest.raises(UserError, match=words):
    split.make(checks.validate(dataclasses.replace(config, **changes)), digits)
