"""Images are decoded once; the cache is reported, verified and replaced."""

import os
import pathlib
import shutil

import numpy as np
from PIL import Image
import pytest
import tiny_files
from tiny_files import assert_same
from tiny_files import by_class
from tiny_files import cached_files
from tiny_files import FILES
from tiny_files import FOLDER
from tiny_files import IMAGE
from tiny_files import image_folder
from tiny_files import jpeg
from tiny_files import write

from moon_jax.data.sources import tiny_imagenet


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path_factory):
  cache = tmp_path_factory.mktemp('cache')
  tiny_files.use(monkeypatch, cache)
  return cache


def no_decoding(*args, **kwargs):
  raise AssertionError('tried to decode')


def test_images_are_decoded_once(tmp_path, monkeypatch):
  write(tmp_path)
  first = tiny_imagenet.load(str(tmp_path))
  path, = cached_files(tmp_path)
  np.testing.assert_array_equal(
      np.load(path), np.concatenate([first.train_inputs, first.test_inputs]))
  monkeypatch.setattr(Image, 'open', no_decoding)
  assert_same(tiny_imagenet.load(str(tmp_path)), first)
  assert_same(tiny_imagenet.load(str(tmp_path / FOLDER)), first)


def test_the_cache_file_is_reported(tmp_path, capsys):
  write(tmp_path)
  tiny_imagenet.load(str(tmp_path))
  path, = cached_files(tmp_path)
  assert capsys.readouterr().out == (
      'decoding 18 images of Tiny-ImageNet\n'
      f'cached the decoded images of Tiny-ImageNet in {path} (0.2 MB) for the '
      'next run\n')
  tiny_imagenet.load(str(tmp_path))
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
  tiny_imagenet.load(str(tmp_path))
  before, = cached_files(tmp_path)
  capsys.readouterr()
  change(folder)
  dataset = tiny_imagenet.load(str(tmp_path))
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
  first = tiny_imagenet.load(str(tmp_path / 'a'))
  shutil.copytree(tmp_path / 'a', tmp_path / 'b')
  for path in (tmp_path / 'b' / FOLDER).rglob('*.JPEG'):
    os.utime(path, (1, 1))
  monkeypatch.setattr(Image, 'open', no_decoding)
  capsys.readouterr()
  assert_same(tiny_imagenet.load(str(tmp_path / 'b')), first)
  assert capsys.readouterr().out == (
      'comparing 18 images of Tiny-ImageNet with the cache, as their '
      'modification times changed\n')
  assert_same(tiny_imagenet.load(str(tmp_path / 'b')), first)
  assert capsys.readouterr().out == ''  # the new times were stored
  assert len(cached_files(tmp_path / 'b')) == 1


def test_folder_and_archive_share_the_cache(tmp_path, monkeypatch):
  folder = write(tmp_path)
  first = tiny_imagenet.load(str(tmp_path))
  tiny_files.write_zip(tmp_path)
  shutil.rmtree(folder)
  monkeypatch.setattr(Image, 'open', no_decoding)
  assert_same(tiny_imagenet.load(str(tmp_path)), first)
  assert len(cached_files(tmp_path)) == 1


def test_only_cache_files_are_removed(tmp_path, capsys):
  write(tmp_path)
  tiny_imagenet.load(str(tmp_path))
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
  tiny_imagenet.load(str(tmp_path))
  assert set(cached_files(tmp_path)) == {
      path, named('9'), named('a'), *others} - {tmp_path / 'elsewhere'}
  assert all(other.read_bytes() == blob for other, blob in others.items())
  assert f'; removed old cache files {", ".join(map(str, old))}\n' in (
      capsys.readouterr().out)


@pytest.mark.parametrize('damage', [
    lambda blob: blob[:-1],
    lambda blob: blob + b'!',
    lambda blob: blob[:5000] + bytes([blob[5000] ^ 1]) + blob[5001:],
    lambda blob: blob[:-64] + bytes([blob[-64] ^ 1]) + blob[-63:],
    lambda blob: blob[:-64],
    lambda blob: b'!' + blob[1:],
    lambda blob: b'',
])
def test_a_damaged_cache_file_is_reported_and_replaced(
    damage, tmp_path, capsys):
  write(tmp_path)
  first = tiny_imagenet.load(str(tmp_path))
  path, = cached_files(tmp_path)
  content = path.read_bytes()
  path.write_bytes(damage(content))
  capsys.readouterr()
  assert_same(tiny_imagenet.load(str(tmp_path)), first)
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
    tmp_path, monkeypatch, small):
  write(tmp_path)
  with monkeypatch.context() as patch:
    refuse_writing(patch, tmp_path)
    first = tiny_imagenet.load(str(tmp_path))
  assert not cached_files(tmp_path) and len(cached_files(small)) == 1
  monkeypatch.setattr(Image, 'open', no_decoding)
  assert_same(tiny_imagenet.load(str(tmp_path)), first)


def test_a_missing_cache_is_reported(tmp_path, monkeypatch, small, capsys):
  folder = write(tmp_path)
  refuse_writing(monkeypatch, tmp_path, small)
  dataset = tiny_imagenet.load(str(tmp_path))
  np.testing.assert_array_equal(
      dataset.train_inputs, image_folder(folder / 'train')[0])
  assert 'the next run will decode the images again' in capsys.readouterr().out
  assert not cached_files(tmp_path) and not cached_files(small)
