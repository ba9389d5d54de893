"""Tiny-ImageNet in all layouts, its cache and its errors, from 18 images."""

import io
import os
import pathlib
import re
import shutil
import zipfile

import numpy as np
from PIL import Image
import platformdirs
import pytest

from moon_jax.data.io import download
from moon_jax.data.sources import tiny_imagenet
from moon_jax.errors import UserError

WNIDS = ('n02', 'n10', 'n01')  # unsorted, as in wnids.txt
FOLDER = 'tiny-imagenet-200'


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
  files['val/val_annotations.txt'] = ''.join(lines).encode()
  files['test/images/test_0.JPEG'] = b'not read'
  return files


FILES = synthetic_files()
IMAGE = 'train/n10/images/n10_9.JPEG'


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path_factory):
  """Sets the counts, disables downloads; returns the cache directory."""
  cache = tmp_path_factory.mktemp('cache')
  for name, value in (('NUM_CLASSES', 3), ('TRAIN_PER_CLASS', 4),
                      ('NUM_TEST', 6)):
    monkeypatch.setattr(tiny_imagenet, name, value)
  monkeypatch.setattr(platformdirs, 'user_cache_dir', lambda name: str(cache))

  def fetch(*args):
    raise AssertionError('tried to download')
  monkeypatch.setattr(download, 'fetch', fetch)
  return cache


def load(directory):
  return tiny_imagenet.load(str(directory))


def write(root, files=FILES):
  for name, blob in files.items():
    path = root / FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(blob)
  return root / FOLDER


def write_zip(root, files=FILES, compression=zipfile.ZIP_STORED):
  path = root / f'{FOLDER}.zip'
  with zipfile.ZipFile(path, 'w', compression) as archive:
    for name, blob in files.items():
      archive.writestr(f'{FOLDER}/{name}', blob)
  return path


def image_folder(directory):
  """Returns images and classes as torchvision's ImageFolder loads them."""
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
  """Moves the test images into one directory per class, as many scripts do."""
  lines = (folder / 'val/val_annotations.txt').read_text().splitlines()
  for file, wnid in (line.split('\t')[:2] for line in lines):
    target = folder / 'val' / wnid / subdirectory
    target.mkdir(parents=True, exist_ok=True)
    shutil.move(folder / 'val/images' / file, target / file)
  (folder / 'val/images').rmdir()


def assert_same(dataset, other):
  for name in ('train_inputs', 'train_labels', 'test_inputs', 'test_labels'):
    np.testing.assert_array_equal(getattr(dataset, name), getattr(other, name))


def cached_files(directory):
  return sorted(directory.glob('tiny_imagenet-*'))


def published_names(files=FILES):
  """Returns the same files, numbered from 0 like the published ones."""
  new = {}
  for name, blob in files.items():
    part, number = re.fullmatch(r'(.*?)(\d*)(?:\.JPEG)?', name).groups()
    if name.startswith('train') and number:
      name = f'{part}{int(number) - 8}.JPEG'
    elif name.startswith('val/images'):
      name = f'{part}{int(number) - 6}.JPEG'
    elif name == 'val/val_annotations.txt':
      blob = re.sub(rb'val_(\d+)', lambda match: b'val_%d' % (
          int(match[1]) - 6), blob)
    new[name] = blob
  return new


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
    'train without images', 'archive', 'linked', 'hidden files'])
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
  assert_same(load(data_dir), reference)


def test_an_empty_directory_downloads_the_archive(
    tmp_path, monkeypatch, capsys):
  def fetch(url, md5, directory):
    assert (url, md5) == (tiny_imagenet.URL, tiny_imagenet.MD5)
    write(tmp_path / 'served')
    shutil.make_archive(
        directory / FOLDER, 'zip', tmp_path / 'served', FOLDER)
    return directory / f'{FOLDER}.zip'
  monkeypatch.setattr(download, 'fetch', fetch)
  (tmp_path / 'root').mkdir()
  dataset = load(tmp_path / 'root')
  assert dataset.test_inputs.shape == (6, 64, 64, 3)
  assert f'downloading {tiny_imagenet.URL}' in capsys.readouterr().out


@pytest.mark.parametrize('data_dir, words', [
    ('', '--data_dir must name a directory for --dataset=tiny_imagenet'),
    ('/no/such', '--data_dir=/no/such is not a directory'),
    ('tfds', '--data_dir=tfds does not support --dataset=tiny_imagenet'),
])
def test_no_directory(data_dir, words):
  with pytest.raises(UserError, match=words):
    tiny_imagenet.load(data_dir)


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


@pytest.mark.parametrize('change', [
    lambda folder: (folder / IMAGE).write_bytes(jpeg(777, plain=True)),
    replace_by_same_size,
    lambda folder: (folder / 'val/val_annotations.txt').write_bytes(
        FILES['val/val_annotations.txt'].replace(b'n10', b'n03').replace(
            b'n02', b'n10').replace(b'n03', b'n02')),
])
def test_a_changed_folder_is_decoded_again_and_replaces_the_cache(
    change, tmp_path, capsys):
  folder = write(tmp_path)
  load(tmp_path)
  before, = cached_files(tmp_path)
  capsys.readouterr()
  change(folder)
  dataset = load(tmp_path)
  path, = cached_files(tmp_path)
  out = capsys.readouterr().out
  if path == before:
    assert f'{path} was decoded from other files; decoding' in out
  else:
    assert f'; removed old cache files {before}\n' in out
  np.testing.assert_array_equal(
      dataset.train_inputs, image_folder(folder / 'train')[0])
  by_class(folder)
  np.testing.assert_array_equal(
      dataset.test_inputs, image_folder(folder / 'val')[0])


def test_a_copy_is_compared_and_not_decoded(tmp_path, monkeypatch, capsys):
  """A copy has other modification times and the same content."""
  write(tmp_path / 'a')
  first = load(tmp_path / 'a')
  shutil.copytree(tmp_path / 'a', tmp_path / 'b')
  for path in (tmp_path / 'b' / FOLDER).rglob('*.JPEG'):
    os.utime(path, (1, 1))
  monkeypatch.setattr(Image, 'open', no_decoding)
  capsys.readouterr()
  assert_same(load(tmp_path / 'b'), first)
  assert capsys.readouterr().out == (
      'comparing 18 images of Tiny-ImageNet with the cache, as their '
      'modification times changed\n')
  assert_same(load(tmp_path / 'b'), first)
  assert capsys.readouterr().out == ''  # the new times were stored
  assert len(cached_files(tmp_path / 'b')) == 1
  write_zip(tmp_path / 'a')  # shares the cache, too
  shutil.rmtree(tmp_path / 'a' / FOLDER)
  assert_same(load(tmp_path / 'a'), first)
  assert len(cached_files(tmp_path / 'a')) == 1


def test_only_cache_files_are_removed(tmp_path, capsys):
  write(tmp_path)
  load(tmp_path)
  path, = cached_files(tmp_path)
  content = path.read_bytes()
  path.unlink()
  named = lambda digit, end='': tmp_path / (
      f'tiny_imagenet-{digit * 16}.npy{end}')
  old = {named('0'): content, named('1'): content[:-64],  # earlier format
         named('2', '.12.part'): content[:9000]}
  others = {named('3'): content[:-96], named('4'): content + b'!',
            named('5'): b'!' + content[1:], named('6'): b'',
            named('7', '.13.part'): content[:9000],  # in use
            named('8', '.bak'): content, named('g'): content,
            tmp_path / 'tiny_imagenet-mine.npy': content,
            tmp_path / 'elsewhere': content}
  for other, blob in (old | others).items():
    other.write_bytes(blob)
  os.utime(named('2', '.12.part'), (1, 1))
  named('9').symlink_to(tmp_path / 'elsewhere')
  named('a').mkdir()
  capsys.readouterr()
  load(tmp_path)
  assert set(cached_files(tmp_path)) == {
      path, named('9'), named('a'), *others} - {tmp_path / 'elsewhere'}
  assert all(other.read_bytes() == blob for other, blob in others.items())
  assert f'; removed old cache files {", ".join(map(str, old))}\n' in (
      capsys.readouterr().out)


@pytest.mark.parametrize('damage', [
    lambda blob: blob + b'!',
    lambda blob: blob[:5000] + bytes([blob[5000] ^ 1]) + blob[5001:],
    lambda blob: blob[:-64] + bytes([blob[-64] ^ 1]) + blob[-63:],
    lambda blob: blob[:-64],
    lambda blob: b'',
])
def test_a_damaged_cache_file_is_reported_and_replaced(
    damage, tmp_path, capsys):
  write(tmp_path)
  first = load(tmp_path)
  path, = cached_files(tmp_path)
  content = path.read_bytes()
  path.write_bytes(damage(content))
  capsys.readouterr()
  assert_same(load(tmp_path), first)
  assert capsys.readouterr().out.startswith(
      f'{path} is damaged; decoding the images again\n')
  assert path.read_bytes() == content
  assert cached_files(tmp_path) == [path]


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
    (IMAGE, FILES[IMAGE][:2000], f'{IMAGE} must be a complete JPEG file'),
    (IMAGE, b'GIF89a' + bytes(99), f'{IMAGE} must be a complete JPEG file'),
    (IMAGE, jpeg(0, (64, 63)), f'{IMAGE} must have 64x64 pixels, got 64x63'),
    (IMAGE, None, 'train/ with 3 classes of 4 images each; got 3 classes; '
     'n10 has 3 images. '),
    ('train/n03/images/n03_1.JPEG', jpeg(0), 'got 4 classes; not in wnids.txt: '
     'n03; n03 has 1 images; missing: n03_0.JPEG, n03_2.JPEG, n03_3.JPEG. '),
    ('val/images/val_7.JPEG', None,
     r"line 2: no such image in val/images/: 'val_7.JPEG"),
    ('val/val_annotations.txt', None, 'lacks val/val_annotations.txt'),
    ('val/val_annotations.txt', ANNOTATIONS[:ANNOTATIONS.index(b'\n') + 1],
     'val/ with 6 images and their classes; got 1; 5 of 6 images have no line '
     'in val/val_annotations.txt: val_7.JPEG, val_8.JPEG, val_9.JPEG and 2 '
     'more. '),
    ('val/val_annotations.txt', ANNOTATIONS.replace(b'n10', b'n11'),
     r'val_annotations.txt, line 1: no such class in train/'),
    ('val/val_annotations.txt', ANNOTATIONS.replace(b'val_8', b'val_7'),
     r'val_annotations.txt, line 3: duplicate image'),
    ('val/val_annotations.txt', ANNOTATIONS.replace(
        b'val_6.JPEG', b'../../train/n01/images/n01_8.JPEG'),
     r'val_annotations.txt, line 1: no such image in val/images/'),
    ('val/val_annotations.txt', b'\xff\x00' * 99, 'line 1: no such image'),
    ('val/val_annotations.txt', b'val_6.JPEG', 'line 1: no such class'),
])
@pytest.mark.parametrize('is_archive', [False, True])
def test_damaged_files_raise(name, blob, words, is_archive, tmp_path):
  changed = {**FILES, name: blob}
  if blob is None:
    del changed[name]
  if is_archive:
    write_zip(tmp_path, changed)
  else:
    write(tmp_path, changed)
  with pytest.raises(UserError, match=f'(?s)--data_dir: {tmp_path}.*{words}'):
    load(tmp_path)
  assert not cached_files(tmp_path)


def test_classes_of_val_must_be_in_train(tmp_path):
  folder = write(tmp_path)
  by_class(folder)
  (folder / 'val/n02').rename(folder / 'val/n03')
  with pytest.raises(UserError, match='must be in train/, got .*/val/n03/'):
    load(tmp_path)


@pytest.mark.parametrize('missing, added, words', [
    (['train/n10/images/n10_2'], {},
     'train/ with 3 classes of 4 images each; got 3 classes; n10 has 3 images; '
     'missing: n10_2.JPEG. '),
    (['train/n01/images/n01_0', 'train/n10/images/n10_2'], {},
     'got 3 classes; n01 has 3 images; missing: n01_0.JPEG; other incomplete '
     'classes: 1. '),
    (['train/n10/images/'], {}, 'got 2 classes; missing: n10. '),
    (['train/n10/', 'train/n01/', 'wnids.txt'], {}, 'got 1 classes. '),
    (['train/n10/images/n10_2'], {'wnids.txt': b'n01\nn02'},
     'got 3 classes; n10 has 3 images; missing: '),
    (['train/n10/images/n10_2'], {'wnids.txt': b'\xff' * 99},
     'got 3 classes; n10 has 3 images; missing: '),
    ([], {'train/n10/images/n10_4.JPEG': jpeg(0)},
     'n10 has 5 images; not published: n10_4'),
    (['val/images/val_3'], {'val/val_annotations.txt': b''.join(
        f'val_{i}.JPEG\t{WNIDS[(i + 1) % 3]}\n'.encode()
        for i in (0, 1, 2, 4, 5))},
     'val/ with 6 images and their classes; got 5; missing: val_3.JPEG'),
])
@pytest.mark.parametrize('write_files', [write, write_zip])
def test_missing_and_added_images_are_named(
    write_files, missing, added, words, tmp_path):
  path = write_files(tmp_path, {
      name: blob for name, blob in published_names().items()
      if not name.startswith(tuple(missing) or '!')} | added)
  with pytest.raises(UserError, match=f'^--data_dir: {path} must.*{words}'):
    load(tmp_path)


def test_a_missing_test_image_of_a_class_is_named(tmp_path):
  folder = write(tmp_path, published_names())
  by_class(folder)
  next(folder.glob('val/*/val_3.JPEG')).unlink()
  with pytest.raises(UserError, match='with 6 .*got 5; missing: val_3.JPEG'):
    load(tmp_path)


@pytest.mark.parametrize('compression', [
    zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_compressed_files_raise(compression, tmp_path):
  path = write_zip(tmp_path, compression=compression)
  with zipfile.ZipFile(path) as archive:
    offset = archive.getinfo(f'{FOLDER}/{IMAGE}').header_offset
  blob = path.read_bytes()
  assert load(tmp_path).train_inputs.shape[0] == 12
  cached_files(tmp_path)[0].unlink()
  for start in range(offset + 60, offset + 200, 20):  # after the header
    path.write_bytes(blob[:start] + b'\xff' * 40 + blob[start + 40:])
    with pytest.raises(UserError, match=f'the archive {path} is damaged at'):
      load(tmp_path)


def flipped(blob):
  i = blob.index(FILES[IMAGE]) + 2500
  return blob[:i] + bytes([blob[i] ^ 1]) + blob[i + 1:]


def other_archive(_):
  file = io.BytesIO()
  with zipfile.ZipFile(file, 'w') as archive:
    archive.writestr('other/file', b'')
  return file.getvalue()


@pytest.mark.parametrize('damage, words', [
    (lambda blob: blob[:-100], r'is damaged \(File is not a zip file\). '),
    (lambda blob: b'', r'is damaged \(File is not a zip file\). '),
    (flipped, rf'is damaged at {IMAGE} \(Bad CRC-32'),
    (other_archive, f'must contain {FOLDER}/, ')])
def test_a_damaged_archive_raises(damage, words, tmp_path):
  path = write_zip(tmp_path)
  path.write_bytes(damage(path.read_bytes()))
  remedy = ('Remove it and run again to download it, or copy the archive from '
            f'{tiny_imagenet.URL} there')
  with pytest.raises(UserError, match=(
      f'^--data_dir: the archive {path} {words}.*{remedy}$')) as error:
    load(tmp_path)
  assert 'folder' not in str(error.value)
