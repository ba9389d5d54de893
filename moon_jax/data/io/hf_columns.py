"""Columns of a Hugging Face data set, and their conversion to arrays.

The features of a data set decide what its columns are:

    images   an Image column
    text     a string column: one token per character
    arrays   a column of arrays or lists of numbers
    table    the other columns of numbers, one feature each
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import numpy as np

from moon_jax.data.io import progress
from moon_jax.errors import UserError

_LABELS = ('label', 'labels', 'fine_label', 'target', 'class', 'y')
_INPUTS = ('image', 'img', 'text', 'sentence', 'x')
_CLIENTS = ('client_id', 'client', 'writer_id', 'user_id', 'character_id')


class Columns(NamedTuple):
  """Which columns are read, and as what."""

  kind: str  # of the module docstring
  inputs: tuple[str, ...]
  label: str
  client: str  # '' if examples have no clients


def detect(features: Any, source: str, inputs: str, label: str,
           client: str) -> Columns:
  """Returns the columns of the given names, or those that the features suggest.

  Args:
    features: `datasets.Features`, column -> feature.
    source: of the data set; error messages begin with it.
    inputs: name of the input column; '' detects it.
    label: name of the label column; '' detects it.
    client: name of the column with the client of each example; '' detects it,
      'none' ignores it.

  Raises:
    UserError: if a column does not exist or none can be detected.
  """
  kinds = {name: _kind(feature) for name, feature in features.items()}
  listed = ', '.join(f'{name} ({kind})' for name, kind in kinds.items())
  for option, name in ('input', inputs), ('label', label), ('client', client):
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
        name == inputs or not inputs)]
    if found:
      if len(found) > 1 and not _named(dict.fromkeys(found), _INPUTS):
        raise UserError(f'{source} has several {kind} columns; give input='
                        f'COLUMN. The columns are {listed}')
      return Columns({'image': 'images', 'string': 'text'}.get(kind, 'arrays'),
                     (_first(found, _INPUTS),), label, client)
  table = tuple(name for name, kind in rest.items() if kind == 'number'
                and (name == inputs or not inputs))
  if not table:
    raise UserError(f'{source} has no column of images, text or numbers beside '
                    f'{label}; give input=COLUMN. The columns are {listed}')
  return Columns('table', table, label, client)


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
  return next((name for name in names if name in found),
              found[0] if found else '')


def images(rows: Any, column: str, source: str, size: int) -> np.ndarray:
  """Decodes a column of images to uint8 [N, H, W, C].

  C is 1 if the first image is grayscale, and 3 otherwise.

  Args:
    rows: a `datasets.Dataset`.
    column: name of the column.
    source: of the data set, for messages.
    size: height and width to resize to; 0 requires equal sizes.

  Raises:
    UserError: if an image is missing or has another size than the first.
  """
  decoded: np.ndarray = np.empty(0)
  with progress.show_progress(
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


def values(rows: Any, column: str) -> np.ndarray:
  """Returns a column of numbers, strings or arrays as an array."""
  return np.asarray(
      rows.select_columns([column]).with_format('numpy')[:][column])


def table(rows: Any, columns: Sequence[str]) -> np.ndarray:
  """Returns columns of numbers as features, float32 [N, F]."""
  return np.stack(
      [values(rows, name).astype(np.float32) for name in columns], 1)


def encoder(texts: Sequence[str], length: int) -> Callable:
  """Returns a function from N strings to tokens, int32 [N, length].

  Tokens 1, 2, ... are the characters of `texts`, sorted; 0 is any other
  character. Longer strings are cut at the end and shorter ones padded with 0 at
  the start, since networks use the output at the last token.

  Args:
    texts: the training texts.
    length: number of tokens.
  """
  code = {c: i for i, c in enumerate(sorted(set().union(*texts)), 1)}

  def encode(strings):
    tokens_NT = np.zeros((len(strings), length), np.int32)
    for i, text in enumerate(strings):
      tokens = [code.get(c, 0) for c in text[:length]]
      if tokens:
        tokens_NT[i, -len(tokens):] = tokens
    return tokens_NT

  return encode
