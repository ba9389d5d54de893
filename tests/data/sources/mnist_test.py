"""MNIST and Fashion-MNIST from synthetic IDX files."""

import gzip
import hashlib
import struct

import numpy as np
import pytest

from moon_jax.data.io import published
from moon_jax.data.sources import mnist
from moon_jax.errors import UserError

NAMES = ('train-images-idx3-ubyte', 'train-labels-idx1-ubyte',
         't10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte')
RANDOM = np.random.RandomState(0)
TRAIN = RANDOM.randint(0, 256, (6, 28, 28)), [3, 1, 4, 1, 5, 9]
TEST = RANDOM.randint(0, 256, (4, 28, 28)), [2, 7, 1, 8]


def idx_images(images):
  """Returns an IDX file of images: magic number 2051, n, rows, columns."""
  blob = struct.pack('>iiii', 2051, *np.shape(images))
  for image in images:
    for row in image:
      blob += bytes(int(pixel) for pixel in row)
  return blob


def idx_labels(labels):
  return struct.pack('>ii', 2049, len(labels)) + bytes(labels)


BLOBS = dict(zip(NAMES, (idx_images(TRAIN[0]), idx_labels(TRAIN[1]),
                         idx_images(TEST[0]), idx_labels(TEST[1]))))
FASHION = dict(zip(NAMES, (idx_images(255 - TRAIN[0]), idx_labels([0] * 6),
                           idx_images(255 - TEST[0]), idx_labels([0] * 4))))


def small(data_set):
  """Returns the data set with the sizes of the synthetic files."""
  return data_set._replace(num_images=(6, 4), layouts=tuple(
      layout._replace(md5=dict.fromkeys(NAMES, ''))
      for layout in data_set.layouts))


def write(directory, is_compressed=False, **changes):
  directory.mkdir(parents=True, exist_ok=True)
  for name, blob in {**BLOBS, **changes}.items():
    if is_compressed:
      (directory / f'{name}.gz').write_bytes(gzip.compress(blob))
    else:
      (directory / name).write_bytes(blob)


@pytest.mark.parametrize('data_set, directories', [
    (mnist.MNIST, ('.', 'mnist', 'MNIST/raw')),
    (mnist.FASHION_MNIST, ('.', 'fashion_mnist', 'FashionMNIST/raw')),
])
@pytest.mark.parametrize('is_compressed', [False, True])
def test_idx_files(data_set, directories, is_compressed, tmp_path):
  for i, directory in enumerate(directories):
    root = tmp_path / str(i)
    write(root / directory, is_compressed)
    dataset = published.load(small(data_set), str(root))
    np.testing.assert_array_equal(dataset.train_inputs[..., 0], TRAIN[0])
    np.testing.assert_array_equal(dataset.test_inputs[..., 0], TEST[0])
    assert dataset.train_inputs.dtype == np.uint8
    assert dataset.train_inputs.shape == (6, 28, 28, 1)
    assert dataset.train_labels.tolist() == TRAIN[1]
    assert dataset.test_labels.tolist() == TEST[1]
    assert dataset.train_labels.dtype == np.int32
    assert dataset.num_classes == 10


def test_unknown_files_of_the_same_names_raise(tmp_path):
  write(tmp_path)
  for load in (mnist.load_mnist, mnist.load_fashion_mnist):
    with pytest.raises(UserError, match=f'{NAMES[0]} is not the published'):
      load(str(tmp_path))
  assert not set(mnist.MNIST.layouts[0].md5.values()) & set(
      mnist.FASHION_MNIST.layouts[0].md5.values())


def pair():
  """Returns both data sets with the checksums of the synthetic files."""
  md5 = [dict(zip(NAMES, (hashlib.md5(blob).hexdigest() for blob in blobs)))
         for blobs in (BLOBS.values(), FASHION.values())]
  return [data_set._replace(
      num_images=(6, 4), other_datasets=dict.fromkeys(other_md5.values(), name),
      layouts=tuple(layout._replace(md5=own_md5)
                    for layout in data_set.layouts))
          for data_set, own_md5, other_md5, name in (
              (mnist.MNIST, *md5, 'fashion_mnist'),
              (mnist.FASHION_MNIST, *md5[::-1], 'mnist'))]


@pytest.mark.parametrize('directory, is_compressed', [
    ('mnist', False), ('MNIST/raw', True), ('.', True)])
def test_mnist_is_found_next_to_fashion_mnist(
    directory, is_compressed, tmp_path):
  write(tmp_path, **FASHION)
  write(tmp_path / directory, is_compressed)
  data_set, fashion = pair()
  dataset = published.load(data_set, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs[..., 0], TRAIN[0])
  dataset = published.load(fashion, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs[..., 0], 255 - TRAIN[0])


def test_fashion_mnist_alone_is_not_mnist(tmp_path):
  write(tmp_path, **FASHION)
  with pytest.raises(UserError, match=f'{tmp_path}/{NAMES[0]} must be of '
                     '--dataset=mnist, got the file of the same name of '
                     '--dataset=fashion_mnist. .* must hold'):
    published.load(pair()[0], str(tmp_path))


def test_each_data_set_lists_the_files_of_the_other():
  for data_set, other in ((mnist.MNIST, mnist.FASHION_MNIST),
                          (mnist.FASHION_MNIST, mnist.MNIST)):
    assert data_set.other_datasets == dict.fromkeys(
        other.layouts[0].md5.values(), other.name)


def test_published_sizes():
  """16 + 60,000 * 784 bytes of images, 8 + 60,000 of labels, and so on."""
  for data_set in (mnist.MNIST, mnist.FASHION_MNIST):
    for layout in data_set.layouts:
      assert layout.num_bytes == (47_040_016, 60_008, 7_840_016, 10_008)


@pytest.mark.parametrize('name, blob, words', [
    (NAMES[0], BLOBS[NAMES[0]][:-1], '4,720 bytes .*6, 28, 28.* got 4,719'),
    (NAMES[0], BLOBS[NAMES[0]] + b'!', 'got 4,721 bytes'),
    (NAMES[0], b'', 'begin with 00000803, got nothing'),
    (NAMES[0], BLOBS[NAMES[1]], 'begin with 00000803, got 00000801'),
    (NAMES[1], BLOBS[NAMES[0]], 'begin with 00000801, got 00000803'),
    (NAMES[1], b'\0\0\x0d\1' + BLOBS[NAMES[1]][4:], 'got 00000d01'),
    (NAMES[1], BLOBS[NAMES[1]][:5], 'must begin with'),
    (NAMES[1], idx_labels([3, 1, 4, 1, 5, 10]), 'labels must .* got 10'),
    (NAMES[1], idx_labels([3, 1, 4, 1, 5]), r'\[6\], got uint8 \[5\]'),
    (NAMES[2], idx_images(TEST[0][:, :27]), r'got uint8 \[4, 27, 28, 1\]'),
    (NAMES[2], struct.pack('>iIII', 2051, 2**32 - 1, 2**32 - 1, 2**32 - 1),
     'got 16 bytes'),
])
def test_damaged_files_raise(name, blob, words, tmp_path):
  write(tmp_path, **{name: blob})
  with pytest.raises(UserError, match=f'--data_dir.*{name}.*{words}'):
    published.load(small(mnist.MNIST), str(tmp_path))


def test_truncated_gzip(tmp_path):
  write(tmp_path, is_compressed=True)
  path = tmp_path / f'{NAMES[2]}.gz'
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(UserError, match=f'{path} is not a complete gzip file'):
    published.load(small(mnist.MNIST), str(tmp_path))


@pytest.mark.parametrize('load, url', [
    (mnist.load_mnist, 'https://ossci-datasets.s3.amazonaws.com/mnist/'),
    (mnist.load_fashion_mnist,
     'http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/'),
])
def test_an_empty_directory_raises_with_file_names_and_url(load, url, tmp_path):
  with pytest.raises(UserError) as error:
    load(str(tmp_path))
  for word in (*NAMES, '.gz', str(tmp_path), url):
    assert word in str(error.value)
