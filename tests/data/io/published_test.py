"""Published data sets: search order, verification and errors."""

import gzip
import hashlib

import numpy as np
import pytest

from moon_jax.data.io import download, published, tfds_data
from moon_jax.errors import UserError

IMAGES = np.arange(5 * 4, dtype=np.uint8).reshape(5, 2, 2, 1)
LABELS = np.array([0, 1, 2, 1, 0], np.uint8)
FILES = {'train': LABELS[:3].tobytes() + IMAGES[:3].tobytes(),
         'test': LABELS[3:].tobytes() + IMAGES[3:].tobytes()}


def decode(blob):
  n = len(blob) // 5
  flat = np.frombuffer(blob, np.uint8)
  return flat[n:].reshape(n, 2, 2, 1), flat[:n]


TOY = published.PublishedDataset(
    name='toy',
    title='Toy',
    url='http://toy.example/',
    url_md5='',
    layouts=tuple(
        published.Layout(directory, '', {
            name: hashlib.md5(blob).hexdigest()
            for name, blob in FILES.items()}, decode)
        for directory in ('.', 'toy')),
    num_images=(3, 2),
    shape=(2, 2, 1),
    class_names=('a', 'b', 'c'),
    mean=(.5,),
    std=(.5,),
    augmentation='none',
    prepared_name='toy')


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  def fetch(*args):
    raise AssertionError('tried to download')
  monkeypatch.setattr(download, 'fetch', fetch)


def write(directory, suffixes=('', ''), files=FILES):
  directory.mkdir(exist_ok=True)
  for (name, blob), suffix in zip(files.items(), suffixes):
    (directory / f'{name}{suffix}').write_bytes(
        gzip.compress(blob, 1) if suffix else blob)  # any level is valid


@pytest.mark.parametrize('directory', ['.', 'toy'])
@pytest.mark.parametrize('suffixes', [('', ''), ('.gz', '.gz'), ('', '.gz')])
def test_files_among_others(directory, suffixes, tmp_path):
  write(tmp_path / directory, suffixes)
  (tmp_path / 'other').write_bytes(b'!')
  dataset = published.load(TOY, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs, IMAGES[:3])
  np.testing.assert_array_equal(dataset.test_inputs, IMAGES[3:])
  np.testing.assert_array_equal(dataset.train_labels, LABELS[:3])
  np.testing.assert_array_equal(dataset.test_labels, LABELS[3:])
  assert dataset.train_labels.dtype == np.int32


def test_a_bad_file_is_an_error_despite_a_good_copy(tmp_path):
  write(tmp_path / 'toy')
  write(tmp_path)
  write(tmp_path, ('.gz', '.gz'))
  (tmp_path / 'test').write_bytes(FILES['test'][:-1] + b'!')
  with pytest.raises(UserError, match=f'{tmp_path}/test is not the published '
                     'file: damaged: md5 .* Get it again from http://toy.exam'):
    published.load(TOY, str(tmp_path))


def test_the_expected_size_is_reported_if_it_is_known(tmp_path):
  write(tmp_path)
  (tmp_path / 'test').write_bytes(FILES['test'][:-1])
  toy = TOY._replace(layouts=(TOY.layouts[0]._replace(num_bytes=(15, 10)),))
  with pytest.raises(UserError, match='file: truncated: 9 of 10 bytes'):
    published.load(toy, str(tmp_path))
  (tmp_path / 'test').unlink()
  with pytest.raises(UserError, match=f'{tmp_path}/test is missing'):
    published.load(toy, str(tmp_path))


# Another data set with the same file names.

OTHER = {name: bytes(len(blob)) for name, blob in FILES.items()}
TOY_OR_OTHER = TOY._replace(other_datasets={
    hashlib.md5(blob).hexdigest(): 'other' for blob in OTHER.values()})


@pytest.mark.parametrize('one', [{}, {'train'}, {'test'}])
def test_the_search_continues_past_another_data_set(one, tmp_path):
  """All files, or one, of the first directory belong to another data set."""
  write(tmp_path, files={name: OTHER[name] if not one or name in one else
                         FILES[name] for name in FILES})
  write(tmp_path / 'toy')
  dataset = published.load(TOY_OR_OTHER, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs, IMAGES[:3])
  np.testing.assert_array_equal(dataset.test_inputs, IMAGES[3:])


@pytest.mark.parametrize('compressed, plain', [(FILES, OTHER), (OTHER, FILES)])
def test_the_search_continues_at_compressed_files(
    compressed, plain, tmp_path):
  write(tmp_path, files=plain)
  write(tmp_path, ('.gz', '.gz'), compressed)
  dataset = published.load(TOY_OR_OTHER, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs, IMAGES[:3])


def test_another_data_set_alone_is_an_error(tmp_path):
  write(tmp_path, files=OTHER)
  with pytest.raises(UserError) as error:
    published.load(TOY_OR_OTHER, str(tmp_path))
  assert str(error.value) == (
      f'--data_dir: {tmp_path}/train must be of --dataset=toy, got the file of '
      f'the same name of --dataset=other. {tmp_path} must hold train, test '
      '(each also as .gz), directly or in toy/, or toy/ of tensorflow-datasets '
      'with Toy. Get the files from http://toy.example/, or download them: '
      f'moon-jax data get toy --data_dir={tmp_path}')


def test_a_damaged_file_next_to_another_data_set_is_an_error(tmp_path):
  write(tmp_path, files=OTHER)
  write(tmp_path / 'toy', files=FILES | {'test': b'!'})
  with pytest.raises(UserError, match='/toy/test is not the published file'):
    published.load(TOY_OR_OTHER, str(tmp_path))


@pytest.mark.parametrize('cut, words', [
    (lambda blob: blob[:-4], 'not a complete gzip file'),
    (lambda blob: blob[:-8] + b'\0' * 8, 'not a complete gzip file'),
    (lambda blob: blob + b'trailing', 'not a complete gzip file'),
    (lambda blob: b'', 'not the published file: damaged: md5'),
])
def test_damaged_gzip(cut, words, tmp_path):
  write(tmp_path, ('', '.gz'))
  path = tmp_path / 'test.gz'
  path.write_bytes(cut(path.read_bytes()))
  with pytest.raises(UserError, match=f'--data_dir: {path} is {words}'):
    published.load(TOY, str(tmp_path))


def test_an_empty_directory(tmp_path):
  with pytest.raises(UserError) as error:
    published.load(TOY, str(tmp_path))
  assert str(error.value) == (
      f'--data_dir={tmp_path} must hold train, test (each also as .gz), '
      'directly or in toy/, or toy/ of tensorflow-datasets; got none of them. '
      'Get the files from http://toy.example/, or download them: '
      f'moon-jax data get toy --data_dir={tmp_path}')


@pytest.mark.parametrize('data_dir, words', [
    ('', '--data_dir must name a directory for --dataset=toy; got none. Give '
     'one that holds train, test'),
    ('/no/such',
     '--data_dir=/no/such is not a directory; name the directory'),
    (__file__, '--data_dir=.* is a file; name the directory'),
])
def test_no_directory(data_dir, words):
  with pytest.raises(UserError, match=words):
    published.load(TOY, data_dir)


@pytest.mark.parametrize('decoded, words', [
    ((IMAGES[:2], LABELS[:2]), r'\[3, 2, 2, 1\], got uint8 \[2, 2, 2, 1\]'),
    ((IMAGES[:3], LABELS[:2]), r'shape \[3\], got uint8 \[2\]'),
    ((IMAGES[:3].astype(np.int32), LABELS[:3]), 'must be uint8, got int32'),
    ((IMAGES[:3], LABELS[:3] + .5), r'got float64 \[3\]'),
    ((IMAGES[:3], [0, 1, 10**30]), r'got object \[3\]'),
    ((IMAGES[:3], LABELS[:3] + 1), 'labels must be 0 to 2, got 3'),
    ((IMAGES[:3], LABELS[:3].astype(int) - 1), 'labels must be 0 to 2, got -1'),
])
def test_decoded_arrays_are_checked(decoded, words, tmp_path):
  write(tmp_path)
  toy = TOY._replace(layouts=(TOY.layouts[0]._replace(
      md5=dict.fromkeys(FILES, ''), decode_fn=lambda blob: decoded),))
  with pytest.raises(UserError, match=f'{tmp_path}/train is damaged.*{words}'):
    published.load(toy, str(tmp_path))


def test_prepared_arrays_are_checked(tmp_path, monkeypatch):
  """The search continues at prepared directories past another data set."""
  write(tmp_path, files=OTHER)
  arrays = IMAGES[:3], LABELS[:3], IMAGES[3:], LABELS[3:]
  monkeypatch.setattr(tfds_data, 'find', lambda root, name: root / name)
  monkeypatch.setattr(tfds_data, 'read', lambda directory: arrays)
  dataset = published.load(TOY_OR_OTHER, str(tmp_path))
  np.testing.assert_array_equal(dataset.test_inputs, IMAGES[3:])
  arrays = IMAGES[:3], LABELS[:3], IMAGES[4:], LABELS[4:]
  with pytest.raises(UserError, match='/toy is not a complete Toy'):
    published.load(TOY_OR_OTHER, str(tmp_path))
