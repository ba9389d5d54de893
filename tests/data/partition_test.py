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


def test_paper_partition(golden_partitions):
  """Supplement, Table 1: CIFAR-10, 10 clients, beta 0.5."""
  labels = golden_partitions[0][0]
  sizes = [len(i) for i in partition.dirichlet(labels, 10, .5, 0)]
  assert np.mean(sizes) == 5000
  assert round(np.std(sizes)) == 1165


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
