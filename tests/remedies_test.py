"""What messages about data recommend is right: it is obeyed here.

Rows of invalid_input.toml that concern arrays, and more of their kinds. Obeyed,
each gives the data without the fault, on which one run has the right accuracy,
or data that are accepted, or an error for another reason that is true.
"""

from flax import linen as nn
import numpy
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.data.sources import arrays
from support import invalid_input
from support.invalid_input import npz_arrays, TABLE

_random = np.random.RandomState(0)
Y = np.arange(60) % 3
Y_TEST = 1 + np.arange(20) % 2  # without class 0: numbers depend on both
CENTERS = 3 * np.eye(3, 4)
X, X_TEST = (CENTERS[y] + _random.normal(0, .5, (len(y), 4))
             for y in (Y, Y_TEST))
ARRAYS = {'x_train': X, 'y_train': Y, 'x_test': X_TEST, 'y_test': Y_TEST}
FIELDS = dict(zip(('x_train', 'y_train', 'x_test', 'y_test'), (
    'train_inputs', 'train_labels', 'test_inputs', 'test_labels')))
PETS = np.array(['ant', 'bee', 'cow'])


class Linear(nn.Module):
  """Logits are linear."""

  num_classes: int = 3

  @nn.compact
  def __call__(self, x):
    return nn.Dense(self.num_classes)(x.reshape(len(x), -1))


def to_dataset(given):
  """As files and functions are read."""
  return arrays.to_dataset('mine', 'here', given)


def to_federation(given):
  """As values in Python are checked, which are not converted."""
  task = given.get('task', 'classification')
  widths = np.shape(given['y_train'])[1:] or (1,)
  names = PETS if task == 'classification' else range(*widths)
  data = mj.Dataset('mine', **{
      FIELDS[key]: value for key, value in given.items() if key in FIELDS},
                    class_names=tuple(map(str, names)), task=task)
  return mj.Federation(
      data=data, clients=[range(30), range(30, 60)], algorithm=mj.fedavg(),
      model=mj.from_flax(Linear(len(names))), batch_size=8, local_epochs=2,
      learning_rate=.1).data


READERS = [to_dataset, to_federation]


def trained(data, num_outputs=3):
  """Returns the record after six rounds."""
  return mj.Simulation(mj.Federation(
      data=data, clients=[range(30), range(30, 60)], algorithm=mj.fedavg(),
      model=mj.from_flax(Linear(num_outputs)), batch_size=8, local_epochs=2,
      learning_rate=.05, optimizer='sgd(momentum=0)')).run(6)[-1]


def test_the_right_data_train_to_the_right_accuracy():
  assert trained(to_dataset(ARRAYS)).test_accuracy > .95


def obey(remedy, labels, given):
  """Evaluates an expression of a message."""
  names = {'numpy': numpy, 'labels': labels}
  if 'names' in remedy:
    names['names'] = eval('numpy.unique([*y_train, *y_test])',
                          {'numpy': numpy, **given})
  return eval(remedy, names)


NUMBERED = 'numpy.searchsorted(names, labels)'
LABELS = {  # what is done to labels, and the remedy
    'one column': (lambda y: y[:, None], 'labels.ravel()'),
    'one column of floats': (lambda y: y[:, None] * 1., 'labels.ravel()'),
    'one column of strings': (lambda y: PETS[y][:, None], 'labels.ravel()'),
    'strings': (lambda y: PETS[y], NUMBERED),
    'bytes': (lambda y: PETS[y].astype('S3'), NUMBERED),
    'strings as objects': (lambda y: PETS[y].astype(object), NUMBERED),
    'floats': (lambda y: y * 1., 'labels.astype(int)'),
    'one-hot rows': (lambda y: np.eye(3, dtype=int)[y], 'labels.argmax(1)'),
    'one-hot rows of floats': (lambda y: np.eye(3)[y], 'labels.argmax(1)'),
    'probabilities': (lambda y: .1 + .7 * np.eye(3)[y], 'labels.argmax(1)'),
}


@pytest.mark.parametrize('read', READERS)
@pytest.mark.parametrize('title', LABELS)
def test_labels_that_are_changed_as_advised(title, read):
  spoil, remedy = LABELS[title]
  given = ARRAYS | {key: spoil(ARRAYS[key]) for key in ('y_train', 'y_test')}
  with pytest.raises(mj.UserError) as error:
    read(given)
  assert remedy in str(error.value), error.value
  for _ in range(3):  # the answer to what was obeyed may ask for more
    given = given | {key: obey(remedy, given[key], given)
                     for key in ('y_train', 'y_test')}
    try:
      data = read(given)
      break
    except mj.UserError as again:
      remedy = next(r for r in (NUMBERED, 'labels.astype(int)')
                    if r in str(again))
  np.testing.assert_array_equal(data.train_labels, Y)
  np.testing.assert_array_equal(data.test_labels, Y_TEST)


@pytest.mark.parametrize('first, step', [(1, 1), (-1, 1), (0, 50)])
def test_other_numbers_of_classes(first, step):
  given = ARRAYS | {key: first + step * ARRAYS[key]
                    for key in ('y_train', 'y_test')}
  with pytest.raises(mj.UserError) as error:
    to_dataset(given)
  assert NUMBERED in str(error.value)
  assert 'numpy.unique([*y_train, *y_test])' in str(error.value)
  data = to_dataset(given | {key: obey(NUMBERED, given[key], given)
                             for key in ('y_train', 'y_test')})
  assert data.fingerprint() == to_dataset(ARRAYS).fingerprint()


@pytest.mark.parametrize('read', READERS)
def test_one_hot_rows_of_different_widths_are_not_numbered_apart(read):
  """Their columns are other classes: pandas.get_dummies of each set."""
  given = ARRAYS | {'y_train': np.eye(3)[Y], 'y_test': np.eye(2)[Y_TEST - 1]}
  with pytest.raises(mj.UserError, match=r'a column for each class of the two'):
    read(given)


def test_targets_and_several_labels():
  """They are not classes: advice that makes classes of them would lie."""
  numbers = {'y_train': X[:, :1] - X[:, 1:2], 'y_test': X_TEST[:, :1]
             - X_TEST[:, 1:2]}
  labels = {'y_train': (X[:, :2] > 1) * 1, 'y_test': (X_TEST[:, :2] > 1) * 1}
  for read in READERS:
    for given, word in (
        ({k: y.ravel() for k, y in numbers.items()}, "task='regression'"),
        ({k: np.hstack([y, y]) for k, y in numbers.items()},
         "task='regression'"), (labels, "task='multilabel'"),
        ({k: np.where(y, 1, -1) for k, y in labels.items()}, 'labels > 0'),
        ({k: np.where(y, 1, np.nan) for k, y in labels.items()},
         'Remove examples with NaN')):
      with pytest.raises(mj.UserError) as error:
        read(ARRAYS | given)
      text = str(error.value)
      assert word in text, text
      assert 'argmax' not in text and 'astype(int)' not in text, text
  for wrong in -1, np.nan:
    given = ARRAYS | {k: np.where(y, 1., wrong) for k, y in labels.items()} | {
        'task': 'multilabel'}
    data = to_dataset(given)
    with pytest.raises(mj.UserError, match='labels > 0; if unknown') as error:
      mj.Federation(data=data, clients=[[0]], algorithm=mj.fedavg(),
                    model=mj.mlp(2))
    assert 'argmax' not in str(error.value) and f'{wrong}' in str(error.value)
  obeyed = to_dataset(ARRAYS | {'task': 'multilabel'} | {
      k: np.where(y, 1, -1) > 0 for k, y in labels.items()})
  np.testing.assert_array_equal(obeyed.train_labels, labels['y_train'])
  targets = {k: y.ravel() for k, y in numbers.items()} | {'task': 'regression'}
  mse = trained(to_dataset(ARRAYS | targets), 1).metrics['test_mse']
  assert mse < .1 * np.var(targets['y_test'])


NPZ = {  # rows of [npz] and what their remedy makes of the arrays `bad`
    'npz without test examples': '',  # there are none
    'labels that are floats': 'y_train=bad["y_train"].astype(int)',
    'labels from 1': '',  # above, as are labels that are strings
    'negative labels': '', 'labels that are strings': '',
    'unknown classes in the test set': 'class_names=[*"abcde"]',
    'one-hot labels': 'y_train=bad["y_train"].argmax(1)',
    'fewer labels than examples': 'x_train=bad["x_train"][1:]',
    'images without axes': (
        'x_train=np.float32(bad["x_train"]), '
        'x_test=np.float32(x_test.reshape(9, -1))'),
    'images with channels first': (
        'x_train=bad["x_train"].transpose(0, 2, 3, 1)'),
    'images of 64 bits': 'x_train=bad["x_train"].astype(np.uint8)',
    'NaN in the features': 'x_train=np.nan_to_num(bad["x_train"])',
    'test images of another size': 'x_train=bad["x_train"][:, :4]',
    'arrays of objects': '',  # there are no values
    'a CNN for features': '', 'images too small for the CNN': '',  # networks
}
SAME = ('labels that are floats', 'one-hot labels',
        'images with channels first', 'images of 64 bits')


def test_all_rows_of_arrays_are_listed():
  assert NPZ.keys() == TABLE['npz'].keys()


@pytest.mark.parametrize('title', [title for title in NPZ if NPZ[title]])
def test_remedies_of_the_table(title):
  images, bad, names = npz_arrays(TABLE['npz'][title][0])
  with pytest.raises(mj.UserError):
    to_dataset(bad)
  obeyed = to_dataset(bad | eval(f'dict({NPZ[title]})', names | {'bad': bad}))
  assert title not in SAME or obeyed.fingerprint() == (
      to_dataset(images).fingerprint())


PYTHON = {  # rows of [python] about data of one's own: their remedies
    'one-hot labels': 'toy(train_labels=np.eye(3)[y].argmax(1))',
    'floats as labels': 'toy(train_labels=(y * 1.).astype(int))',
    'a list of labels': 'toy(train_labels=np.asarray(list(y)))',
    'labels from 1': "toy(train_labels=y + 1, class_names=('', *'abc'))",
    'fewer labels than examples': (
        'toy(train_labels=y[:50], train_inputs=x[:50])'),
    'NaN in the features': 'toy(train_inputs=np.nan_to_num(x * np.nan, nan=1))',
    'a mean of other channels': 'toy(mean=(.5,) * 4)',
    'a deviation of 0': 'toy(std=(1.,))',
    'tokens from -1': (
        'toy(train_inputs=np.arange(240).reshape(60, 4), '
        'test_inputs=np.arange(36).reshape(9, 4), num_tokens=300)'),
    'a list of features': (
        'toy(train_inputs=np.asarray(x.tolist()), '
        'test_inputs=np.asarray(x[:9].tolist()))'),
    'objects as features': (
        "toy(train_inputs=x.astype(object).astype('float32'))"),
    'images as PyTorch has them': (
        'toy(**dict.fromkeys(("train_inputs", "test_inputs"), np.zeros('
        '(60, 3, 32, 32), np.uint8).transpose(0, 2, 3, 1)), test_labels=y)'),
}


@pytest.mark.parametrize('title', PYTHON)
def test_remedies_in_python(title):
  assert title in TABLE['python']
  names = {'np': np, 'toy': invalid_input.toy, 'x': invalid_input.X,
           'y': invalid_input.Y}
  mj.Federation(data=eval(PYTHON[title], names), clients=[[0, 1], [2]],
                model=mj.mlp(3), algorithm=mj.fedavg())
