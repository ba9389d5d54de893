"""CIFAR in each form, from made files in the published layout."""

import hashlib
import io
import os
import pickle
import shutil
import tarfile

import numpy as np
import pytest

from moon_jax.data import cifar
from moon_jax.data import download
from moon_jax.data import published
from moon_jax.errors import UserError


@pytest.fixture(scope='module')
def batches():
  """Six made batches: (planes uint8 [10000, 3072], labels)."""
  random = np.random.RandomState(0)
  return [(random.randint(0, 256, (10_000, 3072), np.uint8),
           random.randint(0, 10, 10_000)) for _ in range(6)]


@pytest.fixture(scope='module')
def blobs(batches):
  """The bytes of the files of both forms of CIFAR-10, by name."""
  python, binary = {}, {}
  for name, (pixels, labels) in zip(cifar.CIFAR10.forms[0].md5, batches):
    # Protocol 3 writes bytes as they are; 2, as published, takes a minute.
    python[name] = pickle.dumps(
        {b'data': pixels, b'labels': labels.tolist()}, 3)
    binary[f'{name}.bin'] = np.concatenate(
        [labels[:, None].astype(np.uint8), pixels], 1).tobytes()
  return {'py': python, 'bin': binary}


def with_checksums(data_set, *blobs_of_forms):
  """The same data set, published as these files."""
  return data_set._replace(forms=tuple(
      form._replace(md5={name: hashlib.md5(blob).hexdigest()
                         for name, blob in blobs.items()})
      for form, blobs in zip(data_set.forms, blobs_of_forms)))


@pytest.fixture(autouse=True)
def checksums_of_made_files(request, monkeypatch):
  if 'blobs' in request.fixturenames:
    blobs = request.getfixturevalue('blobs')
    monkeypatch.setattr(cifar, 'CIFAR10', with_checksums(
        cifar.CIFAR10, blobs['py'], blobs['bin']))


def no_network(*args, **kwargs):
  raise AssertionError('tried to download')


def write(root, blobs, form, archived):
  if not archived:
    directory = root / f'cifar-10-batches-{form}'
    directory.mkdir()
    for name, blob in blobs[form].items():
      (directory / name).write_bytes(blob)
    return directory
  path = root / {'py': 'cifar-10-python.tar.gz',
                 'bin': 'cifar-10-binary.tar.gz'}[form]
  with tarfile.open(path, 'w:gz', compresslevel=1) as tar:
    for name, blob in blobs[form].items():
      member = tarfile.TarInfo(f'cifar-10-batches-{form}/{name}')
      member.size = len(blob)
      tar.addfile(member, io.BytesIO(blob))
  return path


@pytest.mark.parametrize('form', ['py', 'bin'])
@pytest.mark.parametrize('archived', [False, True])
def test_every_form_gives_the_same_arrays(
    batches, blobs, form, archived, tmp_path, monkeypatch):
  monkeypatch.setattr(download, 'fetch', no_network)
  path = write(tmp_path, blobs, form, archived)
  dataset = cifar.load_cifar10(str(tmp_path))
  assert dataset.train_inputs.shape == (50_000, 32, 32, 3)
  assert dataset.test_inputs.shape == (10_000, 32, 32, 3)
  for k, (pixels, labels) in enumerate(batches):
    images, found = (
        (dataset.train_inputs, dataset.train_labels) if k < 5 else
        (dataset.test_inputs, dataset.test_labels))
    part = slice(k % 5 * 10_000, k % 5 * 10_000 + 10_000)
    np.testing.assert_array_equal(found[part], labels)
    np.testing.assert_array_equal(
        images[part][7], pixels[7].reshape(3, 32, 32).transpose(1, 2, 0))
  if not archived:  # the inner directory may be named itself
    again = cifar.load_cifar10(str(path))
    np.testing.assert_array_equal(again.train_labels, dataset.train_labels)


def test_real_files(golden_dir, golden_partitions):
  """The labels of an unpacked CIFAR-10, where CIFAR10_DIR names one."""
  if 'CIFAR10_DIR' not in os.environ:
    pytest.skip('CIFAR10_DIR names no directory with CIFAR-10')
  dataset = cifar.load_cifar10(os.environ['CIFAR10_DIR'])
  np.testing.assert_array_equal(dataset.train_labels, golden_partitions[0][0])


@pytest.mark.parametrize('damage, words', [
    (lambda p: p.unlink(), 'data_batch_3 is missing'),
    (lambda p: (p.unlink(), os.mkfifo(p)), 'data_batch_3 is missing or no'),
    (lambda p: (p.unlink(), p.mkdir()), 'data_batch_3 is missing or no'),
    (lambda p: p.write_bytes(p.read_bytes()[:1000]),
     'data_batch_3 is not the published file: 1,000 bytes'),
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


def test_hostile_pickle_with_a_right_checksum(blobs, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  hostile = b"cos\nsystem\n(S'touch pwned'\ntR."
  path = write(tmp_path, blobs, 'py', False) / 'data_batch_1'
  path.write_bytes(hostile)
  monkeypatch.setitem(cifar.CIFAR10.forms[0].md5, 'data_batch_1',
                      hashlib.md5(hostile).hexdigest())
  with pytest.raises(UserError, match='data_batch_1 is damaged.*os.system'):
    cifar.load_cifar10(str(tmp_path))
  assert not (tmp_path / 'pwned').exists()


def test_truncated_archive(blobs, tmp_path):
  path = write(tmp_path, blobs, 'py', True)
  path.write_bytes(path.read_bytes()[:100_000])
  with pytest.raises(UserError, match='cifar-10-python.tar.gz is not a whole'):
    cifar.load_cifar10(str(tmp_path))


@pytest.mark.parametrize('data_dir, words', [
    ('', '--data_dir must name a directory'),
    ('/nowhere/at/all', '--data_dir=/nowhere/at/all is not a directory'),
])
def test_no_directory(data_dir, words):
  with pytest.raises(UserError, match=words):
    cifar.load_cifar10(data_dir)


@pytest.mark.parametrize('form', ['python', 'binary'])
@pytest.mark.parametrize('archived', [False, True])
def test_cifar100_has_its_fine_labels(form, archived, tmp_path, monkeypatch):
  """Made files in both layouts, as in the published description."""
  monkeypatch.setattr(download, 'fetch', no_network)
  random = np.random.RandomState(0)
  small = cifar.CIFAR100._replace(num_images=(500, 100))
  arrays, blobs = {}, {}
  for name, count in (('train', 500), ('test', 100)):
    pixels = random.randint(0, 256, (count, 3072), np.uint8)
    fine, coarse = random.randint(0, 100, count), random.randint(0, 20, count)
    arrays[name] = pixels, fine
    if form == 'python':
      blobs[name] = pickle.dumps({
          b'data': pixels, b'fine_labels': fine.tolist(),
          b'coarse_labels': coarse.tolist(), b'filenames': [b'x.png']}, 3)
    else:
      blobs[f'{name}.bin'] = np.concatenate(
          [np.stack([coarse, fine], 1).astype(np.uint8), pixels], 1).tobytes()
  if form == 'python':
    small = with_checksums(small, blobs, {})
  directory, archive = f'cifar-100-{form}', f'cifar-100-{form}.tar.gz'
  (tmp_path / directory).mkdir()
  for name, blob in blobs.items():
    (tmp_path / directory / name).write_bytes(blob)
  if archived:
    with tarfile.open(tmp_path / archive, 'w:gz') as tar:
      tar.add(tmp_path / directory, directory)
    shutil.rmtree(tmp_path / directory)

  dataset = published.load(small, str(tmp_path))
  for name, images, labels in (
      ('train', dataset.train_inputs, dataset.train_labels),
      ('test', dataset.test_inputs, dataset.test_labels)):
    pixels, fine = arrays[name]
    np.testing.assert_array_equal(labels, fine)
    np.testing.assert_array_equal(
        images, pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
  assert dataset.num_classes == 100


@pytest.mark.parametrize('blob, words', [
    (b'1' * 1000, 'damaged: cannot reshape'),
    (bytes([0, 100] + [0] * 3072) * 500, 'damaged: a label is 100'),
    (bytes([0, 9] + [0] * 3072) * 400, 'damaged'),
])
def test_cifar100_binary_without_checksum_is_checked(blob, words, tmp_path):
  (tmp_path / 'cifar-100-binary').mkdir()
  (tmp_path / 'cifar-100-binary' / 'train.bin').write_bytes(blob)
  with pytest.raises(UserError, match=f'train.bin is {words}'):
    published.load(
        cifar.CIFAR100._replace(num_images=(500, 100)), str(tmp_path))
