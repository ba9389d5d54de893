"""Reading directories of tensorflow-datasets without TensorFlow."""

import io
import sys

import numpy as np
from PIL import Image
import pytest

from moon_jax.data.io import published, tfds_data
from moon_jax.data.sources import mnist
from moon_jax.errors import UserError

tfds = pytest.importorskip('tensorflow_datasets')
IMAGES = np.random.RandomState(0).randint(0, 256, (30, 28, 28, 1), np.uint8)
LABELS = np.arange(30) % 10


def png(image):
  """Returns a PNG file, because encoding an array would need TensorFlow."""
  file = io.BytesIO()
  Image.fromarray(image[..., 0]).save(file, 'PNG')
  file.seek(0)
  return file


class Mnist(tfds.core.GeneratorBasedBuilder, skip_registration=True):
  """20 training and 10 test images, with ids in a subclass as of CIFAR-10."""

  VERSION = tfds.core.Version('3.0.1')
  has_ids = False

  def _info(self):
    ids = {'id': tfds.features.Text()} if self.has_ids else {}
    return tfds.core.DatasetInfo(
        builder=self, features=tfds.features.FeaturesDict(ids | {
            'image': tfds.features.Image(shape=(28, 28, 1)),
            'label': tfds.features.ClassLabel(num_classes=10)}))

  def _split_generators(self, dl_manager):
    return {'train': self._generate_examples(0, 20),
            'test': self._generate_examples(20, 30)}

  def _generate_examples(self, begin, end):
    for i in range(begin, end):
      ids = {'id': f'{i:05d}'} if self.has_ids else {}
      yield f'{i:05d}', ids | {'image': png(IMAGES[i]), 'label': LABELS[i]}


class Cifar10(Mnist, skip_registration=True):

  has_ids = True


@pytest.fixture
def prepared(tmp_path):
  """Returns the directory in which Cifar10 has been prepared."""
  Cifar10(data_dir=tmp_path, file_format='array_record').download_and_prepare()
  return tfds_data.find(tmp_path, 'cifar10')


def test_official_order_is_restored(prepared, tmp_path):
  assert tfds_data.find(tmp_path, 'mnist') is None
  assert tfds_data.find(prepared, 'cifar10') == prepared
  arrays = tfds_data.read(prepared)
  for array, expected in zip(
      arrays, (IMAGES[:20], LABELS[:20], IMAGES[20:], LABELS[20:])):
    np.testing.assert_array_equal(array, expected)
  assert 'tensorflow' not in sys.modules


def test_examples_without_ids_remain_in_the_stored_order(tmp_path):
  """MNIST has no ids."""
  builder = Mnist(data_dir=tmp_path, file_format='array_record')
  builder.download_and_prepare()
  dataset = published.load(
      mnist.MNIST._replace(num_images=(20, 10)), str(tmp_path))
  stored = list(builder.as_data_source('train'))
  np.testing.assert_array_equal(
      dataset.train_inputs, [e['image'] for e in stored])
  np.testing.assert_array_equal(
      dataset.train_labels, [e['label'] for e in stored])
  assert {image.tobytes(): k for image, k in zip(
      dataset.train_inputs, dataset.train_labels)} == {
          image.tobytes(): k for image, k in zip(IMAGES[:20], LABELS)}


@pytest.mark.parametrize('versions', [
    ('3.0.2', '10.0.0', '9.9.9'), ('10.0.0.incompleteAB12', '10.0.0')])
def test_the_newest_version_is_read(tmp_path, versions):
  for version in versions:
    (tmp_path / 'cifar10' / version).mkdir(parents=True)
    (tmp_path / 'cifar10' / version / 'dataset_info.json').write_text('{}')
  assert tfds_data.find(tmp_path, 'cifar10').name == '10.0.0'


def test_another_data_set_or_damaged_files_are_refused(prepared):
  assert tfds_data.find(prepared, 'cifar100') is None
  for path in prepared.glob('*array_record*'):
    path.write_bytes(b'')
  with pytest.raises(UserError, match='--data_dir.*cannot be read'):
    tfds_data.read(prepared)
  (prepared / 'dataset_info.json').write_text('{')
  assert tfds_data.find(prepared, 'cifar10') is None


def test_preparing_needs_tensorflow(monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorflow', None)
  with pytest.raises(UserError, match='--data_dir=tfds needs TensorFlow'):
    tfds_data.prepare('cifar10')
