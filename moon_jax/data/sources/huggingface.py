"""Data sets of Hugging Face: --dataset=hf:NAME_OR_PATH,OPTION=VALUE,...

NAME is a data set of the Hugging Face Hub, which is downloaded. PATH is a
directory that `save_to_disk` wrote, a directory of images or data files, or a
parquet, csv or json file. --data_dir is the directory of the library's cache.

The options are those of `from_huggingface`, and `config` and `revision` of a
data set of the Hub. The features of a data set decide what its columns are:

    images   an Image column
    text     a string column: one token per character
    arrays   a column of arrays or lists of numbers
    table    the other columns of numbers, one feature each

This needs the package `datasets`, which pip install 'moon_jax[huggingface]'
installs.
"""

from collections.abc import Callable, Mapping, Sequence
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from moon_jax import user_code
from moon_jax.config import HUGGINGFACE
from moon_jax.data.dataset import Dataset
from moon_jax.data.io import files
from moon_jax.data.sources import arrays
from moon_jax.errors import UserError

# Options of `from_huggingface`, with their types.
_OPTIONS = dict.fromkeys(('input', 'label', 'client', 'train', 'test'), str) | {
    'test_fraction': float, 'size': int, 'length': int}
_HUB = ('config', 'revision')
_TEST_SPLITS = ('test', 'validation', 'valid', 'dev')
_FILES = {'.parquet': 'parquet', '.csv': 'csv', '.json': 'json',
          '.jsonl': 'json'}
_SEED, _LENGTH = 0, 80  # of the split of test_fraction; of texts, characters
# Names of columns that are looked for, in this order.
_LABELS = ('label', 'labels', 'fine_label', 'target', 'class', 'y')
_INPUTS = ('image', 'img', 'text', 'sentence', 'x')
_CLIENTS = ('client_id', 'client', 'writer_id', 'user_id', 'character_id')


class _Columns(NamedTuple):
  """Which columns are read, and as what."""

  kind: str  # 'images', 'text', 'arrays' or 'table'
  inputs: tuple[str, ...]
  label: str
  client: str  # '' if examples have no clients


def load(name: str, data_dir: str) -> Dataset:
  """Loads hf:NAME_OR_PATH and options; '' is the default cache."""
  place, _, text = name.removeprefix(HUGGINGFACE).partition(',')
  options = user_code.parse_args('dataset', text)
  if unknown := options.keys() - {*_OPTIONS, *_HUB}:
    raise UserError(f'--dataset={name}: options must be among '
                    f'{", ".join([*_OPTIONS, *_HUB])}; got '
                    f'{", ".join(sorted(unknown))}')
  hub = {key: str(options.pop(key)) for key in _HUB if key in options}
  for key, value in options.items():
    try:
      options[key] = _OPTIONS[key](value)
    except (TypeError, ValueError) as error:
      raise UserError(f'--dataset={name}: {key} must be a number, got '
                      f'{value!r}') from error
  splits = _read(name, place, data_dir, hub)
  source = f'--dataset={name}'
  dataset, columns = _convert(
      splits, pathlib.PurePath(place).name, source, **options)
  print(f'{source}: {columns.kind} from {", ".join(columns.inputs)}, '
        f'{dataset.num_classes} classes from {columns.label}' + (
            f', clients from {columns.client}' if columns.client else ''),
        flush=True)
  return dataset


def _read(name, place, data_dir, hub):
  """Returns a `datasets.DatasetDict` or `datasets.Dataset`."""
  try:
    import datasets
  except ImportError as error:
    raise UserError(
        f'--dataset={name} needs the package datasets; install it: pip install '
        "datasets (or pip install 'moon_jax[huggingface]')") from error
  path = pathlib.Path(place).expanduser()
  is_path = path.exists() or place.startswith(('/', '.', '~'))
  try:
    if is_path and not path.exists():
      raise FileNotFoundError('it does not exist')
    if (path / 'dataset_dict.json').exists() or (path / 'state.json').exists():
      return datasets.load_from_disk(str(path))
    if path.is_file() and path.suffix not in _FILES:
      raise ValueError(f'files must end in {", ".join(_FILES)}')
    cache = {'cache_dir': data_dir} if data_dir else {}
    if path.is_file():
      kind = _FILES[path.suffix]
      return datasets.load_dataset(kind, data_files=str(path), **cache)
    if not is_path:
      print(f'loading {place} of the Hugging Face Hub', flush=True)
    return datasets.load_dataset(
        str(path) if is_path else place, hub.get('config'),
        revision=hub.get('revision'), **cache)
  except Exception as error:  # the library raises many kinds
    reason = str(error).strip().partition('\n')[0]
    remedy = ('name a directory of save_to_disk, of images or of data files'
              if is_path else 'check the name, or load it where there is a '
              'network, write it with .save_to_disk(DIR) and give --dataset='
              f'hf:{os.sep}path{os.sep}to{os.sep}DIR')
    raise UserError(f'--dataset={name} could not be loaded: '
                    f'{type(error).__name__}: {reason}; {remedy}') from error


def from_huggingface(data: Any, *, input: str = '', label: str = '',
                     client: str = '', train: str = '', test: str = '',
                     test_fraction: float = 0., size: int = 0,
                     length: int = _LENGTH,
                     name: str = 'huggingface') -> Dataset:
  """Converts a data set of the library `datasets`.

  Classes are numbered as in its ClassLabel, or the values of the label column
  in sorted order. Images become uint8, numbers float32, and text one token per
  character, numbered from 1 in sorted order. Columns of numbers are normalized
  with their mean and standard deviation over the training examples.

  Args:
    data: a `datasets.DatasetDict`, another mapping from split to
      `datasets.Dataset`, or one `datasets.Dataset` (with `test_fraction`).
    input: column of inputs; by default the one image column, else the one text
      column, else the one column of arrays, else all columns of numbers.
    label: column of classes; by default the ClassLabel column, or "label".
    client: column with the client of each example, for natural partitions; by
      default "client_id", "client", "writer_id", "user_id" or "character_id".
      "none" ignores it.
    train: training split; by default "train", or the only one.
    test: test split; by default "test" or "validation".
    test_fraction: fraction of the training examples to test on instead, drawn
      uniformly with a constant seed.
    size: height and width in pixels to which images are resized.
    length: number of characters of a text that are read.
    name: name of the data set, for logs.

  Raises:
    UserError: if a split or column does not exist or has invalid values.

  Examples:
    >>> data = moon_jax.from_huggingface(datasets.load_dataset('mnist'))
  """
  return _convert(
      data, name, 'data', train=train, test=test, test_fraction=test_fraction,
      size=size, length=length, input=input, label=label, client=client)[0]


def _convert(data, name, source, *, train='', test='', test_fraction=0.,
             size=0, length=_LENGTH, **columns) -> tuple[Dataset, _Columns]:
  """Returns the data set, and the columns that it was read from.

  `source` begins error messages; the other arguments are those of
  `from_huggingface`.
  """
  train_rows, test_rows = _splits(source, data, train, test, test_fraction)
  columns = _detect(train_rows.features, source, **columns)
  if missing := {*columns.inputs, columns.label} - {*test_rows.features}:
    raise UserError(f'{source}: the test split must have the columns of the '
                    f'training split, lacks {", ".join(sorted(missing))}')
  loaded = _labels(source, train_rows, test_rows, columns.label)
  encode = _reader(source, train_rows, columns, size, length)
  for part, rows in ('train', train_rows), ('test', test_rows):
    loaded[f'x_{part}'] = encode(rows)
    if columns.client in rows.features:
      loaded[f'client_{part}'] = _values(rows, columns.client)
  if columns.kind == 'table':
    std = loaded['x_train'].std(0)
    loaded |= {'mean': loaded['x_train'].mean(0),
               'std': np.where(std > 0, std, 1)}
  if 'client_test' in loaded and not np.isin(
      loaded['client_test'], loaded['client_train']).all():
    del loaded['client_test']  # test examples of clients without training
  return arrays.to_dataset(name, source, loaded), columns


def _splits(source, data, train, test, test_fraction):
  """Returns the rows of the training and the test examples."""
  splits = data if isinstance(data, Mapping) else {train or 'train': data}
  for key, rows in splits.items():
    if not hasattr(rows, 'select'):  # a stream
      raise UserError(f'{source}: split {key} must be a datasets.Dataset, got '
                      f'a {type(rows).__name__}; load it without streaming')
  listed = ', '.join(map(str, splits))
  train = train or ('train' if len(splits) > 1 else next(iter(splits)))
  for split in filter(None, (train, test)):
    if split not in splits:
      raise UserError(f'{source}: splits must be among {listed}, got {split}; '
                      'give train=SPLIT and test=SPLIT')
  if test_fraction:
    if test or not 0 < test_fraction < 1:
      raise UserError(f'{source}: test_fraction must be above 0 and below 1, '
                      f'without test; got test_fraction={test_fraction}, '
                      f'test={test or "none"}')
    rows = splits[train]
    order = np.random.RandomState(_SEED).permutation(len(rows))
    num_test = round(test_fraction * len(rows))
    # In memory, since the directory of the data may not be writable.
    train_rows, test_rows = (
        rows.select(np.sort(part), keep_in_memory=True)
        for part in (order[num_test:], order[:num_test]))
    return train_rows, test_rows
  test = test or next((s for s in _TEST_SPLITS if s in splits and s != train),
                      '')
  if not test:
    raise UserError(f'{source} has no test split, only {listed}; give test='
                    'SPLIT, or test_fraction=0.2')
  return splits[train], splits[test]


def _reader(source, train, columns, size, length) -> Callable:
  """Returns a function from rows to inputs."""
  column = columns.inputs[0]
  if columns.kind == 'images':
    return lambda rows: _images(rows, column, source, size)
  if columns.kind == 'arrays':
    return lambda rows: _values(rows, column)
  if columns.kind == 'table':
    return lambda rows: np.stack(
        [_values(rows, name).astype(np.float32) for name in columns.inputs], 1)
  texts = lambda rows: [
      text or '' for text in rows.select_columns([column])[:][column]]
  code = {c: i for i, c in enumerate(sorted(set().union(*texts(train))), 1)}
  return lambda rows: _tokens(texts(rows), code, length)


def _tokens(texts, code, length):
  """Returns texts as int32 [N, length].

  Characters without a code are 0. Longer texts are cut at the end and shorter
  ones padded with 0 at the start, since networks use the output at the last
  token.
  """
  tokens_NT = np.zeros((len(texts), length), np.int32)
  for i, text in enumerate(texts):
    tokens = [code.get(c, 0) for c in text[:length]]
    if tokens:
      tokens_NT[i, -len(tokens):] = tokens
  return tokens_NT


def _labels(source, train, test, column) -> dict[str, Any]:
  """Returns y_train, y_test and class_names."""
  y_train, y_test = (_values(rows, column) for rows in (train, test))
  names = getattr(train.features[column], 'names', None)
  if names:
    for y in y_train, y_test:
      if y.min() < 0:
        raise UserError(f'{source}: {column} has {(y < 0).sum():,} examples '
                        'without a class (-1), as in test sets of benchmarks; '
                        'give test=SPLIT, such as validation')
    return {'y_train': y_train, 'y_test': y_test, 'class_names': names}
  classes = np.unique(y_train)
  unknown = np.setdiff1d(y_test, classes)
  if len(unknown):
    raise UserError(f'{source}: {column} of the test split has values that the '
                    f'training split lacks, such as {unknown[0]!r:.60}; remove '
                    'these examples')
  return {'y_train': np.searchsorted(classes, y_train),
          'y_test': np.searchsorted(classes, y_test),
          'class_names': classes.astype(str)}


def _detect(features, source, input='', label='', client='') -> _Columns:
  """Returns the columns of the given names, or those that the features suggest.

  `client='none'` ignores the column of clients.
  """
  kinds = {name: _kind(feature) for name, feature in features.items()}
  listed = ', '.join(f'{name} ({kind})' for name, kind in kinds.items())
  for option, name in ('input', input), ('label', label), ('client', client):
    if name not in kinds and name not in ('', 'none' * (option == 'client')):
      raise UserError(f'{source}: {option}={name} must be a column; the '
                      f'columns are {listed}')
  label = label or _first(
      [name for name, kind in kinds.items() if kind == 'classes'], _LABELS
      ) or _named(kinds, _LABELS)
  if not label:
    raise UserError(f'{source} has no column of classes; give label=COLUMN. '
                    f'The columns are {listed}')
  client = client or _named(kinds, _CLIENTS)
  client = '' if client == 'none' else client
  rest = {name: kind for name, kind in kinds.items()
          if name not in (label, client)}
  for kind in ('image', 'string', 'array'):
    found = [name for name in rest if rest[name] == kind and (
        name == input or not input)]
    if found:
      if len(found) > 1 and not _named(dict.fromkeys(found), _INPUTS):
        raise UserError(f'{source} has several {kind} columns; give input='
                        f'COLUMN. The columns are {listed}')
      return _Columns({'image': 'images', 'string': 'text'}.get(kind, 'arrays'),
                     (_first(found, _INPUTS),), label, client)
  table = tuple(name for name, kind in rest.items() if kind == 'number'
                and (name == input or not input))
  if not table:
    raise UserError(f'{source} has no column of images, text or numbers beside '
                    f'{label}; give input=COLUMN. The columns are {listed}')
  return _Columns('table', table, label, client)


def _kind(feature: Any) -> str:
  """Returns 'image', 'classes', 'string', 'number', 'array' or the type."""
  name, dtype = type(feature).__name__, getattr(feature, 'dtype', '')
  if name in ('Image', 'ClassLabel'):
    return {'Image': 'image', 'ClassLabel': 'classes'}[name]
  if name == 'Value':
    return ('string' if 'string' in dtype else 'number'
            if dtype.startswith(('int', 'uint', 'float', 'bool', 'double'))
            else dtype)
  if name in ('List', 'LargeList', 'Sequence'):
    return 'array' if _kind(feature.feature) in ('number', 'array') else name
  return 'array' if name.startswith('Array') else name


def _named(kinds, names):
  return next((name for name in names if name in kinds), '')


def _first(found: Sequence[str], names: Sequence[str]) -> str:
  """Returns the first of `names` in `found`, or the first of `found`, or ''."""
  return _named(found, names) or next(iter(found), '')


def _images(rows, column: str, source: str, size: int) -> np.ndarray:
  """Decodes a column of images to uint8 [N, H, W, C].

  C is 1 if the first image is grayscale, and 3 otherwise. `size` is the height
  and width to resize to; 0 requires equal sizes.
  """
  decoded: np.ndarray = np.empty(0)
  with files.show_progress(
      f'decoding {len(rows):,} images', len(rows), 'images') as advance:
    for i, row in enumerate(rows.select_columns([column])):
      image = row[column]
      if image is None:
        raise UserError(f'{source}: {column} of row {i} is missing; remove it')
      if i == 0:
        mode = 'L' if image.mode in ('1', 'L') else 'RGB'
      image = image if image.mode == mode else image.convert(mode)
      if size and image.size != (size, size):
        image = image.resize((size, size))
      pixels = np.asarray(image).reshape(*image.size[::-1], -1)
      if i == 0:
        decoded = np.empty((len(rows), *pixels.shape), np.uint8)
      if pixels.shape != decoded.shape[1:]:
        raise UserError(
            f'{source}: images must have equal sizes, got '
            f'{list(decoded.shape[1:3])} and {list(pixels.shape[:2])} in row '
            f'{i}; give size=PIXELS to resize all')
      decoded[i] = pixels
      advance(1)
  return decoded


def _values(rows: Any, column: str) -> np.ndarray:
  """Returns a column of numbers, strings or arrays as an array."""
  return np.asarray(
      rows.select_columns([column]).with_format('numpy')[:][column])
