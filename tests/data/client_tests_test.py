"""Held-out examples of clients: which they are, and whom they depend on."""

import dataclasses

from hypothesis import example, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import client_tests, split
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError
from moon_jax.simulation import build

FRACTIONS = st.floats(0, .99)
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=8)
SEEDS = st.integers(0, 2**32 - 1)


def clients_of(sizes):
  """Shuffled indices, so that an order that changes is seen."""
  order = np.random.RandomState(1).permutation(sum(sizes))
  return np.split(order, np.cumsum(sizes)[:-1])


@settings(deadline=None, max_examples=100)
@given(SIZES, FRACTIONS, SEEDS)
@example([5, 7], .5, 0)  # halves go up, to 3 and 4
def test_both_parts_are_all_examples_of_each_client(sizes, fraction, seed):
  """In the client's order; the draw depends on no other client."""
  clients = clients_of(sizes)
  kept, tests = client_tests.hold_out(clients, fraction, seed)
  assert tests.part == 'train' and len(kept) == len(tests.indices) == len(sizes)
  for client, indices in enumerate(clients):
    count = min(len(indices) - 1, int(len(indices) * fraction + .5))
    drawn = indices[np.random.RandomState([seed, client]).permutation(
        len(indices))[:count]]
    assert kept[client].tolist() == [i for i in indices if i not in drawn]
    assert tests.indices[client].tolist() == [i for i in indices if i in drawn]


def data_of(train_clients, test_clients=None):
  x = np.zeros((len(train_clients), 1), np.float32)
  y = np.zeros(len(x), np.int32)
  num_test = 1 if test_clients is None else len(test_clients)
  return Dataset('own', x, y, x[:1].repeat(num_test, 0),
                 y[:1].repeat(num_test, 0), ('a', 'b'),
                 train_clients=np.array(train_clients, np.int32),
                 test_clients=None if test_clients is None
                 else np.array(test_clients, np.int32))


NATURAL = Config(partition='natural', num_clients=2, client_eval_every=1)


def test_natural_clients_have_their_own_test_examples():
  data = data_of([2, 0, 1, 0, 2], [2, 0, 2, 0, 2])
  made = split.make(dataclasses.replace(NATURAL, num_clients=3), data)
  assert [i.tolist() for i in made.clients] == [[1, 3], [2], [0, 4]]
  assert made.client_tests.part == 'test'
  assert [i.tolist() for i in made.client_tests.indices] == [
      [1, 3], [], [0, 2, 4]]
  for seed in range(6):
    made = split.make(dataclasses.replace(NATURAL, seed=seed), data)
    for train, test in zip(made.clients, made.client_tests.indices):
      client = data.train_clients[train[0]]
      assert test.tolist() == np.flatnonzero(
          data.test_clients == client).tolist()


def test_other_splits_do_not_use_natural_test_examples():
  data = data_of([0, 0, 1, 1], [0, 1])
  for changes in (dict(), dict(client_test_fraction=.5)):
    made = split.make(
        Config(partition='iid', num_clients=2, **changes), data)
    assert (made.client_tests and made.client_tests.part) == (
        'train' if changes else None)
  assert split.make(NATURAL, data_of([0, 1])).client_tests is None
  # Without an evaluation of clients they are not used.
  unused = dataclasses.replace(
      NATURAL, client_eval_every=0, model='mlp', algorithm='fedavg')
  assert build.federation(unused, data).client_tests is None
  # The sampled client has none.
  one = dataclasses.replace(NATURAL, num_clients=1)
  assert {split.make(dataclasses.replace(one, seed=seed),
                     data_of([0, 1], [0])).client_tests is None
          for seed in range(8)} == {True, False}


def test_labels_may_change_if_natural_clients_are_not_evaluated():
  """Their test examples keep the labels of the data set."""
  data = data_of([0] * 20 + [1] * 20, [0, 1])
  config = dataclasses.replace(NATURAL, labels='noise(rate=.5)')
  with pytest.raises(UserError, match='labels must be clean .*evaluated on '
                     'test examples.*Remove it, or give client_eval_every=0 '):
    split.make(config, data)
  made = split.make(dataclasses.replace(config, client_eval_every=0), data)
  assert (made.train_labels != data.train_labels).any()


def test_the_seed_is_that_of_the_partition():
  data = data_of([0] * 40)
  config = Config(partition='iid', num_clients=2, partition_seed=3, seed=5)
  whole = split.make(config, data).clients
  made = split.make(
      dataclasses.replace(config, client_test_fraction=.5), data)
  expected, _ = client_tests.hold_out(whole, .5, 3)
  for a, b in zip(made.clients, expected):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('changes, sizes, words', [
    (dict(partition='natural'), [1, 1],
     'must be 0 with .*which has test examples of each client'),
    (dict(client_test_fraction=.01), None,
     'must hold out an example of the largest client, which has 20; got 0.01. '
     'Give client_test_fraction=0.025 or more'),
    (dict(num_clients=40), None, 'client, which has 1; .*Lower num_clients')
])
def test_impossible_splits_are_refused(changes, sizes, words):
  data = data_of([0, 1] * 20, sizes)
  config = dataclasses.replace(
      Config(partition='iid', num_clients=2, client_test_fraction=.2),
      **changes)
  with pytest.raises(UserError, match=words) as error:
    split.make(config, data)
  assert '\n' not in str(error.value)


@pytest.mark.parametrize('size, fraction, expected', [
    (50, .29, 15), (90, .35, 32), (25, .58, 15), (10, .25, 3), (10, .24, 2)])
def test_halves_are_rounded_up(size, fraction, expected):
  _, tests = client_tests.hold_out([np.arange(size)], fraction, 0)
  assert tests.sizes.tolist() == [expected]


@pytest.mark.parametrize('fraction', [20, -.2])
def test_a_fraction_is_no_percentage(fraction):
  with pytest.raises(UserError, match=f'below 1; got {fraction}'):
    client_tests.hold_out([np.arange(10)], fraction, 0)


def test_an_example_of_two_clients_is_not_held_out():
  with pytest.raises(UserError, match='_fraction must be 0 if clients share'):
    client_tests.make(Config(client_test_fraction=.2), data_of([0] * 9),
                      [np.arange(9), np.arange(5)])
