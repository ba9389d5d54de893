"""What a data set is to the rest of the package."""

from typing import NamedTuple

import numpy as np


class Dataset(NamedTuple):
  """Images as they are stored; normalisation and augmentation come later.

  N training examples, M test examples, K classes; images are NHWC.
  """

  name: str
  train_images: np.ndarray  # uint8 [N, H, W, C]
  train_labels: np.ndarray  # int32 [N]
  test_images: np.ndarray  # uint8 [M, H, W, C]
  test_labels: np.ndarray  # int32 [M]
  class_names: tuple[str, ...]  # [K]
  mean: tuple[float, ...]  # [C], of images scaled to 0..1
  std: tuple[float, ...]  # [C]
  augmentation: str  # a name of moon_jax.data.augment.AUGMENTATIONS

  @property
  def num_classes(self) -> int:
    return len(self.class_names)
