"""Tiny-ImageNet from a made folder in its layouts; see also partition_test."""

import io
import os
import pathlib
import shutil
import zipfile

import numpy as np
from PIL import Image
import platformdirs
import pytest

from moon_jax.data import decoded
from moon_jax.data import download
from moon_jax.data import tiny_imagenet
from moon_jax.errors import UserError

WNIDS = ('n02', 'n10', 'n01')  # not in order, as in wnids.txt
FOLDER = 'tiny-imagenet-200'


def jpeg(seed, size=(64, 64), mode='RGB'):
  random = np.random.RandomState(seed)
  shape = size[::-1] + ((3,) if mode == 'RGB' else ())
  file = io.BytesIO()
  Image.fromarray(random.randint(0, 256, shape, np.uint8)).save(file, 'JPEG')
  return file.getvalue()


def made_files():
  """Of 3 classes with 4 training images each and 6 test images: as published.

  Names of 10 come before those of 9 in the order of names, the fourth image of
  each class is grey, and the test images' classes are mixed.
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
  files['val/val_annotations.txt'] = ''.join(lines).encode()
  files['test/images/test_0.JPEG'] = b'not read'
  return files


FILES = made_files()


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path_factory):
  """Counts of the made folder, a cache of the test's own, and no network."""
  for name, value in (('NUM_CLASSES', 3), ('TRAIN_PER_CLASS', 4),
                      ('NUM_TEST', 6)):
    monkeypatch.setattr(tiny_imagenet, name, value)
  cache = tmp_path_factory.mktemp('cache')
  monkeypatch.setattr(platformdirs, 'user_cache_dir', lambda name: str(cache))

  def fetch(*args):
    raise AssertionError('tried to download')
  monkeypatch.setattr(download, 'fetch', fetch)
  return cache


def write(root, files=FILES):
  for name, blob in files.items():
    path = root / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(blob)
  return root / FOLDER


def image_folder(directory):
  """Images and classes as torchvision's ImageFolder finds and loads them."""
  classes = sorted(e.name for e in os.scandir(directory) if e.is_dir())
  images, labels = [], []
  for k, name in enumerate(classes):
    for root, _, files in sorted(os.walk(os.path.join(directory, name))):
      for file in sorted(files):
        if file.lower().endswith(('.jpg', '.jpeg', '.png')):
          with open(os.path.join(root, file), 'rb') as opened:
            images.append(np.asarray(Image.open(opened).convert('RGB')))
          labels.append(k)
  return np.stack(images), labels


def by_class(folder, subdirectory=''):
  """Sorts the test images into a directory a class, as many scripts do."""
  lines = (folder / 'val/val_annotations.txt').read_text().splitlines()
  for file, wnid in (line.split('\t')[:2] for line in lines):
    target = folder / 'val' / wnid / subdirectory
    target.mkdir(parents=True, exist_ok=True)
    shutil.move(folder / 'val/images' / file, target / file)
  (folder / 'val/images').rmdir()


def assert_same(dataset, other):
  for name in ('train_inputs', 'train_labels', 'test_inputs', 'test_labels'):
    np.testing.assert_array_equal(getattr(dataset, name), getattr(other, name))


def test_order_and_pixels_are_those_of_image_folder(tmp_path):
  folder = write(tmp_path)
  dataset = tiny_imagenet.load(str(tmp_path))
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
    'itself', 'val by class', 'val by class and images', 'train without images',
    'archive', 'linked', 'hidden files'])
def test_every_layout_gives_the_same_arrays(layout, tmp_path):
  folder = write(tmp_path / 'reference')
  reference = tiny_imagenet.load(str(tmp_path / 'reference'))
  root = tmp_path / 'root'
  shutil.copytree(folder, root / FOLDER)
  data_dir = root
  if layout == 'itself':
    data_dir = (root / FOLDER).rename(root / 'renamed')
  elif layout == 'val by class':
    by_class(root / FOLDER)
  elif layout == 'val by class and images':
    by_class(root / FOLDER, 'images')
  elif layout == 'train without images':
    for path in list((root / FOLDER / 'train').glob('*/images/*')):
      path.rename(path.parents[1] / path.name)
  elif layout == 'archive':
    shutil.make_archive(root / FOLDER, 'zip', root, FOLDER)
    shutil.rmtree(root / FOLDER)
  elif layout == 'linked':
    for wnid in WNIDS:
      path = root / FOLDER / 'train' / wnid
      path.symlink_to(path.rename(root / wnid))
  elif layout == 'hidden files':
    (root / FOLDER / 'train/n01/images/._n01_8.JPEG').write_bytes(b'Mac OS X')
  assert_same(tiny_imagenet.load(str(data_dir)), reference)


def kept(directory):
  return sorted(directory.glob('tiny_imagenet-*'))


def no_decoding(*args, **kwargs):
  raise AssertionError('decodes')


def test_images_are_decoded_once(tmp_path, monkeypatch):
  write(tmp_path)
  first = tiny_imagenet.load(str(tmp_path))
  path, = kept(tmp_path)
  np.testing.assert_array_equal(
      np.load(path), np.concatenate([first.train_inputs, first.test_inputs]))
  monkeypatch.setattr(Image, 'open', no_decoding)
  assert_same(tiny_imagenet.load(str(tmp_path)), first)
  assert_same(tiny_imagenet.load(str(tmp_path / FOLDER)), first)


@pytest.mark.parametrize('change', [
    lambda folder: (folder / 'train/n01/images/n01_9.JPEG').write_bytes(
        jpeg(777)),
    lambda folder: os.utime(folder / 'train/n01/images/n01_9.JPEG', (1, 1)),
    lambda folder: (folder / 'val/val_annotations.txt').write_bytes(
        FILES['val/val_annotations.txt'].replace(b'n10', b'n03').replace(
            b'n02', b'n10').replace(b'n03', b'n02')),
])
def test_a_changed_folder_is_decoded_anew(change, tmp_path):
  folder = write(tmp_path)
  tiny_imagenet.load(str(tmp_path))
  change(folder)
  dataset = tiny_imagenet.load(str(tmp_path))
  assert len(kept(tmp_path)) == 2
  np.testing.assert_array_equal(
      dataset.train_inputs, image_folder(folder / 'train')[0])
  by_class(folder)
  np.testing.assert_array_equal(
      dataset.test_inputs, image_folder(folder / 'val')[0])


@pytest.mark.parametrize('damage', [
    lambda blob: blob[:-1],
    lambda blob: blob + b'!',
    lambda blob: blob[:5000] + bytes([blob[5000] ^ 1]) + blob[5001:],
    lambda blob: b'!' + blob[1:],
    lambda blob: b'',
])
def test_a_damaged_cache_is_told_and_made_anew(damage, tmp_path, capsys):
  write(tmp_path)
  first = tiny_imagenet.load(str(tmp_path))
  path, = kept(tmp_path)
  whole = path.read_bytes()
  path.write_bytes(damage(whole))
  capsys.readouterr()
  assert_same(tiny_imagenet.load(str(tmp_path)), first)
  assert capsys.readouterr().out == (
      f'{path} is damaged; decoding the images anew\n')
  assert path.read_bytes() == whole
  assert kept(tmp_path) == [path]


def refuse_writing(monkeypatch, *directories):
  """As a disk that is full or not one's own, to whoever runs the tests."""
  replace = os.replace

  def replace_elsewhere(source, target):
    if pathlib.Path(target).parent in directories:
      raise PermissionError(13, 'Permission denied')
    replace(source, target)
  monkeypatch.setattr(decoded.os, 'replace', replace_elsewhere)


def test_where_data_dir_cannot_be_written_the_users_cache_is(
    tmp_path, monkeypatch, small):
  write(tmp_path)
  with monkeypatch.context() as patch:
    refuse_writing(patch, tmp_path)
    first = tiny_imagenet.load(str(tmp_path))
  assert not kept(tmp_path) and len(kept(small)) == 1
  monkeypatch.setattr(Image, 'open', no_decoding)
  assert_same(tiny_imagenet.load(str(tmp_path)), first)


def test_nowhere_to_write_is_told(tmp_path, monkeypatch, small, capsys):
  folder = write(tmp_path)
  refuse_writing(monkeypatch, tmp_path, small)
  dataset = tiny_imagenet.load(str(tmp_path))
  np.testing.assert_array_equal(
      dataset.train_inputs, image_folder(folder / 'train')[0])
  assert 'will be decoded again' in capsys.readouterr().out
  assert not kept(tmp_path) and not kept(small)


IMAGE = 'train/n10/images/n10_9.JPEG'
NOTES = FILES['val/val_annotations.txt']


@pytest.mark.parametrize('name, blob, words', [
    (IMAGE, FILES[IMAGE][:2000], f'{IMAGE} is not a whole JPEG file'),
    (IMAGE, b'', f'{IMAGE} is not a whole JPEG file'),
    (IMAGE, b'GIF89a' + bytes(99), f'{IMAGE} is not a whole JPEG file'),
    (IMAGE, jpeg(0, (64, 63)), f'{IMAGE} is of 64x63 pixels where 64x64'),
    (IMAGE, None, 'train/ of 3 classes, each of 4 images; got 3 classes, 2 of '
     'them whole, with 11 images'),
    ('train/n03/images/n03_1.JPEG', jpeg(0), 'got 4 classes, 3 of them whole'),
    ('val/images/val_7.JPEG', None, r"line 2: 'val_7.JPEG.* no image in val/"),
    ('val/val_annotations.txt', None, 'lacks val/val_annotations.txt'),
    ('val/val_annotations.txt', NOTES[:NOTES.index(b'\n') + 1],
     'val/ of 6 images; got 1'),
    ('val/val_annotations.txt', NOTES.replace(b'n10', b'n11'),
     r'val_annotations.txt, line 1: .* is of no class in train/'),
    ('val/val_annotations.txt', NOTES.replace(b'val_8', b'val_7'),
     r'val_annotations.txt, line 3: .* is named twice'),
    ('val/val_annotations.txt', NOTES.replace(
        b'val_6.JPEG', b'../../train/n01/images/n01_8.JPEG'),
     r'val_annotations.txt, line 1: .* is no image in val/images/'),
    ('val/val_annotations.txt', NOTES.replace(b'val_6.JPEG', b'/etc/passwd'),
     r'line 1: .* is no image in val/images/'),
    ('val/val_annotations.txt', b'\xff\x00' * 99, 'line 1: .* is no image'),
    ('val/val_annotations.txt', b'val_6.JPEG', 'line 1: .* is of no class'),
])
@pytest.mark.parametrize('is_archive', [False, True])
def test_damage(name, blob, words, is_archive, tmp_path):
  changed = {**FILES, name: blob}
  if blob is None:
    del changed[name]
  if is_archive:
    with zipfile.ZipFile(tmp_path / f'{FOLDER}.zip', 'w') as archive:
      for file, content in changed.items():
        archive.writestr(f'{FOLDER}/{file}', content)
  else:
    write(tmp_path, changed)
  with pytest.raises(UserError, match=f'(?s)--data_dir: {tmp_path}.*{words}'):
    tiny_imagenet.load(str(tmp_path))
  assert not kept(tmp_path)


def test_classes_of_val_that_train_lacks(tmp_path):
  folder = write(tmp_path)
  by_class(folder)
  (folder / 'val/n02').rename(folder / 'val/n03')
  with pytest.raises(UserError, match='val/n03/ and no such class in train/'):
    tiny_imagenet.load(str(tmp_path))


@pytest.mark.parametrize('compression', [
    zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_packing(compression, tmp_path):
  path = tmp_path / f'{FOLDER}.zip'
  with zipfile.ZipFile(path, 'w', compression) as archive:
    for name, blob in FILES.items():
      archive.writestr(f'{FOLDER}/{name}', blob)
    at = archive.getinfo(f'{FOLDER}/{IMAGE}').header_offset
  whole = path.read_bytes()
  assert tiny_imagenet.load(str(tmp_path)).train_inputs.shape[0] == 12
  kept(tmp_path)[0].unlink()
  for first in range(at + 60, at + 200, 20):  # past the name, into the stream
    path.write_bytes(whole[:first] + b'\xff' * 40 + whole[first + 40:])
    with pytest.raises(UserError, match='is damaged at'):
      tiny_imagenet.load(str(tmp_path))


def test_damaged_archive(tmp_path):
  path = tmp_path / f'{FOLDER}.zip'
  with zipfile.ZipFile(path, 'w') as archive:
    for name, blob in FILES.items():
      archive.writestr(f'{FOLDER}/{name}', blob)
  whole = path.read_bytes()
  path.write_bytes(whole[:-100])
  with pytest.raises(UserError, match=f'the archive {path} is damaged'):
    tiny_imagenet.load(str(tmp_path))
  at = whole.index(FILES[IMAGE]) + 2500
  path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:])
  with pytest.raises(UserError, match=f'{path} is damaged at {IMAGE}'):
    tiny_imagenet.load(str(tmp_path))


def test_nothing_found_downloads_the_archive(tmp_path, monkeypatch, capsys):
  def fetch(url, md5, directory):
    assert (url, md5) == (tiny_imagenet.URL, tiny_imagenet.MD5)
    write(tmp_path / 'served')
    shutil.make_archive(
        directory / FOLDER, 'zip', tmp_path / 'served', FOLDER)
    return directory / f'{FOLDER}.zip'
  monkeypatch.setattr(download, 'fetch', fetch)
  (tmp_path / 'root').mkdir()
  dataset = tiny_imagenet.load(str(tmp_path / 'root'))
  assert dataset.test_inputs.shape == (6, 64, 64, 3)
  assert f'downloading {tiny_imagenet.URL}' in capsys.readouterr().out


@pytest.mark.parametrize('data_dir, words', [
    ('', '--data_dir must name a directory for --dataset=tiny_imagenet'),
    ('/no/such', '--data_dir=/no/such is not a directory'),
    ('tfds', '--data_dir=tfds has no --dataset=tiny_imagenet'),
])
def test_no_directory(data_dir, words):
  with pytest.raises(UserError, match=words):
    tiny_imagenet.load(data_dir)
