"""CSV files: against scikit-learn's transformers, and every kind of error."""

import pathlib
import warnings

import numpy as np
import pytest
from sklearn import impute, preprocessing

import moon_jax as mj
from moon_jax.data.sources import tables
from moon_jax.errors import UserError

pytestmark = pytest.mark.usefixtures('of_command')

CLINICS = {'north': ('age,ward,score,ill\n'
                     '30,east,1.5,no\n,west,2.5,yes\n40,NA,,yes\n'
                     '50,east,4.5,no\n60,west,5.5,no\n'),
           'south': ('ill,age,ward,score\n'  # in another order
                     'yes,20,south,-1\n"yes",30,"east",?\nno,,south,3\n')}
OLD = [30, np.nan, 40, 50, 60, 20, 30, np.nan]
WARD = ['east', 'west', None, 'east', 'west', 'south', 'east', 'south']
SCORE = [1.5, 2.5, np.nan, 4.5, 5.5, -1, np.nan, 3]


def write(directory, files):
  directory = pathlib.Path(directory)
  for name, text in files.items():
    path = directory / f'{name}.csv'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding='utf-8')
  return str(directory)


@pytest.fixture
def clinics(tmp_path):
  return write(tmp_path / 'clinics', CLINICS)


def load(place, call='csv(label=ill)'):
  return mj.load_dataset(call, place)


def normalized(data, x):
  return (x - np.array(data.mean)) / np.array(data.std)


def test_a_file_per_client(clinics):
  data = load(clinics)
  assert data.client_names == ('north', 'south')
  assert np.bincount(data.train_clients).tolist() == [4, 2]
  assert np.bincount(data.test_clients).tolist() == [1, 1]
  assert data.class_names == ('no', 'yes')


@pytest.mark.parametrize('strategy', ['mean', 'median', 'most_frequent'])
@pytest.mark.parametrize('form', ['one_hot', 'ordinal'])
def test_features_equal_those_of_scikit_learn(clinics, strategy, form):
  """Fitted on training rows only; the split is the loader's."""
  parts = {}
  for key, i in ('train', range(6)), ('test', range(6, 8)):
    # The layout with split files, so that the rows are known.
    lines = [f'{"" if np.isnan(a) else a},{w or ""},{"" if np.isnan(s) else s},'
             f'{k}' for a, w, s, k in zip(OLD, WARD, SCORE, 'abababab')]
    parts[key] = '\n'.join(['age,ward,score,ill'] + [lines[j] for j in i])
  data = load(write(f'{clinics}2', parts),
              f'csv(label=ill, missing={strategy}, categories={form})')
  fit = slice(0, 6)
  imputer = impute.SimpleImputer(strategy=strategy)
  numbers = np.stack([OLD, SCORE], 1)
  numbers = imputer.fit(numbers[fit]).transform(numbers)
  scaler = preprocessing.StandardScaler().fit(numbers[fit])
  words = np.array(WARD, object)[:, None]
  words = impute.SimpleImputer(
      strategy='most_frequent', missing_values=None).fit(
          words[fit]).transform(words)
  if form == 'one_hot':
    encoder = preprocessing.OneHotEncoder(
        handle_unknown='ignore', sparse_output=False).fit(words[fit])
    codes = encoder.transform(words)
  else:
    encoder = preprocessing.OrdinalEncoder(
        handle_unknown='use_encoded_value', unknown_value=-1).fit(words[fit])
    codes = encoder.transform(words)
    codes = preprocessing.StandardScaler().fit(codes[fit]).transform(codes)
  scaled = scaler.transform(numbers)
  expected = np.concatenate([scaled[:, :1], codes, scaled[:, 1:]], 1)
  made = np.concatenate([data.train_inputs, data.test_inputs])
  np.testing.assert_allclose(normalized(data, made), expected, atol=1e-6)


def test_an_indicator_marks_what_was_missing(clinics):
  data = load(write(f'{clinics}2', {
      'train': 'a,b,y\n1,u,0\n,u,1\n3,,1\n', 'test': 'a,b,y\n,v,0\n'}),
              'csv(missing=indicator)')
  np.testing.assert_array_equal(
      data.train_inputs, [[1, 0, 1, 0], [2, 1, 1, 0], [3, 0, 0, 1]])
  np.testing.assert_array_equal(data.test_inputs, [[2, 1, 0, 0]])


def test_a_column_of_clients_and_one_of_times(clinics):
  """Later rows are for testing, and training rows are in the order of time."""
  rows = [f'{who},2026-01-{day:02},{day},{day % 2}'
          for who, days in (('b', (9, 3, 5, 1, 7)), ('a', (2, 8, 4, 10, 6)))
          for day in days]
  place = write(f'{clinics}2', {'all': '\n'.join(['who,when,x,y', *rows])})
  data = load(place + '/all.csv',
              'csv(label=y, client=who, time=when, test_fraction=.4)')
  np.testing.assert_array_equal(data.train_inputs[:, 0], [1, 2, 3, 4, 5, 6])
  np.testing.assert_array_equal(data.test_inputs[:, 0], [7, 8, 9, 10])
  assert data.train_clients.tolist() == [1, 0, 1, 0, 1, 0]
  assert data.class_names == ('0', '1')


def test_times_may_have_a_zone(tmp_path):
  """Times without one are UTC."""
  times = ['2026-01-01T02:00:00+02:00', '2026-01-01T00:00:01Z',
           '2026-01-01 00:00:02', '2025-12-31T19:00:03.5-0500', '2026-01-02']
  order = [3, 0, 4, 2, 1]
  rows = [f'{times[i]},{i},{i % 2}' for i in order]
  place = write(tmp_path, {'all': '\n'.join(['when,x,y', *rows])})
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    data = load(place + '/all.csv',
                'csv(label=y, time=when, test_fraction=.4)')
  np.testing.assert_array_equal(data.train_inputs[:, 0], [0, 1, 2])
  np.testing.assert_array_equal(data.test_inputs[:, 0], [3, 4])


def test_classes_that_are_numbers_keep_all_their_digits(tmp_path):
  """And 1 in a file is 1.0 in another."""
  classes = ['-1', '0.1', '1', '9007199254740992', '9007199254740993',
             '9007199254740994']
  rows = [f'{i},{y}' for i in range(8)
          for y in ('1.0', '+1', '0.10', '-1e0', *classes[3:])]
  data = load(write(tmp_path, {'a': '\n'.join(['x,y', *rows])}),
              'csv(label=y)')
  assert data.class_names == tuple(classes)


def test_hidden_files_are_not_read(clinics):
  write(clinics, {'._north': '\0', '.train': '\0'})
  test_a_file_per_client(clinics)


def test_columns_of_inputs(clinics):
  wide = load(clinics, 'csv(label=ill, categorical=age, missing=most_frequent)')
  narrow = load(clinics, "csv(label=ill, inputs='score,age')")
  assert narrow.train_inputs.shape[1] == 2 < wide.train_inputs.shape[1]
  assert load(clinics, "csv(label=ill, drop='ward,age')"
              ).train_inputs.shape[1] == 1


def test_the_name_of_the_label_may_have_a_comma(clinics):
  place = write(f'{clinics}2', {'a': 'x,"y, z"\n' + '1,a\n2,b\n' * 5})
  data = load(place, 'csv(label="y, z")')
  assert data.class_names == ('a', 'b') and data.train_inputs.shape == (8, 1)


def test_a_regression_and_another_delimiter(clinics):
  place = write(f'{clinics}2', {
      'train': 'x;y\n1;.5\n2;.25\n', 'test': 'x;y\n1;1\n'})
  data = load(place, "csv(task=regression, delimiter=';')")
  assert data.task == 'regression'
  np.testing.assert_array_equal(data.train_labels, np.float32([.5, .25]))


HEAD = 'age,ward,score,ill\n'
SOME = HEAD + '1,a,2,x\n3,b,4,y\n' * 3


@pytest.mark.parametrize('call, files, words', [
    ('csv(label=il)', {'a': SOME}, ["'il'", 'a.csv, line 1', 'mean ill?']),
    ('csv(label=ill, inputs="age,ill")', {'a': SOME}, ['label', 'inputs']),
    ('csv(label=ill, inputs="age,ward", drop="ward,score")', {'a': SOME},
     ['inputs and drop', 'got ward. Remove']),
    ('csv(label="age,ill")', {'a': SOME}, ["'age,ill'", 'name a column']),
    ('csv(label=ill, time="age,score")', {'a': SOME}, ["'age,score'"]),
    ('csv(label=ill)', {'a': SOME + '5,a,1_000,x\n'}, ["'1_000'", 'line 8']),
    ('csv(label=ill, client=Ward)', {'a': SOME}, ['mean ward?']),
    ('csv(label=ill, drop="age,wrd")', {'a': SOME}, ['drop', 'mean ward?']),
    ('csv', {'a': SOME}, ['age, ward, score, ill', 'label=COLUMN']),
    ('csv(label=ill)', {'a': SOME + '5,a,6\n'}, ['4 fields', 'a.csv, line 8']),
    ('csv(label=ill)', {'a': SOME + '\n5,a,six,x\n'},
     ['score', "'six'", 'a.csv, line 9', 'categorical=score']),
    ('csv(label=ill)', {'a': SOME, 'b': SOME + '"5\n",a,6,\n'},
     ['ill must have a value', 'b.csv, line 8']),
    ('csv(label=ill)', {'a': SOME, 'b': SOME.replace('age', 'Age')},
     ["'age'", "'Age'", 'b.csv, line 1']),
    ('csv(label=ill)', {'train': SOME, 'test': HEAD + '1,a,2,z\n'},
     ["'z'", 'test.csv, line 2', 'training rows']),
    ('csv(label=ill)', {'train': SOME}, ['both training and test']),
    *(('csv(label=ill)', {'train': SOME, 'test': SOME, other: SOME},
       ['must hold no CSV files beside train.csv and test.csv',
        f'{other}.csv', 'Move'])
      for other in ('val', 'train/north', 'valid/north')),
    *(('csv(label=ill)', {'train/a': SOME, 'test/a': SOME, other: SOME},
       ['must hold no CSV files beside the folders train and test',
        f'{other}.csv', 'Move']) for other in ('north', 'valid/north')),
    ('csv(label=ill)', {'train': SOME, 'test/a': SOME},
     ['no CSV files beside', 'test/a.csv']),
    ('csv(label=ill, missing=error)', {'a': SOME + ',a,6,x\n'},
     ['age', 'line 8', 'missing=mean']),
    ('csv(label=ill)', {'a': HEAD + ',a,6,x\n,b,6,y\n,b,6,y\n'},
     ['drop=age']),
    ('csv(label=ill, time=ward)', {'a': SOME}, ['time=ward', "'a'", 'line 2']),
    *(('csv(label=y, time=t)', {'a': f't,y,x\n2026-01-31,a,1\n{time},b,2\n'},
       [repr(time), 'line 3']) for time in ('NaT', 'now', '20260131')),
    ('csv(label=ill, task=regression)', {'a': SOME}, ["'x'", 'line 2']),
    ('csv(label=ill)', {'a': HEAD}, ['1 lines in', 'a.csv']),
    ('csv(label=ill)', {'a': '1,2,3\n4,5,6\n'}, ['names', 'line 1']),
    ('csv(label=ill)', {'a': 'ill,x,x\na,5,6\n'}, ['twice', "'x'"]),
    ('csv(label=ill)', {'a': SOME + '"5,a,6,x\n'}, ['CSV', 'line 8']),
    ('csv(label=ill)', {}, ['*.csv', 'data_dir']),
    ('csv(label=ill, missing=zero)', {'a': SOME}, ['missing', 'mean, median']),
    ('csv(lable=ill)', {'a': SOME}, ['lable', 'mean label?']),
    ('csv(label=ill, test_fraction=1)', {'a': SOME}, ['test_fraction']),
    ('cvs(label=ill)', {'a': SOME}, ['dataset', 'cvs'])])
def test_errors_name_the_file_and_the_line(call, files, words, tmp_path):
  with pytest.raises(UserError) as error:
    load(write(tmp_path / 'made', files), call)
  assert not [word for word in words if word not in str(error.value)], (
      error.value)


def test_bytes_of_another_encoding(tmp_path):
  (tmp_path / 'a.csv').write_bytes(b'x,y\n1,a\n2,\xe9\n')
  with pytest.raises(UserError, match=r'0xe9 in .*a.csv, line 3.*iconv'):
    load(str(tmp_path), 'csv(label=y)')


def test_columns_of_names_make_no_features(tmp_path):
  count = tables._MAX_CATEGORIES + 1
  text = '\n'.join(['name,y', *(f'n{i},{i % 2}' for i in range(2 * count))])
  with pytest.raises(UserError, match='drop=name'):
    load(write(tmp_path, {'a': text}), 'csv(label=y)')
