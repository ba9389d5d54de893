"""What all published files share: where they are found, what is refused."""

import gzip
import hashlib

import numpy as np
import pytest

from moon_jax.data.io import download
from moon_jax.data.io import prepared
from moon_jax.data.io import published
from moon_jax.errors import UserError

IMAGES = np.arange(5 * 4, dtype=np.uint8).reshape(5, 2, 2, 1)
LABELS = np.array([0, 1, 2, 1, 0], np.uint8)
FILES = {'train': LABELS[:3].tobytes() + IMAGES[:3].tobytes(),
         'test': LABELS[3:].tobytes() + IMAGES[3:].tobytes()}


def decode(blob):
  n = len(blob) // 5
  flat = np.frombuffer(blob, np.uint8)
  return flat[n:].reshape(n, 2, 2, 1), flat[:n]


TOY = published.Published(
    name='toy',
    title='Toy',
    url='http://toy.example/',
    url_md5='',
    forms=tuple(
        published.Form(directory, '', {
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


def write(directory, ends=('', ''), files=FILES):
  directory.mkdir(exist_ok=True)
  for (name, blob), end in zip(files.items(), ends):
    (directory / f'{name}{end}').write_bytes(
        gzip.compress(blob) if end else blob)


def unchecked(**changes):
  """`TOY` without checksums."""
  forms = tuple(form._replace(md5=dict.fromkeys(form.md5, ''))
                for form in TOY.forms)
  return TOY._replace(forms=forms, **changes)


@pytest.mark.parametrize('directory', ['.', 'toy'])
@pytest.mark.parametrize('ends', [('', ''), ('.gz', '.gz'), ('', '.gz')])
def test_files_among_others(directory, ends, tmp_path):
  write(tmp_path / directory, ends)
  (tmp_path / 'other').write_bytes(b'!')
  dataset = published.load(TOY, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs, IMAGES[:3])
  np.testing.assert_array_equal(dataset.test_inputs, IMAGES[3:])
  np.testing.assert_array_equal(dataset.train_labels, LABELS[:3])
  np.testing.assert_array_equal(dataset.test_labels, LABELS[3:])
  assert dataset.train_labels.dtype == np.int32


def test_what_was_packed_anew_is_the_same_file(tmp_path):
  for name, blob in FILES.items():
    (tmp_path / f'{name}.gz').write_bytes(gzip.compress(blob, 0))
  published.load(TOY, str(tmp_path))


def test_a_bad_file_is_refused_though_a_good_one_lies_beside_it(tmp_path):
  write(tmp_path / 'toy')
  write(tmp_path)
  write(tmp_path, ('.gz', '.gz'))
  (tmp_path / 'test').write_bytes(FILES['test'][:-1] + b'!')
  with pytest.raises(UserError, match=f'{tmp_path}/test is not the published '
                     'file: 10 bytes with md5 .*http://toy.example/'):
    published.load(TOY, str(tmp_path))


def test_the_expected_size_is_reported_where_it_is_known(tmp_path):
  write(tmp_path)
  (tmp_path / 'test').write_bytes(FILES['test'][:-1])
  toy = TOY._replace(forms=(TOY.forms[0]._replace(num_bytes=(15, 10)),))
  with pytest.raises(UserError, match='/test is not the published file: 9 '
                     'bytes with md5 .*, where 10 bytes with md5 .* expected'):
    published.load(toy, str(tmp_path))


# Another data set with files of the same names.

SHADOW = {name: bytes(len(blob)) for name, blob in FILES.items()}
TOY_OR_SHADOW = TOY._replace(namesakes={
    hashlib.md5(blob).hexdigest(): 'shadow' for blob in SHADOW.values()})


@pytest.mark.parametrize('one', [{}, {'train'}, {'test'}])
def test_the_search_continues_past_another_data_set(one, tmp_path):
  """Whether all files of the first place are the other's, or one."""
  write(tmp_path, files={name: SHADOW[name] if not one or name in one else
                         FILES[name] for name in FILES})
  write(tmp_path / 'toy')
  dataset = published.load(TOY_OR_SHADOW, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs, IMAGES[:3])
  np.testing.assert_array_equal(dataset.test_inputs, IMAGES[3:])


@pytest.mark.parametrize('packed, plain', [(FILES, SHADOW), (SHADOW, FILES)])
def test_the_search_continues_at_the_packed_files_beside(
    packed, plain, tmp_path):
  write(tmp_path, files=plain)
  write(tmp_path, ('.gz', '.gz'), packed)
  dataset = published.load(TOY_OR_SHADOW, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs, IMAGES[:3])


def test_the_search_continues_at_what_was_prepared(tmp_path, monkeypatch):
  write(tmp_path, files=SHADOW)
  arrays = IMAGES[:3], LABELS[:3], IMAGES[3:], LABELS[3:]
  monkeypatch.setattr(prepared, 'find', lambda root, name: root / name)
  monkeypatch.setattr(prepared, 'read', lambda directory: arrays)
  dataset = published.load(TOY_OR_SHADOW, str(tmp_path))
  np.testing.assert_array_equal(dataset.train_inputs, IMAGES[:3])


def test_another_data_set_alone_is_named(tmp_path):
  write(tmp_path, files=SHADOW)
  with pytest.raises(UserError) as error:
    published.load(TOY_OR_SHADOW, str(tmp_path))
  assert str(error.value) == (
      f'--data_dir: {tmp_path}/train is the file of that name of --dataset='
      'shadow, not of --dataset=toy, and no other place has Toy: '
      f'{tmp_path} must hold train, test (each also as .gz), itself or in toy/,'
      ' or toy/ of tensorflow-datasets. Get the files from http://toy.example/')


def test_damage_beside_another_data_set_is_refused(tmp_path):
  """A damaged file is not passed over in silence."""
  write(tmp_path, files=SHADOW)
  write(tmp_path / 'toy', files=FILES | {'test': b'!'})
  with pytest.raises(UserError, match='/toy/test is not the published file'):
    published.load(TOY_OR_SHADOW, str(tmp_path))


@pytest.mark.parametrize('cut, words', [
    (lambda blob: blob[:-4], 'not a whole gzip file'),
    (lambda blob: blob[:20], 'not a whole gzip file'),
    (lambda blob: blob[:-8] + b'\0' * 8, 'not a whole gzip file'),
    (lambda blob: blob + b'trailing', 'not a whole gzip file'),
    (lambda blob: b'plain', 'not a whole gzip file'),
    (lambda blob: b'', 'not the published file: 0 bytes'),
])
def test_damaged_gzip(cut, words, tmp_path):
  write(tmp_path, ('', '.gz'))
  path = tmp_path / 'test.gz'
  path.write_bytes(cut(path.read_bytes()))
  with pytest.raises(UserError, match=f'--data_dir: {path} is {words}'):
    published.load(TOY, str(tmp_path))


def test_a_missing_file_is_named(tmp_path):
  write(tmp_path)
  (tmp_path / 'test').unlink()
  with pytest.raises(UserError, match=f'{tmp_path}/test is missing'):
    published.load(TOY, str(tmp_path))


def test_nothing_found(tmp_path):
  with pytest.raises(UserError) as error:
    published.load(TOY, str(tmp_path))
  assert str(error.value) == (
      f'--data_dir={tmp_path} must hold train, test (each also as .gz), itself '
      'or in toy/, or toy/ of tensorflow-datasets; got none of them. Get the '
      'files from http://toy.example/')


@pytest.mark.parametrize('data_dir, words', [
    ('', '--data_dir must name a directory for --dataset=toy; got none. Give '
     'one that holds train, test'),
    ('/no/such', '--data_dir=/no/such is not a directory; name the one'),
    (__file__, '--data_dir=.* is a file; name the directory'),
])
def test_no_directory(data_dir, words):
  with pytest.raises(UserError, match=words):
    published.load(TOY, data_dir)


@pytest.mark.parametrize('made, words', [
    ((IMAGES[:2], LABELS[:2]), r'uint8 \[2, 2, 2, 1\] where \[3, 2, 2, 1\]'),
    ((IMAGES[:3, :1], LABELS[:3]), r'\[3, 1, 2, 1\] where \[3, 2, 2, 1\]'),
    ((IMAGES[:3], LABELS[:2]), r'uint8 \[2\] where \[3\]'),
    ((IMAGES[:3].astype(np.int32), LABELS[:3]), 'int32 pixels, not uint8'),
    ((IMAGES[:3], LABELS[:3] + .5), r'float64 \[3\] where'),
    ((IMAGES[:3], [0, 1, 10**30]), r'object \[3\] where'),
    ((IMAGES[:3], LABELS[:3] + 1), 'a label is 3'),
    ((IMAGES[:3], LABELS[:3].astype(int) - 1), 'a label is -1'),
])
def test_decoded_arrays_are_checked(made, words, tmp_path):
  write(tmp_path)
  toy = unchecked()
  toy = toy._replace(forms=(toy.forms[0]._replace(decode=lambda blob: made),))
  with pytest.raises(UserError, match=f'{tmp_path}/train is damaged.*{words}'):
    published.load(toy, str(tmp_path))


def test_what_was_prepared_is_checked(tmp_path, monkeypatch):
  arrays = IMAGES[:3], LABELS[:3], IMAGES[3:], LABELS[3:]
  monkeypatch.setattr(prepared, 'find', lambda root, name: root / name)
  monkeypatch.setattr(prepared, 'read', lambda directory: arrays)
  dataset = published.load(TOY, str(tmp_path))
  np.testing.assert_array_equal(dataset.test_inputs, IMAGES[3:])
  arrays = IMAGES[:3], LABELS[:3], IMAGES[4:], LABELS[4:]
  with pytest.raises(UserError, match='/toy is not the whole of Toy'):
    published.load(TOY, str(tmp_path))
