"""Custom data sets: npz files, loaders and error messages."""

import numpy as np
import pytest

from moon_jax.data import sources
from moon_jax.data.dataset import Dataset
from moon_jax.data.sources import arrays
from moon_jax.errors import UserError

_random = np.random.RandomState(0)
IMAGES = {
    'x_train': _random.randint(0, 256, (12, 8, 8, 3)).astype(np.uint8),
    'y_train': np.arange(12) % 3,
    'x_test': _random.randint(0, 256, (4, 8, 8, 3)).astype(np.uint8),
    'y_test': np.arange(4) % 3}
FEATURES = IMAGES | {'x_train': _random.randn(12, 5),
                     'x_test': _random.randn(4, 5)}
TOKENS = IMAGES | {'x_train': _random.randint(0, 40, (12, 6)),
                   'x_test': np.full((4, 6), 300)}
with_ = lambda data=IMAGES, **changes: {**data, **changes}


def make(data):
  return arrays.to_dataset('mine', 'here', data)


def save(tmp_path, data):
  path = tmp_path / 'mine.npz'
  np.savez(path, **data)
  return arrays.load_npz(str(path))


def test_images_are_normalized_per_channel(tmp_path):
  data = save(tmp_path, IMAGES)
  np.testing.assert_array_equal(data.train_inputs, IMAGES['x_train'])
  assert data.train_labels.dtype == np.int32 and data.num_classes == 3
  unit = IMAGES['x_train'].reshape(-1, 3) / 255
  np.testing.assert_allclose(data.mean, unit.mean(0))
  np.testing.assert_allclose(data.std, unit.std(0))
  assert data.num_tokens == 0 and data.train_clients is None
  grey = save(tmp_path, with_(x_train=IMAGES['x_train'][..., 0],
                              x_test=IMAGES['x_test'][..., 0]))
  assert grey.train_inputs.shape == (12, 8, 8, 1) and len(grey.mean) == 1
  flat = make(with_(x_train=np.full((12, 8, 8, 3), 51, np.uint8)))
  assert flat.mean == pytest.approx((.2,) * 3) and flat.std == (1.,) * 3


def test_features_are_not_normalized_by_default():
  data = make(FEATURES)
  np.testing.assert_array_equal(
      data.train_inputs, FEATURES['x_train'].astype(np.float32))
  assert data.mean == (0.,) and data.std == (1.,)
  given = make(with_(FEATURES, mean=np.arange(5.), std=2.))
  assert given.mean == (0., 1., 2., 3., 4.) and given.std == (2.,)


def test_tokens_have_the_smallest_dtype():
  data = make(TOKENS)
  assert data.num_tokens == 301
  assert data.train_inputs.dtype == data.test_inputs.dtype == np.int16
  for largest, dtype in ((126, np.int8), (127, np.int16), (32766, np.int16),
                      (32767, np.int32)):
    edge = make(with_(TOKENS, x_test=np.full((4, 6), largest)))
    assert edge.test_inputs.dtype == dtype and edge.test_inputs[0, 0] == largest
  small = make(with_(TOKENS, x_test=np.zeros((4, 6), int)))
  assert small.train_inputs.dtype == np.int8
  np.testing.assert_array_equal(small.train_inputs, TOKENS['x_train'])


def test_client_ids_may_be_strings(tmp_path):
  data = save(tmp_path, with_(client_train=np.array(list('bbacbbacbbac'))))
  np.testing.assert_array_equal(data.train_clients, [1, 1, 0, 2] * 3)
  objects = make(with_(client_train=np.array(list('bbacbbacbbac'), object)))
  np.testing.assert_array_equal(objects.train_clients, data.train_clients)


def test_test_examples_have_the_numbers_of_the_training_clients(tmp_path):
  """Not those of the sorted ids in client_test; clients may lack examples."""
  data = save(tmp_path, with_(
      client_train=np.array(list('bbacbbacbbac')),
      client_test=np.array(list('cacc'))))
  np.testing.assert_array_equal(data.test_clients, [2, 0, 2, 2])
  assert data.test_clients.dtype == np.int32
  numbers = make(with_(client_train=np.repeat([9, 4], 6).astype(np.uint8),
                       client_test=[9, 9, 4, 9]))
  np.testing.assert_array_equal(numbers.test_clients, [1, 1, 0, 1])
  assert make(with_(client_train=np.arange(12))).test_clients is None
  few, client_of = data.with_test_examples(3), {
      x.tobytes(): c for x, c in zip(data.test_inputs, data.test_clients)}
  assert few.test_clients.tolist() == [
      client_of[x.tobytes()] for x in few.test_inputs]


def test_subsets_are_nested_and_never_change():
  """Different versions must evaluate on the same examples."""
  dataset = Dataset(
      'numbers', np.zeros((5, 1), np.float32), np.zeros(5, np.int32),
      np.arange(20, dtype=np.float32)[:, None], np.arange(20, dtype=np.int32),
      tuple(map(str, range(20))))
  few = dataset.with_test_examples(6)
  assert few.test_labels.tolist() == [1, 8, 10, 17, 18, 19]
  assert few.test_inputs[:, 0].tolist() == [1, 8, 10, 17, 18, 19]
  assert few.train_inputs is dataset.train_inputs
  subsets = [dataset.with_test_examples(n).test_labels for n in range(1, 21)]
  for n, (smaller, larger) in enumerate(zip(subsets, subsets[1:]), 1):
    assert len(set(smaller)) == n and set(smaller) < set(larger)
  assert subsets[-1].tolist() == list(range(20))
  assert dataset.with_test_examples(0) is dataset


def test_fingerprints_depend_on_all_data():
  moved = IMAGES['x_train'].copy()
  moved[3, 2, 1, 0] += 1
  prints = [make(data).fingerprint() for data in (
      IMAGES, with_(x_train=moved), with_(y_test=np.array([0, 1, 2, 2])),
      with_(mean=.5), with_(client_train=np.arange(12)),
      with_(client_train=np.arange(12), client_test=np.arange(4)), FEATURES,
      with_(FEATURES, **{k: FEATURES[k].reshape(-1, 1, 5)
                         for k in ('x_train', 'x_test')}), IMAGES)]
  assert len(set(prints)) == 8 and prints[0] == prints[-1]
  assert arrays.to_dataset('other', '', IMAGES).fingerprint() == prints[0]


def test_fingerprints_are_those_of_earlier_versions():
  """Without fields that those versions did not have."""
  x = np.arange(6, dtype=np.float32).reshape(3, 2)
  y = np.array([0, 1, 0], np.int32)
  data = Dataset('mine', x, y, x, y, ('a', 'b'))
  assert data.fingerprint().startswith('9c78b994')


@pytest.mark.parametrize('data, words', [
    (with_(x_valid=1), 'names must be among .*got x_valid'),
    (with_(x_train=IMAGES['x_train'][:0]),
     r'x_train must have examples; got shape \[0, '),
    (with_(FEATURES, x_test=FEATURES['x_test'][:, :4]), r'float32 \[5\] and'),
    (with_(x_test=FEATURES['x_test']), 'uint8 .* and float32'),
    (with_(FEATURES, x_train=np.zeros(12)), r'Give one feature as \[N, 1\]'),
    (with_(x_train=np.zeros((12, 5), complex)), 'got complex128'),
    (with_(TOKENS, x_train=TOKENS['x_train'] - 1),
     'tokens from 0 to .*got tokens -1 to'),
    (with_(TOKENS, mean=1.), 'mean and std must not be given for tokens'),
    (with_(y_train=IMAGES['y_train'] * 50),
     'at most as many as its 12 examples; got 0 to 100'),
    (with_(class_names=['a', 'b']), 'y_train must be .*, 2; got 2'),
    (with_(class_names=5), 'class_names must be a list'),
    (with_(client_train=np.zeros(12)), 'integers or strings.*got float64'),
    (with_(client_test=np.arange(4)),
     'client_train, .* must be there with client_test'),
    (with_(client_train=np.arange(12), client_test=np.arange(3)),
     r'client_test must be 4 integers .* of x_test; got int64 \[3'),
    (with_(client_train=np.arange(12), client_test=list('abca')),
     'ids of one type; got int64 and <U1'),
    (with_(client_train=np.arange(12), client_test=[0, 12, 3, 99]),
     r'among those of client_train; got 2 .* client \[12\]'),
    (with_(mean=[.1, .2]), r'mean must be one number or 3; got float64 \[2\]'),
    (with_(mean=[125., 123., 114.]), 'mean must be that of images scaled to 0'),
    (with_(std=[1, 0, 1]), r'std must be above 1e-30; got \[1 0 1'),
    (with_(std=np.nan), 'std must be finite'),
    (with_(x_train=[[1.], [2., 3.]]),
     'x_train must be a plain array.*of equal length'),
    (with_(x_train=np.ma.masked_array(IMAGES['x_train'])), 'masked array'),
    (with_(x_train='here'), 'x_train must be an array; got a str'),
    (with_(TOKENS, x_train=np.full((12, 6), 10**6)), 'to 999,999 at most'),
    (with_(x_train=IMAGES['x_train'][:, :4], x_test=IMAGES['x_test'][:, :4],
           augmentation='reflect_crop_flip'), 'larger than 4 pixels'),
    (with_(augmentation='cutout'), 'augmentation must be one of none'),
    (with_(FEATURES, augmentation='reflect_crop_flip'),
     'none, except for images'),
])
def test_invalid_arrays_raise(data, words):
  with pytest.raises(UserError, match=f'here: .*{words}') as error:
    make(data)
  assert str(error.value).count('\n') == 0


def test_user_loader(tmp_path, monkeypatch):
  (tmp_path / 'loaders.py').write_text('''
import numpy as np

def load(data_dir):
  x = np.arange(20., dtype=np.float32).reshape(10, 2)
  return dict(x_train=x, y_train=np.arange(10) % 2, x_test=x, y_test=np.arange(
      10) % 2, class_names=["even", data_dir])

def short(data_dir):
  return load("") | {"y_test": [0, 1]}
''')
  (tmp_path / 'bad_package').mkdir()
  (tmp_path / 'bad_package' / '__init__.py').write_text('1 / 0')
  monkeypatch.syspath_prepend(tmp_path)
  data = sources.load_dataset('loaders:load', 'odd')
  assert data.name == 'loaders:load' and data.class_names == ('even', 'odd')
  for name, words in [
      ('loaders:lode', 'which has load, short; got loaders:lode'),
      ('bad_package.mine:load',
       'package that can be imported; got .*ZeroDivisionError'),
      ('loaders:short', r'dataset=loaders:short: y_test must be 10')]:
    with pytest.raises(UserError, match=words):
      sources.load_dataset(name, '')
