"""Finds the golden vectors; imports only the standard library."""

import os
import pathlib

_ROOT = pathlib.Path(__file__).parents[1]
_SUBSET = _ROOT / 'tests' / 'golden'  # part of the repository
_FULL = _ROOT.parent / 'shared' / 'golden'
FILES = ('simple_cnn.npz', 'resnet.npz', 'partitions.npz', 'sampling.json')


def find() -> pathlib.Path:
  """Returns the directory of the golden vectors.

  It is the environment variable MOON_JAX_GOLDEN if that is set, otherwise
  ../shared/golden if it contains all files, otherwise tests/golden.
  """
  if path := os.environ.get('MOON_JAX_GOLDEN'):
    return pathlib.Path(path).expanduser().absolute()
  is_complete = all((_FULL / name).is_file() for name in FILES)
  return _FULL if is_complete else _SUBSET
