"""Data sets that scikit-learn brings: real data without a download.

Their files are read without importing scikit-learn, which takes a second.

digits: 1,797 images, the test part of the UCI "Optical Recognition of
Handwritten Digits" data set (Alpaydin and Kaynak, 1998),
https://doi.org/10.24432/C50P49.

breast_cancer: malignant or benign, a table of 569 examples of 30 features, the
UCI "Breast Cancer Wisconsin (Diagnostic)" data set (Wolberg, Mangasarian,
Street and Street, 1993), https://doi.org/10.24432/C5DW2B. 63% are benign.
"""

import importlib.metadata
import pathlib

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError

_DIRECTORY = 'sklearn/datasets/data'
_SCALE = 4  # from 8x8 to 32x32 pixels, the input size of the paper's networks


def load_digits(data_dir: str = '') -> Dataset:
  """Returns 1,438 training examples and every fifth, 359, as test examples."""
  del data_dir
  ink, labels = _table('digits.csv.gz')
  images = np.round(ink * (255 / 16)).astype(np.uint8)  # from 0..16
  images = images.reshape(-1, 8, 8)
  images = images.repeat(_SCALE, 1).repeat(_SCALE, 2)[..., None]
  return Dataset(
      'digits', *_split(images, labels),
      class_names=tuple(str(k) for k in range(10)), mean=(0.306,), std=(0.376,))


def load_breast_cancer(data_dir: str = '') -> Dataset:
  """Returns 456 training examples and every fifth, 113, as test examples."""
  del data_dir
  features, labels = _table('breast_cancer.csv', skiprows=1)
  split = _split(features.astype(np.float32), labels)
  return Dataset(
      'breast_cancer', *split, class_names=('malignant', 'benign'),
      mean=tuple(map(float, split[0].mean(0))),
      std=tuple(map(float, split[0].std(0))))


def _table(name, skiprows=0):
  """Returns the features and the labels of a file of scikit-learn, float64."""
  try:
    path = pathlib.Path(importlib.metadata.distribution(
        'scikit-learn').locate_file(f'{_DIRECTORY}/{name}'))
    rows = np.loadtxt(path, delimiter=',', skiprows=skiprows)
  except (importlib.metadata.PackageNotFoundError, OSError) as error:
    raise UserError('dataset', f'needs the file {name} of scikit-learn', error,
                    'Run: pip install scikit-learn') from error
  return rows[:, :-1], rows[:, -1]


def _split(inputs, labels):
  """Returns training inputs and labels, and those of every fifth example."""
  labels = labels.astype(np.int32)
  is_test = np.arange(len(labels)) % 5 == 4
  return inputs[~is_test], labels[~is_test], inputs[is_test], labels[is_test]
