"""What a data set is to the rest of the package."""

import hashlib
from typing import NamedTuple

import numpy as np

_TEST_SUBSET_SEED = 0  # a constant: all runs are compared on the same examples


class Dataset(NamedTuple):
  """Inputs as they are stored; normalisation and augmentation come later.

  N training examples, M test examples, K classes. Inputs are images, uint8
  [N, H, W, C]; features, float32 [N, ..., F]; or tokens, int8,
  int16 or int32 [N, T].
  """

  name: str
  train_inputs: np.ndarray  # [N, ...]
  train_labels: np.ndarray  # int32 [N]
  test_inputs: np.ndarray  # [M, ...], of the same type and shape
  test_labels: np.ndarray  # int32 [M]
  class_names: tuple[str, ...]  # [K]
  mean: tuple[float, ...] = (0.,)  # [C] of images scaled to 0..1, [F] or [1]
  std: tuple[float, ...] = (1.,)  # likewise
  augmentation: str = 'none'  # a name of moon_jax.data.augment.AUGMENTATIONS
  num_tokens: int = 0  # of the vocabulary, where inputs are tokens
  train_clients: np.ndarray | None = None  # int32 [N], whose each example is

  @property
  def num_classes(self) -> int:
    return len(self.class_names)

  @property
  def is_images(self) -> bool:
    return self.train_inputs.dtype == np.uint8

  @property
  def nbytes(self) -> int:
    """Of all examples."""
    return self.train_inputs.nbytes + self.test_inputs.nbytes + (
        self.train_labels.nbytes + self.test_labels.nbytes)

  def with_test_examples(self, count: int) -> 'Dataset':
    """Returns the data set with `count` of its test examples; 0 keeps all.

    They are drawn uniformly without replacement, from a constant seed by
    numpy's legacy generator, whose numbers no version of numpy changes. A
    smaller subset is part of a larger one, and examples keep their order.

    Args:
      count: at most the number of test examples.
    """
    if not count:
      return self
    random = np.random.RandomState(_TEST_SUBSET_SEED)
    kept = np.sort(random.permutation(len(self.test_labels))[:count])
    return self._replace(test_inputs=self.test_inputs[kept],
                         test_labels=self.test_labels[kept])

  def fingerprint(self) -> str:
    """Eight hexadecimal digits that differ where the data do."""
    digest = hashlib.sha256(repr([
        x if not isinstance(x, np.ndarray) else (x.dtype.str, x.shape)
        for x in self[1:]]).encode())  # all but the name
    for x in self:
      if isinstance(x, np.ndarray):
        digest.update(np.ascontiguousarray(x))
    return digest.hexdigest()[:8]
