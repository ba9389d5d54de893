"""Tiny-ImageNet in all layouts, its cache and its errors, from 18 images."""

import io
import os
import pathlib
import shutil

import numpy as np
from PIL import Image
import pytest

from moon_jax.data.io import published
from moon_jax.data.sources import tiny_imagenet
from moon_jax.errors import UserError

WNIDS = ('n02', 'n10', 'n01')  # unsorted, as in wnids.txt
FOLDER = tiny_imagenet.FOLDER


def jpeg(seed, size=(64, 64), mode='RGB', plain=False):
  """Returns a JPEG of noise, a long file, or of one color, a short file."""
  random = np.random.RandomState(seed)
  shape = size[::-1] + ((3,) if mode == 'RGB' else ())
  pixels = random.randint(0, 256, shape, np.uint8)
  if plain:
    pixels[:] = pixels[0, 0]
  file = io.BytesIO()
  Image.fromarray(pixels).save(file, 'JPEG')
  return file.getvalue()


def synthetic_files():
  """Returns files in the published layout: 3 classes, 12 + 6 images.

  File names sort differently from image numbers, the fourth image of each class
  is grayscale, and the test images are not sorted by class.
  """
  files = {'wnids.txt': '\n'.join(WNIDS).encode(), 'words.txt': (
      b'n01\tgoldfish, Carassius auratus\nn77\tother\nn02\tbullfrog\n')}
  for k, wnid in enumerate(WNIDS):
    for i, j in enumerate((8, 9, 10, 11)):
      files[f'train/{wnid}/images/{wnid}_{j}.JPEG'] = jpeg(
          10 * k + i, mode='L' if i == 3 else 'RGB')
    files[f'train/{wnid}/{wnid}_boxes.txt'] = b'n01_8.JPEG\t0\t0\t9\t9\n'
  lines = []
  for i in range(6):
    files[f'val/images/val_{i + 6}.JPEG'] = jpeg(100 + i)
    lines.append(f'val_{i + 6}.JPEG\t{WNIDS[(i + 1) % 3]}\t0\t0\t9\t9\n')
  lines.append('\n')  # a blank line at the end
  files['val/val_annotations.txt'] = ''.join(lines).encode()
  files['test/images/test_0.JPEG'] = b'not read'
  files['train/n01/images/._n01_8.JPEG'] = b'a hidden file of macOS'
  return files


FILES = synthetic_files()
IMAGE = 'train/n10/images/n10_9.JPEG'


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path_factory):
  """Sets the counts, disables downloads; returns the cache directory."""
  home = tmp_path_factory.mktemp('cache')
  cache = home / 'moon_jax'
  for name, value in (('NUM_CLASSES', 3), ('TRAIN_PER_CLASS', 4),
                      ('NUM_TEST', 6)):
    monkeypatch.setattr(tiny_imagenet, name, value)
  monkeypatch.setenv('XDG_CACHE_HOME', str(home))

  def fetch(*args):
    raise AssertionError('tried to download')
  monkeypatch.setattr(published, 'fetch', fetch)
  return cache


def load(directory):
  return tiny_imagenet.load(str(directory))


def write(root, files=FILES):
  for name, blob in files.items():
    path = root / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(blob)
  return root / FOLDER


def image_folder(directory):
  """Returns images and classes as torchvision's ImageFolder loads them."""
  classes = sorted(e.name for e in os.scandir(directory) if e.is_dir())
  images, labels = [], []
  for k, name in enumerate(classes):
    for root, _, files in sorted(os.walk(os.path.join(directory, name))):
      for file in sorted(files):
        if file.endswith('.JPEG') and not file.startswith('.'):
          images.append(np.asarray(
              Image.open(os.path.join(root, file)).convert('RGB')))
          labels.append(k)
  return np.stack(images), labels


def by_class(folder, subdirectory=''):
  """Moves the test images into one directory per class, as many scripts do."""
  lines = (folder / 'val/val_annotations.txt').read_text().splitlines()
  for file, wnid in (line.split('\t')[:2] for line in lines if line):
    target = folder / 'val' / wnid / subdirectory
    target.mkdir(parents=True, exist_ok=True)
    shutil.move(folder / 'val/images' / file, target / file)
  (folder / 'val/images').rmdir()


def assert_same(dataset, other):
  for name in ('train_inputs', 'train_labels', 'test_inputs', 'test_labels'):
    np.testing.assert_array_equal(getattr(dataset, name), getattr(other, name))


def cached_files(directory):
  return sorted(directory.glob('tiny_imagenet*'))


def test_order_and_pixels_equal_image_folder(tmp_path):
  folder = write(tmp_path)
  dataset = load(tmp_path)
  images, labels = image_folder(folder / 'train')
  np.testing.assert_array_equal(dataset.train_inputs, images)
  np.testing.assert_array_equal(dataset.train_labels, labels)
  assert dataset.train_inputs.shape == (12, 64, 64, 3)
  assert dataset.train_inputs.dtype == np.uint8
  assert dataset.train_labels.dtype == dataset.test_labels.dtype == np.int32
  assert dataset.class_names == ('goldfish', 'bullfrog', 'n10')
  by_class(folder)
  images, labels = image_folder(folder / 'val')
  np.testing.assert_array_equal(dataset.test_inputs, images)
  np.testing.assert_array_equal(dataset.test_labels, labels)


@pytest.mark.parametrize('layout', [
    'data_dir is the folder', 'val by class', 'val by class and images',
    'archive', 'linked'])
def test_every_layout_gives_the_same_arrays(layout, tmp_path):
  folder = write(tmp_path / 'reference')
  reference = load(tmp_path / 'reference')
  root = tmp_path / 'root'
  shutil.copytree(folder, root / FOLDER)
  data_dir = root
  if layout == 'data_dir is the folder':
    data_dir = (root / FOLDER).rename(root / 'renamed')
  elif layout == 'val by class':
    by_class(root / FOLDER)
  elif layout == 'val by class and images':
    by_class(root / FOLDER, 'images')
    for path in list((root / FOLDER / 'train').glob('*/images/*')):
      path.rename(path.parents[1] / path.name)
  elif layout == 'archive':
    shutil.make_archive(root / FOLDER, 'zip', root, FOLDER)
    shutil.rmtree(root / FOLDER)
  elif layout == 'linked':
    for wnid in WNIDS:
      path = root / FOLDER / 'train' / wnid
      path.symlink_to(path.rename(root / wnid))
  assert_same(load(data_dir), reference)


def test_an_empty_directory_downloads_the_archive(
    tmp_path, monkeypatch, capsys):
  def fetch(url, md5, directory):
    assert (url, md5) == tiny_imagenet.DOWNLOAD[:2]
    write(tmp_path / 'served')
    shutil.make_archive(
        directory / FOLDER, 'zip', tmp_path / 'served', FOLDER)
    return directory / f'{FOLDER}.zip'
  monkeypatch.setattr(published, 'fetch', fetch)
  (tmp_path / 'root').mkdir()
  dataset = load(tmp_path / 'root')
  assert dataset.test_inputs.shape == (6, 64, 64, 3)
  assert f'downloading {tiny_imagenet.DOWNLOAD.url}' in capsys.readouterr().out


# The cache.


def no_decoding(*args, **kwargs):
  raise AssertionError('tried to decode')


def test_images_are_decoded_once(tmp_path, monkeypatch, capsys):
  write(tmp_path)
  first = load(tmp_path)
  path, = cached_files(tmp_path)
  assert capsys.readouterr().out == (
      'decoding 18 images of Tiny-ImageNet\n'
      f'cached the decoded images of Tiny-ImageNet in {path} (0.2 MB) for the '
      'next run\n')
  np.testing.assert_array_equal(
      np.load(path), np.concatenate([first.train_inputs, first.test_inputs]))
  monkeypatch.setattr(Image, 'open', no_decoding)
  assert_same(load(tmp_path), first)
  assert_same(load(tmp_path / FOLDER), first)
  assert capsys.readouterr().out == ''


def replace_by_same_size(folder):
  blob = jpeg(777, plain=True)
  size = len(FILES[IMAGE])
  (folder / IMAGE).write_bytes(blob + bytes(size - len(blob)))
  os.utime(folder / IMAGE, (1, 1))


def replace_in_the_cache(change):
  def call(folder):
    path, = cached_files(folder.parent)
    path.write_bytes(change(path.read_bytes()))
  return call


@pytest.mark.parametrize('change', [
    replace_by_same_size,
    lambda folder: (folder / 'val/val_annotations.txt').write_bytes(
        FILES['val/val_annotations.txt'].replace(b'n10', b'n03').replace(
            b'n02', b'n10').replace(b'n03', b'n02')),
    replace_in_the_cache(lambda blob: blob[:5000] + bytes(
        [blob[5000] ^ 1]) + blob[5001:]),
    replace_in_the_cache(lambda blob: b''),
])
def test_images_are_decoded_again_after_a_change(
    change, tmp_path, capsys):
  folder = write(tmp_path)
  load(tmp_path)
  before, = cached_files(tmp_path)
  capsys.readouterr()
  change(folder)
  dataset = load(tmp_path)
  path, = cached_files(tmp_path)
  assert path == before and capsys.readouterr().out.startswith(
      f'{path} is damaged or of other files; decoding the images again\n')
  np.testing.assert_array_equal(
      dataset.train_inputs, image_folder(folder / 'train')[0])
  assert_same(load(tmp_path), dataset)
  assert capsys.readouterr().out == ''
  by_class(folder)
  np.testing.assert_array_equal(
      dataset.test_inputs, image_folder(folder / 'val')[0])


def refuse_writing(monkeypatch, *directories):
  """Makes writes into the directories fail, also if root runs the tests."""
  replace = os.replace

  def replace_elsewhere(source, target):
    if pathlib.Path(target).parent in directories:
      raise PermissionError(13, 'Permission denied')
    replace(source, target)
  monkeypatch.setattr(os, 'replace', replace_elsewhere)


def test_the_user_cache_is_used_if_data_dir_is_read_only(
    tmp_path, monkeypatch, small, capsys):
  write(tmp_path)
  with monkeypatch.context() as patch:
    refuse_writing(patch, tmp_path, small)
    first = load(tmp_path)
  assert 'the next run will decode the images again' in capsys.readouterr().out
  assert not cached_files(tmp_path) and not cached_files(small)
  with monkeypatch.context() as patch:
    refuse_writing(patch, tmp_path)
    assert_same(load(tmp_path), first)
  assert not cached_files(tmp_path) and len(cached_files(small)) == 1
  monkeypatch.setattr(Image, 'open', no_decoding)
  assert_same(load(tmp_path), first)


# Damage.


ANNOTATIONS = FILES['val/val_annotations.txt']


@pytest.mark.parametrize('name, blob, words', [
    (IMAGE, FILES[IMAGE][:2000], f'{IMAGE} as a complete JPEG file; got'),
    (IMAGE, jpeg(0, (64, 63)), f'{IMAGE} with 64x64 pixels; got 64x63'),
    (IMAGE, None, 'train/ with 3 classes of 4 images each; got 3 classes, of '
     'which 1 have another number of images: n10 has 3'),
    ('val/images/val_7.JPEG', None, "once in line 2 of .*; got 'val_7.JPEG"),
    ('val/val_annotations.txt', None, 'val/ with 6 images .* got 0'),
    ('val/val_annotations.txt', ANNOTATIONS.replace(b'n10', b'n11'),
     'same classes in val/ as in train/; got n11'),
    ('val/val_annotations.txt', ANNOTATIONS.replace(
        b'val_6.JPEG', b'../../train/n01/images/n01_8.JPEG'),
     'an image of val/images/ once in line 1 of val/val_annotations.txt'),
])
def test_damaged_files_raise(name, blob, words, tmp_path):
  changed = {**FILES, name: blob}
  if blob is None:
    del changed[name]
  path = write(tmp_path, changed)
  with pytest.raises(UserError, match=(
      f'^data_dir must .*{words}.* in {path}. ')):
    load(tmp_path)
  assert not cached_files(tmp_path)


def test_a_damaged_archive_raises(tmp_path):
  path = tmp_path / f'{FOLDER}.zip'
  path.write_bytes(b'PK' + bytes(99))
  with pytest.raises(UserError, match=(
      f'^data_dir must .*readable archive; got {path} .*File is not a zip.*'
      f'Remove it, and copy {FOLDER}.zip')):
    load(tmp_path)
