"""Data sets of Hugging Face, from local ones in every form."""

import json
import sys

import numpy as np
import pytest

import moon_jax as mj
from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.errors import UserError
from moon_jax.runs import run
from moon_jax.simulation import checks

datasets = pytest.importorskip('datasets')
Image = pytest.importorskip('PIL.Image')
NAMES = ['cat', 'dog', 'emu']
LABELS = np.arange(12) % 3
PIXELS = np.random.RandomState(0).randint(0, 256, (12, 20, 20, 3), np.uint8)
NUMBERS = np.random.RandomState(1).normal(3, 2, (12, 2)).astype(np.float32)
WRITERS = list('bbbbaaaaccca')


def rows(pixels=PIXELS, **columns):
  features = {'image': datasets.Image(),
              'label': datasets.ClassLabel(names=NAMES)}
  features |= {name: datasets.Value('string') for name in columns}
  return datasets.Dataset.from_dict({
      'image': [Image.fromarray(x) for x in pixels],
      'label': LABELS[:len(pixels)], **columns}, datasets.Features(features))


@pytest.fixture
def saved(tmp_path):
  """Returns the directory of a data set of images with writers."""
  splits = datasets.DatasetDict({
      'train': rows(writer_id=WRITERS),
      'test': rows(PIXELS[:6], writer_id=WRITERS[:6])})
  splits.save_to_disk(tmp_path / 'animals')
  return tmp_path / 'animals'


def load(name, options=''):
  return sources.load_dataset(f'hf:{name}{options and ","}{options}')


def test_images_classes_and_clients_are_found(saved, capsys):
  data = load(saved)
  np.testing.assert_array_equal(data.train_inputs, PIXELS)
  np.testing.assert_array_equal(data.test_labels, LABELS[:6])
  assert data.class_names == tuple(NAMES) and data.name == 'animals'
  assert data.train_clients.tolist() == [1] * 4 + [0] * 4 + [2] * 3 + [0]
  assert data.test_clients.tolist() == [1] * 4 + [0] * 2
  assert capsys.readouterr().out.splitlines()[-1] == (
      f'dataset=hf:{saved}: images from image, 3 classes from label, clients '
      'from writer_id')
  assert load(saved, 'client=none').train_clients is None


def test_a_run_has_the_identity_of_the_content(saved, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  run.run(Config(
      dataset=f'hf:{saved}', model='mlp', partition='natural', num_clients=3,
      algorithm='fedavg', num_rounds=1, local_epochs=1, batch_size=2, seed=3))
  [path] = (tmp_path / 'runs').iterdir()
  assert path.name.startswith('hf.animals-fedavg-')
  assert json.loads((path / 'config.json').read_text())['inputs'].keys() == {
      'dataset'}


def test_a_directory_of_images(tmp_path):
  for part in 'train', 'test':
    for i, name in enumerate(NAMES):
      (tmp_path / part / name).mkdir(parents=True)
      Image.fromarray(PIXELS[i]).save(tmp_path / part / name / '0.png')
  data = sources.load_dataset(f'hf:{tmp_path}', str(tmp_path / 'cache'))
  np.testing.assert_array_equal(data.train_inputs, PIXELS[:3])
  assert data.class_names == tuple(NAMES)
  assert (tmp_path / 'cache').is_dir()


@pytest.mark.parametrize('form', ['parquet', 'json'])
def test_a_file_is_a_table_of_its_numbers(form, tmp_path):
  table = datasets.Dataset.from_dict({
      'a': NUMBERS[:, 0], 'b': NUMBERS[:, 1], 'note': ['x'] * 12,
      'y': [NAMES[k] for k in LABELS]}).remove_columns('note')
  path = tmp_path / f'table.{form}'
  getattr(table, f'to_{form}')(path)
  data = sources.load_dataset(
      f'hf:{path},test_fraction=0.25', str(tmp_path / 'cache'))
  assert data.train_inputs.dtype == np.float32
  assert (len(data.train_labels), len(data.test_labels)) == (9, 3)
  found = np.concatenate([data.train_inputs, data.test_inputs])
  np.testing.assert_allclose(
      np.sort(found, 0), np.sort(NUMBERS, 0), rtol=1e-6)
  assert data.class_names == tuple(NAMES)
  normalized = (data.train_inputs - data.mean) / data.std
  np.testing.assert_allclose(normalized.mean(0), 0, atol=1e-5)
  np.testing.assert_allclose(normalized.std(0), 1, atol=1e-5)


def test_text_becomes_characters():
  text = datasets.Dataset.from_dict({
      'text': ['abc', 'ca', 'abcabc'], 'label': [5, 7, 5]})
  other = datasets.Dataset.from_dict({'text': ['az'], 'label': [7]})
  data = mj.from_huggingface({'train': text, 'test': other}, length=4)
  assert data.train_inputs.tolist() == [
      [0, 1, 2, 3], [0, 0, 3, 1], [1, 2, 3, 1]]
  assert data.test_inputs.tolist() == [[0, 0, 1, 0]]
  assert data.num_tokens == 4 and data.class_names == ('5', '7')
  assert data.train_labels.tolist() == [0, 1, 0]


def test_arrays_keep_their_kind():
  values = np.arange(24, dtype=np.float32).reshape(6, 4)
  for feature, dtype in ((datasets.List(datasets.Value('float32')), np.float32),
                         (datasets.List(datasets.Value('int64')), np.int8)):
    array = datasets.Dataset.from_dict(
        {'v': values.astype(int if dtype == np.int8 else dtype).tolist(),
         'label': LABELS[:6]},
        datasets.Features({'v': feature, 'label': datasets.Value('int64')}))
    data = mj.from_huggingface({'train': array, 'validation': array})
    assert data.train_inputs.dtype == dtype
    np.testing.assert_array_equal(data.test_inputs, values)


def test_grayscale_images_and_sizes():
  pixels = [PIXELS[0, ..., 0], PIXELS[1, :10, :10, 0]]
  images = rows(pixels)
  with pytest.raises(UserError, match=r'\[20, 20\] and \[10, 10\] in row 1. Giv'
                     'e size=PIXELS'):
    mj.from_huggingface({'train': images, 'test': images})
  data = mj.from_huggingface({'train': images, 'test': images}, size=20)
  assert data.train_inputs.shape == (2, 20, 20, 1)
  np.testing.assert_array_equal(data.train_inputs[0, ..., 0], pixels[0])


def test_test_clients_without_training_examples_are_dropped():
  data = mj.from_huggingface({
      'train': rows(client=WRITERS), 'test': rows(client=['z'] * 12)})
  assert data.train_clients is not None and data.test_clients is None


@pytest.mark.parametrize('options, text', [
    ('label=breed',
     r'label must be a column; got breed. The columns are image \('),
    ('input=breed', 'input must be a column; got breed'),
    ('train=none', 'splits must be among train, test; got none'),
    ('test=train,test_fraction=0.5', 'without test'),
    ('test_fraction=2', 'above 0 and below 1'),
    ('test_fraction=0.001', 'must leave examples .* Raise it'),
    ('test_fraction=0.999', 'must leave examples .* Lower it'),
    ('size=big', "size must be a number; got 'big'"),
    ('size=12.9', 'size must be an integer; got the number 12.9. Round it'),
    ('size=-4', 'size must be 0 or more; got -4'),
    ('revision=1.10',
     'revision must be text; got the number 1.1. Quote it: rev'),
    ('colour=red', 'options must be among input, .*; got colour'),
    ('label', "options, comma-separated, .*'label' is not NAME=VALUE"),
])
def test_invalid_options(options, text, saved):
  with pytest.raises(UserError, match=text):
    load(saved, options)


@pytest.mark.parametrize('train, test, text', [
    ({'n': [1, 2]}, None, 'must be a column of classes; got none'),
    ({'label': [1, 2], 'when': [None, None]}, None,
     'must be a column of images, .*; got none'),
    ({'label': [1, 2], 'n': [1, 2]}, None,
     'must be a test split; got only train'),
    ({'label': [1, 2], 'n': [1, 2]}, {'label': [3], 'n': [1]},
     'values of the training split; got 3'),
    ({'label': [1, 2], 'n': [1, 2]}, {'label': [1]},
     'must have the columns of .*got none of n'),
    ({'label': [1, None], 'n': [1, 2]}, None, 'class .*got 1 without one'),
    ({'label': ['a', None], 'n': [1, 2]}, None, 'class .*got 1 without one'),
    ({'label': ['a', 'b'], 's': ['a', 'b'], 't': ['a', 'b']}, None,
     'input must be one column of text; got 2. Give input'),
])
def test_invalid_data(train, test, text):
  splits = {'train': datasets.Dataset.from_dict(train)}
  if test:
    splits['test'] = datasets.Dataset.from_dict(test)
  elif 'a test split' not in text:
    splits['test'] = splits['train']
  with pytest.raises(UserError, match=text):
    mj.from_huggingface(splits)


def test_numbers_of_classes_mean_the_same_in_both_splits():
  other = rows().remove_columns('label').add_column('label', [0] * 12)
  other = other.cast_column('label', datasets.ClassLabel(names=NAMES[::-1]))
  with pytest.raises(UserError, match='label must have the same classes in bo'):
    mj.from_huggingface({'train': rows(), 'test': other})


def test_a_client_that_is_ignored_is_no_input():
  table = datasets.Dataset.from_dict({
      'a': NUMBERS[:, 0], 'client_id': LABELS, 'label': LABELS})
  data = mj.from_huggingface({'train': table, 'test': table}, client='none')
  assert data.train_inputs.shape == (12, 1) and data.train_clients is None


def test_a_table_is_normalized_by_sums_of_float64():
  year = np.random.default_rng(0).integers(1990, 2010, 200_000)
  table = datasets.Dataset.from_dict({
      'year': year, 'one': np.full(len(year), .1), 'label': year % 2})
  data = mj.from_huggingface({'train': table, 'test': table.select(range(5))})
  np.testing.assert_allclose(data.mean, [year.mean(), .1], rtol=1e-6)
  np.testing.assert_allclose(data.std, [year.std(), 1], rtol=1e-6)


def test_images_of_16_bits_are_refused():
  table = datasets.Dataset.from_dict({
      'image': [Image.fromarray(PIXELS[0, ..., 0].astype(np.uint16))] * 2,
      'label': [0, 1]}, datasets.Features({
          'image': datasets.Image(), 'label': datasets.Value('int64')}))
  with pytest.raises(UserError, match='pixels of 8 bits; got mode .* in row 0'):
    mj.from_huggingface({'train': table, 'test': table})


def test_unlabeled_and_streamed_examples_are_refused():
  test = rows(PIXELS[:2]).remove_columns('label')
  test = test.add_column('label', [-1, -1]).cast_column(
      'label', datasets.ClassLabel(names=NAMES))
  with pytest.raises(UserError, match=(
      r'must have a class .*got 2 without one \(-1')):
    mj.from_huggingface({'train': rows(), 'test': test})
  with pytest.raises(UserError, match='without streaming'):
    mj.from_huggingface({'train': rows().to_iterable_dataset()})


@pytest.mark.parametrize('name', ['/no/such', './no_such.parquet'])
def test_a_missing_path_is_refused_soon(name):
  with pytest.raises(UserError, match=(
      'must be data that can be loaded.*save_to_d')):
    load(name)


def test_an_unreachable_hub_and_a_missing_package_are_reported(monkeypatch):
  config = Config(dataset='hf:a/b,label=x', partition='natural')
  assert checks.validate(config).dataset == config.dataset

  def load_dataset(*args, **kwargs):
    raise ConnectionError("Couldn't reach 'a/b' on the Hub")
  monkeypatch.setattr(datasets, 'load_dataset', load_dataset)
  with pytest.raises(UserError, match=r"Couldn't reach .*save_to_disk\(DIR\)"):
    load('a/b')
  monkeypatch.setitem(sys.modules, 'datasets', None)
  with pytest.raises(UserError, match='pip install'):
    load('a/b')


def table(**columns):
  return datasets.Dataset.from_dict(columns)


def read(train, **options):
  """Of which all examples are training and test examples."""
  return mj.from_huggingface({'train': train, 'test': train}, **options)


def test_columns_that_are_no_features_are_left_out_or_refused(tmp_path, capsys):
  a, b = NUMBERS.T.tolist()
  index = {'Unnamed: 0': np.argsort(np.argsort(LABELS, kind='stable'))}
  with pytest.warns(UserWarning, match='left out: Unnamed: 0'):
    data = read(table(**index, a=a, b=b, y=LABELS))
  np.testing.assert_allclose(data.train_inputs, NUMBERS, rtol=1e-6)
  path = tmp_path / 'table.parquet'
  table(**index, a=a, b=b, y=LABELS).to_parquet(path)
  sources.load_dataset(f'hf:{path},test_fraction=0.25', str(tmp_path / 'cache'))
  assert 'table from a, b, 3 classes from y; left out: Unnamed: 0' in (
      capsys.readouterr().out)
  with pytest.warns(UserWarning, match='id numbers the rows of split train'):
    assert read(table(id=range(12), a=a, y=LABELS)).train_inputs.shape[1] == 2
  times = datasets.Dataset.from_dict(
      {'when': [0] * 12}, datasets.Features({
          'when': datasets.Value('timestamp[s]')}))['when']
  for name, values in ('note', ['x'] * 12), ('when', times), (
      'v', [[1., 2.]] * 12):
    rows = table(a=a, b=b, y=LABELS, **{name: values})
    with pytest.raises(UserError, match=rf'{name}.*input=\["a","b"\]'):
      read(rows)
    assert read(rows, input=['a', 'b']).train_inputs.shape == (12, 2)
  assert load_options(path, 'input=["b","a"]').train_inputs.shape == (9, 2)
  # Names that say what the input is, beside numbers.
  with pytest.warns(UserWarning, match='text from text.*left out: a'):
    assert read(table(a=a, text=['x'] * 12, y=LABELS)).num_tokens
  for given in 'note', ['note']:
    assert read(table(a=a, b=b, y=LABELS, note=['x'] * 12),
                input=given).num_tokens


def load_options(path, options):
  return sources.load_dataset(f'hf:{path},test_fraction=0.25,{options}',
                      str(path.parent / 'cache'))


def test_arrays_of_bytes_are_images():
  """The library reads them as int64, which would be tokens."""
  datasets = pytest.importorskip('datasets')
  images = np.random.default_rng(0).integers(
      0, 256, (12, 4, 4, 3)).astype(np.uint8)
  rows = datasets.Dataset.from_dict(
      {'x': list(images), 'y': LABELS}, datasets.Features({
          'x': datasets.Array3D((4, 4, 3), 'uint8'),
          'y': datasets.Value('int64')}))
  inputs = read(rows).train_inputs
  assert inputs.dtype == np.uint8
  np.testing.assert_array_equal(inputs, images)


def test_large_numbers_are_not_rounded():
  """Of features, which are centered in float64, and of classes."""
  near = 2.**30 + np.arange(12)
  for time in near, near.astype(int), near.tolist():
    with pytest.warns(UserWarning, match="float32 rounds {'t': '10737418"):
      data = read(table(t=time, a=NUMBERS[:, 0], y=LABELS))
    scaled = (data.train_inputs - np.float32(data.mean)) / np.float32(data.std)
    expected = (near - near.mean()) / near.std()
    np.testing.assert_allclose(scaled[:, 0], expected, atol=1e-5)
  assert read(table(a=NUMBERS[:, 0], y=2.**24 + LABELS)).num_classes == 3
  with pytest.warns(UserWarning, match='float32 rounds 1 feature'):
    data = read(table(v=np.stack([near, NUMBERS[:, 0]], 1).tolist(), y=LABELS))
  assert len(np.unique(data.train_inputs[:, 0])) == 12


def test_numbers_with_fractions_are_targets(capsys, tmp_path):
  path = tmp_path / 'table.parquet'
  table(a=NUMBERS[:, 0], target=NUMBERS[:, 1]).to_parquet(path)
  data = load_options(path, 'label=target')
  assert data.task == 'regression' and data.class_names == ('target',)
  np.testing.assert_allclose(np.sort(np.concatenate(
      [data.train_labels, data.test_labels])),
                             np.sort(NUMBERS[:, 1]), rtol=1e-5)
  assert 'numbers to predict from target' in capsys.readouterr().out
  assert read(table(a=NUMBERS[:, 0], y=LABELS * 1.)).num_classes == 3


@pytest.mark.parametrize('kind', [int, float, str])
def test_a_class_for_each_row_is_refused(kind):
  prices = table(a=np.sin(np.arange(30)), y=[kind(7 * i) for i in range(30)])
  words = ('y must have classes that repeat; got 30 different values in 30 '
           '.*regression.*fractions')
  for options in {}, {'test_fraction': .2}:
    with pytest.raises(UserError, match=words):
      mj.from_huggingface(prices if options else {
          'train': prices, 'test': prices}, **options)


@pytest.mark.parametrize('form', ['numpy', 'arrow'])
def test_the_format_of_the_data_set_does_not_matter(form):
  texts = table(text=['ab', 'b', ''] * 4, label=LABELS)
  for plain in rows(), texts:
    found, expected = map(read, (plain.with_format(form), plain))
    np.testing.assert_array_equal(found.train_inputs, expected.train_inputs)
    np.testing.assert_array_equal(found.train_labels, expected.train_labels)


def test_a_class_that_is_only_in_the_drawn_test_part_is_a_class():
  rare = LABELS.copy()
  rare[0] = 7
  for seed in range(3):  # the row of the class is at another place
    rows = table(a=NUMBERS[:, 0], y=np.roll(rare, 4 * seed))
    data = mj.from_huggingface(rows, test_fraction=.4)
    assert data.class_names == ('0', '1', '2', '7')


@pytest.mark.parametrize('columns, options, words', [
    ({'a': [1., None] * 6}, {}, ['a must have finite numbers; got 6 exa',
     'row 1 of']),
    ({'v': [[1., 2.], [3.]] * 6}, {}, ['v must have numbers or arrays of one',
                                      '[2] in row 0 of split train']),
    ({'v': [[1, 2], [3, -4]] * 6}, {}, ['v of split train must have tokens',
     'got tokens -4']),
    ({'a': [1.] * 12, 'y': [[1, 0]] * 12}, {}, ['label=y', 'got arrays']),
    ({'a': [1.] * 12, 'client': [.5] * 12}, {}, ['client=client', 'float64']),
    ({'a': [1.] * 12, 'client': [None] + ['x'] * 11}, {},
     ['1 missing', 'row 0']),
    ({'a': [1.] * 12}, {'input': ['a', 'b']}, [
     'input must be a column; got b']),
])
def test_messages_name_columns_and_rows(columns, options, words):
  """Not the arrays that they become, nor rows after a split."""
  rows = table(**{'y': LABELS, **columns})
  for fraction in 0, .25:
    with pytest.raises(UserError) as error:
      if fraction:
        mj.from_huggingface(rows, test_fraction=fraction, **options)
      else:
        read(rows, **options)
    text = str(error.value)
    if not fraction:
      assert all(word in text for word in words), text
    for word in 'x_train', 'y_train', 'client_train', 'np.', 'row 1 of split x':
      assert word not in text, text


def test_values_are_printed_as_values():
  with pytest.raises(UserError, match='split; got 7. Remove'):
    mj.from_huggingface({'train': table(a=[1., 2.], y=[1, 2]),
                         'test': table(a=[1., 2.], y=[1, 7])})


@pytest.mark.parametrize('name, content, words', [
    ('bad.jsonl', b'{"a": 1}\n{"a"\n', ['Fix the file']),
    ('table.csv', b'a,y\n1,2\n', ['csv(label=COLUMN) with ', 'table.csv'])])
def test_the_cause_of_an_unreadable_file_is_reported(
    name, content, words, tmp_path):
  (tmp_path / name).write_bytes(content)
  with pytest.raises(UserError) as error:
    sources.load_dataset(f'hf:{tmp_path}/{name}', str(tmp_path / 'cache'))
  text = str(error.value)
  assert all(word in text for word in words), text
  assert 'An error occurred' not in text
