"""MNIST and Fashion-MNIST from synthetic IDX files."""

import gzip
import struct

import numpy as np
import published_files
import pytest

from moon_jax.data.io import published
from moon_jax.data.sources import mnist
from moon_jax.errors import UserError

BLOBS = published_files.files()
NAMES = list(BLOBS)


def small(data_set):
  """Returns the data set with the sizes of the synthetic files."""
  return data_set._replace(num_images=published_files.COUNTS, layouts=tuple(
      layout._replace(md5=dict.fromkeys(NAMES, ''))
      for layout in data_set.layouts))


@pytest.mark.parametrize('data_set, directories', [
    (mnist.MNIST, ('.', 'mnist', 'MNIST/raw')),
    (mnist.FASHION_MNIST, ('.', 'fashion_mnist', 'FashionMNIST/raw')),
])
def test_idx_files(data_set, directories, tmp_path):
  images = np.frombuffer(BLOBS[NAMES[0]], np.uint8)[16:].reshape(20, 28, 28, 1)
  for i, directory in enumerate(directories):
    published_files.write(
        tmp_path / str(i) / directory,
        BLOBS if i else {f'{name}.gz': gzip.compress(blob)
                         for name, blob in BLOBS.items()})
    dataset = published.load(small(data_set), str(tmp_path / str(i)))
    np.testing.assert_array_equal(dataset.train_inputs, images)
    assert dataset.train_inputs.dtype == np.uint8
    assert dataset.train_labels.tolist() == 2 * list(range(10))
    assert dataset.test_labels.tolist() == list(range(10))
    assert dataset.train_labels.dtype == np.int32


def test_each_data_set_lists_the_files_of_the_other():
  for data_set, other in ((mnist.MNIST, mnist.FASHION_MNIST),
                          (mnist.FASHION_MNIST, mnist.MNIST)):
    assert data_set.other_datasets == dict.fromkeys(
        other.layouts[0].md5.values(), other.name)
    assert not {*data_set.layouts[0].md5.values()} & {*data_set.other_datasets}
    for layout in data_set.layouts:  # 16 + 60,000 * 784 bytes and so on
      assert layout.num_bytes == (47_040_016, 60_008, 7_840_016, 10_008)


@pytest.mark.parametrize('name, blob, words', [
    (NAMES[0], BLOBS[NAMES[0]][:-1], '15,696 bytes .*20, 28, 28.* got 15,695'),
    (NAMES[0], BLOBS[NAMES[0]] + b'!', 'got 15,697 bytes'),
    (NAMES[0], b'', 'begin with 00000803, got nothing'),
    (NAMES[0], BLOBS[NAMES[1]], 'begin with 00000803, got 00000801'),
    (NAMES[1], BLOBS[NAMES[0]], 'begin with 00000801, got 00000803'),
    (NAMES[1], b'\0\0\x0d\1' + BLOBS[NAMES[1]][4:], 'got 00000d01'),
    (NAMES[1], BLOBS[NAMES[1]][:5], 'must begin with'),
    (NAMES[1], BLOBS[NAMES[1]][:-1] + b'\x0a', 'labels must .* got 10'),
    (NAMES[2], struct.pack('>iIII', 2051, 2**32 - 1, 2**32 - 1, 2**32 - 1),
     'got 16 bytes'),
])
def test_damaged_files_raise(name, blob, words, tmp_path):
  published_files.write(tmp_path, BLOBS | {name: blob})
  with pytest.raises(UserError, match=f'--data_dir.*{name}.*{words}'):
    published.load(small(mnist.MNIST), str(tmp_path))
