"""The golden vectors: where they are, their inputs, and the subset in tests/.

PYTHONPATH=tests python -m support.golden FULL_DIR

reduces the full vectors to the subset in tests/golden, which has only a sample
of some arrays (tests/golden/README.md). Reducing the subset again gives the
same arrays.
"""

from collections.abc import Mapping, Sequence
import hashlib
import os
import pathlib
import re
import shutil
import sys
from typing import Any
import zlib

import numpy as np

MEAN = tuple(np.array([125.3, 123.0, 113.9]) / 255)  # CIFAR-10's
STD = tuple(np.array([63.0, 62.1, 66.7]) / 255)
RESNET_MEAN = (0.5070751592371323, 0.48654887331495095, 0.4409178433670343)
RESNET_STD = (0.2673342858792401, 0.2564384629170883, 0.27615047132568404)
SAMPLE_SIZE = 128
FILES = ('simple_cnn.npz', 'resnet.npz', 'partitions.npz', 'sampling.json')
_ROOT = pathlib.Path(__file__).parents[2]
_SUBSET = _ROOT / 'tests' / 'golden'  # part of the repository
_FULL = _ROOT.parent / 'shared' / 'golden'
# fedavg/global is the input of fedavgm; benchmarks/precision.py measures the
# errors of all weights of moon_k1_mu5/global.
_WHOLE_RUNS = ('fedavg', 'moon_k1_mu5')
Arrays = dict[str, np.ndarray]


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


# Values.


def digest(leaf: str, weights: np.ndarray) -> tuple[float, float]:
  """Returns the norm of an array and its dot product with drawn numbers.

  `leaf`, a name such as fc1/kernel, determines the numbers.
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

  If `figures`, the golden vectors, have only a sample of the expected array,
  the entries of `actual`, a whole array, at the same positions are returned.

  Raises:
    KeyError: if neither the array nor its sample is stored.
  """
  if name in figures:
    return actual, figures[name]
  return sample(name, actual), figures[f'{name}/sample']


def indices_digest(indices: Sequence[int] | np.ndarray) -> str:
  """Returns the SHA-256 of indices as little-endian 32-bit integers."""
  return hashlib.sha256(np.asarray(indices, '<i4').tobytes()).hexdigest()


# The subset.


def simple_cnn(figures: Mapping[str, np.ndarray]) -> Arrays:
  """Returns simple_cnn.npz with samples and digests of most runs' averages."""
  subset, digests = {}, {}
  for name, array in figures.items():
    run, _, leaf = name.partition('/global/')
    if not leaf or run in _WHOLE_RUNS or name.endswith('/sample'):
      subset[name] = array
      continue
    subset |= _sampled(name, array)
    digests.setdefault(run, {})[leaf] = digest(leaf, array)
  for run, rows in digests.items():
    # A subset has the digests of all leaves, but only the small leaves whole.
    subset.setdefault(f'{run}/global_digest', np.array([
        rows[leaf] for leaf in figures['leaf_names'] if leaf in rows]))
  return subset


def resnet(figures: Mapping[str, np.ndarray]) -> Arrays:
  """Returns resnet.npz with samples of its large arrays of floats."""
  subset = {}
  for name, array in figures.items():
    is_whole = array.dtype.kind != 'f' or name.endswith('/sample')
    subset |= {name: array} if is_whole else _sampled(name, array)
  return subset


def partitions(figures: Mapping[str, np.ndarray]) -> Arrays:
  """Returns partitions.npz with hashes of the lists of indices."""
  return dict(
      (f'{name}_sha256', np.array(indices_digest(array)))
      if name.endswith('/indices') else (name, array)
      for name, array in figures.items())


def _sampled(name, array):
  if array.size <= SAMPLE_SIZE:
    return {name: array}
  return {f'{name}/sample': sample(name, array)}


REDUCTIONS = {'simple_cnn.npz': simple_cnn, 'resnet.npz': resnet,
              'partitions.npz': partitions}


def main() -> None:
  full = pathlib.Path(sys.argv[1])
  for name, reduce_fn in REDUCTIONS.items():
    np.savez_compressed(
        _SUBSET / name, **reduce_fn(dict(np.load(full / name))))
  shutil.copyfile(full / 'sampling.json', _SUBSET / 'sampling.json')


if __name__ == '__main__':
  main()
