"""Validation examples belong to no client; the others are partitioned."""

import dataclasses

import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import partition
from moon_jax.data import split
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError

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
  clients, _, validation, _ = split.make(config, DATA)
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
  """As if the validation examples had never been there."""
  config = dataclasses.replace(CONFIG, partition='shards')
  clients, _, validation, _ = split.make(config, DATA)
  rest = np.setdiff1d(np.arange(N), validation)
  alone = partition.shards(DATA.train_labels[rest], 5, 2, config.seed)
  for indices, of_rest in zip(clients, alone):
    np.testing.assert_array_equal(indices, rest[of_rest])


def test_the_draw_follows_the_seed_of_the_split():
  draw = lambda **changes: split.make(
      dataclasses.replace(CONFIG, **changes), DATA).validation
  first = draw()
  np.testing.assert_array_equal(first, draw(beta=5., partition='iid'))
  np.testing.assert_array_equal(first, draw(seed=9, partition_seed=3))
  assert (first != draw(seed=4)).any()
  # It is not the beginning of a partition's permutation.
  assert not np.isin(np.random.RandomState(3).permutation(N)[:40], first).all()


def test_without_the_flag_the_split_is_that_of_the_partition():
  config = dataclasses.replace(CONFIG, validation_fraction=0.)
  clients, _, validation, _ = split.make(config, DATA)
  assert validation is None
  for indices, expected in zip(clients, partition.dirichlet(
      DATA.train_labels, 5, .5, 3)):
    np.testing.assert_array_equal(indices, expected)


@pytest.mark.parametrize('fraction, count', [(.001, 0), (.999, 400)])
def test_both_sides_need_examples(fraction, count):
  with pytest.raises(UserError, match=f'got {fraction}, which is {count} of 4'):
    split.make(dataclasses.replace(CONFIG, validation_fraction=fraction), DATA)


def test_clients_share_the_rest():
  with pytest.raises(UserError, match='too many for 360 training examples'):
    split.make(dataclasses.replace(CONFIG, num_clients=37), DATA)


@pytest.mark.parametrize('flags', [
    dict(label_noise=1.), dict(concept_shift=2)])
def test_held_out_examples_have_the_labels_of_their_client(flags):
  """Shifted first and held out then: both parts are of one distribution."""
  config = dataclasses.replace(
      CONFIG, partition='iid', client_test_fraction=.25, **flags)
  clients, tests, _, labels = split.make(config, DATA)
  changed = labels != DATA.train_labels
  for client, (train, held_out) in enumerate(zip(clients, tests.indices)):
    is_shifted = 'label_noise' in flags or client % 2 == 1
    assert changed[train].any() == changed[held_out].any() == is_shifted


def test_a_run_on_fewer_training_examples():
  """The draw is that of NumPy's legacy generator, for all seeds and methods."""
  few = np.sort(np.random.RandomState([0, 0, 2]).permutation(N)[:300])
  for changes in dict(seed=0), dict(partition='iid', algorithm='solo'):
    config = dataclasses.replace(
        CONFIG, train_examples=300, **changes)
    clients, _, validation, _ = split.make(config, DATA)
    assert len(validation) == 30
    np.testing.assert_array_equal(
        np.sort(np.concatenate([*clients, validation])), few)
  config = dataclasses.replace(
      CONFIG, train_examples=300, validation_fraction=0., partition='shards')
  alone = partition.shards(DATA.train_labels[few], 5, 2, config.seed)
  for indices, of_few in zip(split.make(config, DATA).clients, alone):
    np.testing.assert_array_equal(indices, few[of_few])


def test_all_training_examples_are_the_default():
  for fraction in 0., .1:
    config = dataclasses.replace(CONFIG, validation_fraction=fraction)
    everything, default = (
        split.make(dataclasses.replace(config, train_examples=count), DATA)
        for count in (N, 0))
    for indices, expected in zip(everything.clients, default.clients):
      np.testing.assert_array_equal(indices, expected)
  with pytest.raises(UserError, match='at most the 400 training.*got 401'):
    split.make(dataclasses.replace(CONFIG, train_examples=N + 1), DATA)
