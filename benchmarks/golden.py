"""Generates the inputs of the golden vectors, and compares with their values.

tests/golden/README.md describes the golden vectors. tests/golden contains only
a sample of some arrays, the full vectors contain these arrays whole.
"""

from collections.abc import Mapping, Sequence
import hashlib
import re
from typing import Any
import zlib

import jax
import numpy as np

MEAN = tuple(np.array([125.3, 123.0, 113.9]) / 255)  # CIFAR-10's
STD = tuple(np.array([63.0, 62.1, 66.7]) / 255)
RESNET_MEAN = (0.5070751592371323, 0.48654887331495095, 0.4409178433670343)
RESNET_STD = (0.2673342858792401, 0.2564384629170883, 0.27615047132568404)
SAMPLE_SIZE = 128


def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
  """Returns the weights of simple_cnn for a name such as global/fc1/kernel."""
  bound = .1 if name.endswith('bias') else 1 / np.sqrt(np.prod(shape[:-1]))
  random = np.random.RandomState(zlib.crc32(name.encode()))
  return random.uniform(-bound, bound, shape)


def draw_variables(prefix: str, shapes: dict[str, Any]) -> dict[str, Any]:
  """Returns float32 variables whose parameters depend only on their names.

  Args:
    prefix: global, or prev/CLIENT/K.
    shapes: {'params': tree of arrays or shapes}.
  """
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

  Args:
    names: the array NET/names of resnet.npz; each entry is "NAME (SHAPE)".
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


def digest(leaf: str, weights: np.ndarray) -> tuple[float, float]:
  """Returns the norm of an array and its dot product with drawn numbers.

  Args:
    leaf: a name such as fc1/kernel; determines the drawn numbers.
    weights: the array.
  """
  weights = np.asarray(weights, np.float64)
  return np.linalg.norm(weights), np.vdot(weights, draw(leaf, weights.shape))


def sample(name: str, array: np.ndarray) -> np.ndarray:
  """Returns 128 entries of a larger array; the name determines which."""
  array = np.asarray(array).ravel()
  random = np.random.RandomState(zlib.crc32(name.encode()))
  return array[random.choice(array.size, SAMPLE_SIZE, replace=False)]


def comparable(actual: np.ndarray, figures: Mapping[str, np.ndarray],
               name: str) -> tuple[np.ndarray, np.ndarray]:
  """Returns computed and expected values: the whole array or its sample.

  Args:
    actual: the whole computed array.
    figures: arrays of the golden vectors by name.
    name: name of the expected array. If only its sample is stored, the entries
      of `actual` at the same positions are returned.

  Raises:
    KeyError: if neither the array nor its sample is stored.
  """
  if name in figures:
    return actual, figures[name]
  return sample(name, actual), figures[f'{name}/sample']


def indices_digest(indices: Sequence[int] | np.ndarray) -> str:
  """Returns the SHA-256 of indices as little-endian 32-bit integers."""
  return hashlib.sha256(np.asarray(indices, '<i4').tobytes()).hexdigest()
