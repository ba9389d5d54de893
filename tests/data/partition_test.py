"""Partitions: published ones index for index, and properties of all."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import partition
from moon_jax.errors import UserError
from moon_jax.simulation import build
from support import golden

LABELS = np.repeat(np.arange(10), 100)


def test_equals_published_partitions(golden_partitions):
  for labels, case, sizes, indices_digest in golden_partitions:
    if case['partition'] == 'iid':
      actual = partition.iid(len(labels), case['clients'], case['seed'])
    else:
      actual = partition.dirichlet(
          labels, case['clients'], case['beta'], case['seed'])
    np.testing.assert_array_equal([len(i) for i in actual], sizes)
    assert golden.indices_digest(np.concatenate(actual)) == indices_digest


@pytest.mark.parametrize('dataset, deviation', [
    ('cifar10', 1165), ('cifar100', 181), ('tiny_imagenet', 99)])
def test_paper_partition(golden_dir, dataset, deviation):
  """Supplement, Table 1: 10 clients, beta 0.5."""
  labels = (np.load(golden_dir / 'partitions.npz')[f'{dataset}/labels']
            if 'cifar' in dataset else np.repeat(np.arange(200), 500))
  sizes = [len(i) for i in partition.dirichlet(labels, 10, .5, 0)]
  assert np.mean(sizes) == len(labels) / 10
  assert round(np.std(sizes)) == deviation


def released_dirichlet(labels, num_clients, beta, seed):
  """partition_data of the released code."""
  random, least = np.random.RandomState(seed), 0
  while least < 10:
    clients = [[] for _ in range(num_clients)]
    for k in range(labels.max() + 1):
      indices = np.where(labels == k)[0]
      random.shuffle(indices)
      p = random.dirichlet(np.repeat(beta, num_clients))
      p = np.array([share * (len(client) < len(labels) / num_clients)
                    for share, client in zip(p, clients)])
      p = p / p.sum()
      cuts = (np.cumsum(p) * len(indices)).astype(int)[:-1]
      clients = [client + piece.tolist() for client, piece in zip(
          clients, np.split(indices, cuts))]
      least = min(map(len, clients))
  for client in clients:
    random.shuffle(client)
  return clients


@pytest.mark.parametrize('counts, num_clients, beta', [
    ((30, 20, 10), 2, .3),  # small, so a client can reach its limit exactly
    ((20, 20), 2, .1), ((15, 15, 15), 3, .5), ((40, 7, 30), 4, 1.)])
def test_dirichlet_equals_the_released_code(counts, num_clients, beta):
  labels = np.repeat(np.arange(len(counts)), counts)
  for seed in range(40):
    actual = partition.dirichlet(labels, num_clients, beta, seed)
    assert [list(i) for i in actual] == released_dirichlet(
        labels, num_clients, beta, seed)


PARTITIONS = {
    'iid': lambda clients, beta, seed: partition.iid(1000, clients, seed),
    'dirichlet': lambda *args: partition.dirichlet(LABELS, *args),
    'quantity': lambda *args: partition.quantity(1000, *args)}


@pytest.mark.parametrize('name', PARTITIONS)
@settings(max_examples=50, deadline=None)
@given(st.integers(1, 50), st.floats(.1, 100), st.integers(0, 2**32 - 1))
def test_each_example_is_assigned_once(name, clients, beta, seed):
  try:
    actual = PARTITIONS[name](clients, beta, seed)
  except UserError:
    assert name != 'iid'
    return  # some settings have no split; see below
  sizes = [len(i) for i in actual]
  assert len(sizes) == clients and min(sizes) >= partition.MIN_EXAMPLES
  assert name != 'iid' or max(sizes) - min(sizes) <= 1
  np.testing.assert_array_equal(
      np.sort(np.concatenate(actual)), np.arange(1000))


def test_two_shards_per_client():
  """With 2 shards of 5 examples, 100 clients have one or two classes."""
  labels = LABELS[::-1].copy()
  actual, other = (partition.shards(labels, 100, 2, seed) for seed in (0, 1))
  assert {len(i) for i in actual} == {10}
  classes = [len(set(labels[i])) for i in actual]
  assert set(classes) == {1, 2} and np.mean(classes) > 1.8
  assert any((a != b).any() for a, b in zip(actual, other))
  with pytest.raises(UserError, match=(
      'num_clients=100 times it is at most .*got 11')):
    partition.shards(LABELS, 100, 11, 0)


def test_clients_may_have_the_minimum_number_of_examples():
  """The released code accepts a split whose smallest client has 10 examples."""
  minimum = partition.MIN_EXAMPLES
  assert minimum == 10
  smallest = lambda clients: min(map(len, clients))
  assert smallest(partition.iid(7, 7, 0)) == 1
  assert smallest(partition.quantity(minimum, 1, .5, 0)) == minimum
  skewed = [len(i) for i in partition.quantity(10_000, 10, .5, 0)]
  assert max(skewed) > 4 * min(skewed)
  assert smallest(
      partition.dirichlet(np.zeros(minimum, int), 1, .5, 0)) == minimum
  drawn = {smallest(partition.dirichlet(LABELS, 40, .5, seed))
           for seed in range(20)}
  assert min(drawn) == minimum


def test_natural_uses_the_clients_of_the_data_set():
  clients = np.array([3, 1, 3, 0, 1, 3, 2])
  actual = partition.natural(clients, 4, 0)
  assert [list(i) for i in actual] == [[3], [1, 4], [6], [0, 2, 5]]
  some = [tuple(i) for i in partition.natural(clients, 2, 0)]
  assert set(some) < {(3,), (1, 4), (6,), (0, 2, 5)}
  draws = {tuple(map(tuple, partition.natural(clients, 2, seed)))
           for seed in range(20)}
  assert len(draws) > 3
  with pytest.raises(UserError, match=(
      'num_clients must be at most the 4 clients')):
    partition.natural(clients, 5, 0)
  with pytest.raises(UserError, match='=natural needs .*got one without'):
    partition.natural(None, 2, 0)


def test_noise_increases_with_the_client_index():
  clients = [np.array([0, 3]), np.array([1]), np.array([5])]
  std = partition.noise_std(clients, .4, 6)
  np.testing.assert_allclose(std, [0, .2, 0, 0, 0, .4], rtol=1e-6)
  assert not partition.noise_std([np.arange(4)], .4, 4).any()


@pytest.mark.parametrize('clients, beta, words', [
    (101, .5, 'num_clients must be at most 100, so that .*got 101. Lower it'),
    (1.5, .5, 'num_clients must be an integer; got 1.5'),
    (10, -1, 'beta must be above 0; got -1'),
    (100, .1,
     'beta must give a split in 1000 .*got 0.1'),  # each would need exactly 10
    (10, 1e-6, 'beta must give a split .*got 1e-06'),  # proportions underflow
])
def test_impossible_splits_raise(clients, beta, words):
  """The released code never returns."""
  with pytest.raises(UserError, match=words):
    partition.dirichlet(LABELS, clients, beta, 0)
  with pytest.raises(UserError, match='beta must give a split .*got 1e-06'):
    partition.quantity(1000, 10, 1e-6, 0)


def test_sorting_by_class_is_stable():
  labels = np.array([2, 0, 1, 0, 2, 1])
  clients = [np.array([4, 3, 0, 1]), np.array([5, 2]), np.array([], int)]
  actual = partition.sorted_by_class(clients, labels)
  assert [indices.tolist() for indices in actual] == [[3, 1, 4, 0], [5, 2], []]


@pytest.mark.parametrize('kind', ['u1', 'i2', 'u8'])
def test_labels_of_any_integer_type_give_the_same_split(kind):
  """The largest class, and the numbers of all clients, fit in one byte."""
  classes = np.repeat(np.arange(256), 20)
  small, forty = classes.astype(kind), np.array(40, kind)[()]
  for make in (lambda y, n: partition.dirichlet(y, n, beta=.5, seed=0),
               lambda y, n: partition.shards(y, n, 100, seed=0),
               lambda y, n: partition.natural(y, n, seed=0),
               lambda y, n: partition.iid(len(y), n, seed=0),
               lambda y, n: partition.quantity(len(y), n, beta=9., seed=0)):
    for found, expected in zip(make(small, forty), make(classes, 40),
                               strict=True):
      np.testing.assert_array_equal(found, expected)


def test_images_of_groups_are_turned(digits):
  """Held-out examples too, and nothing else."""
  config = Config(
      dataset='digits', model='mlp', algorithm='fedavg', num_clients=6,
      partition='rotated', client_test_fraction=.2, client_eval_every=1,
      validation_fraction=.1)
  made = build.federation(config, digits)
  assert made.groups.tolist() == [0, 1, 2, 3, 0, 1]
  seen = np.zeros(len(digits.train_labels), int)
  for client in range(6):
    for at in [*made.clients[client], *made.client_tests.indices[client]]:
      image = digits.train_inputs[at]
      for _ in range(client % 4):  # counterclockwise
        image = image.swapaxes(0, 1)[::-1]
      np.testing.assert_array_equal(made.data.train_inputs[at], image)
      seen[at] += 1
  assert seen.max() == 1
  assert (seen == 0).sum() == len(made.validation)
  for name in 'train_inputs', 'test_inputs':
    one, other = getattr(made.data, name), getattr(digits, name)
    kept = seen == 0 if name == 'train_inputs' else slice(None)
    np.testing.assert_array_equal(one[kept], other[kept])
  both = dataclasses.replace(
      config, labels='shift(groups=3)', partition='rotated(groups=2)')
  assert build.federation(both, digits).groups.tolist() == [*range(6)]
  for changes, words in (
      ({'partition': 'rotated(groups=3)'}, 'groups must be 2 or 4'),
      ({'dataset': 'breast_cancer'}, 'needs square images .* got inputs')):
    with pytest.raises(UserError, match=words):
      build.federation(dataclasses.replace(config, **changes))
