"""Tiny-ImageNet in all layouts, from a synthetic folder."""

import shutil

import numpy as np
import pytest
import tiny_files
from tiny_files import assert_same
from tiny_files import by_class
from tiny_files import FOLDER
from tiny_files import image_folder
from tiny_files import WNIDS
from tiny_files import write

from moon_jax.data.io import download
from moon_jax.data.sources import tiny_imagenet
from moon_jax.errors import UserError


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path_factory):
  cache = tmp_path_factory.mktemp('cache')
  tiny_files.use(monkeypatch, cache)
  return cache


def test_order_and_pixels_equal_image_folder(tmp_path):
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
    'data_dir is the folder', 'val by class', 'val by class and images',
    'train without images', 'archive', 'linked', 'hidden files'])
def test_every_layout_gives_the_same_arrays(layout, tmp_path):
  folder = write(tmp_path / 'reference')
  reference = tiny_imagenet.load(str(tmp_path / 'reference'))
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
  assert_same(tiny_imagenet.load(str(data_dir)), reference)


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
  dataset = tiny_imagenet.load(str(tmp_path / 'root'))
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
