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
is the next character; of shakespeare_tokens, it is the next character at each
position. `experiments/shakespeare_leaf.py` writes the files, too.
"""

from collections.abc import Callable
import itertools
import json
import string
from typing import Any

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.io import files
from moon_jax.data.sources import arrays
from moon_jax.errors import require, setting, UserError

CLASSES = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SIZE = 28
_CHUNK = 1000  # images that are converted at once
_TOLERANCE = 1e-3  # of k: a float32 rounds by less than 2e-5

# The vocabulary of LEAF, in its order.
LETTERS = tuple('\n !"&\'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]'
                'abcdefghijklmnopqrstuvwxyz}')
_NAMES = {'\n': 'newline', ' ': 'space'}
_CODES = np.full(256, -1, np.int8)
_CODES[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))


class _Invalid(ValueError):
  """What a file has that LEAF's format does not allow."""


def load_femnist(data_dir: str) -> Dataset:
  """Reads FEMNIST; images are uint8 [N, 28, 28, 1].

  A file takes 40 kB of memory per image while it is read.
  """
  loaded: dict[str, Any] = _load(
      data_dir, 'femnist', 'preprocess.sh of LEAF in data/femnist writes them; '
      f'{setting("dataset")}=hf:flwrlabs/femnist,test_fraction=0.1 needs none',
      _convert_images)
  return arrays.to_dataset('femnist', setting('data_dir', data_dir), loaded | {
      'mean': 0., 'std': 1., 'class_names': list(CLASSES)})


def load_shakespeare(data_dir: str) -> Dataset:
  """Reads Shakespeare. All users share one test set."""
  loaded: dict[str, Any] = _load(
      data_dir, 'shakespeare', 'python -m experiments.shakespeare_leaf '
      'DIRECTORY writes them', _convert_text)
  # Held-out data of the roles would change the hash of earlier runs.
  loaded.pop('client_test', None)
  loaded['class_names'] = [_NAMES.get(c, c) for c in LETTERS]
  dataset = arrays.to_dataset(
      'shakespeare', setting('data_dir', data_dir), loaded)
  return dataset._replace(num_tokens=len(LETTERS))


def load_shakespeare_tokens(data_dir: str) -> Dataset:
  """Reads Shakespeare; labels are the next characters, int8 [N, 80].

  The last one is LEAF's label, and the others are those of the input.
  """
  dataset = load_shakespeare(data_dir)
  shifted = {
      f'{part}_labels': np.concatenate(
          [inputs[:, 1:], labels[:, None].astype(np.int8)], 1)
      for part, inputs, labels in (
          ('train', dataset.train_inputs, dataset.train_labels),
          ('test', dataset.test_inputs, dataset.test_labels))}
  return dataset._replace(name='shakespeare_tokens', task='tokens', **shifted)


def _convert_text(x: list[str], y: list[str]) -> tuple[np.ndarray, np.ndarray]:
  """Returns inputs, int8 [N, T], and labels, int8 [N], of a file."""
  codes = []
  for texts, length in (x, len(x[0])), (y, 1):
    if wrong := [text for text in texts if len(text) != length]:
      raise _Invalid(
          f'each input must have {len(x[0]):,} characters like the first, and '
          f'each label 1; got {len(wrong[0]):,}')
    text = ''.join(texts)
    codes.append(_CODES[np.frombuffer(text.encode('latin1'), np.uint8)])
    if codes[-1].min() < 0:
      raise _Invalid('characters must be among the 80 of LEAF, got '
                     f'{text[int(codes[-1].argmin())]!r}')
  return codes[0].reshape(len(x), -1), codes[1]


def _convert_images(x: list, y: list[int]) -> tuple[np.ndarray, np.ndarray]:
  """Returns images, uint8 [N, 28, 28, 1], and labels of a file."""
  images = np.empty((len(x), _SIZE**2), np.uint8)
  for start in range(0, len(x), _CHUNK):
    pixels = np.array(x[start:start + _CHUNK], np.float64)
    if pixels.shape[1:] != (_SIZE**2,):
      raise _Invalid(f'images must have {_SIZE}x{_SIZE} = {_SIZE**2} numbers; '
                     f'got {pixels.shape[1]}')
    scaled = 255 * pixels
    k = np.rint(scaled)
    # Also true for NaN.
    is_bad = ~((np.abs(scaled - k) <= _TOLERANCE) & (k >= 0) & (k <= 255))
    if is_bad.any():
      raise _Invalid('pixels must be multiples of 1/255 from 0 to 1; got '
                     f'{pixels[is_bad][0]:g}')
    images[start:start + _CHUNK] = k
  return images.reshape(-1, _SIZE, _SIZE, 1), np.array(y)


def _load(data_dir: str, dataset: str, remedy: str, convert: Callable
          ) -> dict[str, np.ndarray]:
  """Reads `data_dir`/train/*.json and `data_dir`/test/*.json, file by file.

  `convert` maps the lists x and y of all users of a file to inputs [N, ...] and
  labels [N].

  Returns:
    The arrays of `moon_jax.data.sources.arrays`, with client_test if the users
    of all test examples have training examples. Files and users keep their
    order.
  """
  root = files.existing_directory(
      dataset, dataset, data_dir,
      f"LEAF's train/*.json and test/*.json ({remedy})")
  json_files = {part: sorted((root / part).glob('*.json'))
                for part in ('train', 'test')}
  require(all(json_files.values()), 'data_dir', 'must hold train/*.json and '
          'test/*.json in the format of LEAF for '
          f'{setting("dataset", dataset)}', f'{data_dir} without them', remedy)
  loaded = {}
  for part, paths in json_files.items():
    inputs, labels, users = zip(
        *(_converted(path, convert) for path in paths))
    for path, x in zip(paths, inputs):
      require(x.shape[1:] == inputs[0].shape[1:], 'data_dir',
              'must hold inputs of equal lengths', f'{inputs[0].shape[-1]} in '
              f'{paths[0]} and {x.shape[-1]} in {path}', 'Write them again')
    loaded[f'x_{part}'] = np.concatenate(inputs)
    loaded[f'y_{part}'] = np.concatenate(labels)
    loaded[f'client_{part}'] = np.concatenate(users)
  if not np.isin(loaded['client_test'], loaded['client_train']).all():
    del loaded['client_test']  # preprocess.sh -t user: other users for testing
  return loaded


def _converted(path, convert):
  """Returns inputs, labels and the user of each example of a file."""
  try:
    with open(path, encoding='utf-8') as file:
      data = json.load(file)
    users = data['user_data']
    for user, examples in users.items():
      num_x, num_y = len(examples['x']), len(examples['y'])
      if num_x != num_y:
        raise _Invalid(
            'each user must have equal numbers of inputs x and labels y; got '
            f'{num_x:,} and {num_y:,} of {user!r:.60}')
    x, y = (list(itertools.chain.from_iterable(
        examples[key] for examples in users.values())) for key in 'xy')
    if not y:
      raise _Invalid('no user has an example')
    inputs, labels = convert(x, y)
  except (OSError, ValueError, LookupError, TypeError, AttributeError,
          RecursionError) as error:
    reason = f'{type(error).__name__} ' * (not isinstance(error, _Invalid))
    raise UserError(
        'data_dir', 'must hold files in the format of LEAF',
        f'{path}, which is not: {reason}{error}', 'Write it again') from error
  return inputs, labels, np.repeat(
      np.array(list(users)), [len(d['y']) for d in users.values()])
