"""SVHN from synthetic MATLAB files."""

import io

import numpy as np
import pytest
import scipy.io

from moon_jax.data.io import published
from moon_jax.data.sources import svhn
from moon_jax.errors import UserError

RANDOM = np.random.RandomState(0)
TRAIN = RANDOM.randint(0, 256, (12, 32, 32, 3)).astype(np.uint8)
TEST = RANDOM.randint(0, 256, (5, 32, 32, 3)).astype(np.uint8)
DIGITS = [1, 9, 2, 3, 0, 2, 5, 0, 8, 7, 1, 6], [5, 0, 1, 4, 9]
SMALL = svhn.SVHN._replace(num_images=(12, 5), layouts=tuple(
    layout._replace(md5=dict.fromkeys(layout.md5, ''))
    for layout in svhn.SVHN.layouts))


def saved(*, do_compression=False, **arrays):
  file = io.BytesIO()
  scipy.io.savemat(file, arrays, do_compression=do_compression)
  return file.getvalue()


def mat(images, digits, **kwargs):
  """Returns a MATLAB file in the published format."""
  return saved(X=np.stack(list(images), axis=-1), y=np.array(
      [[digit or 10] for digit in digits], np.uint8), **kwargs)


def write(directory, train):
  directory.mkdir(exist_ok=True)
  (directory / 'train_32x32.mat').write_bytes(train)
  (directory / 'test_32x32.mat').write_bytes(mat(TEST, DIGITS[1]))


@pytest.mark.parametrize('directory', ['.', 'svhn'])
def test_mat_files(directory, tmp_path):
  write(tmp_path / directory, mat(TRAIN, DIGITS[0], do_compression=True))
  dataset = published.load(SMALL, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs, TRAIN)
  np.testing.assert_array_equal(dataset.test_inputs, TEST)
  assert dataset.train_labels.tolist() == DIGITS[0]
  assert dataset.test_labels.tolist() == DIGITS[1]
  assert dataset.train_inputs.flags.c_contiguous
  assert dataset.train_labels.dtype == np.int32


X = np.zeros((32, 32, 3, 12), np.uint8)
Y = np.ones((12, 1), np.uint8)


@pytest.mark.parametrize('blob, words', [
    (b'', 'not a MATLAB file'),
    (b'\x80\x04cos\nsystem\n.' * 50, 'not a MATLAB file'),
    (mat(TRAIN, DIGITS[0])[:1000], 'not a MATLAB file'),
    (saved(y=Y), 'X must be'),
    (saved(X=X), 'y must be'),
    (saved(X=X.astype(float), y=Y), 'X must be .* got float64'),
    (saved(X=X[0], y=Y), r'X must be .* got uint8 \[32, 3, 12\]'),
    (saved(X={'a': X}, y=Y), 'X must be'),
    (saved(X=np.array([X, 'a'], object), y=Y), 'X must be .* got object'),
    (saved(X=X, y='twelve'), 'y must be .* got <U6'),
    (saved(X=X, y=Y * 0), 'y must hold 1 to 10 only'),
    (saved(X=X, y=Y * np.nan), 'y must hold 1 to 10 only'),
    (saved(X=X[:16], y=Y), r'got uint8 \[12, 16, 32, 3\]'),
    (saved(X=X, y=Y[1:]), r'\[12\], got int32 \[11\]'),
])
def test_damaged_files_raise(blob, words, tmp_path):
  write(tmp_path, blob)
  with pytest.raises(
      UserError, match=f'--data_dir: .*train_32x32.mat is damaged: .*{words}'):
    published.load(SMALL, str(tmp_path))
