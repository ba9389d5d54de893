"""Shakespeare's plays by roles, the next character of each 80: LEAF's layout.

Caldas et al., LEAF: A Benchmark for Federated Settings,
https://arxiv.org/abs/1812.01097. `preprocess.sh` of its repository writes
`train/*.json` and `test/*.json`; so does `experiments/shakespeare_leaf.py`.

    {"users": [...], "user_data": {user: {"x": [80 characters, ...],
                                          "y": [the next one, ...]}}}
"""

import json
import pathlib

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.sources import arrays
from moon_jax.errors import UserError

# The characters of LEAF's text, in its order.
LETTERS = tuple('\n !"&\'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]'
                'abcdefghijklmnopqrstuvwxyz}')
_NAMES = {'\n': 'newline', ' ': 'space'}
_CODES = np.full(256, -1, np.int8)
_CODES[[ord(letter) for letter in LETTERS]] = np.arange(len(LETTERS))


def load(data_dir: str) -> Dataset:
  """Reads `data_dir`/train/*.json and `data_dir`/test/*.json.

  A client of the natural partition is a user, in order of name; their parts of
  the test set are one.

  Raises:
    UserError: naming the file at fault.
  """
  root = pathlib.Path(data_dir).expanduser()
  files = {part: sorted((root / part).glob('*.json'))
           for part in ('train', 'test')}
  if not data_dir or not all(files.values()):
    raise UserError(
        f'--data_dir={data_dir} must hold train/*.json and test/*.json as '
        'LEAF writes them for --dataset=shakespeare; python -m '
        'experiments.shakespeare_leaf DIRECTORY makes them')
  found = {}
  for part, paths in files.items():
    inputs, labels, users = zip(*map(_read, paths))
    lengths = [x.shape[1] for x in inputs]
    for path, length in zip(paths, lengths):
      if length != lengths[0]:
        raise UserError(
            f'--data_dir: inputs in {path} are of {length} characters and '
            f'those in {paths[0]} of {lengths[0]}; give all alike')
    found[f'x_{part}'] = np.concatenate(inputs)
    found[f'y_{part}'] = np.concatenate(labels)
    found[f'client_{part}'] = np.concatenate(users)
  del found['client_test']
  found['class_names'] = [_NAMES.get(c, c) for c in LETTERS]
  return arrays.dataset('shakespeare', f'--data_dir={data_dir}', found
                        )._replace(num_tokens=len(LETTERS))


def _read(path: pathlib.Path):
  """Of one file the inputs, int8 [N, T], labels, int8 [N], and users [N]."""
  def fail(why):
    raise UserError(f'--data_dir: {path} is not as LEAF writes it: {why}. Make '
                    'it again')
  try:
    with open(path, encoding='utf-8') as file:
      data = json.load(file)['user_data']
    users = [user for user, held in data.items() for _ in held['y']]
    x = [text for held in data.values() for text in held['x']]
    y = [text for held in data.values() for text in held['y']]
    counts = {user: (len(held['x']), len(held['y']))
              for user, held in data.items()}
    codes = [_encode(''.join(texts)) for texts in (x, y)]
  except (OSError, ValueError, LookupError, TypeError, AttributeError,
          RecursionError) as error:
    fail(f'{type(error).__name__} {error}')
  if not y:
    fail('no user has an example')
  for user, (num_x, num_y) in counts.items():
    if num_x != num_y:
      fail(f'users must have as many inputs x as labels y; {user!r:.60} has '
           f'{num_x:,} and {num_y:,}')
  if {len(text) for text in x} != {len(x[0])} or {
      len(text) for text in y} != {1}:
    user, inputs, label = next(
        example for example in zip(users, x, y)
        if len(example[1]) != len(x[0]) or len(example[2]) != 1)
    fail('inputs must be of one length and labels of one character; '
         f'{user!r:.60} has an input of {len(inputs):,} characters (the first '
         f'of all has {len(x[0]):,}) and its label has {len(label):,}')
  return codes[0].reshape(len(x), -1), codes[1], np.array(users)


def _encode(text: str) -> np.ndarray:
  """Each character's place in `LETTERS`.

  Raises:
    ValueError: naming the first character that LEAF's text does not have.
  """
  codes = _CODES[np.frombuffer(text.encode('latin1'), np.uint8)]
  if len(codes) and codes.min() < 0:
    raise ValueError(f'has the character {text[int(codes.argmin())]!r}, which '
                     'is not one of LEAF\'s 80')
  return codes
