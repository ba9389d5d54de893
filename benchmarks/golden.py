"""The golden vectors of tests/golden: where they are, and their inputs."""

import os
import pathlib
import re
from typing import Any
import zlib

import numpy as np

MEAN = tuple(np.array([125.3, 123.0, 113.9]) / 255)  # CIFAR-10's
STD = tuple(np.array([63.0, 62.1, 66.7]) / 255)
RESNET_MEAN = (0.5070751592371323, 0.48654887331495095, 0.4409178433670343)
RESNET_STD = (0.2673342858792401, 0.2564384629170883, 0.27615047132568404)
FILES = ('simple_cnn.npz', 'resnet.npz', 'partitions.npz', 'sampling.json')
_ROOT = pathlib.Path(__file__).parents[1]
_SUBSET = _ROOT / 'tests' / 'golden'  # part of the repository
_FULL = _ROOT.parent / 'shared' / 'golden'


def find() -> pathlib.Path:
  """Returns the directory of the golden vectors.

  It is the environment variable MOON_JAX_GOLDEN if that is set, otherwise
  ../shared/golden if it contains all files, otherwise tests/golden.
  """
  if path := os.environ.get('MOON_JAX_GOLDEN'):
    return pathlib.Path(path).expanduser().absolute()
  is_complete = all((_FULL / name).is_file() for name in FILES)
  return _FULL if is_complete else _SUBSET


# Inputs.


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
  """Returns the weights of simple_cnn for a name such as global/fc1/kernel."""
  bound = .1 if name.endswith('bias') else 1 / np.sqrt(np.prod(shape[:-1]))
  random = np.random.RandomState(zlib.crc32(name.encode()))
  return random.uniform(-bound, bound, shape)


def draw_variables(prefix: str, shapes: dict[str, Any]) -> dict[str, Any]:
  """Returns float32 variables whose parameters depend only on their names.

  `prefix` is global, or prev/CLIENT/K; `shapes` has arrays or shapes.
  """
  import jax

  return {'params': jax.tree_util.tree_map_with_path(
      lambda path, x: draw(
          '/'.join([prefix, *(entry.key for entry in path)]), x.shape
      ).astype(np.float32), shapes['params'])}


def resnet_leaf(name: str) -> tuple[str, ...]:
  """Returns the path in the Flax tree for a name of the golden vectors."""
  name = re.sub(r'layer(\d)/(\d+)/', r'layer\1_\2/', name)
  return tuple(name.replace('stem/', 'stem_').replace(
      'down/', 'down_').split('/'))


def draw_resnet(names: np.ndarray) -> dict[str, Any]:
  """Returns the float64 variables of a residual network.

  `names` is the array NET/names of resnet.npz, of entries "NAME (SHAPE)".
  """
  variables = {'params': {}, 'batch_stats': {}}
  for entry in names:
    name, shape = re.match(r'(\S+) \((.*)\)', entry).groups()
    shape = tuple(int(n) for n in shape.split(',') if n.strip())
    v = np.random.RandomState(
        zlib.crc32(name.encode())).standard_normal(shape)
    *path, kind = resnet_leaf(name)
    if kind == 'kernel':
      v *= np.sqrt(2 / np.prod(shape[:-1]))
    else:
      v = {'scale': 1 + .1 * v, 'var': 1 + .5 * v**2}.get(kind, .1 * v)
    tree = variables['batch_stats' if kind in ('mean', 'var') else 'params']
    for key in path:
      tree = tree.setdefault(key, {})
    tree[kind] = v
  return variables
