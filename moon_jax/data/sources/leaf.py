"""FEMNIST and Shakespeare in the files of LEAF: clients are writers and roles.

Caldas et al., LEAF: A Benchmark for Federated Settings,
https://arxiv.org/abs/1812.01097; https://github.com/TalwalkarLab/leaf. Its
`preprocess.sh` writes `train/*.json` and `test/*.json`, with many users each:

    {"users": [user, ...], "num_samples": [...],
     "user_data": {user: {"x": [input, ...], "y": [label, ...]}}}

FEMNIST: handwritten digits and letters. Classes are 0-9, A-Z, a-z. Pixels are
k / 255, and 1 is the background (LEAF's preprocess/data_to_json.py divides
bytes by 255). They are stored as k, so nothing is lost; other values are
refused. Networks get k / 255, as in LEAF.

Shakespeare: next-character prediction. Inputs are 80 characters, and the label
is the next character. `experiments/shakespeare_leaf.py` writes the files, too.
"""

from collections.abc import Callable
import json
import pathlib
import string
from typing import Any

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.io import files
from moon_jax.data.sources import arrays
from moon_jax.errors import UserError

CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SIZE = 28
_TOLERANCE = 1e-3  # of k: a float32 rounds by less than 2e-5

# The vocabulary of LEAF, in its order.
LETTERS = tuple('\n !"&\'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]'
                'abcdefghijklmnopqrstuvwxyz}')
_NAMES = {'\n': 'newline', ' ': 'space'}
_CODES = np.full(256, -1, np.int8)
_CODES[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))

# user -> {'x': inputs, 'y': labels}, of one file.
_UserData = dict[str, dict[str, list]]


class _Invalid(ValueError):
  """What a file has that LEAF's format does not allow."""


def load_femnist(data_dir: str) -> Dataset:
  """Reads FEMNIST; images are uint8 [N, 28, 28, 1].

  A file takes 40 kB of memory per image while it is read.
  """
  files.existing_directory('femnist', 'FEMNIST', data_dir,
                           "LEAF's train/*.json and test/*.json", False)
  loaded: dict[str, Any] = _load(
      data_dir, 'femnist', 'run preprocess.sh of LEAF in data/femnist, or give '
      '--dataset=hf:flwrlabs/femnist,test_fraction=0.1', _convert_images)
  return arrays.to_dataset('femnist', f'--data_dir={data_dir}', loaded | {
      'mean': 0., 'std': 1., 'class_names': list(CLASSES)})


def load_shakespeare(data_dir: str) -> Dataset:
  """Reads Shakespeare. All users share one test set."""
  loaded: dict[str, Any] = _load(
      data_dir, 'shakespeare', 'python -m experiments.shakespeare_leaf '
      'DIRECTORY writes them', _convert_text, 'characters')
  # Held-out data of the roles would change the hash of earlier runs.
  loaded.pop('client_test', None)
  loaded['class_names'] = [_NAMES.get(c, c) for c in LETTERS]
  dataset = arrays.to_dataset('shakespeare', f'--data_dir={data_dir}', loaded)
  return dataset._replace(num_tokens=len(LETTERS))


def _convert_text(user_data: _UserData) -> tuple[np.ndarray, np.ndarray]:
  """Returns inputs, int8 [N, T], and labels, int8 [N], of a file."""
  users = [user for user, examples in user_data.items() for _ in examples['y']]
  x, y = ([text for examples in user_data.values() for text in examples[key]]
          for key in 'xy')
  codes = [_encode(''.join(texts)) for texts in (x, y)]
  if {len(text) for text in x} != {len(x[0])} or {
      len(text) for text in y} != {1}:
    user, inputs, label = next(
        example for example in zip(users, x, y)
        if len(example[1]) != len(x[0]) or len(example[2]) != 1)
    raise _Invalid(
        f'each input must have {len(x[0]):,} characters like the first, and '
        f'each label 1; got {len(inputs):,} and {len(label):,} of '
        f'{user!r:.60}')
  return codes[0].reshape(len(x), -1), codes[1]


def _encode(text: str) -> np.ndarray:
  """Returns the index of each character in `LETTERS`, int8."""
  codes = _CODES[np.frombuffer(text.encode('latin1'), np.uint8)]
  if len(codes) and codes.min() < 0:
    raise ValueError('characters must be among the 80 of LEAF, got '
                     f'{text[int(codes.argmin())]!r}')
  return codes


def _convert_images(user_data: _UserData) -> tuple[np.ndarray, np.ndarray]:
  """Returns the images and labels of a file of LEAF."""
  images, labels = [], []
  for user, examples in user_data.items():
    if not examples['y']:
      continue
    try:
      x, y = _examples(np.array(examples['x']), np.array(examples['y']))
    except ValueError as error:  # also numpy's, for rows of unequal lengths
      reason = str(error).partition('\n')[0]
      raise _Invalid(f'user {user!r:.60}: {reason}') from error
    examples['x'] = []  # 32 bytes for each pixel
    images.append(x)
    labels.append(y)
  return np.concatenate(images), np.concatenate(labels)


def _examples(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns images, uint8 [n, 28, 28, 1], and labels of a client."""
  if x.dtype.kind not in 'iuf' or x.shape[1:] != (_SIZE**2,):
    raise ValueError(f'images must have {_SIZE}x{_SIZE} = {_SIZE**2} numbers; '
                     f'got {x.dtype} {list(x.shape)}')
  scaled = np.float64(255) * x
  k = np.rint(scaled)
  # Also true for NaN.
  is_bad = ~((np.abs(scaled - k) <= _TOLERANCE) & (k >= 0) & (k <= 255))
  if is_bad.any():
    raise ValueError('pixels must be multiples of 1/255 from 0 to 1; got '
                     f'{x[is_bad][0]:g}')
  if y.dtype.kind not in 'iu' or len(y) and not (
      0 <= y.min() <= y.max() < len(CLASSES)):
    raise ValueError(f'labels must be integers from 0 to {len(CLASSES) - 1}; '
                     f'got {y.dtype} from {y.min()} to {y.max()}')
  return k.astype(np.uint8).reshape(-1, _SIZE, _SIZE, 1), y


def _load(data_dir: str, dataset: str, remedy: str,
          convert: Callable[[_UserData], tuple[Any, Any]],
          unit: str = 'values') -> dict[str, np.ndarray]:
  """Reads `data_dir`/train/*.json and `data_dir`/test/*.json, file by file.

  `convert` maps the users of a file, one after another, to inputs [N, ...] and
  labels [N]. `unit` is that of the last axis of inputs.

  Returns:
    The arrays of `moon_jax.data.sources.arrays`, with client_test if the users
    of all test examples have training examples. Files and users keep their
    order.
  """
  root = pathlib.Path(data_dir).expanduser()
  found = {part: sorted((root / part).glob('*.json'))
           for part in ('train', 'test')}
  if not data_dir or not all(found.values()):
    raise UserError(
        f'--data_dir={data_dir} must hold train/*.json and test/*.json in the '
        f'format of LEAF for --dataset={dataset}; {remedy}')
  loaded = {}
  for part, paths in found.items():
    inputs, labels, users = zip(
        *(_converted(path, convert) for path in paths))
    for path, x in zip(paths, inputs):
      if x.shape[1:] != inputs[0].shape[1:]:
        raise UserError(
            '--data_dir: inputs must have equal lengths, got '
            f'{inputs[0].shape[-1]} {unit} in {paths[0]} and {x.shape[-1]} in '
            f'{path}; write all files again')
    loaded[f'x_{part}'] = np.concatenate(inputs)
    loaded[f'y_{part}'] = np.concatenate(labels)
    loaded[f'client_{part}'] = np.concatenate(users)
  if not np.isin(loaded['client_test'], loaded['client_train']).all():
    del loaded['client_test']  # preprocess.sh -t user: other users for testing
  return loaded


def _converted(path, convert):
  """Returns inputs, labels and the user of each example of a file."""
  try:
    user_data = _user_data(path)
    inputs, labels = convert(user_data)
  except (OSError, ValueError, LookupError, TypeError, AttributeError,
          RecursionError) as error:
    reason = f'{type(error).__name__} ' * (not isinstance(error, _Invalid))
    raise UserError(
        f'--data_dir: {path} is not in the format of LEAF: {reason}{error}. '
        'Write it again') from error
  return inputs, labels, np.repeat(
      np.array(list(user_data)), [len(d['y']) for d in user_data.values()])


def _user_data(path) -> _UserData:
  with open(path, encoding='utf-8') as file:
    data = json.load(file)
  user_data = data['user_data']
  missing = [user for user in data.get('users', ()) if user not in user_data]
  if missing:
    raise _Invalid(f'"users" lists {missing[0]!r:.60}, which "user_data" lacks')
  for user, examples in user_data.items():
    num_x, num_y = len(examples['x']), len(examples['y'])
    if num_x != num_y:
      raise _Invalid(
          'each user must have equal numbers of inputs x and labels y; got '
          f'{num_x:,} and {num_y:,} of {user!r:.60}')
  if not any(examples['y'] for examples in user_data.values()):
    raise _Invalid('no user has an example')
  return user_data
