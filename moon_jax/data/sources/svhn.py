"""SVHN, cropped digits (Netzer et al., 2011), as published for MATLAB.

http://ufldl.stanford.edu/housenumbers/. `train_32x32.mat` and `test_32x32.mat`
hold X, uint8 [32, 32, 3, n], and y [n, 1], in which 10 stands for the digit 0.
"""

import io
import warnings

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.io import published
from moon_jax.data.io.published import Form
from moon_jax.data.io.published import Published


def decode(blob: bytes) -> tuple[np.ndarray, np.ndarray]:
  """uint8 [n, 32, 32, 3] and int32 [n] of a MATLAB file.

  Raises:
    ValueError: where it is damaged or does not hold plain arrays.
  """
  from scipy import io as scipy_io  # needed here only

  try:
    with warnings.catch_warnings(action='ignore'):  # about what it cannot read
      found = scipy_io.loadmat(io.BytesIO(blob), variable_names=('X', 'y'))
  except Exception as error:  # a damaged file can raise almost anything
    raise ValueError(f'not a MATLAB file of plain arrays: {error}') from error
  images, labels = found.get('X'), found.get('y')
  for key, array, num_axes, is_right in (
      ('X', images, 4, lambda dtype: dtype == np.uint8),
      ('y', labels, 2, lambda dtype: dtype.kind in 'iuf')):
    if not (isinstance(array, np.ndarray) and array.ndim == num_axes
            and is_right(array.dtype)):
      raise ValueError(f'{key} must be numbers of {num_axes} axes, uint8 of X; '
                       f'got {getattr(array, "dtype", type(array).__name__)} '
                       f'{list(np.shape(array))}')
  digits = labels.ravel()
  if not np.isin(digits, np.arange(1, 11)).all():
    raise ValueError('y runs over more than the digits 1 to 10')
  return images.transpose(3, 0, 1, 2), (digits % 10).astype(np.int32)


SVHN = Published(
    name='svhn',
    title='SVHN',
    url='http://ufldl.stanford.edu/housenumbers/',
    url_md5='',
    forms=tuple(
        Form(directory, '', {
            'train_32x32.mat': 'e26dedcc434d2e4c54c9b2d4a06d8373',
            'test_32x32.mat': 'eb5a983be6a315427106f1b164d9cef3',
        }, decode, num_bytes=(182_040_794, 64_275_384))
        for directory in ('.', 'svhn')),
    num_images=(73_257, 26_032),
    shape=(32, 32, 3),
    class_names=tuple('0123456789'),
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    augmentation='none',
    prepared_name='svhn_cropped')


def load(data_dir: str) -> Dataset:
  """Reads SVHN from local files; see `published.load`."""
  return published.load(SVHN, data_dir)
