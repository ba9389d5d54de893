"""Data of your own: an npz file, npy files, or a function that returns arrays.

    --dataset=npz --data_dir=FILE.npz      an archive of the arrays
    --dataset=npy --data_dir=DIRECTORY     x_train.npy, y_train.npy, x_test.npy,
                                           y_test.npy and, for example,
                                           client_train.npy mean.npy std.npy
    --dataset=MODULE:LOADER                LOADER(data_dir) returns a dict

Required arrays:

    x_train, x_test   images: uint8 [N, H, W, C] or [N, H, W]
                      features: floating point [N, ..., F], or a data frame
                      of numbers
                      tokens: other integers [N, T], from 0
    y_train, y_test   classes: integers [N], from 0

Optional arrays:

    client_train      client of each training example: integers or strings [N]
    client_test       client of each test example, among those of client_train
    mean, std         [C], of images scaled to 0..1, or [F]. Defaults: those of
                      the training images, 0 and 1 for features
    class_names       strings [K]
    augmentation      a key of moon_jax.data.augment.AUGMENTATIONS
    task              tokens, multilabel, regression (moon_jax.tasks): y_train
                      and y_test are those of the task; or a moon_jax.Task

x_train may be a `numpy.memmap`, which stays in its file (moon_jax.data.mapped),
so x_train.npy may be larger than the memory: each round reads the examples of
its clients. Pickled objects are refused, so a file cannot run code.
"""

from collections.abc import Mapping, Sequence
import numbers
import re
from typing import Any, NamedTuple
import warnings
import zipfile

import numpy as np

from moon_jax import user_code
from moon_jax.data import mapped
from moon_jax.data.dataset import Dataset
from moon_jax.data.io import files
from moon_jax.errors import require, setting, UserError

REQUIRED = ('x_train', 'y_train', 'x_test', 'y_test')
OPTIONAL = ('client_train', 'client_test', 'mean', 'std', 'class_names',
            'augmentation', 'task')

_MAX_TOKENS = 10**6
_HUGE = 1e30  # larger values can overflow in float32 arithmetic
# float32 may round a value by this part of the standard deviation. Features
# whose deviation is a smaller part of the largest value are constant.
_SPREAD, _EQUAL = 1e-3, 1e-12
_CHUNK = 10_000  # rows
_MANY_CLASSES = 20  # more of them need two examples each, on average
NUMBERING = ('Number the classes of both from 0: numpy.searchsorted(names, '
              'labels) with names = numpy.unique([*y_train, *y_test])')


def load_npz(data_dir: str) -> Dataset:
  """Reads the arrays of an npz file, whose path is `data_dir`."""
  path = files.user_path(data_dir, 'data_dir')
  require(path.is_file(), 'data_dir', 'must name a file for '
          f'{setting("dataset")}=npz', repr(data_dir), 'numpy.savez(FILE, '
          'x_train=..., y_train=..., x_test=..., y_test=...) writes one')
  try:
    if not zipfile.is_zipfile(path):
      raise ValueError(f'its {path.stat().st_size:,} bytes are not a complete '
                       'zip archive')
    with np.load(path, allow_pickle=False) as archive:
      loaded = {key: archive[key] for key in archive.files}
  except Exception as error:  # a damaged file can raise almost anything
    reason = ('it holds pickled objects' if 'pickle' in str(error)
              else str(error).partition('\n')[0])
    raise UserError(
        'data_dir', 'must name an npz file of plain arrays',
        f'{data_dir} ({reason})', 'Write it again with numpy.savez') from error
  return to_dataset(path.stem, setting('data_dir', data_dir), loaded)


def load_npy(data_dir: str) -> Dataset:
  """Reads `data_dir`/*.npy; the files must not change during a run."""
  root = files.existing_directory(
      'npy', 'the arrays', data_dir, 'x_train.npy, y_train.npy, x_test.npy and '
      'y_test.npy', False)
  loaded = {path.stem: _read_npy(path) for path in sorted(root.glob('*.npy'))}
  return to_dataset(root.resolve().name, setting('data_dir', data_dir), loaded)


def _read_npy(path):
  try:
    # Other functions of NumPy try to unpickle a file of other content.
    array = np.lib.format.open_memmap(path, mode='r')
  except (OSError, ValueError) as error:
    reason = str(error).partition('\n')[0]
    raise UserError(
        'data_dir', 'must hold npy files of plain arrays', f'{path} ({reason})',
        'Write it again with numpy.save') from error
  return array if path.stem == 'x_train' else np.array(array)


def load_custom(name: str, data_dir: str) -> Dataset:
  """Calls MODULE:LOADER, which maps `data_dir` to a dict of arrays."""
  loader = user_code.load('dataset', name)
  place = str(files.user_path(data_dir, 'data_dir')) if data_dir else ''
  loaded = user_code.call('dataset', name, loader, place)
  require(isinstance(loaded, Mapping), 'dataset', 'must return a dict of '
          f'arrays, {", ".join(REQUIRED)}',
          f'a {type(loaded).__name__} of {name}', f'Correct {name}')
  loaded = user_code.call('dataset', name, dict, loaded)
  return to_dataset(name, setting('dataset', name), loaded)


class Check(NamedTuple):
  """Raises errors about arrays: "SOURCE: ARRAY must be ...".

  Attributes:
    source: origin of the arrays.
    titles: what errors call an array; by default its name.
  """

  source: str
  titles: Mapping[str, str] = {}

  def __call__(self, is_valid: object, requirement: str, got: object = '',
               remedy: str = '') -> None:
    require(is_valid, '', f'{self.source}: {requirement}', got, remedy)

  def title(self, key: str) -> str:
    return self.titles.get(key, key)


def to_dataset(name: str, source: str, arrays: Mapping[str, Any],
               titles: Mapping[str, str] = {}) -> Dataset:
  """Checks and converts arrays to a data set.

  Args:
    name: name of the data set.
    source: origin of the arrays; error messages begin with it.
    arrays: the arrays of the module docstring by name.
    titles: what error messages call some of them.

  Raises:
    UserError: if an array is missing or invalid; the message names it.
  """
  check = Check(source, titles)
  missing = [key for key in REQUIRED if key not in arrays]
  check(not missing, f'the arrays {", ".join(REQUIRED)} must be there',
        f'no {", ".join(missing)}', f'Add them; {", ".join(OPTIONAL)} may '
        'be there, too')
  unknown = [str(key) for key in arrays if key not in REQUIRED + OPTIONAL]
  check(not unknown, f'names must be among {", ".join(REQUIRED + OPTIONAL)}',
        ', '.join(unknown), 'Rename or remove them')
  given = [_array(check, key, _columns(check, key, arrays[key]))
           for key in ('x_train', 'x_test')]
  _check_same_columns(check, arrays)
  offset_F = offset(given[0])
  x_train, x_test = (_inputs(check, key, x, offset_F)
                     for key, x in zip(('x_train', 'x_test'), given))
  if offset_F is not None:
    warnings.warn(f'{source}: {_rounded(given[0])}, so their means are '
                  'subtracted in float64, from x_test too', stacklevel=2)
  is_tokens = x_train.dtype.kind in 'iu' and x_train.dtype != np.uint8
  num_tokens = 0
  if is_tokens:
    given_too = [key for key in ('mean', 'std') if key in arrays]
    check(not given_too, 'mean and std must not be given for tokens',
          ', '.join(given_too), 'Remove them')
    num_tokens = 1 + int(max(mapped.bounds(x)[1] for x in (x_train, x_test)))
    # The smallest signed dtype, to save device memory.
    dtype = next(t for t in (np.int8, np.int16, np.int32)
                 if num_tokens <= np.iinfo(t).max)
    if x_test.dtype.kind in 'iu':
      x_train = _converted(check, 'x_train', x_train, dtype)
      x_test = x_test.astype(dtype)
  check(x_train.shape[1:] == x_test.shape[1:] and x_train.dtype == x_test.dtype,
        f'examples of {check.title("x_train")} and {check.title("x_test")} '
        'must have the same dtype and shape', ' and '.join(
            f'{x.dtype} {list(x.shape[1:])}' for x in (x_train, x_test)),
        'Convert those for testing as those for training')
  task = arrays.get('task', 'classification')
  task = task if isinstance(task, tuple) else str(task)
  labels = [_array(check, key, arrays[key]) for key in ('y_train', 'y_test')]
  y_train, y_test = (
      _classes(check, f'y_{part}', y, len(x), labels)
      if task == 'classification' else _labels(check, f'y_{part}', y, len(x))
      for part, x, y in zip(('train', 'test'), (x_train, x_test), labels))
  return Dataset(
      name, x_train, y_train, x_test, y_test,
      _class_names(check, arrays, y_train, y_test)
      if task == 'classification' else
      _output_names(arrays, task, num_tokens, y_train),
      *mean_and_std(check, arrays, x_train, offset_F),
      augmentation(check, arrays, x_train), num_tokens,
      *_clients(check, arrays, len(y_train), len(y_test)), task=task)


def _columns(check, key, value):
  """Returns the values of a data frame, float64 [N, F]; others as they are.

  Columns without a name are the row numbers that a file was written with.
  """
  if not (hasattr(value, 'columns') and hasattr(value, 'to_numpy')):
    return value
  unnamed = [name for name in value.columns if is_unnamed(name)]
  if unnamed:
    warnings.warn(f'{key}: the column {unnamed[0]!r} has no name, as row '
                  'numbers have, and is left out', stacklevel=4)
  columns = {name: _array(check, f'column {name!r} of {key}', value[name])
             for name in value.columns if name not in unnamed}
  others = [name for name, x in columns.items() if x.dtype.kind not in 'biuf']
  check(columns and not others, f'{key} must have columns of numbers',
        others[:5], 'Encode others, for example with pandas.get_dummies of the '
        'training and the test rows together, or drop them')
  return np.stack([x.astype(np.float64) for x in columns.values()], 1)


def is_unnamed(column: Any) -> bool:
  """Returns whether a file has a column without a name, such as an index."""
  return re.fullmatch(r'\s*|Unnamed: \d+|__index_level_\d+__',
                      str(column)) is not None


def check_classes_repeat(check: Check, label: str, num_classes: int,
                         num_rows: int, remedy: str) -> None:
  """Checks that a column of labels has classes, not a value for each row."""
  check(num_classes <= max(_MANY_CLASSES, num_rows // 2),
        f'label={label} must have classes that repeat',
        f'{num_classes:,} different values in {num_rows:,} rows',
        f'Give another column, or {remedy}')


def _check_same_columns(check, arrays):
  names = [[name for name in getattr(arrays[key], 'columns', ())
            if not is_unnamed(name)] for key in ('x_train', 'x_test')]
  check(not all(names) or names[0] == names[1], 'x_train and x_test must have '
        'the same columns in the same order', f'{names[0][:5]} and '
        f'{names[1][:5]}', 'x_test[x_train.columns] orders them')


def _array(check, key, value):
  """Returns `value` as an array of numbers or strings, of native byte order.

  Arrays of other objects, which are only refused, stay as they are.
  """
  title = check.title(key)
  requirement = f'{title} must be a plain array'
  check(not isinstance(value, np.ma.MaskedArray), requirement, 'a masked array',
        'Replace or remove the masked values')
  check(not hasattr(value, 'toarray'), requirement, 'a sparse array',
        f'Give {key}.toarray()')
  try:
    array = np.asarray(value)
  except Exception as error:  # a ragged list, or an error of an array-like
    check(False, requirement, str(error).partition('.')[0],
          'Give rows of equal length')
  if array.dtype == object and array.size:
    missing = np.flatnonzero([_is_missing(x) for x in array.flat])
    check(not len(missing), f'{title} must have no missing values',
          f'{len(missing):,}, the first at index {missing[:1].tolist()}',
          'Fill them, or remove these examples')
    array = _from_objects(array)
  elif array.dtype.kind == 'T':  # strings of any length
    array = np.array(array.tolist())
  # A map in another byte order would be loaded; it is refused.
  return array if array.dtype.isnative or mapped.is_mapped(array) else (
      array.astype(array.dtype.newbyteorder('=')))


def _is_missing(value):
  return value is None or type(value).__name__ in ('NAType', 'NaTType') or (
      isinstance(value, float) and value != value)


def _from_objects(array):
  """Returns objects that are all strings, numbers or rows as an array."""
  values = array.ravel().tolist()
  if all(isinstance(x, str) for x in values):
    return array.astype(str)
  if all(isinstance(x, bytes) for x in values):
    return array.astype(bytes)
  try:
    if all(isinstance(x, numbers.Number) for x in values):
      plain = np.array(values)
      plain = plain.astype(np.float64) if plain.dtype == object else plain
    else:  # a series of arrays; strings among them would become numbers
      rows = [np.asarray(x) for x in values]
      plain = np.stack(rows) if all(
          x.ndim and x.dtype.kind in 'biuf' for x in rows) else array
  except (TypeError, ValueError):  # rows of unequal lengths
    return array
  return array if plain.dtype == object else plain.reshape(
      *array.shape, *plain.shape[1:])


def needs_offset(x: np.ndarray) -> np.ndarray:
  """Returns which features float32 rounds too much for their spread, bool [F].

  Their mean must be subtracted before. One number per example is a feature.
  """
  is_wide = x.dtype.kind in 'iuf' and x.dtype.itemsize > 4
  if not is_wide or mapped.is_mapped(x) or not x.size:
    return np.zeros(x.shape[-1:] if x.ndim > 1 else 1, bool)
  rows = x.reshape(-1, x.shape[-1] if x.ndim > 1 else 1)
  with np.errstate(all='ignore'):  # NaN and infinity are reported elsewhere
    most = np.maximum(rows.max(0), -rows.min(0))
    std = _std(rows)
    return (std > most * _EQUAL) & (std * _SPREAD < most * 2.**-24)


def _std(rows):
  """Returns the standard deviation of columns without a copy of them."""
  mean, total = rows.mean(0, np.float64), 0.
  for start in range(0, len(rows), _CHUNK):
    total += ((rows[start:start + _CHUNK] - mean)**2).sum(0)
  return np.sqrt(total / len(rows))


def offset(x: np.ndarray) -> np.ndarray | None:
  """Returns what to subtract from features before float32 rounds them.

  These are the means of the features that need it and 0 for others, float64
  [F]; None if none of them does.
  """
  if x.dtype.kind != 'f' or x.ndim < 2 or not (needs := needs_offset(x)).any():
    return None
  return np.where(needs, x.mean(tuple(range(x.ndim - 1)), np.float64), 0)


def _rounded(x):
  """Describes the features that float32 rounds, for messages."""
  index, *others = np.flatnonzero(needs_offset(x))
  first = x.reshape(-1, x.shape[-1] if x.ndim > 1 else 1)[:, index]
  return (f'float32 rounds {len(others) + 1} feature{"s" * bool(others)}, the '
          f'first at index {index} with mean {first.mean():.10g} and '
          f'standard deviation {first.std():.3g}')


def _inputs(check, key, x, offset_F):
  """Returns images as uint8 [N, H, W, C], features as float32, or tokens."""
  title, shape = check.title(key), list(x.shape)
  check(x.ndim, f'{title} must be an array', f'a {x.dtype.type.__name__}',
        'Give one row for each example')
  check(x.size, f'{title} must have examples', f'shape {shape}', 'Add some')
  if mapped.is_mapped(x):
    check(key != 'x_train' or x.flags.c_contiguous,
          f'{title} must be contiguous as a memory map', 'other strides',
          'numpy.save(FILE, numpy.ascontiguousarray(x)) writes it')
    x = x if key == 'x_train' else np.array(x)
  if x.dtype == np.uint8:
    requirement = f'{title}, of uint8, must be images [N, H, W, C] or [N, H, W]'
    check(x.ndim in (3, 4), requirement, shape,
          'Give features as float32, tokens as int32')
    check(not has_channels_first(x.shape), requirement,
          f'{shape}, which looks like channels first',
          'x.transpose(0, 2, 3, 1) reorders them')
    return x[..., None] if x.ndim == 3 else x
  if x.dtype.kind == 'f':
    check(x.ndim > 1, f'{title} must be [N, F] or more axes', shape,
          'Give one feature as [N, 1]')
    if offset_F is not None and x.shape[-1:] == offset_F.shape:
      x = x - offset_F
    x = _converted(check, key, x, np.float32)
    is_bad = np.concatenate([~np.isfinite(part).reshape(len(part), -1).all(1)
                             for part in mapped.chunks(x)])
    check(not is_bad.any(), f'{title} must be finite as float32', 'NaN or '
          f'infinity in {is_bad.sum()} examples, the first at index '
          f'{is_bad.argmax()}', 'Replace or remove them')
    return x
  check(x.dtype.kind in 'iu', f'{title} must be uint8 images, floating-point '
        'features or integer tokens', x.dtype, 'Give features as float32')
  check(x.ndim == 2, f'{title}, of {x.dtype}, must be tokens [N, T]', shape,
        'Give images as uint8, features as float32')
  low, high = mapped.bounds(x)
  check(low >= 0 and high < _MAX_TOKENS,
        f'{title} must have tokens from 0 to {_MAX_TOKENS - 1:,} at most',
        f'tokens {low} to {high}', 'Number them, or give features as float32')
  return x


def has_channels_first(shape: Sequence[int]) -> bool:
  """Returns whether inputs of four axes look like [N, C, H, W]."""
  return len(shape) == 4 and (
      shape[1] in (1, 3) and shape[3] not in (1, 3, 4)
      or shape[1] <= 4 < min(shape[2:]))


def _converted(check, key, x, dtype):
  """Returns `x` as `dtype`, which a map must have: it would be loaded."""
  if not mapped.is_mapped(x):
    with np.errstate(over='ignore'):
      return x.astype(dtype)
  name = np.dtype(dtype)
  check(x.dtype == name, f'{check.title(key)} must be {name} to stay a memory '
        'map', x.dtype, f'Save it as {name}')
  return x


def _classes(check, key, y, count, both):
  title = check.title(key)
  check(y.dtype.kind in 'iub' and y.shape == (count,),
        f'{title} must be {count} integers, one for each example of '
        f'{check.title(f"x_{key[2:]}")}', f'{y.dtype} {list(y.shape)}',
        class_remedy(y, both))
  check(y.min() >= 0 and y.max() < 2**31 - 1,
        f'{title} must be classes that count from 0', f'{y.min()} to {y.max()}',
        f'{NUMBERING}. Remove examples without a class')
  return y.astype(np.int32)


def class_remedy(y: np.ndarray, both: Sequence[np.ndarray]) -> str:
  """Returns what makes labels that are no classes, integers [N], fit.

  Args:
    y: the labels, an array of any type and shape.
    both: the training and the test labels.
  """
  if y.ndim > 1 and y.size == len(y):
    return 'labels.ravel() has this shape'
  if y.dtype.kind in 'USO':
    return NUMBERING
  if y.dtype.kind not in 'biuf':
    return 'Give numbers'
  if y.dtype.kind == 'f' and not np.isfinite(y).all():
    return 'Remove examples with NaN or infinity'
  is_whole = bool((y == np.floor(y)).all())
  if y.ndim != 2:
    return ('Give one per example' if y.dtype.kind in 'iu' or y.ndim != 1 else
            "labels.astype(int) makes classes, task='regression' keeps numbers"
            if is_whole else
            "task='regression' takes numbers that are no classes")
  if np.isin(y, (0, 1)).all():
    if not (y.sum(1) == 1).all():
      return "task='multilabel' takes rows of several labels"
    if len({x.shape[1] for x in both if x.ndim == 2}) > 1:
      return ('Give both a column for each class of the two; got '
              f'{" and ".join(str(list(x.shape)) for x in both)}')
    return 'labels.argmax(1) turns one-hot rows into classes'
  if is_whole and y.min() == -1 and y.max() <= 1:
    return ("task='multilabel' takes 0 and 1: labels > 0 if -1 means no; "
            'remove the examples if it means unknown')
  if not is_whole and y.min() >= 0 and np.allclose(y.sum(1), 1, atol=1e-3):
    return 'labels.argmax(1) takes the most probable class'
  return ("task='regression' takes rows of numbers" + (
      ", task='tokens' a token for each position" * is_whole))


def _labels(check, key, y, count):
  """Returns labels of another task, which the federation checks."""
  title = check.title(key)
  check(y.dtype.kind in 'iufb' and y.shape[:1] == (count,), f'{title} must be '
        f'{count} rows of numbers, one for each example of '
        f'{check.title(f"x_{key[2:]}")}', f'{y.dtype} {list(y.shape)}',
        'Give as many of both')
  if y.dtype.kind in 'iu':
    check(-2**31 <= y.min() and y.max() < 2**31, f'{title} must be below 2^31 '
          'in magnitude', f'{y.min()} to {y.max()}', 'Number them from 0')
  if y.dtype.kind == 'f':
    check_precision(f'{check.source}: {title}', y)
  return y.astype(np.float32 if y.dtype.kind == 'f' else np.int32)


def check_precision(name: str, x: np.ndarray) -> None:
  """Checks that float32 does not round numbers too much for their spread."""
  if needs_offset(x).any():
    raise UserError(
        '', f'{name} must be numbers that stay different in float32',
        f'others: {_rounded(x)}',
        'Give (numbers - mean) / std, with the mean and std of the training '
        'examples for both')


def _output_names(arrays, task, num_tokens, y_train):
  """Returns the names of tokens, labels or targets; by default numbers."""
  count = (max(num_tokens, int(y_train.max()) + 1) if task == 'tokens'
           else y_train.shape[1] if y_train.ndim > 1 else 1)
  return tuple(map(str, arrays.get('class_names', range(count))))


def _class_names(check, arrays, y_train, y_test):
  """Returns the given class names, or numbers up to the largest label."""
  if 'class_names' in arrays:
    names = _array(check, 'class_names', arrays['class_names'])
    check(names.ndim == 1 and len(names), 'class_names must be a list of names',
          f'{names.dtype} {list(names.shape)}', 'Give one for each class')
  else:
    names = range(int(y_train.max()) + 1)
    check(y_train.min() == 0 and len(names) <= len(y_train),
          'y_train must have classes that count from 0, at most as many as its '
          f'{len(y_train)} examples', f'{y_train.min()} to {y_train.max()}',
          f'{NUMBERING}. Or give class_names')
  for key, y in (('y_train', y_train), ('y_test', y_test)):
    check(y.max() < len(names), f'{check.title(key)} must be below the number '
          f'of classes, {len(names)}', y.max(), 'Fix it or give class_names')
  return tuple(map(str, names))


def _clients(check, arrays, num_train, num_test):
  """Returns clients of training and of test examples, and names, or None.

  Clients are numbered from 0 in the order of the ids in client_train. They have
  names if these are strings.
  """
  if 'client_train' not in arrays:
    check('client_test' not in arrays, 'client_train, the client of each '
          'training example, must be there with client_test', 'none',
          'Add it or remove client_test')
    return None, None, None

  def read(key, count):
    ids = _array(check, key, arrays[key])
    check(ids.shape == (count,) and ids.dtype.kind in 'iuUS',
          f'{check.title(key)} must be {count} integers or strings, one for '
          f'each example of {check.title(f"x_{key[7:]}")}',
          f'{ids.dtype} {list(ids.shape)}',
          'astype(int) converts whole numbers')
    return ids

  ids, train = np.unique(read('client_train', num_train), return_inverse=True)
  train = train.astype(np.int32)
  names = (None if ids.dtype.kind in 'iu' else tuple(ids.tolist())
           if ids.dtype.kind == 'U' else tuple(
               name.decode('utf-8', 'replace') for name in ids.tolist()))
  if 'client_test' not in arrays:
    return train, None, names
  test = read('client_test', num_test)
  kinds = {ids.dtype.kind, test.dtype.kind}
  titles = check.title('client_train'), check.title('client_test')
  check(len(kinds) == 1 or kinds == {'i', 'u'}, f'{" and ".join(titles)} must '
        'hold ids of one type', f'{ids.dtype} and {test.dtype}',
        'Convert one of them')
  at = np.minimum(np.searchsorted(ids, test), len(ids) - 1)
  unknown = test[ids[at] != test]
  check(not len(unknown), f'clients of {titles[1]} must be among those of '
        f'{titles[0]}', f'{len(unknown)} examples of others, such as client '
        f'{unknown[:1].tolist()}', 'Remove these test examples')
  return train, at.astype(np.int32), names


def mean_and_std(check, arrays, x_train, offset_F=None):
  """Returns the given values or the defaults of the module docstring.

  `offset_F` has been subtracted from the inputs.
  """
  needs_default = x_train.dtype == np.uint8 and not {'mean', 'std'} <= {*arrays}
  defaults = mapped.mean_and_std(x_train) if needs_default else (0., 1.)
  values = []
  for key, default in zip(('mean', 'std'), defaults):
    value = _array(check, key, arrays.get(key, default))
    check(value.dtype.kind in 'iuf'
          and (value.shape in ((), (1,)) or value.shape == x_train.shape[-1:]),
          f'{key} must be one number or {x_train.shape[-1]}',
          f'{value.dtype} {list(value.shape)}', 'Give one for each channel')
    check((np.abs(value) < _HUGE).all(), f'{key} must be finite and below '
          f'{_HUGE:g} in magnitude', value, 'Leave it out for the default')
    check(key == 'std' or x_train.dtype != np.uint8
          or ((value >= 0) & (value <= 1)).all(), 'mean must be that of images '
          'scaled to 0..1', value, 'Divide mean and std by 255')
    check(key == 'mean' or (value > 1 / _HUGE).all(),
          f'std must be above {1 / _HUGE:g}', value,
          'Give 1 for constant features')
    if key == 'mean' and key in arrays and offset_F is not None:
      value = value - offset_F
    values.append(tuple(map(float, np.atleast_1d(value))))
  return values


def augmentation(check, arrays, x_train):
  """Returns the name of the augmentation that is given, or none."""
  name = str(arrays.get('augmentation', 'none'))
  from moon_jax.data import augment  # imports JAX, which is slow

  check(name in augment.AUGMENTATIONS, 'augmentation must be one of '
        + ', '.join(augment.AUGMENTATIONS), name, 'Correct it')
  check(name == 'none' or x_train.dtype == np.uint8
        and min(x_train.shape[1:3]) > augment.PAD, 'augmentation must be none, '
        f'except for images larger than {augment.PAD} pixels on each side',
        name, 'Remove it')
  return name
