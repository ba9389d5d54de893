"""Handwritten digits bundled with scikit-learn: real data without a download.

1,797 images, the test part of the UCI "Optical Recognition of Handwritten
Digits" data set (Alpaydin and Kaynak, 1998), https://doi.org/10.24432/C50P49.
"""

import numpy as np

from moon_jax.data.dataset import Dataset

_SCALE = 4  # from 8x8 to 32x32 pixels, the input size of the paper's networks


def load(data_dir: str = '') -> Dataset:
  """Returns 1,438 training examples and every fifth, 359, as test examples."""
  del data_dir  # the images are bundled with scikit-learn
  from sklearn import datasets  # slow to import

  bunch = datasets.load_digits()
  ink = np.round(bunch.images * (255 / 16)).astype(np.uint8)  # from 0..16
  images = ink.repeat(_SCALE, 1).repeat(_SCALE, 2)[..., None]
  labels = bunch.target.astype(np.int32)
  is_test = np.arange(len(labels)) % 5 == 4
  return Dataset(
      name='digits',
      train_inputs=images[~is_test],
      train_labels=labels[~is_test],
      test_inputs=images[is_test],
      test_labels=labels[is_test],
      class_names=tuple(str(k) for k in range(10)),
      mean=(0.306,),
      std=(0.376,),
      augmentation='none',
  )
