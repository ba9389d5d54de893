"""SVHN, cropped digits (Netzer et al., 2011), in MATLAB files.

http://ufldl.stanford.edu/housenumbers/. `train_32x32.mat` and `test_32x32.mat`
hold X, uint8 [32, 32, 3, n], and y [n, 1], where 10 is the digit 0.
"""

import io
import warnings

import numpy as np

from moon_jax.data.io.published import Layout, PublishedDataset


def decode(blob: bytes) -> tuple[np.ndarray, np.ndarray]:
  """Decodes a MATLAB file to images, uint8 [n, 32, 32, 3], and labels [n].

  Labels are int32, 0 to 9.
  """
  from scipy import io as scipy_io  # slow to import

  try:
    with warnings.catch_warnings(action='ignore'):  # about unreadable variables
      variables = scipy_io.loadmat(io.BytesIO(blob), variable_names=('X', 'y'))
  except Exception as error:  # a damaged file can raise almost anything
    raise ValueError(f'not a MATLAB file of plain arrays: {error}') from error
  images, labels = variables.get('X'), variables.get('y')
  for key, array, num_axes, is_valid_fn in (
      ('X', images, 4, lambda dtype: dtype == np.uint8),
      ('y', labels, 2, lambda dtype: dtype.kind in 'iuf')):
    if not (isinstance(array, np.ndarray) and array.ndim == num_axes
            and is_valid_fn(array.dtype)):
      dtype = getattr(array, 'dtype', type(array).__name__)
      raise ValueError(f'{key} must be {"uint8" if key == "X" else "numbers"} '
                       f'with {num_axes} axes; got {dtype} '
                       f'{list(np.shape(array))}')
  digits = labels.ravel()
  if not np.isin(digits, np.arange(1, 11)).all():
    raise ValueError('y must hold 1 to 10 only')
  return images.transpose(3, 0, 1, 2), (digits % 10).astype(np.int32)


SVHN = PublishedDataset(
    name='svhn',
    title='SVHN',
    url='http://ufldl.stanford.edu/housenumbers/',
    url_md5='',
    layouts=tuple(
        Layout(directory, '', {
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
