"""CIFAR-10 in each layout, from synthetic files."""

import hashlib
import io
import os
import pickle
import tarfile

import numpy as np
import pytest

from moon_jax.data.io import download
from moon_jax.data.sources import cifar
from moon_jax.errors import UserError


@pytest.fixture(scope='module')
def batches():
  """Returns six synthetic batches: (pixels uint8 [20, 3072], labels)."""
  random = np.random.RandomState(0)
  return [(random.randint(0, 256, (20, 3072), np.uint8),
           random.randint(0, 10, 20)) for _ in range(6)]


@pytest.fixture(scope='module')
def blobs(batches):
  """Returns the files of both layouts of CIFAR-10, layout -> name -> bytes."""
  python, binary = {}, {}
  for name, (pixels, labels) in zip(cifar.CIFAR10.layouts[0].md5, batches):
    python[name] = pickle.dumps(
        {b'data': pixels, b'labels': labels.tolist()}, 2)  # as published
    binary[f'{name}.bin'] = np.concatenate(
        [labels[:, None].astype(np.uint8), pixels], 1).tobytes()
  return {'py': python, 'bin': binary}


def with_checksums(data_set, *layout_blobs):
  """Returns the data set with the sizes and checksums of these files."""
  return data_set._replace(num_images=(20,) * 6, layouts=tuple(
      layout._replace(md5={name: hashlib.md5(blob).hexdigest()
                           for name, blob in blobs.items()})
      for layout, blobs in zip(data_set.layouts, layout_blobs)))


@pytest.fixture(autouse=True)
def synthetic_checksums(request, monkeypatch):
  if 'blobs' in request.fixturenames:
    blobs = request.getfixturevalue('blobs')
    monkeypatch.setattr(cifar, 'CIFAR10', with_checksums(
        cifar.CIFAR10, blobs['py'], blobs['bin']))


def no_network(*args, **kwargs):
  raise AssertionError('tried to download')


def write(root, blobs, layout, archived):
  if not archived:
    directory = root / f'cifar-10-batches-{layout}'
    directory.mkdir()
    for name, blob in blobs[layout].items():
      (directory / name).write_bytes(blob)
    return directory
  path = root / {'py': 'cifar-10-python.tar.gz',
                 'bin': 'cifar-10-binary.tar.gz'}[layout]
  with tarfile.open(path, 'w:gz', compresslevel=0) as tar:
    for name, blob in blobs[layout].items():
      member = tarfile.TarInfo(f'cifar-10-batches-{layout}/{name}')
      member.size = len(blob)
      tar.addfile(member, io.BytesIO(blob))
  return path


@pytest.mark.parametrize('layout', ['py', 'bin'])
@pytest.mark.parametrize('archived', [False, True])
def test_every_layout_gives_the_same_arrays(
    batches, blobs, layout, archived, tmp_path, monkeypatch):
  monkeypatch.setattr(download, 'fetch', no_network)
  path = write(tmp_path, blobs, layout, archived)
  dataset = cifar.load_cifar10(str(tmp_path))
  assert dataset.train_inputs.shape == (100, 32, 32, 3)
  assert dataset.test_inputs.shape == (20, 32, 32, 3)
  for k, (pixels, labels) in enumerate(batches):
    images, found_labels = (
        (dataset.train_inputs, dataset.train_labels) if k < 5 else
        (dataset.test_inputs, dataset.test_labels))
    part = slice(k % 5 * 20, k % 5 * 20 + 20)
    np.testing.assert_array_equal(found_labels[part], labels)
    np.testing.assert_array_equal(
        images[part][7], pixels[7].reshape(3, 32, 32).transpose(1, 2, 0))
  if not archived:  # data_dir may be the inner directory
    again = cifar.load_cifar10(str(path))
    np.testing.assert_array_equal(again.train_labels, dataset.train_labels)


def test_real_files(golden_dir, golden_partitions):
  """Checks the labels of CIFAR-10 in the directory CIFAR10_DIR."""
  if 'CIFAR10_DIR' not in os.environ:
    pytest.skip('set CIFAR10_DIR to a directory with CIFAR-10')
  dataset = cifar.load_cifar10(os.environ['CIFAR10_DIR'])
  np.testing.assert_array_equal(dataset.train_labels, golden_partitions[0][0])


@pytest.mark.parametrize('damage, words', [
    (lambda p: p.unlink(), 'data_batch_3 is missing'),
    (lambda p: (p.unlink(), os.mkfifo(p)), 'data_batch_3 is missing or not'),
    (lambda p: (p.unlink(), p.mkdir()), 'data_batch_3 is missing or not'),
    (lambda p: p.write_bytes(p.read_bytes()[:1000]),
     'data_batch_3 is not the published file: truncated: 1,000 of 31,035,999 '
     'bytes. Restore it'),
    (lambda p: p.write_bytes(p.read_bytes()[:-1] + b'!'),
     'data_batch_3 is not the published file'),
    (lambda p: p.write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR."),
     'data_batch_3 is not the published file'),
])
def test_damaged_file(blobs, damage, words, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  damage(write(tmp_path, blobs, 'py', False) / 'data_batch_3')
  with pytest.raises(UserError, match=words) as error:
    cifar.load_cifar10(str(tmp_path))
  assert str(error.value).startswith('--data_dir')
  assert not (tmp_path / 'pwned').exists()


def test_hostile_pickle_with_a_matching_checksum(blobs, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  hostile = b"cos\nsystem\n(S'touch pwned'\ntR."
  path = write(tmp_path, blobs, 'py', False) / 'data_batch_1'
  path.write_bytes(hostile)
  monkeypatch.setitem(cifar.CIFAR10.layouts[0].md5, 'data_batch_1',
                      hashlib.md5(hostile).hexdigest())
  with pytest.raises(UserError, match='data_batch_1 is damaged.*os.system'):
    cifar.load_cifar10(str(tmp_path))
  assert not (tmp_path / 'pwned').exists()


def test_truncated_archive(blobs, tmp_path):
  path = write(tmp_path, blobs, 'py', True)
  path.write_bytes(path.read_bytes()[:10_000])
  with pytest.raises(UserError, match='the archive .*cifar-10-python.tar.gz is '
                     'damaged .*Remove it and run again to download CIFAR-10'):
    cifar.load_cifar10(str(tmp_path))


@pytest.mark.parametrize('data_dir, words', [
    ('', '--data_dir must name a directory'),
    ('/nowhere/at/all', '--data_dir=/nowhere/at/all is not a directory'),
])
def test_no_directory(data_dir, words):
  with pytest.raises(UserError, match=words):
    cifar.load_cifar10(data_dir)


@pytest.mark.parametrize('size, problem', [
    (0, 'truncated: 0 of 30,730,000 bytes'),
    (30_729_999, 'truncated: 30,729,999 of'),
    (30_733_073, 'too long: 30,733,073 of'),
    (30_730_000, 'damaged: md5 .* not the published 5dd7e')])
def test_a_binary_file_of_wrong_size_or_content(size, problem, tmp_path):
  directory = tmp_path / 'cifar-10-batches-bin'
  directory.mkdir()
  with open(directory / 'data_batch_1.bin', 'wb') as file:
    file.truncate(size)
  with pytest.raises(UserError, match=(
      f'{directory}/data_batch_1.bin is not the published file: {problem}')):
    cifar.load_cifar10(str(tmp_path))
