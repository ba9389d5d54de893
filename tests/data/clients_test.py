"""The compact sequence of clients behaves as a list of arrays."""

import numpy as np
import pytest

from moon_jax.data import clients as clients_lib
from moon_jax.data import partition
from moon_jax.data.clients import Clients

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
