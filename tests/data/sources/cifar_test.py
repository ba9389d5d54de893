"""CIFAR-10 and CIFAR-100 in each layout, from synthetic and real files."""

import datetime
import hashlib
import io
import lzma
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from moon_jax.data import sources
from moon_jax.data.io import download, published
from moon_jax.data.sources import cifar
from moon_jax.errors import UserError

SHARED = pathlib.Path(__file__).parents[4] / 'shared' / 'data'
# Classes of each superclass of CIFAR-100, from the published description.
SUPERCLASSES = """
beaver dolphin otter seal whale
aquarium_fish flatfish ray shark trout
orchid poppy rose sunflower tulip
bottle bowl can cup plate
apple mushroom orange pear sweet_pepper
clock keyboard lamp telephone television
bed chair couch table wardrobe
bee beetle butterfly caterpillar cockroach
bear leopard lion tiger wolf
bridge castle house road skyscraper
cloud forest mountain plain sea
camel cattle chimpanzee elephant kangaroo
fox porcupine possum raccoon skunk
crab lobster snail spider worm
baby boy girl man woman
crocodile dinosaur lizard snake turtle
hamster mouse rabbit shrew squirrel
maple_tree oak_tree palm_tree pine_tree willow_tree
bicycle bus motorcycle pickup_truck train
lawn_mower rocket streetcar tank tractor""".split('\n')[1:]
COARSE = np.array([
    next(k for k, names in enumerate(SUPERCLASSES) if name in names.split())
    for name in cifar.CIFAR100.class_names])


def parts(counts, num_classes):
  """Returns (pixels uint8 [n, 3072], labels [n]) of each part."""
  random = np.random.RandomState(0)
  return [(random.randint(0, 256, (n, 3072), np.uint8),
           random.permutation(np.arange(n) % num_classes)) for n in counts]


def small(data_set, given, layout):
  """Returns the data set with one layout, of these arrays, and its files."""
  layout = data_set.layouts[layout]
  blobs = {}
  for name, (pixels, labels) in zip(layout.md5, given):
    coarse = COARSE[labels]
    rows = [labels] if data_set.name == 'cifar10' else [coarse, labels]
    blobs[name] = np.concatenate(
        [np.stack(rows, 1).astype(np.uint8), pixels], 1).tobytes() if (
            name.endswith('.bin')) else pickle.dumps({
                b'data': pixels, b'batch_label': b'training batch 1 of 5',
                b'labels': labels.tolist(), b'fine_labels': labels.tolist(),
                b'coarse_labels': coarse.tolist()}, 2)  # as published
  md5 = {name: hashlib.md5(blob).hexdigest() for name, blob in blobs.items()}
  return data_set._replace(
      num_images=tuple(len(labels) for _, labels in given),
      layouts=(layout._replace(md5=md5),)), blobs


CIFAR10 = parts([20] * 6, 10)
CIFAR100 = parts([500, 100], 100)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  def fetch(*args):
    raise AssertionError('tried to download')
  monkeypatch.setattr(download, 'fetch', fetch)


def write(root, data_set, blobs, is_archive=False):
  layout, = data_set.layouts
  path = root / (layout.archive if is_archive else layout.directory)
  if is_archive:
    with tarfile.open(path, 'w:gz', compresslevel=0) as tar:
      for name, blob in blobs.items():
        member = tarfile.TarInfo(f'{layout.directory}/{name}')
        member.size = len(blob)
        tar.addfile(member, io.BytesIO(blob))
    return path
  path.mkdir()
  for name, blob in blobs.items():
    (path / name).write_bytes(blob)
  return path


@pytest.mark.parametrize('data_set, given', [
    (cifar.CIFAR10, CIFAR10), (cifar.CIFAR100, CIFAR100)])
@pytest.mark.parametrize('layout', [0, 1])
@pytest.mark.parametrize('is_archive', [False, True])
def test_every_layout_gives_the_same_arrays(
    data_set, given, layout, is_archive, tmp_path, capsys):
  data_set, blobs = small(data_set, given, layout)
  path = write(tmp_path, data_set, blobs, is_archive)
  dataset = published.load(data_set, str(tmp_path))
  pixels = np.concatenate([pixels for pixels, _ in given])
  np.testing.assert_array_equal(
      np.concatenate([dataset.train_inputs, dataset.test_inputs]),
      pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
  np.testing.assert_array_equal(
      np.concatenate([dataset.train_labels, dataset.test_labels]),
      np.concatenate([labels for _, labels in given]))
  assert len(dataset.test_labels) == len(given[-1][1])
  assert 'warning' not in capsys.readouterr().out
  if not is_archive:  # data_dir may be the inner directory
    again = published.load(data_set, str(path))
    np.testing.assert_array_equal(again.train_labels, dataset.train_labels)


@pytest.mark.parametrize('protocol', [2, 3, 4])
@pytest.mark.parametrize('order', ['C', 'F'])
def test_pickled_arrays(protocol, order):
  pixels, labels = CIFAR10[0]
  images, found = cifar.decode_python(b'labels', pickle.dumps({
      b'data': np.array(pixels, order=order), b'labels': labels.tolist()},
      protocol))
  np.testing.assert_array_equal(
      images, pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
  assert found == labels.tolist()


def test_python_2_pickle():
  """The published files use protocol 2, byte strings and numpy.core."""
  blob = (b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\n"
          b"q\x03cnumpy\nndarray\nq\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x01M"
          b"\x00\x0c\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87Rq\x07(K\x03U"
          b"\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x0c\x00"
          b"\x00" + b'a' * 3072 + b"tbU\x06labelsq\x08]q\x09K\x06au.")
  images, labels = cifar.decode_python(b'labels', blob)
  np.testing.assert_array_equal(images, np.full((1, 32, 32, 3), 97))
  assert labels == [6]


class Hostile:
  """An object that unpickles by calling `function` with `arguments`."""

  def __init__(self, function, *arguments):
    self.call = function, arguments

  def __reduce__(self):
    return self.call


@pytest.mark.parametrize('protocol', [2, 3, 4, 5])
@pytest.mark.parametrize('value, words', [
    (Hostile(os.system, 'touch pwned'), 'posix.system is not allowed'),
    (Hostile(eval, "open('pwned', 'w')"), r'\w+.eval is not allowed'),
    (Hostile(getattr, 'x', 'y'), r'\w+.getattr is not allowed'),
    (Hostile(np.load, 'pwned', None, True), r'numpy\S*load is not allowed'),
    (Hostile(np.ndarray.tofile, np.zeros(1), 'pwned'), 'getattr|tofile'),
    ({b'data': Hostile(exec, "open('pwned', 'w')")}, r'\w+.exec is not'),
    ({b'data': datetime.date(2020, 1, 1)}, 'datetime.date is not allowed'),
    ([1, 2], 'list'),
])
def test_other_values_are_refused(
    value, words, protocol, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=f'not a pickle.*{words}'):
    cifar.decode_python(b'labels', pickle.dumps(value, protocol))
  assert not os.listdir(tmp_path)


@pytest.mark.parametrize('content, words', [
    (lambda blob: blob[:-1] + b'!', 'data_batch_3 is not the published file'),
    (lambda blob: b"cos\nsystem\n(S'touch pwned'\ntR.",
     'data_batch_3 is not the published file: truncated: 30 of 31,035,999 '
     'bytes. Restore it'),
])
def test_damaged_file(content, words, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  data_set, blobs = small(cifar.CIFAR10, CIFAR10, 0)
  blobs['data_batch_3'] = content(blobs['data_batch_3'])
  write(tmp_path, data_set, blobs)
  with pytest.raises(UserError, match=f'^--data_dir.*{words}'):
    published.load(data_set, str(tmp_path))
  layout, = data_set.layouts  # and if its checksum were that
  layout.md5['data_batch_3'] = hashlib.md5(blobs['data_batch_3']).hexdigest()
  with pytest.raises(UserError, match='data_batch_3 is damaged.*not a pickle'):
    published.load(data_set, str(tmp_path))
  assert not (tmp_path / 'pwned').exists()


def test_truncated_archive(tmp_path):
  data_set, blobs = small(cifar.CIFAR10, CIFAR10, 0)
  path = write(tmp_path, data_set, blobs, True)
  path.write_bytes(path.read_bytes()[:10_000])
  with pytest.raises(UserError, match='the archive .*cifar-10-python.tar.gz is '
                     'damaged .*Remove it and run again to download CIFAR-10'):
    published.load(data_set, str(tmp_path))


@pytest.mark.parametrize('size, problem', [
    (0, 'truncated: 0 of 30,730,000 bytes'),
    (30_733_073, 'too long: 30,733,073 of'),
    (30_730_000, 'damaged: md5 .* not the published 5dd7e')])
def test_a_binary_file_of_wrong_size_or_content(size, problem, tmp_path):
  directory = tmp_path / 'cifar-10-batches-bin'
  directory.mkdir()
  with open(directory / 'data_batch_1.bin', 'wb') as file:
    file.truncate(size)
  with pytest.raises(UserError, match=(
      f'{directory}/data_batch_1.bin is not the published file: {problem}')):
    sources.load('cifar10', str(tmp_path))


# The binary layout of CIFAR-100, whose checksums are uncertain.


def test_a_complete_binary_file_in_another_order_is_used_with_a_warning(
    tmp_path, capsys):
  data_set, blobs = small(cifar.CIFAR100, CIFAR100, 1)
  records = np.frombuffer(blobs['train.bin'], np.uint8).reshape(500, -1)
  directory = write(
      tmp_path, data_set, blobs | {'train.bin': records[::-1].tobytes()})
  dataset = published.load(data_set, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_labels, CIFAR100[0][1][::-1])
  warning, = capsys.readouterr().out.splitlines()  # none for test.bin
  assert warning.startswith(f'warning: {directory}/train.bin: md5 ')
  assert 'its images may be in another order' in warning


def change(where, value):
  """Returns a function that sets `value` at index `where` of the records."""
  def changed(blob):
    records = np.frombuffer(blob, np.uint8).reshape(-1, 3074).copy()
    records[where] = value
    return records.tobytes()
  return changed


@pytest.mark.parametrize('name, changed, words', [
    ('train.bin', lambda _: b'1' * 1000, r'truncated: 1,000 of 153,700,000 byte'
     r's \(the size must be a multiple of 3,074 bytes per image, got 1,000'),
    ('train.bin', lambda _: b'', 'expected 5 images of each class, got 0'),
    ('train.bin', lambda _: bytes(500 * 3074),
     r'expected 5 images of each class, got 500 of class 0 \(apple\)\). '),
    ('train.bin', change(slice(-166, None), 0),
     r'expected 5 images of each class, got 1\d\d of class 0 \(apple\)\). '),
    ('test.bin', change(slice(-1, None), 0),
     'expected 1 images of each class, got (0|2) of class '),
    ('train.bin', change((7, 1), 100), 'labels must .* got 100'),
    ('train.bin', change((7, 0), 20),
     r'1 image\(s\) have another coarse label .* such as image 7'),
    ('train.bin', change((slice(None), 0), 0),
     r'475 image\(s\) have another coarse label'),
])
def test_incomplete_binary_files_raise(name, changed, words, tmp_path):
  data_set, blobs = small(cifar.CIFAR100, CIFAR100, 1)
  blobs[name] = changed(blobs[name])
  directory = write(tmp_path, data_set, blobs)
  with pytest.raises(UserError, match=(
      f'--data_dir: {directory}/{name} is not the published file: .*{words}')):
    published.load(data_set, str(tmp_path))


# Real files, if they are available.


def test_real_files(golden_partitions):
  """Checks the labels of CIFAR-10 in the directory CIFAR10_DIR."""
  if 'CIFAR10_DIR' not in os.environ:
    pytest.skip('set CIFAR10_DIR to a directory with CIFAR-10')
  dataset = sources.load('cifar10', os.environ['CIFAR10_DIR'])
  np.testing.assert_array_equal(dataset.train_labels, golden_partitions[0][0])


def shared(name):
  """Returns the path of a file of the real CIFAR-100, or skips the test."""
  if not (SHARED / name).is_file():
    pytest.skip('the real CIFAR-100 (../shared/data) is not available')
  return SHARED / name


@pytest.fixture
def published_labels(golden_partitions):
  return next(labels for labels, case, _, _ in golden_partitions
              if case['dataset'] == 'cifar100')


def test_real_labels_are_complete(tmp_path, published_labels, capsys):
  """Of black images, in the published order."""
  directory = tmp_path / 'cifar-100-binary'
  directory.mkdir()
  with np.load(shared('cifar100_frames.npz')) as frames:
    for part in 'train', 'test':
      labels = np.frombuffer(lzma.decompress(
          frames[f'{part}_labels'].tobytes()), np.uint8).reshape(-1, 2)
      np.pad(labels, ((0, 0), (0, 3072))).tofile(directory / f'{part}.bin')
  dataset = sources.load('cifar100', str(tmp_path))
  for line, part in zip(
      capsys.readouterr().out.splitlines(), ('train', 'test'), strict=True):
    assert line.startswith(f'warning: {directory}/{part}.bin: md5 ')
  np.testing.assert_array_equal(dataset.train_labels, published_labels)


@pytest.mark.slow
def test_real_files_in_both_layouts(tmp_path, published_labels, capsys):
  """Both layouts give equal arrays in the published order, without warnings."""
  subprocess.run(
      [sys.executable, shared('unpack_cifar100.py'), tmp_path], check=True,
      stdout=subprocess.DEVNULL)
  binary = cifar.CIFAR100._replace(layouts=cifar.CIFAR100.layouts[1:])
  datasets = [published.load(data_set, str(tmp_path))
              for data_set in (cifar.CIFAR100, binary)]
  shutil.rmtree(tmp_path)
  assert capsys.readouterr().out == ''
  for name in ('train_inputs', 'train_labels', 'test_inputs', 'test_labels'):
    np.testing.assert_array_equal(*(getattr(d, name) for d in datasets))
  np.testing.assert_array_equal(datasets[0].train_labels, published_labels)
