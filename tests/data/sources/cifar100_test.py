"""CIFAR-100 in both layouts, from synthetic and, if present, real files."""

import functools
import hashlib
import lzma
import pathlib
import pickle
import shutil
import subprocess
import sys
import tarfile

import numpy as np
import pytest

from moon_jax.data.io import download
from moon_jax.data.io import published
from moon_jax.data.sources import cifar
from moon_jax.errors import UserError

SHARED = pathlib.Path(__file__).parents[4] / 'shared' / 'data'
COUNTS = {'train': 500, 'test': 100}
# Classes of each superclass, from the published description.
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
COARSE = {name: k for k, names in enumerate(SUPERCLASSES)
          for name in names.split()}


@functools.cache
def synthetic(layout):
  """Returns (part -> (pixels, fine labels), file name -> bytes)."""
  random = np.random.RandomState(0)
  arrays, blobs = {}, {}
  for name, count in COUNTS.items():
    pixels = random.randint(0, 256, (count, 3072), np.uint8)
    fine = random.permutation(np.repeat(np.arange(100), count // 100))
    coarse = np.array([COARSE[cifar.CIFAR100.class_names[k]] for k in fine])
    arrays[name] = pixels, fine
    if layout == 'python':
      blobs[name] = pickle.dumps({
          b'data': pixels, b'fine_labels': fine.tolist(),
          b'coarse_labels': coarse.tolist(), b'filenames': [b'x.png']}, 3)
    else:
      blobs[f'{name}.bin'] = np.concatenate(
          [np.stack([coarse, fine], 1).astype(np.uint8), pixels], 1).tobytes()
  return arrays, blobs


def small(kind, blobs):
  """Returns CIFAR-100 with one layout and the checksums of these files."""
  layout, = [layout for layout in cifar.CIFAR100.layouts
             if layout.directory.endswith(kind)]
  md5 = {name: hashlib.md5(blob).hexdigest() for name, blob in blobs.items()}
  return cifar.CIFAR100._replace(
      num_images=(500, 100), layouts=(layout._replace(md5=md5),))


def write(root, layout, blobs):
  directory = root / f'cifar-100-{layout}'
  directory.mkdir()
  for name, blob in blobs.items():
    (directory / name).write_bytes(blob)
  return directory


@pytest.mark.parametrize('layout', ['python', 'binary'])
@pytest.mark.parametrize('archived', [False, True])
def test_fine_labels(layout, archived, tmp_path, monkeypatch, capsys):
  def no_network(*args):
    raise AssertionError('tried to download')
  monkeypatch.setattr(download, 'fetch', no_network)
  arrays, blobs = synthetic(layout)
  directory = write(tmp_path, layout, blobs)
  if archived:
    with tarfile.open(f'{directory}.tar.gz', 'w:gz', compresslevel=1) as tar:
      tar.add(directory, directory.name)
    shutil.rmtree(directory)

  dataset = published.load(small(layout, blobs), str(tmp_path))
  for name, images, labels in (
      ('train', dataset.train_inputs, dataset.train_labels),
      ('test', dataset.test_inputs, dataset.test_labels)):
    pixels, fine = arrays[name]
    np.testing.assert_array_equal(labels, fine)
    np.testing.assert_array_equal(
        images, pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
  assert dataset.num_classes == 100
  assert capsys.readouterr().out == ''


def test_a_complete_binary_file_in_another_order_is_used_with_a_warning(
    tmp_path, capsys):
  arrays, blobs = synthetic('binary')
  records = np.frombuffer(blobs['train.bin'], np.uint8).reshape(500, -1)
  directory = write(
      tmp_path, 'binary', blobs | {'train.bin': records[::-1].tobytes()})
  dataset = published.load(small('binary', blobs), str(tmp_path))
  np.testing.assert_array_equal(dataset.train_labels, arrays['train'][1][::-1])
  warning, = capsys.readouterr().out.splitlines()  # none for test.bin
  assert warning.startswith(f'warning: {directory}/train.bin: md5 ')
  assert 'its images may be in another order' in warning


def changed(name, where, value):
  """Returns the synthetic file with `value` at index `where` of its records."""
  records = np.frombuffer(synthetic('binary')[1][name], np.uint8).reshape(
      COUNTS[name[:-4]], -1).copy()
  records[where] = value
  return records.tobytes()


@pytest.mark.parametrize('name, blob, words', [
    ('train.bin', b'1' * 1000, r'truncated: 1,000 of 153,700,000 bytes \(expec'
     r'ted 1,537,000 bytes \(500 images of 3,074 bytes\), got 1,000 bytes\)'),
    ('train.bin', b'', 'expected .* got 0 bytes'),
    ('train.bin', bytes(499 * 3074), 'expected .* got 1,533,926 bytes'),
    ('train.bin', bytes(500 * 3074), 'expected 5 images of each class, got 500 '
     r'of class 0 \(apple\)\). '),
    ('train.bin', changed('train.bin', slice(-166, None), 0),
     r'expected 5 images of each class, got 1\d\d of class 0 \(apple\)\). '),
    ('test.bin', changed('test.bin', slice(-1, None), 0),
     'expected 1 images of each class, got (0|2) of class '),
    ('train.bin', changed('train.bin', (7, 1), 100), 'labels must .* got 100'),
    ('train.bin', changed('train.bin', (7, 0), 20),
     'image 7 with fine label .* must have coarse label .* got 20; 1 image'),
    ('train.bin', changed('train.bin', (slice(None), 0), 0),
     r'image 0 .* got 0; 475 image'),
])
def test_incomplete_binary_files_raise(name, blob, words, tmp_path):
  blobs = synthetic('binary')[1]
  directory = write(tmp_path, 'binary', blobs | {name: blob})
  with pytest.raises(UserError, match=(
      f'--data_dir: {directory}/{name} is not the published file: .*{words}')):
    published.load(small('binary', blobs), str(tmp_path))


def test_the_python_layout_requires_the_published_checksums(tmp_path):
  blobs = synthetic('python')[1]
  write(tmp_path, 'python', blobs | {'train': blobs['train'] + b'!'})
  with pytest.raises(UserError, match='/train is not the published file'):
    published.load(small('python', blobs), str(tmp_path))


def shared(name):
  """Returns the path of a file of the real CIFAR-100, or skips the test."""
  if not (SHARED / name).is_file():
    pytest.skip('the real CIFAR-100 (../shared/data) is not available')
  return SHARED / name


@pytest.fixture(scope='module')
def real_labels():
  """Returns the (coarse, fine) labels of each part, in the published order."""
  with np.load(shared('cifar100_frames.npz')) as frames:
    return {part: np.frombuffer(lzma.decompress(
        frames[f'{part}_labels'].tobytes()), np.uint8).reshape(-1, 2)
            for part in ('train', 'test')}


def without_pixels(labels):
  """Returns the records of a binary file of black images."""
  records = np.zeros((len(labels), 3074), np.uint8)
  records[:, :2] = labels
  return records


def test_real_labels_are_complete(
    real_labels, tmp_path, golden_partitions, capsys):
  directory = write(tmp_path, 'binary', {
      f'{part}.bin': memoryview(without_pixels(labels))
      for part, labels in real_labels.items()})
  dataset = cifar.load_cifar100(str(tmp_path))
  for line, part in zip(
      capsys.readouterr().out.splitlines(), ('train', 'test'), strict=True):
    assert line.startswith(f'warning: {directory}/{part}.bin: md5 ')
  published_labels = next(labels for labels, case, _, _ in golden_partitions
                          if case['dataset'] == 'cifar100')
  np.testing.assert_array_equal(dataset.train_labels, published_labels)


def test_real_labels_without_the_last_third(real_labels, tmp_path):
  records = without_pixels(real_labels['train'])
  records[-17_500:] = 0
  write(tmp_path, 'binary', {'train.bin': memoryview(records)})
  with pytest.raises(UserError, match=(
      r'train.bin is not the published file: .*\(expected 500 images of each '
      r'class, got 17,8\d\d of class 0 \(apple\)\)')):
    cifar.load_cifar100(str(tmp_path))


@pytest.mark.slow
def test_real_files_in_both_layouts(tmp_path, golden_partitions, capsys):
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
  published_labels = next(labels for labels, case, _, _ in golden_partitions
                          if case['dataset'] == 'cifar100')
  np.testing.assert_array_equal(datasets[0].train_labels, published_labels)
