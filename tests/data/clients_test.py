"""The compact sequence of clients behaves as a list of arrays."""

import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import client_tests, partition, rounds, split
from moon_jax.data import clients as clients_lib
from moon_jax.data.clients import Clients
from moon_jax.data.sources import arrays
from moon_jax.runs import directory as directory_lib
from moon_jax.simulation.simulation import Simulation
from support import tiny_federation

LIST = [np.array([4, 0]), np.array([], int), np.array([3, 1, 2])]
CLIENTS = Clients(np.array([4, 0, 3, 1, 2]), np.array([2, 0, 3]))


def test_it_is_a_sequence_of_views():
  assert [c.tolist() for c in CLIENTS] == [c.tolist() for c in LIST]
  assert len(CLIENTS) == 3 and CLIENTS[-1].tolist() == [3, 1, 2]
  assert CLIENTS[np.int32(0)].tolist() == [4, 0]
  assert [c.tolist() for c in CLIENTS[::-1]] == [[3, 1, 2], [], [4, 0]]
  assert np.shares_memory(CLIENTS[2], CLIENTS.indices)
  with pytest.raises(IndexError):
    CLIENTS[3]


@pytest.mark.parametrize('clients', [CLIENTS, LIST, tuple(LIST)])
def test_lists_work_too(clients):
  assert clients_lib.sizes(clients).tolist() == [2, 0, 3]
  assert clients_lib.joined(clients).tolist() == [4, 0, 3, 1, 2]
  assert clients_lib.class_counts(
      np.array([0, 1, 1, 0, 1]), clients, 3).tolist() == [
          [1, 1, 0], [0, 0, 0], [1, 2, 0]]
  assert clients_lib.are_disjoint(clients)
  assert [c.tolist() for c in clients_lib.shortened(clients, 2)] == [
      [4, 0], [], [3, 1]]


def test_partitions_equal_those_made_with_lists():
  rng = np.random.default_rng(0)
  labels, owner = rng.integers(0, 4, 500), rng.integers(0, 60, 500)
  order = np.random.RandomState(3).permutation(500)
  assert_equal(partition.iid(500, 37, 3), np.array_split(order, 37))
  pieces = np.array_split(np.argsort(labels, kind='stable'), 60)
  shards = np.random.RandomState(3).permutation(60)
  assert_equal(partition.shards(labels, 20, 3, 3), [
      np.concatenate([pieces[j] for j in part])
      for part in np.split(shards, 20)])
  ids = np.unique(owner)
  chosen = np.sort(np.random.RandomState(3).choice(len(ids), 9, replace=False))
  assert_equal(partition.natural(owner, 9, 3), [
      np.flatnonzero(owner == ids[c]) for c in chosen])


def assert_equal(actual, expected):
  assert [c.tolist() for c in actual] == [c.tolist() for c in expected]


def test_names_follow_their_clients(tmp_path):
  """From the ids of a data set over its split to the files of a run."""
  random = np.random.RandomState(0)
  ids = random.choice(['zoe', 'ann', 'bob', 'eve'], 90)
  dataset = arrays.to_dataset('mine', 'mine', {
      'x_train': random.randn(90, 3), 'y_train': np.arange(90) % 2,
      'x_test': random.randn(4, 3), 'y_test': [0, 1, 0, 1],
      'client_train': ids})
  assert dataset.client_names == ('ann', 'bob', 'eve', 'zoe')
  assert dataset.fingerprint() == dataset._replace(
      client_names=None).fingerprint()
  config = Config(partition='natural', num_clients=3, seed=1,
                  client_test_fraction=.2, client_eval_every=1,
                  train_examples=80)
  made = split.make(config, dataset)
  names = clients_lib.names(made.clients)
  assert len(names) == 3 and sorted(names) == list(names)
  for name, *parts in zip(names, made.clients, made.client_tests.indices):
    assert {*ids[np.concatenate(parts)]} == {name}
  path = tmp_path / 'partition.npz'
  path.write_bytes(directory_lib.partition_npz(made.clients))
  again = split.read_file(str(path), 3)
  assert again.names == names
  assert_equal(again, made.clients)


def test_parts_of_clients_have_their_names():
  names = 'zoe', 'ann', 'bob'
  named = Clients(np.array([4, 0, 3, 1, 2, 5]), np.array([2, 1, 3]), names)
  as_mapping = dict(zip(names, named))
  for made in (clients_lib.shortened(named, 1), named[:], named[::-1][::-1],
               client_tests.hold_out(named, .5, 0)[0],
               client_tests.hold_out(as_mapping, .5, 0)[0]):
    assert clients_lib.names(made) == names
    assert all({*part} <= {*whole} for part, whole in zip(made, named))
  assert clients_lib.names(named[1:]) == names[1:]
  assert_equal(named[1:], [named[1], named[2]])


def test_names_that_a_function_of_your_own_returns_are_kept(
    tmp_path, monkeypatch):
  (tmp_path / 'named_partition.py').write_text("""
import moon_jax as mj

def make(dataset: mj.FromRun, num_clients: mj.FromRun[int],
         seed: mj.FromRun[int]):
  return mj.partition.natural(
      dataset.train_clients, num_clients, seed, dataset.client_names)
""")
  monkeypatch.syspath_prepend(str(tmp_path))
  data = tiny_federation.make().data._replace(
      train_clients=np.arange(19) % 3, client_names=('zoe', 'ann', 'bob'))
  made = split.make(Config(partition='named_partition:make', num_clients=3,
                           algorithm='fedavg'), data)
  assert clients_lib.names(made.clients) == ('zoe', 'ann', 'bob')


def test_a_mapping_of_names_to_indices_is_taken():
  federation = tiny_federation.make(clients={'zoe': [4, 2], 'ann': (0,)})
  assert clients_lib.names(federation.clients) == ('zoe', 'ann')
  assert_equal(federation.clients, [np.array([4, 2]), np.array([0])])
  assert clients_lib.names(tiny_federation.make().clients) is None


def test_columns_of_clients_have_their_names():
  simulation = Simulation(tiny_federation.make(
      clients={'zoe': [4, 2], 'ann': (0,), 'bob': [7, 8]},
      rounds=rounds.listed([[2, 0]]), evaluate_clients=True, local_epochs=1))
  simulation.run_round()
  columns = simulation.evaluate_clients()['clients']
  assert [*columns][:2] == ['client', 'name']
  assert dict(zip(columns['client'], columns['name'])) == {0: 'zoe', 2: 'bob'}
