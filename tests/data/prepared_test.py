"""Directories that tensorflow-datasets prepared, read without TensorFlow."""

import io
import sys

import numpy as np
from PIL import Image
import pytest

from moon_jax.data import prepared
from moon_jax.errors import UserError

IMAGES = np.random.RandomState(0).randint(0, 256, (30, 32, 32, 3), np.uint8)


def png(image):
  """A file: an array would need TensorFlow to be encoded."""
  file = io.BytesIO()
  Image.fromarray(image).save(file, 'PNG')
  file.seek(0)
  return file


def prepare(directory, file_format):
  import tensorflow_datasets as tfds

  class Cifar10(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """The features of the real one."""

    VERSION = tfds.core.Version('3.0.2')

    def _info(self):
      return tfds.core.DatasetInfo(
          builder=self,
          features=tfds.features.FeaturesDict({
              'id': tfds.features.Text(),
              'image': tfds.features.Image(shape=(32, 32, 3)),
              'label': tfds.features.ClassLabel(num_classes=10)}))

    def _split_generators(self, dl_manager):
      return {'train': self._generate_examples('train', 20),
              'test': self._generate_examples('test', 10)}

    def _generate_examples(self, split, n):
      offset = 0 if split == 'train' else 20
      for i in range(n):
        key = f'{split}_{i:05d}'
        yield key, {'id': key, 'image': png(IMAGES[offset + i]),
                    'label': i % 10}

  Cifar10(data_dir=directory, file_format=file_format).download_and_prepare()


def test_official_order_is_restored(tmp_path):
  assert prepared.find(tmp_path, 'cifar10') is None
  prepare(tmp_path, 'array_record')
  directory = prepared.find(tmp_path, 'cifar10')
  assert prepared.find(directory, 'cifar10') == directory
  train_inputs, train_labels, test_inputs, test_labels = (
      prepared.read(directory))
  np.testing.assert_array_equal(train_inputs, IMAGES[:20])
  np.testing.assert_array_equal(test_inputs, IMAGES[20:])
  np.testing.assert_array_equal(train_labels, np.arange(20) % 10)
  np.testing.assert_array_equal(test_labels, np.arange(10))
  assert 'tensorflow' not in sys.modules


def test_damage_is_told(tmp_path):
  prepare(tmp_path, 'array_record')
  directory = prepared.find(tmp_path, 'cifar10')
  for path in directory.glob('*array_record*'):
    path.write_bytes(b'')
  with pytest.raises(UserError, match='--data_dir.*cannot be read'):
    prepared.read(directory)


def test_preparing_needs_tensorflow(monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorflow', None)
  with pytest.raises(UserError, match='--data_dir=tfds needs TensorFlow'):
    prepared.prepare('cifar10')
