"""Next-character prediction on Shakespeare's plays, in the format of LEAF.

Caldas et al., LEAF: A Benchmark for Federated Settings,
https://arxiv.org/abs/1812.01097. Clients are the roles of the plays.
`preprocess.sh` of LEAF's repository and `experiments/shakespeare_leaf.py` write
`train/*.json` and `test/*.json`:

    {"users": [...], "user_data": {user: {"x": [80 characters, ...],
                                          "y": [next character, ...]}}}
"""

import json
import pathlib

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.sources import arrays
from moon_jax.errors import UserError

# The vocabulary of LEAF, in its order.
LETTERS = tuple('\n !"&\'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]'
                'abcdefghijklmnopqrstuvwxyz}')
_NAMES = {'\n': 'newline', ' ': 'space'}
_CODES = np.full(256, -1, np.int8)
_CODES[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))


def load(data_dir: str) -> Dataset:
  """Reads `data_dir`/train/*.json and `data_dir`/test/*.json.

  The natural clients are the users, sorted by name. All users share one test
  set.

  Raises:
    UserError: if files are missing or invalid.
  """
  root = pathlib.Path(data_dir).expanduser()
  files = {part: sorted((root / part).glob('*.json'))
           for part in ('train', 'test')}
  if not data_dir or not all(files.values()):
    raise UserError(
        f'--data_dir={data_dir} must hold train/*.json and test/*.json in the '
        'format of LEAF for --dataset=shakespeare; python -m '
        'experiments.shakespeare_leaf DIRECTORY writes them')
  loaded = {}
  for part, paths in files.items():
    inputs, labels, users = zip(*map(_read, paths))
    lengths = [x.shape[1] for x in inputs]
    for path, length in zip(paths, lengths):
      if length != lengths[0]:
        raise UserError(
            f'--data_dir: inputs must have equal lengths, got {lengths[0]} '
            f'characters in {paths[0]} and {length} in {path}; write all files '
            'again')
    loaded[f'x_{part}'] = np.concatenate(inputs)
    loaded[f'y_{part}'] = np.concatenate(labels)
    loaded[f'client_{part}'] = np.concatenate(users)
  del loaded['client_test']
  loaded['class_names'] = [_NAMES.get(c, c) for c in LETTERS]
  dataset = arrays.to_dataset('shakespeare', f'--data_dir={data_dir}', loaded)
  return dataset._replace(num_tokens=len(LETTERS))


def _read(path: pathlib.Path):
  """Returns inputs, int8 [N, T], labels, int8 [N], and users [N] of a file."""
  def fail(reason):
    raise UserError(f'--data_dir: {path} is not in the format of LEAF: '
                    f'{reason}. Write it again')
  try:
    with open(path, encoding='utf-8') as file:
      data = json.load(file)['user_data']
    users = [user for user, examples in data.items() for _ in examples['y']]
    x = [text for examples in data.values() for text in examples['x']]
    y = [text for examples in data.values() for text in examples['y']]
    counts = {user: (len(examples['x']), len(examples['y']))
              for user, examples in data.items()}
    codes = [_encode(''.join(texts)) for texts in (x, y)]
  except (OSError, ValueError, LookupError, TypeError, AttributeError,
          RecursionError) as error:
    fail(f'{type(error).__name__} {error}')
  if not y:
    fail('no user has an example')
  for user, (num_x, num_y) in counts.items():
    if num_x != num_y:
      fail(f'each user must have equal numbers of inputs x and labels y; got '
           f'{num_x:,} and {num_y:,} of {user!r:.60}')
  if {len(text) for text in x} != {len(x[0])} or {
      len(text) for text in y} != {1}:
    user, inputs, label = next(
        example for example in zip(users, x, y)
        if len(example[1]) != len(x[0]) or len(example[2]) != 1)
    fail(f'each input must have {len(x[0]):,} characters like the first, and '
         f'each label 1; got {len(inputs):,} and {len(label):,} of '
         f'{user!r:.60}')
  return codes[0].reshape(len(x), -1), codes[1], np.array(users)


def _encode(text: str) -> np.ndarray:
  """Returns the index of each character in `LETTERS`, int8.

  Raises:
    ValueError: if a character is not in `LETTERS`.
  """
  codes = _CODES[np.frombuffer(text.encode('latin1'), np.uint8)]
  if len(codes) and codes.min() < 0:
    raise ValueError('characters must be among the 80 of LEAF, got '
                     f'{text[int(codes.argmin())]!r}')
  return codes
