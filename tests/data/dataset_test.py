"""The test examples that --eval_examples selects."""

import numpy as np
import pytest

from moon_jax.data.dataset import Dataset


@pytest.fixture
def dataset():
  return Dataset(
      'numbers', np.zeros((5, 1), np.float32), np.zeros(5, np.int32),
      np.arange(20, dtype=np.float32)[:, None], np.arange(20, dtype=np.int32),
      tuple(map(str, range(20))))


def test_a_subset_never_changes(dataset):
  """Different versions must evaluate on the same examples."""
  few = dataset.with_test_examples(6)
  assert few.test_labels.tolist() == [1, 8, 10, 17, 18, 19]
  assert few.test_inputs[:, 0].tolist() == [1, 8, 10, 17, 18, 19]
  assert few.train_inputs is dataset.train_inputs


def test_subsets_are_nested(dataset):
  subsets = [dataset.with_test_examples(n).test_labels for n in range(1, 21)]
  for n, (smaller, larger) in enumerate(zip(subsets, subsets[1:]), 1):
    assert len(set(smaller)) == n and set(smaller) < set(larger)
  assert subsets[-1].tolist() == list(range(20))
  assert dataset.with_test_examples(0) is dataset
