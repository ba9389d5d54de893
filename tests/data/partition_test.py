"""Partitions: the published ones index for index, and what any must be."""

import time

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import numpy as np
import pytest

from moon_jax.data import partition
from moon_jax.errors import UserError

LABELS = np.repeat(np.arange(10), 100)


def test_equals_published_partitions(golden_partitions):
  for labels, case, sizes, indices in golden_partitions:
    if case['partition'] == 'iid':
      found = partition.iid(len(labels), case['clients'], case['seed'])
    else:
      found = partition.dirichlet(
          labels, case['clients'], case['beta'], case['seed'])
    np.testing.assert_array_equal([len(i) for i in found], sizes)
    np.testing.assert_array_equal(np.concatenate(found), indices)


@pytest.mark.parametrize('dataset, deviation', [
    ('cifar10', 1165), ('cifar100', 181)])
def test_paper_partition(golden_dir, dataset, deviation):
  """Supplement, Table 1: 10 clients, beta 0.5."""
  labels = np.load(golden_dir / 'partitions.npz')[f'{dataset}/labels']
  sizes = [len(i) for i in partition.dirichlet(labels, 10, .5, 0)]
  assert np.mean(sizes) == 5000
  assert round(np.std(sizes)) == deviation


def test_paper_partition_of_tiny_imagenet():
  """Likewise; its loader gives 500 examples of each class, in order."""
  labels = np.repeat(np.arange(200), 500)
  sizes = [len(i) for i in partition.dirichlet(labels, 10, .5, 0)]
  assert np.mean(sizes) == 10_000
  assert round(np.std(sizes)) == 99


def as_released(labels, num_clients, beta, seed):
  """partition_data of the released code, on which published figures rest."""
  random, least = np.random.RandomState(seed), 0
  while least < 10:
    clients = [[] for _ in range(num_clients)]
    for k in range(labels.max() + 1):
      indices = np.where(labels == k)[0]
      random.shuffle(indices)
      p = random.dirichlet(np.repeat(beta, num_clients))
      p = np.array([share * (len(held) < len(labels) / num_clients)
                    for share, held in zip(p, clients)])
      p = p / p.sum()
      cuts = (np.cumsum(p) * len(indices)).astype(int)[:-1]
      clients = [held + piece.tolist() for held, piece in zip(
          clients, np.split(indices, cuts))]
      least = min(map(len, clients))
  for held in clients:
    random.shuffle(held)
  return clients


@pytest.mark.parametrize('counts, num_clients, beta', [
    ((30, 20, 10), 2, .3),  # small enough that a client has just its share
    ((20, 20), 2, .1), ((15, 15, 15), 3, .5), ((40, 7, 30), 4, 1.)])
def test_dirichlet_is_the_released_code(counts, num_clients, beta):
  labels = np.repeat(np.arange(len(counts)), counts)
  for seed in range(40):
    found = partition.dirichlet(labels, num_clients, beta, seed)
    assert [list(i) for i in found] == as_released(
        labels, num_clients, beta, seed)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 50), st.floats(.1, 100), st.integers(0, 2**32 - 1))
def test_dirichlet_gives_every_example_to_one_client(clients, beta, seed):
  try:
    found = partition.dirichlet(LABELS, clients, beta, seed)
  except UserError:
    return  # some draws are impossible; see below
  assert len(found) == clients
  assert min(map(len, found)) >= partition.MIN_EXAMPLES
  np.testing.assert_array_equal(
      np.sort(np.concatenate(found)), np.arange(len(LABELS)))


@given(st.integers(1, 500), st.integers(1, 500), st.integers(0, 9))
def test_iid_gives_every_example_to_one_client(examples, clients, seed):
  if clients > examples:
    with pytest.raises(UserError, match='--num_clients'):
      partition.iid(examples, clients, seed)
    return
  found = partition.iid(examples, clients, seed)
  sizes = [len(i) for i in found]
  assert len(found) == clients and max(sizes) - min(sizes) <= 1
  np.testing.assert_array_equal(
      np.sort(np.concatenate(found)), np.arange(examples))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_shards_give_each_client_few_classes(clients, each, seed):
  found = partition.shards(LABELS, clients, each, seed)
  np.testing.assert_array_equal(
      np.sort(np.concatenate(found)), np.arange(len(LABELS)))
  # A shard of n sorted examples has at most n // 100 + 2 of the classes.
  most = -(-len(LABELS) // (clients * each)) // 100 + 2
  for indices in found:
    assert len(set(LABELS[indices])) <= each * most
  sizes = [len(i) for i in found]
  assert max(sizes) - min(sizes) <= each


def test_two_shards_of_mcmahan():
  """100 clients of 2 shards of 5 examples: exactly two classes, or one."""
  found = partition.shards(LABELS[::-1].copy(), 100, 2, 0)
  assert {len(i) for i in found} == {10}
  classes = [len(set(LABELS[::-1][i])) for i in found]
  assert set(classes) == {1, 2} and np.mean(classes) > 1.8
  other = partition.shards(LABELS[::-1].copy(), 100, 2, 1)
  assert any((a != b).any() for a, b in zip(found, other))
  with pytest.raises(UserError, match='--shards_per_client=11 are more shards'):
    partition.shards(LABELS, 100, 11, 0)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.floats(.1, 100), st.integers(0, 2**32 - 1))
def test_quantity_gives_every_example_to_one_client(clients, beta, seed):
  try:
    found = partition.quantity(1000, clients, beta, seed)
  except UserError:
    return
  assert len(found) == clients
  assert min(map(len, found)) >= partition.MIN_EXAMPLES
  np.testing.assert_array_equal(
      np.sort(np.concatenate(found)), np.arange(1000))


def test_quantity_is_uneven_in_size_and_even_in_class():
  labels = np.repeat(np.arange(10), 1000)
  found = partition.quantity(len(labels), 10, .5, 0)
  sizes = np.array([len(i) for i in found])
  assert sizes.max() > 4 * sizes.min()
  shares = partition.class_counts(labels, found, 10) / sizes[:, None]
  large = sizes > 500
  assert np.abs(shares[large] - .1).max() < .05
  with pytest.raises(UserError, match='--beta=1e-06 gave no split'):
    partition.quantity(1000, 10, 1e-6, 0)


def test_as_few_examples_as_the_bound_suffice():
  """The published code accepts a split whose smallest client has just 10."""
  least = partition.MIN_EXAMPLES
  assert least == 10
  smallest = lambda clients: min(map(len, clients))
  assert smallest(partition.iid(7, 7, 0)) == 1
  assert smallest(partition.quantity(least, 1, .5, 0)) == least
  assert smallest(partition.dirichlet(np.zeros(least, int), 1, .5, 0)) == least
  drawn = {smallest(partition.dirichlet(LABELS, 40, .5, seed))
           for seed in range(20)}
  assert min(drawn) == least


def test_natural_gives_each_client_its_own():
  whose = np.array([3, 1, 3, 0, 1, 3, 2])
  found = partition.natural(whose, 4, 0)
  assert [list(i) for i in found] == [[3], [1, 4], [6], [0, 2, 5]]
  some = [tuple(i) for i in partition.natural(whose, 2, 0)]
  assert set(some) < {(3,), (1, 4), (6,), (0, 2, 5)}
  draws = {tuple(map(tuple, partition.natural(whose, 2, seed)))
           for seed in range(20)}
  assert len(draws) > 3
  with pytest.raises(UserError, match='num_clients=5 is too many.*has 4 '):
    partition.natural(whose, 5, 0)
  with pytest.raises(UserError, match='partition=natural needs a data set'):
    partition.natural(None, 2, 0)


def test_noise_grows_with_the_client():
  clients = [np.array([0, 3]), np.array([1]), np.array([5])]
  std = partition.noise_std(clients, .4, 6)
  np.testing.assert_allclose(std, [0, .2, 0, 0, 0, .4], rtol=1e-6)
  assert not partition.noise_std([np.arange(4)], .4, 4).any()


@pytest.mark.parametrize('clients, beta, words', [
    (101, .5, '--num_clients=101 is too many.*to 100 or less'),
    (100, .1, '--beta=0.1 gave no split'),  # each would need exactly 10
    (10, 1e-6, '--beta=1e-06 gave no split'),  # p underflows
])
def test_impossible_requests_end_soon(clients, beta, words):
  start = time.monotonic()
  with pytest.raises(UserError, match=words):
    partition.dirichlet(LABELS, clients, beta, 0)
  assert time.monotonic() - start < 30  # it hangs in the published code


def test_class_counts():
  counts = partition.class_counts(
      np.array([0, 1, 1, 2]), [np.array([0, 1]), np.array([2, 3])], 4)
  np.testing.assert_array_equal(counts, [[1, 1, 0, 0], [0, 1, 1, 0]])


def test_examples_are_sorted_by_class_and_keep_their_order_within_it():
  labels = np.array([2, 0, 1, 0, 2, 1])
  clients = [np.array([4, 3, 0, 1]), np.array([5, 2]), np.array([], int)]
  found = partition.sorted_by_class(clients, labels)
  assert [indices.tolist() for indices in found] == [[3, 1, 4, 0], [5, 2], []]
