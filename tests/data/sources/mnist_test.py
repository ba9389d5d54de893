"""MNIST and Fashion-MNIST from made files, packed byte by byte."""

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
  """As the site of MNIST describes it: magic 2051, then n, rows, columns."""
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
  """The data set of the made files."""
  return data_set._replace(num_images=(6, 4), forms=tuple(
      form._replace(md5=dict.fromkeys(NAMES, '')) for form in data_set.forms))


def write(directory, is_packed=False, **changes):
  directory.mkdir(parents=True, exist_ok=True)
  for name, blob in {**BLOBS, **changes}.items():
    if is_packed:
      (directory / f'{name}.gz').write_bytes(gzip.compress(blob))
    else:
      (directory / name).write_bytes(blob)


@pytest.mark.parametrize('data_set, directories', [
    (mnist.MNIST, ('.', 'mnist', 'MNIST/raw')),
    (mnist.FASHION_MNIST, ('.', 'fashion_mnist', 'FashionMNIST/raw')),
])
@pytest.mark.parametrize('is_packed', [False, True])
def test_idx_files(data_set, directories, is_packed, tmp_path):
  for i, directory in enumerate(directories):
    root = tmp_path / str(i)
    write(root / directory, is_packed)
    dataset = published.load(small(data_set), str(root))
    np.testing.assert_array_equal(dataset.train_inputs[..., 0], TRAIN[0])
    np.testing.assert_array_equal(dataset.test_inputs[..., 0], TEST[0])
    assert dataset.train_inputs.dtype == np.uint8
    assert dataset.train_inputs.shape == (6, 28, 28, 1)
    assert dataset.train_labels.tolist() == TRAIN[1]
    assert dataset.test_labels.tolist() == TEST[1]
    assert dataset.train_labels.dtype == np.int32
    assert dataset.num_classes == 10


def test_one_data_set_is_not_taken_for_the_other(tmp_path):
  """Nor any other: the files of all have the same names."""
  write(tmp_path)
  for load in (mnist.load_mnist, mnist.load_fashion_mnist):
    with pytest.raises(UserError, match=f'{NAMES[0]} is not the published'):
      load(str(tmp_path))
  assert not set(mnist.MNIST.forms[0].md5.values()) & set(
      mnist.FASHION_MNIST.forms[0].md5.values())


def pair():
  """Both data sets, as if these made files were the published ones."""
  md5 = [dict(zip(NAMES, (hashlib.md5(blob).hexdigest() for blob in blobs)))
         for blobs in (BLOBS.values(), FASHION.values())]
  return [data_set._replace(
      num_images=(6, 4), namesakes=dict.fromkeys(other.values(), name),
      forms=tuple(form._replace(md5=own) for form in data_set.forms))
          for data_set, own, other, name in (
              (mnist.MNIST, *md5, 'fashion_mnist'),
              (mnist.FASHION_MNIST, *md5[::-1], 'mnist'))]


@pytest.mark.parametrize('place, is_packed', [
    ('mnist', False), ('MNIST/raw', True), ('.', True)])
def test_mnist_is_found_beside_fashion_mnist(place, is_packed, tmp_path):
  write(tmp_path, **FASHION)
  write(tmp_path / place, is_packed)
  data_set, fashion = pair()
  dataset = published.load(data_set, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs[..., 0], TRAIN[0])
  dataset = published.load(fashion, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs[..., 0], 255 - TRAIN[0])


def test_fashion_mnist_alone_is_not_mnist(tmp_path):
  write(tmp_path, **FASHION)
  with pytest.raises(UserError, match=f'{tmp_path}/{NAMES[0]} is the file of '
                     'that name of --dataset=fashion_mnist, not of --dataset='
                     'mnist, and no other place has MNIST'):
    published.load(pair()[0], str(tmp_path))


def test_each_data_set_knows_the_files_of_the_other():
  for data_set, other in ((mnist.MNIST, mnist.FASHION_MNIST),
                          (mnist.FASHION_MNIST, mnist.MNIST)):
    assert data_set.namesakes == dict.fromkeys(
        other.forms[0].md5.values(), other.name)


def test_published_sizes():
  """16 + 60,000 * 784 bytes of images, 8 + 60,000 of labels, and so on."""
  for data_set in (mnist.MNIST, mnist.FASHION_MNIST):
    for form in data_set.forms:
      assert form.num_bytes == (47_040_016, 60_008, 7_840_016, 10_008)


@pytest.mark.parametrize('name, blob, words', [
    (NAMES[0], BLOBS[NAMES[0]][:-1], '4,719 bytes where .6, 28, 28.* 4,720'),
    (NAMES[0], BLOBS[NAMES[0]] + b'!', '4,721 bytes where'),
    (NAMES[0], b'', 'begins with 00000803, not nothing'),
    (NAMES[0], BLOBS[NAMES[1]], 'begins with 00000803, not 00000801'),
    (NAMES[1], BLOBS[NAMES[0]], 'begins with 00000801, not 00000803'),
    (NAMES[1], b'\0\0\x0d\1' + BLOBS[NAMES[1]][4:], 'not 00000d01'),
    (NAMES[1], BLOBS[NAMES[1]][:5], 'begins with'),
    (NAMES[1], idx_labels([3, 1, 4, 1, 5, 10]), 'a label is 10'),
    (NAMES[1], idx_labels([3, 1, 4, 1, 5]), r'\[5\] where \[6\]'),
    (NAMES[2], idx_images(TEST[0][:, :27]), r'\[4, 27, 28, 1\] where'),
    (NAMES[2], struct.pack('>iIII', 2051, 2**32 - 1, 2**32 - 1, 2**32 - 1),
     '16 bytes where'),
])
def test_damage(name, blob, words, tmp_path):
  write(tmp_path, **{name: blob})
  with pytest.raises(UserError, match=f'--data_dir.*{name}.*{words}'):
    published.load(small(mnist.MNIST), str(tmp_path))


def test_truncated_gzip(tmp_path):
  write(tmp_path, is_packed=True)
  path = tmp_path / f'{NAMES[2]}.gz'
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(UserError, match=f'{path} is not a whole gzip file'):
    published.load(small(mnist.MNIST), str(tmp_path))


@pytest.mark.parametrize('load, url', [
    (mnist.load_mnist, 'https://ossci-datasets.s3.amazonaws.com/mnist/'),
    (mnist.load_fashion_mnist,
     'http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/'),
])
def test_nothing_found_says_what_and_where_from(load, url, tmp_path):
  with pytest.raises(UserError) as error:
    load(str(tmp_path))
  for word in (*NAMES, '.gz', str(tmp_path), url):
    assert word in str(error.value)
