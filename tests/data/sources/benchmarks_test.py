"""MedMNIST, EMNIST, HAR and Adult, from tiny files in the published form."""

import gzip
import hashlib
import io

import numpy as np
import pytest

import moon_jax as mj
from moon_jax import data_command
from moon_jax.data.io import published
from moon_jax.data.sources import benchmarks, tables
from moon_jax.errors import UserError
from support import published_files, ROOT

RANDOM = np.random.RandomState(0)


def npz(task='classes', shape=(28, 28)):
  """Returns the bytes of a file of medmnist: labels are [n, 1] or [n, 14]."""
  arrays = {}
  for part, count in ('train', 6), ('val', 3), ('test', 4):
    arrays[f'{part}_images'] = RANDOM.randint(
        0, 256, (count, *shape), np.uint8)
    arrays[f'{part}_labels'] = (
        np.arange(count)[:, None] % 3 if task == 'classes' else
        RANDOM.randint(0, 2, (count, 14))).astype(np.uint8)
  file = io.BytesIO()
  np.savez(file, **arrays)
  return arrays, file.getvalue()


def publish(monkeypatch, directory, name, blob):
  (directory / f'{name}.npz').write_bytes(blob)
  monkeypatch.setitem(
      benchmarks.MEDMNIST, name, hashlib.md5(blob).hexdigest())


def test_medmnist(tmp_path, monkeypatch):
  arrays, blob = npz(shape=(28, 28, 3))
  publish(monkeypatch, tmp_path, 'bloodmnist', blob)
  data = mj.load_dataset('medmnist(name=bloodmnist)', str(tmp_path))
  np.testing.assert_array_equal(data.train_inputs, np.concatenate(
      [arrays['train_images'], arrays['val_images']]))
  assert data.train_labels.tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2]
  assert data.test_labels.tolist() == [0, 1, 2, 0]
  arrays, blob = npz('multilabel')
  publish(monkeypatch, tmp_path, 'chestmnist', blob)
  data = mj.load_dataset('medmnist(name=chestmnist)', str(tmp_path))
  assert data.task == 'multilabel' and data.train_labels.shape == (9, 14)
  assert data.train_inputs.shape == (9, 28, 28, 1)


def test_another_file_of_medmnist_is_refused(tmp_path):
  _, blob = npz()
  (tmp_path / 'pathmnist.npz').write_bytes(blob)
  with pytest.raises(UserError, match='md5 a8b06965.*pathmnist.npz with md5'):
    mj.load_dataset('medmnist', str(tmp_path))


def test_emnist_is_upright(tmp_path):
  images = RANDOM.randint(0, 256, (5, 28, 28), np.uint8)
  for part, rows in ('train', slice(0, 3)), ('test', slice(3, 5)):
    for kind, array in (('images-idx3', images[rows].swapaxes(1, 2)),
                        ('labels-idx1', np.uint8([1, 26, 3])[:len(
                            images[rows])])):
      blob = published_files.idx(np.ascontiguousarray(array))
      path = tmp_path / f'emnist-letters-{part}-{kind}-ubyte.gz'
      path.write_bytes(gzip.compress(blob))
  data = mj.load_dataset('emnist(split=letters)', str(tmp_path))
  np.testing.assert_array_equal(data.train_inputs[..., 0], images[:3])
  np.testing.assert_array_equal(data.test_inputs[..., 0], images[3:])
  assert [data.class_names[k] for k in data.train_labels] == ['a', 'z', 'c']


def test_numbers_of_classes_of_emnist():
  """As published: https://arxiv.org/abs/1702.05373, table II."""
  assert {split: len(names) for split, names in benchmarks.EMNIST.items()} == {
      'balanced': 47, 'bymerge': 47, 'byclass': 62, 'letters': 26,
      'digits': 10, 'mnist': 10}
  assert benchmarks.EMNIST['balanced'][36:] == 'abdefghnqrt'


def test_people_of_har_are_clients(tmp_path):
  (tmp_path / 'activity_labels.txt').write_text('1 WALKING\n2 SITTING\n')
  x = RANDOM.normal(size=(12, 4))
  for part, rows, people in (('train', slice(0, 8), [1, 1, 1, 1, 3, 3, 3, 3]),
                             ('test', slice(8, 12), [2, 2, 2, 2])):
    (tmp_path / part).mkdir()
    for kind, values in (('X', x[rows]), ('subject', people),
                         ('y', np.arange(len(people)) % 2 + 1)):
      np.savetxt(tmp_path / part / f'{kind}_{part}.txt', values)
  data = mj.load_dataset('har', str(tmp_path))
  assert data.class_names == ('walking', 'sitting')
  assert np.bincount(data.train_clients).tolist() == [3, 3, 3]
  assert np.bincount(data.test_clients).tolist() == [1, 1, 1]
  both = np.concatenate([data.train_inputs, data.test_inputs])
  np.testing.assert_allclose(np.sort(both[:, 0]), np.sort(x[:, 0]), 1e-6)
  owner = dict(zip(x[:, 0].round(4), [0] * 4 + [2] * 4 + [1] * 4))
  assert [owner[round(float(value), 4)] for value in data.train_inputs[:, 0]
          ] == data.train_clients.tolist()


def test_the_sizes_of_har_are_those_of_a_fifth_of_each_person():
  """Rows of persons 1 to 30 in the published files, 7,352 + 2,947."""
  counts = [347, 302, 341, 317, 302, 325, 308, 281, 288, 294, 316, 320, 327,
            323, 328, 366, 368, 364, 360, 354, 408, 321, 372, 381, 409, 392,
            376, 382, 344, 383]
  is_test = tables.test_rows(np.repeat(np.arange(30), counts), None, .2)
  sizes = f'{(~is_test).sum():,}, {is_test.sum():,}'
  assert data_command.ENTRIES['har'].examples == sizes
  page = (ROOT / 'docs/data.md').read_text(encoding='utf-8')
  assert f'| `har` | {sizes} rows' in page


def test_shares_of_colored_mnist(monkeypatch):
  """The closed form: noise and colours are independent of the digit."""
  count = 20_000
  pixels = RANDOM.randint(1, 256, (count, 2, 2, 1), np.uint8)
  digits = RANDOM.randint(0, 10, count)
  monkeypatch.setattr(
      published, 'load', lambda data_set, *_: mj.Dataset(
          data_set.name, pixels, digits, pixels[::-1], digits[::-1], ()))
  data = mj.load_dataset('colored_mnist(agreement=(0.9, 0.8, 0.6))')
  for x, y, expected, digit in (
      (data.train_inputs, data.train_labels, pixels, digits),
      (data.test_inputs, data.test_labels, pixels[::-1], digits[::-1])):
    np.testing.assert_array_equal(x.max(-1), expected[..., 0])
    assert ((x == 0).any(-1).all((1, 2)) & (
        (x[..., 0] == 0).all((1, 2)) | (x[..., 1] == 0).all((1, 2)))).all()
    assert abs((y == (digit >= 5)).mean() - .75) < .015
  agrees = lambda x, y: (x[:, 0, 0, 1] > 0) == y
  train = agrees(data.train_inputs, data.train_labels)
  for client, share in enumerate((.9, .8, .6)):
    assert abs(train[data.train_clients == client].mean() - share) < .02
    assert (data.train_clients == client).sum() in (6666, 6667)
  # A wrong label has its own colour as often as a right one.
  is_right = data.train_labels == (digits >= 5)
  assert abs(train[is_right].mean() - train[~is_right].mean()) < .03
  test = agrees(data.test_inputs, data.test_labels)
  assert abs(test.mean() - .1) < .01


def test_tags_of_stackoverflow(tmp_path):
  h5py = pytest.importorskip('h5py', reason="pip install 'moon_jax[tff]'")
  (tmp_path / 'stackoverflow.word_count').write_text('a 9\nb 7\nc 3\n')
  (tmp_path / 'stackoverflow.tag_count').write_text(
      '{"rare": 1, "jax": 3, "python": 9, "numpy": 3}')
  rows = {'train': {'ann': ['a b a z|a|jax|python', 'c c|b|rare'],
                    'bob': ['a||numpy'] * 3, 'eva': ['a|a|jax']},
          'test': {'bob': ['|b|jax'], 'ann': ['c|c|rare|numpy'],
                   'new': ['a|a|jax']}}
  for part, users in rows.items():
    with h5py.File(tmp_path / f'stackoverflow_{part}.h5', 'w') as file:
      for user, lines in users.items():
        texts = zip(*(line.split('|', 2) for line in lines))
        for key, values in zip(('tokens', 'title', 'tags'), texts):
          file[f'examples/{user}/{key}'] = [x.encode() for x in values]
  data = mj.load_dataset(
      'stackoverflow_tags(clients=2, examples=2, words=2, tags=3)',
      str(tmp_path))
  assert data.client_names == ('ann', 'bob')  # in both files
  assert data.class_names == ('python', 'jax', 'numpy')
  np.testing.assert_allclose(
      data.train_inputs, [[3 / 5, 1 / 5], [0, 1 / 3], [1, 0], [1, 0]])
  assert data.train_labels.tolist() == [
      [1, 1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 1]]
  np.testing.assert_allclose(data.test_inputs, [[0, 0], [0, 1]])
  assert data.test_labels.tolist() == [[0, 0, 1], [0, 1, 0]]
  assert data.train_clients.tolist() == [0, 0, 1, 1]
  assert data.task == 'multilabel'
  with pytest.raises(UserError, match='at most the users.*2; got 3'):
    mj.load_dataset('stackoverflow_tags(clients=3)', str(tmp_path))


ROW = ('{age}, {job}, 77516, Bachelors, 13, Never-married, Adm-clerical, '
       'Not-in-family, White, {sex}, 2174, 0, 40, United-States, {income}')


def test_adult(tmp_path):
  (tmp_path / 'adult.data').write_text('\n'.join([
      ROW.format(age=39, job='State-gov', sex='Male', income='<=50K'),
      ROW.format(age=41, job='?', sex='Female', income='>50K'),
      ROW.format(age=43, job='Private', sex='Male', income='<=50K'),
      ROW.format(age=45, job='Private', sex='Female', income='>50K'), '']))
  (tmp_path / 'adult.test').write_text('\n'.join([
      '|1x3 Cross validator',
      ROW.format(age=50, job='Private', sex='Male', income='>50K.'), '']))
  data = mj.load_dataset('adult(client=sex)', str(tmp_path))
  assert data.class_names == ('<=50K', '>50K')
  assert data.train_labels.tolist() == [0, 1, 0, 1]
  assert data.test_labels.tolist() == [1]
  assert data.client_names == ('Female', 'Male')
  assert data.train_clients.tolist() == [1, 0, 1, 0]
  assert data.train_inputs[:, :3].tolist() == [  # age, Private, State-gov
      [39, 0, 1], [41, 1, 0], [43, 1, 0], [45, 1, 0]]
  data = mj.load_dataset('adult(client=workclass)', str(tmp_path))
  assert data.client_names == ('Private', 'State-gov', 'missing')
  assert data.train_clients.tolist() == [1, 2, 0, 0]
  (tmp_path / 'adult.test').write_text('x\n1, 2, 3\n')
  with pytest.raises(UserError, match='15 fields.*adult.test, line 2'):
    mj.load_dataset('adult', str(tmp_path))


@pytest.mark.parametrize('name, file, page', [
    ('medmnist', 'pathmnist.npz', 'zenodo'), ('adult', 'adult.data', 'uci'),
    ('emnist', 'emnist-balanced-train-images-idx3-ubyte', 'nist.gov'),
    ('har', 'train.X_train.txt', 'uci'),
    ('stackoverflow_tags', 'stackoverflow_train.h5', 'tff-datasets')])
def test_missing_files_are_named_with_their_address(name, file, page, tmp_path):
  with pytest.raises(UserError, match=f'no .*{file}.*Download it: .*{page}'):
    mj.load_dataset(name, str(tmp_path))
