"""The test examples that --eval_examples selects."""

import numpy as np

from moon_jax.data.dataset import Dataset


def test_subsets_are_nested_and_never_change():
  """Different versions must evaluate on the same examples."""
  dataset = Dataset(
      'numbers', np.zeros((5, 1), np.float32), np.zeros(5, np.int32),
      np.arange(20, dtype=np.float32)[:, None], np.arange(20, dtype=np.int32),
      tuple(map(str, range(20))))
  few = dataset.with_test_examples(6)
  assert few.test_labels.tolist() == [1, 8, 10, 17, 18, 19]
  assert few.test_inputs[:, 0].tolist() == [1, 8, 10, 17, 18, 19]
  assert few.train_inputs is dataset.train_inputs
  subsets = [dataset.with_test_examples(n).test_labels for n in range(1, 21)]
  for n, (smaller, larger) in enumerate(zip(subsets, subsets[1:]), 1):
    assert len(set(smaller)) == n and set(smaller) < set(larger)
  assert subsets[-1].tolist() == list(range(20))
  assert dataset.with_test_examples(0) is dataset
