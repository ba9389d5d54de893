"""Data sets of Hugging Face: --dataset=hf:NAME_OR_PATH,OPTION=VALUE,...

docs/huggingface.md describes the places, the options and what columns become.
"""

from collections.abc import Mapping
import os
import pathlib
from typing import Any

import numpy as np

from moon_jax import user_code
from moon_jax.config import HUGGINGFACE
from moon_jax.data.dataset import Dataset, subset
from moon_jax.data.io import files
from moon_jax.data.sources import arrays
from moon_jax.errors import first_line, UserError

# Options of `from_huggingface`, with their types.
_OPTIONS = dict.fromkeys(('input', 'label', 'client', 'train', 'test'), str) | {
    'test_fraction': float, 'size': int, 'length': int}
_HUB = {'config': str, 'revision': str}
_TEST_SPLITS = ('test', 'validation', 'valid', 'dev')
_FILES = {'.parquet': 'parquet', '.csv': 'csv', '.json': 'json',
          '.jsonl': 'json'}
_SEED, _LENGTH = 0, 80  # of the split of test_fraction; of texts, characters
# Names of columns that are looked for, in this order.
_LABELS = ('label', 'labels', 'fine_label', 'target', 'class', 'y')
_INPUTS = ('image', 'img', 'text', 'sentence', 'x')
_CLIENTS = ('client_id', 'client', 'writer_id', 'user_id', 'character_id')


def load(name: str, data_dir: str) -> Dataset:
  """Loads hf:NAME_OR_PATH and options; '' is the default cache."""
  source, types = f'--dataset={name}', _OPTIONS | _HUB
  place, _, text = name.removeprefix(HUGGINGFACE).partition(',')
  options = user_code.parse_args('dataset', text)
  if unknown := options.keys() - types:
    raise UserError(f'{source}: options must be among {", ".join(types)}; got '
                    f'{", ".join(sorted(unknown))}')
  for key, value in options.items():
    if isinstance(value, float) and types[key] is not float:
      raise UserError(
          f'{source}: {key} is read as the number {value}; ' + (
              'give an integer' if types[key] is int else
              f'quote it: {key}="..."'))
    try:
      options[key] = types[key](value)
    except (TypeError, ValueError) as error:
      raise UserError(
          f'{source}: {key} must be a number, got {value!r}') from error
  hub = {key: options.pop(key, None) for key in _HUB}
  dataset, what = _convert(
      _read(source, place, data_dir, hub['config'], hub['revision']),
      pathlib.PurePath(place).name, source, **options)
  print(f'{source}: {what}', flush=True)
  return dataset


def _read(source, place, data_dir, config, revision):
  """Returns a `datasets.DatasetDict` or `datasets.Dataset`."""
  try:
    import datasets
  except ImportError as error:
    raise UserError(
        f'{source} needs the package datasets; install it: pip install '
        "datasets (or pip install 'moon_jax[huggingface]')") from error
  path = files.user_path(place)
  is_path = path.exists() or place.startswith(('/', '.', '~'))
  cache = {'cache_dir': str(files.user_path(data_dir, 'data_dir'))
           } if data_dir else {}
  try:
    if is_path and not path.exists():
      raise FileNotFoundError('it does not exist')
    if (path / 'dataset_dict.json').exists() or (path / 'state.json').exists():
      return datasets.load_from_disk(str(path))
    if path.is_file():
      if path.suffix not in _FILES:
        raise ValueError(f'files must end in {", ".join(_FILES)}')
      return datasets.load_dataset(
          _FILES[path.suffix], data_files=str(path), **cache)
    if not is_path:
      print(f'loading {place} of the Hugging Face Hub', flush=True)
    return datasets.load_dataset(
        str(path) if is_path else place, config, revision=revision, **cache)
  except Exception as error:  # the library raises many kinds
    remedy = ('name a directory of save_to_disk, of images or of data files'
              if is_path else 'check the name, or load it where there is a '
              'network, write it with .save_to_disk(DIR) and give --dataset='
              f'hf:{os.sep}path{os.sep}to{os.sep}DIR')
    raise UserError(f'{source} could not be loaded: {first_line(error)}; '
                    f'{remedy}') from error


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
             size=0, length=_LENGTH, **columns) -> tuple[Dataset, str]:
  """Returns the data set, and what it was read from.

  `source` begins error messages.
  """
  for option, value, least in ('size', size, 0), ('length', length, 1):
    if value < least:
      raise UserError(
          f'{source}: {option} must be {least} or more, got {value}')
  splits = _splits(source, data, train, test, test_fraction)
  kind, inputs, label, client = _detect(splits[0].features, source, **columns)
  if missing := {*inputs, label} - {*splits[1].features}:
    raise UserError(f'{source}: the test split must have the columns of the '
                    f'training split, lacks {", ".join(sorted(missing))}')
  _check_same_classes(source, splits, label)
  loaded = _labels(source, *splits, label)
  if kind == 'text':
    texts = [[text or '' for text in rows.select_columns(list(inputs))[:][
        inputs[0]]] for rows in splits]
    code = {c: i for i, c in enumerate(sorted(set().union(*texts[0])), 1)}
    found = [_tokens(part, code, length) for part in texts]
  elif kind == 'images':
    found = [_images(rows, inputs[0], source, size) for rows in splits]
  elif kind == 'arrays':
    found = [_values(rows, inputs[0]) for rows in splits]
  else:
    found = [np.stack([_values(rows, column).astype(np.float32)
                       for column in inputs], 1) for rows in splits]
    x = found[0]  # float32, whose sums over many rows need more bits
    loaded |= {'mean': x.mean(0, np.float64), 'std': np.where(
        x.max(0) > x.min(0), x.std(0, np.float64), 1)}
  for part, rows, x in zip(('train', 'test'), splits, found):
    loaded[f'x_{part}'] = x
    if client in rows.features:
      _check_same_classes(source, splits, client)
      loaded[f'client_{part}'] = _values(rows, client)
  if 'client_test' in loaded and not np.isin(
      loaded['client_test'], loaded['client_train']).all():
    del loaded['client_test']  # test examples of clients without training
  dataset = arrays.to_dataset(name, source, loaded)
  return dataset, (
      f'{kind} from {", ".join(inputs)}, {dataset.num_classes} classes from '
      f'{label}' + (f', clients from {client}' if client else ''))


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
    is_test = np.zeros(len(rows), bool)
    is_test[subset(_SEED, len(rows), round(test_fraction * len(rows)))] = True
    # In memory, since the directory of the data may not be writable.
    return [rows.select(np.flatnonzero(part), keep_in_memory=True)
            for part in (~is_test, is_test)]
  test = test or _first(_TEST_SPLITS, splits.keys() - {train})
  if not test:
    raise UserError(f'{source} has no test split, only {listed}; give test='
                    'SPLIT, or test_fraction=0.2')
  return splits[train], splits[test]


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


def _check_same_classes(source, splits, column):
  """Checks that the numbers of a `ClassLabel` mean the same in both splits."""
  names = [getattr(rows.features.get(column), 'names', None) for rows in splits]
  if names[0] != names[1] and column in splits[1].features:
    raise UserError(
        f'{source}: {column} must have the same classes in both splits, in one '
        f'order; got {names[0]} and {names[1]}. Convert one of them '
        '(cast_column)')


def _labels(source, train, test, column) -> dict[str, Any]:
  """Returns y_train, y_test and class_names."""
  y_train, y_test = (_values(rows, column) for rows in (train, test))
  for y in y_train, y_test:
    missing = [value is None or value != value for value in y.tolist()
               ] if y.dtype.kind in 'fO' else []
    if any(missing):
      raise UserError(f'{source}: {column} has {sum(missing):,} examples '
                      'without a class; remove them')
  classes = getattr(train.features[column], 'names', None)
  if not classes:
    classes = np.unique(y_train)
    unknown = np.setdiff1d(y_test, classes)
    if len(unknown):
      raise UserError(
          f'{source}: {column} of the test split has values that the training '
          f'split lacks, such as {unknown[0]!r:.60}; remove these examples')
    y_train, y_test = (np.searchsorted(classes, y) for y in (y_train, y_test))
  if unlabeled := sum((y < 0).sum() for y in (y_train, y_test)):
    raise UserError(f'{source}: {column} has {unlabeled:,} examples without a '
                    'class (-1), as in test sets of benchmarks; give '
                    'test=SPLIT, such as validation')
  return {'y_train': y_train, 'y_test': y_test,
          'class_names': np.asarray(classes).astype(str)}


def _detect(features, source, input='', label='', client=''):
  """Returns the kind and names of the inputs, of the classes and the clients.

  They are the columns of the given names, or those that the features suggest.
  `client='none'` ignores the column of clients, and '' is returned for none.
  """
  kinds = {name: _kind(feature) for name, feature in features.items()}
  listed = 'The columns are ' + ', '.join(
      f'{name} ({kind})' for name, kind in kinds.items())
  for option, name in ('input', input), ('label', label), ('client', client):
    if name not in kinds and name not in ('', 'none' * (option == 'client')):
      raise UserError(f'{source}: {option}={name} must be a column. {listed}')
  classes = [name for name, kind in kinds.items() if kind == 'classes']
  label = (label or _first(_LABELS, classes) or next(iter(classes), '')
           or _first(_LABELS, kinds))
  if not label:
    raise UserError(f'{source} has no column of classes; give label=COLUMN. '
                    f'{listed}')
  is_ignored = client == 'none'  # then it is no input, unless `input` names it
  client = ('' if is_ignored else client) or _first(_CLIENTS, kinds)
  for kind in 'images', 'text', 'arrays', 'numbers':
    found = tuple(name for name in ((input,) if input else kinds)
                  if kinds[name] == kind and (
                      name not in (label, client)
                      or is_ignored and name == input))
    if is_ignored and found:
      client = ''
    if kind == 'numbers' and found:
      return 'table', found, label, client
    if found:
      if len(found) > 1 and not _first(_INPUTS, found):
        raise UserError(f'{source} has several columns of {kind}; give input='
                        f'COLUMN. {listed}')
      return kind, (_first(_INPUTS, found) or found[0],), label, client
  raise UserError(f'{source} has no column of images, text or numbers beside '
                  f'{label}; give input=COLUMN. {listed}')


def _kind(feature: Any) -> str:
  """Returns images, classes, text, numbers, arrays, or the type."""
  name, dtype = type(feature).__name__, getattr(feature, 'dtype', '')
  if name in ('Image', 'ClassLabel'):
    return {'Image': 'images', 'ClassLabel': 'classes'}[name]
  if name == 'Value':
    return ('text' if 'string' in dtype else 'numbers'
            if dtype.startswith(('int', 'uint', 'float', 'bool', 'double'))
            else dtype)
  if name in ('List', 'LargeList', 'Sequence'):
    return 'arrays' if _kind(feature.feature) in ('numbers', 'arrays') else name
  return 'arrays' if name.startswith('Array') else name


def _first(names, columns) -> str:
  """Returns the first of `names` among the columns, or ''."""
  return next((name for name in names if name in columns), '')


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
      if image.mode[0] in 'IF':
        raise UserError(
            f'{source}: {column} of row {i} has pixels of more than 8 bits '
            f'(mode {image.mode}); convert the images to 8 bits (map)')
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
