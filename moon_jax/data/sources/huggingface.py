"""Data sets of Hugging Face: --dataset=hf:NAME_OR_PATH,OPTION=VALUE,...

docs/data.md describes the places, the options and what columns become.
"""

from collections.abc import Mapping, Sequence
import os
import pathlib
from typing import Any, NamedTuple
import warnings

import numpy as np

from moon_jax.config import HUGGINGFACE, parts
from moon_jax.data.dataset import Dataset, subset
from moon_jax.data.io import files
from moon_jax.data.sources import arrays
from moon_jax.errors import first_line, require_package, setting, UserError

# Options of `from_huggingface`, with their types.
_OPTIONS = dict.fromkeys(('input', 'label', 'client', 'train', 'test'), str) | {
    'test_fraction': float, 'size': int, 'length': int}
_KINDS = ('images', 'text', 'arrays', 'numbers')  # of inputs, in this order
_HUB = {'config': str, 'revision': str}
_TEST_SPLITS = ('test', 'validation', 'valid', 'dev')
_FILES = {'.parquet': 'parquet', '.json': 'json', '.jsonl': 'json'}
_SEED, _LENGTH = 0, 80  # of the split of test_fraction; of texts, characters
_MANY_ROWS = 10  # columns of fewer may number the rows by chance
# Names of columns that are looked for, in this order.
_LABELS = ('label', 'labels', 'fine_label', 'target', 'class', 'y')
_INPUTS = ('image', 'img', 'text', 'sentence', 'x')
_CLIENTS = ('client_id', 'client', 'writer_id', 'user_id', 'character_id')


def load(name: str, data_dir: str) -> Dataset:
  """Loads hf:NAME_OR_PATH and options; '' is the default cache."""
  source, types = setting('dataset', name), _OPTIONS | _HUB
  place, _, text = name.removeprefix(HUGGINGFACE).partition(',')
  try:
    options = parts.parse_arguments(text)
  except (ValueError, RecursionError) as error:
    raise UserError(
        'dataset', 'must be hf:NAME and options, comma-separated, as '
        'NAME=VALUE with numbers, words or other Python literals',
        f'{text} ({error})', 'Quote words with other characters') from error
  check, unknown = arrays.Check(source), options.keys() - types
  check(not unknown, f'options must be among {", ".join(types)}',
        ', '.join(sorted(unknown)), 'Rename or remove them')
  for key, value in options.items():
    is_integer = types[key] is int
    check(not isinstance(value, float) or types[key] is float,
          f'{key} must be {"an integer" if is_integer else "text"}',
          f'the number {value}',
          'Round it' if is_integer else f'Quote it: {key}="..."')
    if key == 'input' and isinstance(value, list | tuple):
      continue
    try:
      options[key] = types[key](value)
    except (TypeError, ValueError) as error:
      raise UserError('', f'{source}: {key} must be a number', repr(value),
                      f'Write {key}=NUMBER') from error
  hub = {key: options.pop(key, None) for key in _HUB}
  dataset, what, left_out = _convert(
      _read(source, place, data_dir, hub['config'], hub['revision']),
      pathlib.PurePath(place).name, check, **options)
  print(f'{source}: {what}' + f'; left out: {left_out}' * bool(left_out),
        flush=True)
  return dataset


def _read(source, place, data_dir, config, revision):
  """Returns a `datasets.DatasetDict` or `datasets.Dataset`."""
  require_package('datasets', source, 'huggingface')
  import datasets

  path = files.user_path(place)
  is_path = path.exists() or path.is_absolute() or (
      place.startswith(('.', '~')))
  cache = {'cache_dir': str(files.user_path(data_dir, 'data_dir'))
           } if data_dir else {}
  try:
    if is_path and not path.exists():
      raise FileNotFoundError('it does not exist')
    if (path / 'dataset_dict.json').exists() or (path / 'state.json').exists():
      return datasets.load_from_disk(str(path))
    if path.suffix == '.csv':
      raise ValueError(f'{setting("dataset", "csv(label=COLUMN)")} with '
                       f'{setting("data_dir", path)} reads CSV files')
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
    why, remedy = (
        _reason(error) if path.is_file() and path.suffix in _FILES else
        (first_line(error),
         'Name a directory of save_to_disk, of images or of data files'
         if is_path else 'Check the name, or load it where there is a network, '
         'write it with .save_to_disk(DIR) and give '
         f'{setting("dataset")}=hf:{os.sep}path{os.sep}to{os.sep}DIR'))
    raise UserError('', f'{source} must be data that can be loaded', why,
                    remedy) from error


def _reason(error):
  """Returns why a file cannot be read, by the cause of the error, and a remedy.
  """
  cause: BaseException | None = error
  # The library wraps what its readers raise.
  if type(error).__name__.startswith('DatasetGeneration'):
    while cause:
      error, cause = cause, cause.__cause__ or cause.__context__
  return first_line(error), 'Fix the file, or write it again'


def from_huggingface(data: Any, *, input: str | Sequence[str] = '',
                     label: str = '', client: str = '', train: str = '',
                     test: str = '', test_fraction: float = 0., size: int = 0,
                     length: int = _LENGTH,
                     name: str = 'huggingface') -> Dataset:
  """Converts a data set of the library `datasets`.

  Classes are numbered as in its ClassLabel, or the values of the label column
  in sorted order. A label column of numbers with fractions is the target of a
  regression. Images become uint8, numbers float32, and text one token per
  character, numbered from 1 in sorted order. Columns of numbers are normalized
  with their mean and standard deviation over the training examples. Columns
  without a name, such as row numbers, are left out with a warning.

  Args:
    data: a `datasets.DatasetDict`, another mapping from split to
      `datasets.Dataset`, or one `datasets.Dataset` (with `test_fraction`).
    input: column of inputs, or a list of columns of numbers; by default the one
      image column, else the one text column, else the one column of arrays,
      else all columns of numbers. Must be given if columns of several kinds may
      be inputs.
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
  dataset, what, left_out = _convert(
      data, name, arrays.Check('data'), train=train, test=test,
      test_fraction=test_fraction, size=size, length=length, input=input,
      label=label, client=client)
  # Data sets of images often have other columns.
  if left_out and not (input or dataset.is_images):
    warnings.warn(f'data: {what}; left out: {left_out}', stacklevel=2)
  return dataset


class _Split(NamedTuple):
  """Training or test examples."""

  name: str  # of the split that they are from
  rows: Any  # datasets.Dataset
  index: np.ndarray  # of the rows in the split, for messages

  def at(self, row: int) -> str:
    """Returns where a row is."""
    return f'row {self.index[row]} of split {self.name}'


def _convert(data, name, check, *, train='', test='', test_fraction=0.,
             size=0, length=_LENGTH, **columns) -> tuple[Dataset, str, str]:
  """Returns the data set, what it was read from, and what was left out."""
  for option, value, least in ('size', size, 0), ('length', length, 1):
    check(value >= least, f'{option} must be {least} or more', value,
          'Leave it out for the default')
  splits = _splits(check, data, train, test, test_fraction)
  both = [split.rows for split in splits]
  kind, inputs, label, client, left_out = _detect(
      both[0].features, check, **columns)
  missing = {*inputs, label} - {*both[1].features}
  check(not missing, 'the test split must have the columns of the training '
        'split', f'none of {", ".join(sorted(missing))}',
        'Add them, or give test=SPLIT')
  _check_same_classes(check, both, label)
  loaded = _labels(check, splits, label)
  if kind == 'text':
    texts = [[text or '' for text in rows.select_columns(list(inputs))[:][
        inputs[0]]] for rows in both]
    code = {c: i for i, c in enumerate(sorted(set().union(*texts[0])), 1)}
    xs = [_tokens(part, code, length) for part in texts]
  elif kind == 'images':
    xs = [_images(check, rows, inputs[0], size) for rows in both]
  elif kind == 'arrays':
    xs = [_numbers(check, split, inputs[0]) for split in splits]
  else:
    xs, statistics = _table(check, splits, inputs)
    loaded |= statistics
  for part, split, x in zip(('train', 'test'), splits, xs):
    loaded[f'x_{part}'] = x
    if client in split.rows.features:
      _check_same_classes(check, both, client)
      loaded[f'client_{part}'] = _clients(check, split, client)
  if 'client_test' in loaded and not np.isin(
      loaded['client_test'], loaded['client_train']).all():
    del loaded['client_test']  # test examples of clients without training
  dataset = arrays.to_dataset(name, check.source, loaded, {
      f'{array}_{part}': f'{column} of split {split.name}'
      for part, split in zip(('train', 'test'), splits)
      for array, column in (('x', ', '.join(inputs[:3])), ('y', label),
                            ('client', client))})
  count = (f'numbers to predict from {label}' if 'task' in loaded
           else f'{dataset.num_classes} classes from {label}')
  return dataset, f'{_shown(kind)} from {", ".join(inputs)}, {count}' + (
      f', clients from {client}' if client else ''), ', '.join(left_out)


def _table(check, splits, columns):
  """Returns columns of numbers, float32 [N, F], and their mean and std."""
  xs = [np.stack([_numbers(check, split, column).astype(np.float64)
                  for column in columns], 1) for split in splits]
  _warn_of_row_numbers(check.source, splits[0], columns, xs[0])
  # Large numbers that are close to each other are one in float32.
  offset_F = arrays.offset(xs[0])
  if offset_F is not None:
    near = {column: f'{mean:.10g}' for column, mean in zip(columns, offset_F)
            if mean}
    warnings.warn(f'{check.source}: float32 rounds {near} too much, so these '
                  'means are subtracted in float64', stacklevel=4)
    xs = [x - offset_F for x in xs]
  xs = [x.astype(np.float32) for x in xs]
  x = xs[0]  # float32, whose sums over many rows need more bits
  return xs, {'mean': x.mean(0, np.float64), 'std': np.where(
      x.max(0) > x.min(0), x.std(0, np.float64), 1)}


def _shown(kind):
  return 'table' if kind == 'numbers' else kind


def _splits(check, data, train, test, test_fraction):
  """Returns the `_Split`s of the training and the test examples."""
  splits = data if isinstance(data, Mapping) else {train or 'train': data}
  for key, rows in splits.items():
    check(hasattr(rows, 'select'), f'split {key} must be a datasets.Dataset',
          f'a {type(rows).__name__}', 'Load it without streaming')
  # Formats, such as numpy, change what reading a row returns.
  splits = {key: rows.with_format(None) for key, rows in splits.items()}
  listed = ', '.join(map(str, splits))
  train = train or ('train' if len(splits) > 1 else next(iter(splits)))
  for split in filter(None, (train, test)):
    check(split in splits, f'splits must be among {listed}', split,
          'Give train=SPLIT and test=SPLIT')
  if test_fraction:
    check(not test and 0 < test_fraction < 1, 'test_fraction must be above 0 '
          'and below 1, without test', f'test_fraction={test_fraction}, '
          f'test={test or "none"}', 'Remove one of them, or give '
          'test_fraction=0.2')
    rows = splits[train]
    is_test = np.zeros(len(rows), bool)
    is_test[subset(_SEED, len(rows), round(test_fraction * len(rows)))] = True
    # In memory, since the directory of the data may not be writable.
    indices = [np.flatnonzero(part) for part in (~is_test, is_test)]
    check(all(map(len, indices)), 'test_fraction must leave examples for '
          'training and for testing', f'{test_fraction} of {len(rows)}',
          'Lower it' if is_test.all() else 'Raise it')
    return [_Split(train, rows.select(index, keep_in_memory=True), index)
            for index in indices]
  test = test or _first(_TEST_SPLITS, splits.keys() - {train})
  check(test, 'there must be a test split', f'only {listed}',
        'Give test=SPLIT, or test_fraction=0.2')
  for name in train, test:
    check(len(splits[name]), 'splits must have examples', f'none in {name}',
          f'Name another of {listed}')
  return [_Split(name, splits[name], np.arange(len(splits[name])))
          for name in (train, test)]


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


def _check_same_classes(check, splits, column):
  """Checks that the numbers of a `ClassLabel` mean the same in both splits."""
  names = [getattr(rows.features.get(column), 'names', None) for rows in splits]
  check(names[0] == names[1] or column not in splits[1].features,
        f'{column} must have the same classes in both splits, in one order',
        f'{names[0]} and {names[1]}', 'Convert one of them (cast_column)')


def _labels(check, splits, column) -> dict[str, Any]:
  """Returns y_train, y_test and class_names, and the task of numbers."""
  features = splits[0].rows.features
  kind = _kind(features[column])
  check(kind in ('classes', 'text', 'numbers'), f'label={column} must be a '
        'column of classes, text or numbers', kind,
        'Convert it (map), or make a moon_jax.Dataset with its task')
  y_train, y_test = (_values(split.rows, column) for split in splits)
  for split, y in zip(splits, (y_train, y_test)):
    missing = np.flatnonzero([value is None or value != value
                              for value in y.tolist()]
                             if y.dtype.kind in 'fO' else [])
    if len(missing):
      check(False, f'{column} must have a class for each example',
            f'{len(missing):,} without one, the first in '
            f'{split.at(missing[0])}', 'Remove them')
  if y_train.dtype.kind == 'f' and (y_train != np.floor(y_train)).any():
    return {'y_train': y_train, 'y_test': y_test.astype(np.float64),
            'class_names': [column], 'task': 'regression'}
  classes = getattr(features[column], 'names', None)
  if not classes:
    is_one = splits[0].name == splits[1].name  # drawn from one split
    known = np.concatenate([y_train, y_test]) if is_one else y_train
    classes = np.unique(known)
    arrays.check_classes_repeat(
        check, column, len(classes), len(known),
        'for a regression scale its numbers so that they have fractions (map)')
    unknown = np.setdiff1d(y_test, classes).tolist()
    check(not unknown, f'{column} of the test split must have values of the '
          'training split', f'{next(iter(unknown), None)!r:.60}', 'Remove '
          'these examples, or convert both to one ClassLabel (cast_column)')
    y_train, y_test = (np.searchsorted(classes, y) for y in (y_train, y_test))
  unlabeled = sum((y < 0).sum() for y in (y_train, y_test))
  check(not unlabeled, f'{column} must have a class for each example',
        f'{unlabeled:,} without one (-1), as in test sets of benchmarks',
        'Give test=SPLIT, such as validation')
  return {'y_train': y_train, 'y_test': y_test,
          'class_names': np.asarray(classes).astype(str)}


def _detect(features, check, input='', label='', client=''):
  """Returns the kind and names of the inputs, of the classes and the clients.

  They are the columns of the given names, or those that the features suggest.
  `client='none'` ignores the column of clients, and '' is returned for none.
  The last result lists the columns that are not read.
  """
  kinds = {name: _kind(feature) for name, feature in features.items()}
  listed = 'The columns are ' + ', '.join(
      f'{name} ({kind})' for name, kind in kinds.items())
  given = [input] * bool(input) if isinstance(input, str) else [*input]
  for option, name in [('input', name) for name in given] + [
      ('label', label), ('client', client)]:
    check(name in kinds or name in ('', 'none' * (option == 'client')),
          f'{option} must be a column', name, listed)
  classes = [name for name, kind in kinds.items() if kind == 'classes']
  label = (label or _first(_LABELS, classes) or next(iter(classes), '')
           or _first(_LABELS, kinds))
  check(label, 'there must be a column of classes', 'none',
        f'Give label=COLUMN. {listed}')
  is_ignored = client == 'none'  # then it is no input, unless `input` names it
  client = ('' if is_ignored else client) or _first(_CLIENTS, kinds)
  columns = [name for name in given or kinds if name != label
             and (name != client or given and is_ignored)
             and (given or not arrays.is_unnamed(name))]
  by_kind = {kind: [name for name in columns if kinds[name] == kind]
             for kind in _KINDS}
  kind = next(filter(by_kind.get, _KINDS), '')
  check(kind, 'there must be a column of images, text or numbers beside '
        f'{label}', 'none', f'Give input=COLUMN. {listed}')
  chosen = by_kind[kind]
  if kind != 'numbers':
    first = _first(_INPUTS, chosen)
    check(len(chosen) == 1 or first and not given, 'input must be one column '
          f'of {kind}', f'{len(chosen)}', f'Give input=COLUMN. {listed}')
    is_plain = first or kind == 'images'  # images come with other columns
    chosen = [first or chosen[0]]
  others = [name for name in columns if name not in chosen]
  if others and (given or kind == 'numbers' or not is_plain):
    numbers = ','.join(f'"{name}"' for name in by_kind['numbers'][:3])
    check(False, 'input must be columns of one kind', f'{_shown(kind)} from '
          f'{", ".join(chosen[:5])} beside {", ".join(others[:5])}',
          f'Give input=COLUMN, or input=[{numbers}] for columns of numbers, or '
          f'encode the others as numbers. {listed:.200}')
  if is_ignored and client in chosen:
    client = ''
  left_out = [name for name in kinds if name not in (*chosen, label, client)]
  return kind, tuple(chosen), label, client if not is_ignored else '', left_out


def _kind(feature: Any) -> str:
  """Returns images, classes, text, numbers, arrays, or the type."""
  name, dtype = type(feature).__name__, getattr(feature, 'dtype', '')
  if name == 'Image':
    return 'images'
  if name == 'ClassLabel':
    return 'classes'
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


def _images(check: arrays.Check, rows, column: str, size: int) -> np.ndarray:
  """Decodes a column of images to uint8 [N, H, W, C].

  C is 1 if the first image is grayscale, and 3 otherwise. `size` is the height
  and width to resize to; 0 requires equal sizes.
  """
  decoded: np.ndarray = np.empty(0)
  with files.show_progress(
      f'decoding {len(rows):,} images', len(rows), 'images') as advance:
    for i, row in enumerate(rows.select_columns([column])):
      image = row[column]
      check(image is not None, f'{column} must be an image',
            f'none in row {i}', 'Remove the row')
      if i == 0:
        mode = 'L' if image.mode in ('1', 'L') else 'RGB'
      check(image.mode[0] not in 'IF', f'{column} must have pixels of 8 bits',
            f'mode {image.mode} in row {i}', 'Convert the images (map)')
      image = image if image.mode == mode else image.convert(mode)
      if size and image.size != (size, size):
        image = image.resize((size, size))
      pixels = np.asarray(image).reshape(*image.size[::-1], -1)
      if i == 0:
        decoded = np.empty((len(rows), *pixels.shape), np.uint8)
      check(pixels.shape == decoded.shape[1:], 'images must have equal sizes',
            f'{list(decoded.shape[1:3])} and {list(pixels.shape[:2])} in row '
            f'{i}', 'Give size=PIXELS to resize all')
      decoded[i] = pixels
      advance(1)
  return decoded


def _numbers(check: arrays.Check, split: _Split, column: str) -> np.ndarray:
  """Returns a column of numbers or arrays without missing values."""
  x = _values(split.rows, column)
  if x.dtype == object:
    lengths = [np.shape(value) for value in x]
    row = next((i for i, length in enumerate(lengths)
                if length != lengths[0]), 0)
    check(False, f'{column} must have numbers or arrays of one shape',
          f'{list(lengths[0])} in {split.at(0)} and {list(lengths[row])} in '
          f'{split.at(row)}', 'Remove missing ones; pad or cut lists (map)')
  is_bad = ~np.isfinite(x).reshape(len(x), -1).all(1)
  if is_bad.any():
    check(False, f'{column} must have finite numbers',
          f'{is_bad.sum():,} examples with missing values, NaN or infinity, '
          f'the first in {split.at(int(is_bad.argmax()))}',
          'Fill or remove them')
  return x


def _clients(check: arrays.Check, split: _Split, column: str) -> np.ndarray:
  """Returns a column of clients: integers or strings."""
  ids = _values(split.rows, column)
  missing = [i for i, value in enumerate(ids.tolist())
             if value is None or value != value]
  check(not missing and ids.dtype.kind != 'f',
        f'client={column} must have an integer or a text for each example',
        f'{len(missing):,} missing, the first in {split.at(missing[0])}'
        if missing else ids.dtype,
        'Convert or remove them, or give client=none')
  return ids


def _warn_of_row_numbers(source, split, columns, x):
  """Warns of columns that number the rows, whose order may be that of classes.
  """
  index = split.index[:, None]
  is_count_F = (x - x[:1] == index - index[:1]).all(0)
  for column in np.asarray(columns)[is_count_F] if len(x) > _MANY_ROWS else ():
    warnings.warn(
        f'{source}: {column} numbers the rows of split {split.name}, which may '
        'tell the class if they are sorted. input=[COLUMN, ...] lists the '
        'columns that are inputs', stacklevel=5)


def _values(rows: Any, column: str) -> np.ndarray:
  """Returns a column of numbers, strings or arrays as an array.

  The library would round float64 to float32, and widen uint8.
  """
  if _kind(rows.features[column]) in ('arrays', 'classes'):
    inner = rows.features[column]
    while hasattr(inner, 'feature'):
      inner = inner.feature
    kept = {'dtype': np.dtype(inner.dtype)} if (
        inner.dtype in ('float64', 'uint8')) else {}
    rows = rows.select_columns([column]).with_format('numpy', **kept)
    return np.asarray(rows[:][column])
  table = rows.select_columns([column]).with_format('arrow')[:]
  return table.column(column).to_numpy()
