"""CIFAR, MNIST and SVHN in each layout, from synthetic and real files."""

import gzip
import io
import pathlib
import pickle
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import scipy.io

from moon_jax.data import sources
from moon_jax.data.io import published
from moon_jax.data.sources import images
from support import published_files, ROOT

SHARED = pathlib.Path(__file__).parents[4] / 'shared' / 'data'


def parts(counts, num_classes):
  """Returns (pixels uint8 [n, 3072], labels [n]) of each part."""
  random = np.random.RandomState(0)
  return [(random.randint(0, 256, (n, 3072), np.uint8),
           random.permutation(np.arange(n) % num_classes)) for n in counts]


def small(data_set, given):
  """Returns the data set, of these arrays, and its files."""
  key = {'cifar10': b'labels', 'cifar100': b'fine_labels'}[data_set.name]
  blobs = {}
  for name, (pixels, labels) in zip(data_set.files, given):
    blobs[name] = pickle.dumps({  # as published
        b'data': pixels, b'batch_label': b'training batch 1 of 5',
        key: labels.tolist(), b'coarse_labels': (labels // 5).tolist()}, 2)
  *train, test = (len(labels) for _, labels in given)
  return published_files.with_files(data_set, blobs, (sum(train), test)), blobs


CIFAR10 = parts([20] * 6, 10)
CIFAR100 = parts([500, 100], 100)


@pytest.mark.parametrize('data_set, given, is_archive', [
    (images.CIFAR10, CIFAR10, True), (images.CIFAR100, CIFAR100, False)])
def test_cifar_in_a_directory_or_an_archive(
    data_set, given, is_archive, tmp_path):
  data_set, blobs = small(data_set, given)
  directory, = data_set.directories
  path = tmp_path / directory
  published_files.write(path, blobs)
  if is_archive:
    shutil.make_archive(path, 'gztar', tmp_path, directory)
    path.with_name(f'{path.name}.tar.gz').rename(
        data_set.archive.path(tmp_path))
    shutil.rmtree(path)
  dataset = published.load(data_set, str(tmp_path))
  pixels = np.concatenate([pixels for pixels, _ in given])
  np.testing.assert_array_equal(
      np.concatenate([dataset.train_inputs, dataset.test_inputs]),
      pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
  np.testing.assert_array_equal(
      np.concatenate([dataset.train_labels, dataset.test_labels]),
      np.concatenate([labels for _, labels in given]))
  assert dataset.test_labels.shape == (len(given[-1][1]),)
  assert dataset.test_labels.dtype == np.int32
  if not is_archive:  # data_dir may be the inner directory
    again = published.load(data_set, str(path))
    np.testing.assert_array_equal(again.train_labels, dataset.train_labels)


def test_python_2_pickle():
  """The published files use protocol 2, byte strings and numpy.core."""
  blob = (b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\n"
          b"q\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x01M"
          b"\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U"
          b"\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x0c\x00"
          b"\x00" + b'a' * 3072 + b"tbU\x06labelsq\x08]q\x09K\x06au.")
  [(found, labels)] = images.decode_python(b'labels', [blob])
  np.testing.assert_array_equal(found, np.full((1, 32, 32, 3), 97))
  assert labels == [6]


# MNIST and SVHN.


@pytest.mark.parametrize('data_set, directories', [
    (images.MNIST, ('.', 'mnist', 'MNIST/raw')),
    (images.FASHION_MNIST, ('.', 'fashion_mnist', 'FashionMNIST/raw')),
])
def test_idx_files(data_set, directories, tmp_path):
  blobs = published_files.files()
  small = published_files.with_files(data_set, blobs, published_files.COUNTS)
  pixels = np.frombuffer(next(iter(blobs.values())), np.uint8)[16:]
  for i, directory in enumerate(directories):
    published_files.write(
        tmp_path / str(i) / directory,
        blobs if i else {f'{name}.gz': gzip.compress(blob)
                         for name, blob in blobs.items()})
    dataset = published.load(small, str(tmp_path / str(i)))
    np.testing.assert_array_equal(dataset.train_inputs.ravel(), pixels)
    assert dataset.train_inputs.shape == (20, 28, 28, 1)
    assert dataset.train_inputs.dtype == np.uint8
    assert dataset.train_labels.tolist() == 2 * list(range(10))
    assert dataset.test_labels.tolist() == list(range(10))
    assert dataset.train_labels.dtype == np.int32


def test_the_page_names_the_directories_of_idx_files():
  page = (ROOT / 'docs/data.md').read_text(encoding='utf-8')
  row, = re.findall(r'^\| `mnist`, .*', page, re.MULTILINE)
  for data_set in images.MNIST, images.FASHION_MNIST:
    for directory in data_set.directories[1:]:
      assert f'`{directory}/`' in row


def test_mat_files(tmp_path):
  random, digits = np.random.RandomState(0), [1, 9, 2, 3, 0, 2, 5, 0, 8, 7]
  pixels = random.randint(0, 256, (10, 32, 32, 3)).astype(np.uint8)
  blobs = {}
  for name, part in zip(images.SVHN.files, (slice(6), slice(6, 10))):
    file = io.BytesIO()
    scipy.io.savemat(file, {
        'X': np.stack(list(pixels[part]), -1), 'y': np.array(
            [[digit or 10] for digit in digits[part]], np.uint8)},
        do_compression=True)
    blobs[name] = file.getvalue()
  published_files.write(tmp_path / 'svhn', blobs)
  dataset = published.load(
      published_files.with_files(images.SVHN, blobs, (6, 4)), str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs, pixels[:6])
  np.testing.assert_array_equal(dataset.test_inputs, pixels[6:])
  assert [*dataset.train_labels, *dataset.test_labels] == digits
  assert dataset.train_labels.dtype == np.int32


# Real files, if they are available.


def shared(name):
  """Returns the path of a file of the real CIFAR-100, or skips the test."""
  if not (SHARED / name).is_file():
    pytest.skip('the real CIFAR-100 (../shared/data) is not available')
  return SHARED / name


@pytest.fixture
def published_labels(golden_partitions):
  return next(labels for labels, case, _, _ in golden_partitions
              if case['dataset'] == 'cifar100')


@pytest.mark.slow
def test_real_files_are_in_the_published_order(tmp_path, published_labels):
  subprocess.run(
      [sys.executable, shared('unpack_cifar100.py'), tmp_path], check=True,
      stdout=subprocess.DEVNULL)
  dataset = sources.load_dataset('cifar100', str(tmp_path))
  shutil.rmtree(tmp_path)
  np.testing.assert_array_equal(dataset.train_labels, published_labels)
