"""Any data set as plain arrays: what npz files and users' loaders hold.

    x_train, x_test   images: uint8 [N, H, W, C] or [N, H, W]
                      features: floating [N, ..., F]
                      tokens: other integers [N, T], from 0
    y_train, y_test   classes: integers [N], from 0

and, where there are any,

    client_train      whose each training example is: integers or strings [N]
    mean, std         [C] of images scaled to 0..1, or [F]; by default those of
                      the training images, and 0 and 1 for features
    class_names       strings [K]
    augmentation      a name of moon_jax.data.augment.AUGMENTATIONS
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError

REQUIRED = ('x_train', 'y_train', 'x_test', 'y_test')
OPTIONAL = ('client_train', 'mean', 'std', 'class_names', 'augmentation')

_MAX_TOKENS = 10**6
_HUGE = 1e30  # what float32 arithmetic can take
_EXAMPLES_AT_ONCE = 100


def dataset(name: str, where: str, arrays: Mapping[str, Any]) -> Dataset:
  """Checks arrays and makes them a data set.

  Args:
    name: of the data set.
    where: what the arrays come from, as messages begin.
    arrays: by the names above.

  Raises:
    UserError: naming the array at fault, what it holds and what would do.
  """
  def check(is_right, why):
    if not is_right:
      raise UserError(f'{where}: {why}')

  missing = [key for key in REQUIRED if key not in arrays]
  check(not missing, f'lacks {", ".join(missing)}; it must hold '
        f'{", ".join(REQUIRED)} and may hold {", ".join(OPTIONAL)}')
  unknown = [str(key) for key in arrays if key not in REQUIRED + OPTIONAL]
  check(not unknown, f'holds {", ".join(unknown)}, which no one reads; names '
        f'are {", ".join(REQUIRED + OPTIONAL)}')
  x_train, x_test = (_inputs(check, key, arrays[key])
                     for key in ('x_train', 'x_test'))
  is_tokens = x_train.dtype.kind in 'iu' and x_train.dtype != np.uint8
  if is_tokens and x_test.dtype.kind in 'iu':
    x_train, x_test = _as_tokens(x_train, x_test)
  check(x_train.shape[1:] == x_test.shape[1:] and x_train.dtype == x_test.dtype,
        f'x_train holds {x_train.dtype} {list(x_train.shape[1:])} and x_test '
        f'{x_test.dtype} {list(x_test.shape[1:])}; give both alike')
  y_train, y_test = (
      _integers(check, f'y_{part}', arrays[f'y_{part}'], len(x))
      for part, x in (('train', x_train), ('test', x_test)))
  check(not is_tokens or not {'mean', 'std'} & set(arrays),
        'mean and std are of no use to tokens; leave them out')
  mean, std = _mean_and_std(check, arrays, x_train)
  return Dataset(
      name=name,
      train_inputs=x_train,
      train_labels=y_train,
      test_inputs=x_test,
      test_labels=y_test,
      class_names=_class_names(check, arrays, y_train, y_test),
      mean=mean,
      std=std,
      augmentation=_augmentation(check, arrays, x_train),
      num_tokens=(int(max(x_train.max(), x_test.max())) + 1
                  if is_tokens else 0),
      train_clients=_clients(check, arrays, len(y_train)))


def _array(check, key, value):
  """A plain array; of objects that are all strings an array of strings."""
  check(not isinstance(value, np.ma.MaskedArray), f'{key} is a masked array; '
        'fill in or leave out what is masked')
  try:
    array = np.asarray(value)
  except Exception as error:  # a ragged list, or an array that refuses
    check(False, f'{key} is no array ({str(error).partition(".")[0]}); give '
          'rows of one length')
  if array.dtype == object and array.size and all(
      isinstance(x, str) for x in array.flat):
    array = array.astype(str)
  return array


def _inputs(check, key, value):
  """Images as uint8 [N, H, W, C], features as float32, tokens as they are."""
  x = _array(check, key, value)
  check(x.ndim, f'{key} must be an array; got a {type(value).__name__}')
  check(x.size, f'{key} is empty, of shape {list(x.shape)}')
  if x.dtype == np.uint8:
    check(x.ndim in (3, 4), f'{key} is uint8, so it must be images [N, H, W, C]'
          f' or [N, H, W]; got {list(x.shape)}. Give features as float32')
    check(x.ndim == 3 or x.shape[1] not in (1, 3) or x.shape[3] in (1, 3, 4),
          f'{key} is {list(x.shape)}, which looks as if channels came first; '
          'give [N, H, W, C]')
    return x[..., None] if x.ndim == 3 else x
  if x.dtype.kind == 'f':
    check(x.ndim > 1, f'{key} must be [N, F] or more axes; got '
          f'{list(x.shape)}. Give one feature as [N, 1]')
    with np.errstate(over='ignore'):
      x = x.astype(np.float32)
    bad = ~np.isfinite(x).reshape(len(x), -1).all(1)
    check(not bad.any(), f'{key} holds NaN or infinity (as float32) in '
          f'{bad.sum()} examples, the first of them {bad.argmax()}; fill in or '
          'leave out')
    return x
  check(x.dtype.kind in 'iu', f'{key} must be uint8 images, floating features '
        f'or integer tokens; got {x.dtype}')
  check(x.ndim == 2, f'{key} is {x.dtype}, so it must be tokens [N, T]; got '
        f'{list(x.shape)}. Give images as uint8, features as float32')
  check(x.min() >= 0 and x.max() < _MAX_TOKENS,
        f'{key} runs from {x.min()} to {x.max()}; number the tokens from 0 to '
        f'{_MAX_TOKENS - 1:,} at most')
  return x


def _as_tokens(x_train, x_test):
  """In the smallest signed type that holds them: the device keeps them all."""
  most = max(x_train.max(), x_test.max())
  dtype = next(t for t in (np.int8, np.int16, np.int32)
               if most < np.iinfo(t).max)
  return x_train.astype(dtype), x_test.astype(dtype)


def _integers(check, key, value, count):
  y = _array(check, key, value)
  check(y.dtype.kind in 'iu' and y.shape == (count,),
        f'{key} must be {count} integers, one for each example of '
        f'x_{key[2:]}; got {y.dtype} {list(y.shape)}')
  check(y.min() >= 0 and y.max() < 2**31 - 1, f'{key} runs from {y.min()} to '
        f'{y.max()}; number the classes from 0')
  return y.astype(np.int32)


def _class_names(check, arrays, y_train, y_test):
  """Those given, or numbers: as many as the training labels run to."""
  if 'class_names' in arrays:
    names = _array(check, 'class_names', arrays['class_names'])
    check(names.ndim == 1 and len(names), 'class_names must be a list of names;'
          f' got {names.dtype} {list(names.shape)}')
  else:
    check(y_train.min() == 0, f'y_train runs from {y_train.min()} to '
          f'{y_train.max()}; number the classes from 0, or give class_names')
    names = range(int(y_train.max()) + 1)
    check(len(names) <= len(y_train), f'y_train runs to {y_train.max()} with '
          f'{len(y_train)} examples; number the classes from 0')
  for key, y in (('y_train', y_train), ('y_test', y_test)):
    check(y.max() < len(names), f'{key} runs to {y.max()} and there are '
          f'{len(names)} classes, from 0; mend it, or give class_names')
  return tuple(map(str, names))


def _clients(check, arrays, count):
  """Whose each example is, from 0 in the order of ids; None if untold."""
  if 'client_train' not in arrays:
    return None
  ids = _array(check, 'client_train', arrays['client_train'])
  check(ids.shape == (count,) and ids.dtype.kind in 'iuUS',
        f'client_train must be {count} integers or strings, one an example; '
        f'got {ids.dtype} {list(ids.shape)}')
  return np.unique(ids, return_inverse=True)[1].astype(np.int32)


def _mean_and_std(check, arrays, x_train):
  """Those given, else of the training images a channel, or 0 and 1."""
  found = []
  for key, default_fn in ('mean', _mean), ('std', _std):
    value = _array(check, key, arrays[key] if key in arrays
                   else default_fn(x_train))
    check(value.dtype.kind in 'iuf'
          and (value.shape in ((), (1,)) or value.shape == x_train.shape[-1:]),
          f'{key} must be one number or {x_train.shape[-1]}; got '
          f'{value.dtype} {list(value.shape)}')
    check((np.abs(value) < _HUGE).all(), f'{key} must be finite and below '
          f'{_HUGE:g} in size; got {value}')
    check(key == 'mean' or (value > 1 / _HUGE).all(),
          f'std must be above {1 / _HUGE:g}; got {value}')
    found.append(tuple(map(float, np.atleast_1d(value))))
  return found


def _mean(x_train):
  if x_train.dtype != np.uint8:
    return np.zeros(1)
  return x_train.mean(tuple(range(x_train.ndim - 1)), np.float64) / 255


def _std(x_train):
  if x_train.dtype != np.uint8:
    return np.ones(1)
  std = _std_of_channels(x_train) / 255
  return np.where(std > 0, std, 1)


def _std_of_channels(x):
  """x.std(..., float64), which takes 8 bytes for each of x, to the same bits.

  NumPy adds up channels example by example, and so can be followed in parts; of
  a single channel it adds up the whole in another order.
  """
  channels = x.shape[-1]
  axes = tuple(range(x.ndim - 1))
  if channels == 1:
    return x.std(axes, np.float64)
  mean, total = x.mean(axes, np.float64), np.zeros(channels)
  for first in range(0, len(x), _EXAMPLES_AT_ONCE):
    square = x[first:first + _EXAMPLES_AT_ONCE].reshape(-1, channels) - mean
    square *= square
    square[0] += total
    total = square.sum(0)
  return np.sqrt(total / (x.size // channels))


def _augmentation(check, arrays, x_train):
  name = str(arrays.get('augmentation', 'none'))
  from moon_jax.data import augment  # JAX, which is slow to import

  check(name in augment.AUGMENTATIONS, f'augmentation must be one of '
        f'{", ".join(augment.AUGMENTATIONS)}; got {name}')
  check(name == 'none' or x_train.dtype == np.uint8
        and min(x_train.shape[1:3]) > augment.PAD,
        f'augmentation {name} is for images of more than {augment.PAD} pixels '
        'a side; leave it out')
  return name
