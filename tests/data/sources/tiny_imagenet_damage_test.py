"""A damaged Tiny-ImageNet raises an error that names the file at fault."""

import zipfile

import pytest
import tiny_files
from tiny_files import by_class
from tiny_files import cached_files
from tiny_files import FILES
from tiny_files import FOLDER
from tiny_files import IMAGE
from tiny_files import jpeg
from tiny_files import write
from tiny_files import write_zip

from moon_jax.data.sources import tiny_imagenet
from moon_jax.errors import UserError


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path_factory):
  cache = tmp_path_factory.mktemp('cache')
  tiny_files.use(monkeypatch, cache)
  return cache


ANNOTATIONS = FILES['val/val_annotations.txt']


@pytest.mark.parametrize('name, blob, words', [
    (IMAGE, FILES[IMAGE][:2000], f'{IMAGE} must be a complete JPEG file'),
    (IMAGE, b'', f'{IMAGE} must be a complete JPEG file'),
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
    ('val/val_annotations.txt',
     ANNOTATIONS.replace(b'val_6.JPEG', b'/etc/passwd'),
     r'line 1: no such image in val/images/'),
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
    tiny_imagenet.load(str(tmp_path))
  assert not cached_files(tmp_path)


def test_classes_of_val_must_be_in_train(tmp_path):
  folder = write(tmp_path)
  by_class(folder)
  (folder / 'val/n02').rename(folder / 'val/n03')
  with pytest.raises(UserError, match='must be in train/, got .*/val/n03/'):
    tiny_imagenet.load(str(tmp_path))


@pytest.mark.parametrize('missing, words', [
    (['train/n10/images/n10_2'],
     'got 3 classes; n10 has 3 images; missing: n10_2.JPEG'),
    (['train/n01/images/n01_0', 'train/n10/images/n10_2'],
     'got 3 classes; n01 has 3 images; missing: n01_0.JPEG; other incomplete '
     'classes: 1'),
    (['train/n10/images/'], 'got 2 classes; missing: n10'),
    (['train/n10/', 'train/n01/', 'wnids.txt'], 'got 1 classes'),
])
@pytest.mark.parametrize('write_files', [write, write_zip])
def test_missing_images_are_named(write_files, missing, words, tmp_path):
  path = write_files(tmp_path, {
      name: blob for name, blob in tiny_files.published_names().items()
      if not name.startswith(tuple(missing))})
  with pytest.raises(UserError) as error:
    tiny_imagenet.load(str(tmp_path))
  assert str(error.value).startswith(
      f'--data_dir: {path} must hold train/ with 3 classes of 4 images '
      f'each; {words}. ')


@pytest.mark.parametrize('wnids', [b'', b'n01\nn02', b'\xff' * 99])
def test_an_invalid_wnids_file_is_ignored(wnids, tmp_path):
  files = tiny_files.published_names() | {'wnids.txt': wnids}
  del files['train/n10/images/n10_2.JPEG']
  write(tmp_path, files)
  with pytest.raises(UserError, match='got 3 classes; n10 has 3 images; miss'):
    tiny_imagenet.load(str(tmp_path))


def test_an_additional_image_is_named(tmp_path):
  write(tmp_path, tiny_files.published_names() | {
      'train/n10/images/n10_4.JPEG': jpeg(0)})
  with pytest.raises(UserError, match='n10 has 5 images; not published: n10_4'):
    tiny_imagenet.load(str(tmp_path))


def test_a_missing_test_image_is_named(tmp_path):
  folder = write(tmp_path, tiny_files.published_names())
  by_class(folder)
  next(folder.glob('val/*/val_3.JPEG')).unlink()
  with pytest.raises(UserError, match='with 6 .*got 5; missing: val_3.JPEG'):
    tiny_imagenet.load(str(tmp_path))


def test_a_missing_test_image_without_annotation_is_named(tmp_path):
  files = tiny_files.published_names()
  del files['val/images/val_3.JPEG']
  lines = files['val/val_annotations.txt'].splitlines(keepends=True)
  write(tmp_path, files | {
      'val/val_annotations.txt': b''.join(lines[:3] + lines[4:])})
  with pytest.raises(UserError, match='got 5; missing: val_3.JPEG'):
    tiny_imagenet.load(str(tmp_path))


@pytest.mark.parametrize('compression', [
    zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_compressed_files_raise(compression, tmp_path):
  path = write_zip(tmp_path, compression=compression)
  with zipfile.ZipFile(path) as archive:
    offset = archive.getinfo(f'{FOLDER}/{IMAGE}').header_offset
  blob = path.read_bytes()
  assert tiny_imagenet.load(str(tmp_path)).train_inputs.shape[0] == 12
  cached_files(tmp_path)[0].unlink()
  for start in range(offset + 60, offset + 200, 20):  # after the header
    path.write_bytes(blob[:start] + b'\xff' * 40 + blob[start + 40:])
    with pytest.raises(UserError, match=f'the archive {path} is damaged at'):
      tiny_imagenet.load(str(tmp_path))


REMEDY = ('Remove it and run again to download it, or copy the archive from '
          f'{tiny_imagenet.URL} there')


def load_error(directory):
  with pytest.raises(UserError) as error:
    tiny_imagenet.load(str(directory))
  assert str(error.value).endswith(f'. {REMEDY}')
  assert 'folder' not in str(error.value)
  return str(error.value)


@pytest.mark.parametrize('damage', [
    lambda blob: blob[:-100], lambda blob: blob[:5000], lambda blob: b'',
    lambda blob: b'!' * 5000])
def test_a_damaged_archive_raises(damage, tmp_path):
  path = write_zip(tmp_path)
  path.write_bytes(damage(path.read_bytes()))
  assert load_error(tmp_path).startswith(
      f'--data_dir: the archive {path} is damaged (File is not a zip file). ')


def test_a_damaged_file_in_an_archive_is_named(tmp_path):
  path = write_zip(tmp_path)
  blob = path.read_bytes()
  i = blob.index(FILES[IMAGE]) + 2500
  path.write_bytes(blob[:i] + bytes([blob[i] ^ 1]) + blob[i + 1:])
  assert load_error(tmp_path).startswith(
      f'--data_dir: the archive {path} is damaged at {IMAGE} (Bad CRC-32')


def test_an_archive_without_the_folder_raises(tmp_path):
  path = write_zip(tmp_path)
  with zipfile.ZipFile(path, 'w') as archive:
    archive.writestr('other/file', b'')
  assert load_error(tmp_path).startswith(
      f'--data_dir: the archive {path} must contain {FOLDER}/, ')
