"""Arrays of other libraries and unusual types: the right data, or an answer."""

import warnings

import numpy as np
import pandas as pd
import pytest

import moon_jax as mj
from moon_jax.data import partition
from moon_jax.data.sources import arrays

_random = np.random.RandomState(0)
Y = np.arange(60) % 3
X = (3 * np.eye(3, 4)[Y] + _random.normal(0, .5, (60, 4))).astype(np.float32)
X_TEST, Y_TEST = X[:9] + np.float32(.1), Y[:9]


class Tensor:
  """Has the protocol of a PyTorch tensor, whose types have no `kind`."""

  class Type:
    """A type."""

    itemsize = 4

  def __init__(self, values):
    self._values = np.asarray(values)
    self.dtype, self.shape = self.Type(), self._values.shape
    self.ndim = self._values.ndim

  def __len__(self):
    return len(self._values)

  def __iter__(self):
    return map(Tensor, self._values)

  def __getitem__(self, at):
    return Tensor(self._values[at])

  def __array__(self, dtype=None, copy=None):
    del copy
    return self._values if dtype is None else self._values.astype(dtype)

  def numpy(self):
    return self._values


class Subclass(np.ndarray):
  """Of another library."""


TYPES = {
    'tensor': Tensor, 'list': lambda x: x.tolist(),
    'series': lambda x: pd.Series(list(x), index=range(9, 9 + len(x))),
    'frame': pd.DataFrame, 'objects': lambda x: x.astype(object),
    'another byte order': lambda x: x.astype(x.dtype.newbyteorder('>')),
    'longer numbers': lambda x: x.astype(
        np.longdouble if x.dtype.kind == 'f' else np.int64),
    'shorter numbers': lambda x: x.astype(
        np.float16 if x.dtype.kind == 'f' else np.int8),
    'subclass': lambda x: x.view(Subclass),
    'read-only': lambda x: np.lib.stride_tricks.as_strided(x, writeable=False),
    'not contiguous': lambda x: np.repeat(x, 2, 0)[::2],
    'Fortran order': np.asfortranarray,
}
REFUSED = {'masked': lambda x: np.ma.masked_array(x, x > 1),
           'missing': lambda x: pd.Series(list(x)).astype(object).where(
               np.arange(len(x)) > 1, None),
           'complex': lambda x: x.astype(complex),
           'dates': lambda x: x.astype('M8[s]'),
           'words': lambda x: x.astype(str)}


def federation(x, y, x_test, y_test, **changes):
  return mj.Federation(
      data=mj.Dataset('mine', x, y, x_test, y_test, ('a', 'b', 'c')),
      **{'clients': [range(30), range(30, 60)], 'model': mj.mlp(3),
         'algorithm': mj.fedavg(), **changes})


@pytest.mark.parametrize('title', [*TYPES, *REFUSED])
@pytest.mark.parametrize('changed', ['inputs', 'labels'])
def test_types_are_converted_or_refused(title, changed):
  change = (TYPES | REFUSED)[title]
  x, x_test, y, y_test = (
      change(value) if changed == part else value for part, value in (
          ('inputs', X), ('inputs', X_TEST), ('labels', Y), ('labels', Y_TEST)))
  given = {'x_train': x, 'y_train': y, 'x_test': x_test, 'y_test': y_test}
  try:
    data = arrays.to_dataset('mine', 'here', given)
  except mj.UserError as error:
    assert title in REFUSED or changed == 'labels' and title == 'frame', error
    assert ('x_train' if changed == 'inputs' else 'y_train') in str(error)
  else:
    assert title in TYPES
    tolerance = 2e-3 if title == 'shorter numbers' else 0
    np.testing.assert_allclose(data.train_inputs, X, rtol=tolerance)
    np.testing.assert_array_equal(data.train_labels, Y)
    for array in data.train_inputs, data.train_labels:
      assert type(array) is np.ndarray and array.dtype.isnative
  try:  # which converts nothing
    made = federation(x, y, x_test, y_test)
  except mj.UserError as error:
    assert f'train_{changed}' in str(error), error
    assert 'attribute' not in str(error)
  else:
    assert title in TYPES and type(made.data.train_labels) is np.ndarray


@pytest.mark.parametrize('task, y', [
    ('regression', X[:, 0]), ('multilabel', (X[:, :3] > 1) * 1)])
def test_labels_of_other_tasks_that_are_no_arrays(task, y):
  for change in Tensor, pd.DataFrame, lambda y: y.tolist():
    with pytest.raises(mj.UserError, match='train_labels.*numpy.asarray'):
      federation(X, change(y), X_TEST, y[:9], task=task)


def test_indices_may_be_of_other_types():
  """Of clients, of held-out examples; and labels of partitions."""
  for change in (Tensor, pd.Series, lambda i: i.tolist(),
                 lambda i: i.astype('>i8'), lambda i: i.astype(np.uint8)):
    made = federation(X, Y, X_TEST, Y_TEST, clients=[
        change(np.arange(30)), change(np.arange(30, 50))])
    assert [part.tolist() for part in made.clients] == [
        [*range(30)], [*range(30, 50)]]
    found = partition.shards(change(Y), 3, shards_per_client=2, seed=0)
    expected = partition.shards(Y, 3, shards_per_client=2, seed=0)
    assert [part.tolist() for part in found] == [
        part.tolist() for part in expected]


def test_frames_are_tables_of_features():
  """Integers among them are no tokens, and names distinguish columns."""
  frame = pd.DataFrame(X, columns=[*'abcd']).assign(
      count=Y, flag=Y > 1, **{'Unnamed: 0': np.arange(60)})
  given = {'x_train': frame, 'y_train': Y, 'x_test': frame[:9], 'y_test': Y[:9]}
  with pytest.warns(UserWarning, match="'Unnamed: 0' has no name"):
    data = arrays.to_dataset('mine', 'here', given)
  np.testing.assert_array_equal(data.train_inputs, np.float32(
      np.column_stack([X, Y, Y > 1])))
  whole = arrays.to_dataset('mine', 'here', given | {
      key: frame[['count', 'flag']].astype(int)[:len(given[key])]
      for key in ('x_train', 'x_test')})
  assert whole.train_inputs.dtype == np.float32 and not whole.num_tokens
  for change, word in ((lambda f: f[f.columns[::-1]], 'the same columns'),
                       (lambda f: f.assign(note='x'), "'note'"),
                       (lambda f: f.assign(when=pd.Timestamp(0)), "'when'")):
    with pytest.raises(mj.UserError, match=word), warnings.catch_warnings():
      warnings.simplefilter('ignore')
      arrays.to_dataset('mine', 'here', given | {'x_test': change(frame[:9])}
                        if word == 'the same columns' else given | {
                            'x_train': change(frame),
                            'x_test': change(frame[:9])})


SECONDS = 1.7e9  # since 1970, and where float32 has steps of 128


@pytest.mark.parametrize('form', [
    np.asarray, pd.DataFrame, lambda x: x.astype(np.longdouble),
    lambda x: x[:, None]])
def test_large_numbers_that_are_close_are_kept_apart(form):
  """They are centered before they become float32."""
  time = SECONDS + np.arange(60.)
  x = np.stack([time, X[:, 0], np.full(60, SECONDS + 1)], 1)
  given = {'x_train': form(x), 'x_test': form(x[:9]), 'y_train': Y,
           'y_test': Y_TEST}
  mean, std = x.mean(0), np.where(x.std(0) > 0, x.std(0), 1)
  with pytest.warns(UserWarning, match='float32 rounds 1 .*mean 17000000'):
    data = arrays.to_dataset('mine', 'here', given | {'mean': mean, 'std': std})
  normalized = (data.train_inputs - np.float32(data.mean)) / np.float32(
      data.std)
  np.testing.assert_allclose(
      normalized.reshape(60, 3)[:, :2], ((x - mean) / std)[:, :2], atol=1e-5)
  assert len(np.unique(data.train_inputs[..., 0])) == 60
  np.testing.assert_allclose(
      data.test_inputs, data.train_inputs[:9], rtol=1e-6)


def test_years_and_constants_stay_as_they_are():
  """Data that float32 has room for keep their hash."""
  x = np.stack([2000. + Y, np.full(60, .1), X[:, 0]], 1)
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    data = arrays.to_dataset('mine', 'here', {
        'x_train': x, 'y_train': Y, 'x_test': x[:9], 'y_test': Y_TEST})
  np.testing.assert_array_equal(data.train_inputs, x.astype(np.float32))


@pytest.mark.parametrize('where', ['inputs', 'labels'])
def test_what_float32_would_round_is_refused_in_python(where):
  near = SECONDS + X.astype(np.float64)
  with pytest.raises(mj.UserError, match=(
      f'train_{where} must be numbers .*got others: float32 rounds')) as e:
    federation(*((near, Y, near[:9], Y[:9]) if where == 'inputs' else (
        X, near[:, :3], X[:9], near[:9, :3])),
               task=None if where == 'inputs' else 'regression')
  assert '- mean) / std' in str(e.value)
  if where == 'labels':
    with pytest.raises(mj.UserError, match='y_train must .*float32 rounds 4'):
      arrays.to_dataset('mine', 'here', {
          'x_train': X, 'y_train': near, 'x_test': X[:9], 'y_test': near[:9],
          'task': 'regression'})


@pytest.mark.parametrize('shape', [(9, 3, 8, 8), (9, 4, 16, 16),
                                   (9, 1, 28, 28), (9, 2, 9, 12)])
def test_channels_first_are_noticed(shape):
  pixels = np.zeros(shape, np.uint8)
  given = {'x_train': pixels, 'y_train': Y[:9], 'x_test': pixels,
           'y_test': Y[:9]}
  with pytest.raises(mj.UserError, match=r'channels first.*transpose\(0, 2, 3'):
    arrays.to_dataset('mine', 'here', given)
  with pytest.raises(mj.UserError, match=r'channels first.*transpose\(0, 2, 3'):
    federation(pixels, Y[:9], pixels, Y[:9], clients=[range(9)])


def test_channels_first_are_noticed_for_floats():
  """They may be features, so it is a warning."""
  floats = np.random.RandomState(0).randn(9, 3, 8, 8).astype(np.float32)
  with pytest.warns(UserWarning, match='channels first'):
    mj.Simulation(federation(
        floats, Y[:9], floats, Y[:9], clients=[range(9)],
        model=mj.mlp(3, None)))
