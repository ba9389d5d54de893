"""The table of invalid inputs, and the data that its rows change."""

import tomllib

import numpy as np

import moon_jax as mj
from support import ROOT

TABLE = tomllib.loads(
    (ROOT / 'tests/invalid_input.toml').read_text(encoding='utf-8'))
X = np.random.RandomState(0).randn(60, 4).astype(np.float32)
Y = (np.arange(60) % 3).astype(np.int32)


def toy(**changes):
  """Returns a data set in Python, with changes."""
  return mj.Dataset(**{
      'name': 'toy', 'train_inputs': X, 'train_labels': Y,
      'test_inputs': X[:9], 'test_labels': Y[:9],
      'class_names': ('a', 'b', 'c'), **changes})


def npz_arrays(changes):
  """Returns arrays of images, these with the changes of a row, and names.

  The names are those that the text of a row may use.
  """
  random = np.random.RandomState(0)
  images, features = (
      {'x_train': random.randint(0, 256, (60, *shape)).astype(dtype),
       'y_train': np.arange(60) % 3,
       'x_test': random.randint(0, 256, (9, *shape)).astype(dtype),
       'y_test': np.arange(9) % 3}
      for shape, dtype in (((8, 8, 3), np.uint8), ((4,), np.float32)))
  names = {'np': np, 'features': features, **images}
  return images, images | eval(f'dict({changes})', names), names
