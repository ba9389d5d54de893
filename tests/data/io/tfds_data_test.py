"""Reading directories of tensorflow-datasets without TensorFlow."""

import io
import sys

import numpy as np
from PIL import Image
import pytest

from moon_jax.data.io import published
from moon_jax.data.io import tfds_data
from moon_jax.data.sources import mnist
from moon_jax.errors import UserError

IMAGES = np.random.RandomState(0).randint(0, 256, (30, 32, 32, 3), np.uint8)


def png(image):
  """Returns a PNG file, because encoding an array would need TensorFlow."""
  file = io.BytesIO()
  Image.fromarray(image).save(file, 'PNG')
  file.seek(0)
  return file


def prepare(directory, file_format):
  import tensorflow_datasets as tfds

  class Cifar10(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """A data set with the features of CIFAR-10."""

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
  assert tfds_data.find(tmp_path, 'cifar10') is None
  prepare(tmp_path, 'array_record')
  directory = tfds_data.find(tmp_path, 'cifar10')
  assert tfds_data.find(directory, 'cifar10') == directory
  train_inputs, train_labels, test_inputs, test_labels = (
      tfds_data.read(directory))
  np.testing.assert_array_equal(train_inputs, IMAGES[:20])
  np.testing.assert_array_equal(test_inputs, IMAGES[20:])
  np.testing.assert_array_equal(train_labels, np.arange(20) % 10)
  np.testing.assert_array_equal(test_labels, np.arange(10))
  assert 'tensorflow' not in sys.modules


def test_examples_without_ids_remain_in_the_stored_order(tmp_path):
  """Uses a data set with the features of MNIST, which has no ids."""
  import tensorflow_datasets as tfds

  class Mnist(tfds.core.GeneratorBasedBuilder, skip_registration=True):

    VERSION = tfds.core.Version('3.0.1')

    def _info(self):
      return tfds.core.DatasetInfo(
          builder=self,
          features=tfds.features.FeaturesDict({
              'image': tfds.features.Image(shape=(28, 28, 1)),
              'label': tfds.features.ClassLabel(num_classes=10)}))

    def _split_generators(self, dl_manager):
      return {'train': self._generate_examples(0, 20),
              'test': self._generate_examples(20, 30)}

    def _generate_examples(self, begin, end):
      for i in range(begin, end):
        yield i, {'image': png(IMAGES[i, :28, :28, 0]), 'label': i % 10}

  builder = Mnist(data_dir=tmp_path, file_format='array_record')
  builder.download_and_prepare()
  dataset = published.load(
      mnist.MNIST._replace(num_images=(20, 10)), str(tmp_path))
  for split, images, labels in (
      ('train', dataset.train_inputs, dataset.train_labels),
      ('test', dataset.test_inputs, dataset.test_labels)):
    stored = builder.as_data_source(split)
    np.testing.assert_array_equal(images, [e['image'] for e in stored])
    np.testing.assert_array_equal(labels, [e['label'] for e in stored])
  expected = {(i % 10, IMAGES[i, :28, :28, 0].tobytes()) for i in range(20)}
  assert expected == {
      (int(k), image.tobytes())
      for k, image in zip(dataset.train_labels, dataset.train_inputs)}


@pytest.mark.parametrize('versions', [
    ('3.0.2', '10.0.0', '9.9.9'), ('10.0.0.incompleteAB12', '10.0.0'),
    ('2.0.0', '10.0.0', '10.0.0.incomplete9')])
def test_the_newest_version_is_read(tmp_path, versions):
  for version in versions:
    (tmp_path / 'cifar10' / version).mkdir(parents=True)
    (tmp_path / 'cifar10' / version / 'dataset_info.json').write_text('{}')
  assert tfds_data.find(tmp_path, 'cifar10').name == '10.0.0'


def test_another_data_set_is_not_found(tmp_path):
  prepare(tmp_path, 'array_record')
  directory = tfds_data.find(tmp_path, 'cifar10')
  assert tfds_data.find(directory, 'cifar100') is None
  (directory / 'dataset_info.json').write_text('{')
  assert tfds_data.find(directory, 'cifar10') is None


def test_damaged_files_raise(tmp_path):
  prepare(tmp_path, 'array_record')
  directory = tfds_data.find(tmp_path, 'cifar10')
  for path in directory.glob('*array_record*'):
    path.write_bytes(b'')
  with pytest.raises(UserError, match='--data_dir.*cannot be read'):
    tfds_data.read(directory)


def test_preparing_needs_tensorflow(monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorflow', None)
  with pytest.raises(UserError, match='--data_dir=tfds needs TensorFlow'):
    tfds_data.prepare('cifar10')
