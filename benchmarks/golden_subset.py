"""Reduces the full golden vectors to the subset in tests/golden.

python -m benchmarks.golden_subset --full=DIR --out=tests/golden

tests/golden/README.md describes the subset. Reducing the subset again gives the
same arrays.
"""

import argparse
from collections.abc import Mapping
import pathlib
import shutil

import numpy as np

from benchmarks import golden

# fedavg/global is the input of fedavgm; benchmarks/precision.py measures the
# errors of all weights of moon_k1_mu5/global.
_WHOLE_RUNS = ('fedavg', 'moon_k1_mu5')
Arrays = dict[str, np.ndarray]


def simple_cnn(figures: Mapping[str, np.ndarray]) -> Arrays:
  """Returns simple_cnn.npz with samples and digests of most runs' averages."""
  subset, digests = {}, {}
  for name, array in figures.items():
    run, _, leaf = name.partition('/global/')
    if not leaf or run in _WHOLE_RUNS or name.endswith('/sample'):
      subset[name] = array
      continue
    subset |= _sampled(name, array)
    digests.setdefault(run, {})[leaf] = golden.digest(leaf, array)
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
  return {
      f'{name}_sha256' if name.endswith('/indices') else name:
      np.array(golden.indices_digest(array)) if name.endswith('/indices')
      else array for name, array in figures.items()}


def _sampled(name, array):
  if array.size <= golden.SAMPLE_SIZE:
    return {name: array}
  return {f'{name}/sample': golden.sample(name, array)}


REDUCTIONS = {'simple_cnn.npz': simple_cnn, 'resnet.npz': resnet,
              'partitions.npz': partitions}


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
  parser.add_argument('--full', type=pathlib.Path, required=True,
                      help='directory of the full golden vectors')
  parser.add_argument('--out', type=pathlib.Path, required=True,
                      help='output directory')
  args = parser.parse_args()
  args.out.mkdir(parents=True, exist_ok=True)
  for name, reduce_fn in REDUCTIONS.items():
    np.savez_compressed(
        args.out / name, **reduce_fn(dict(np.load(args.full / name))))
  shutil.copyfile(args.full / 'sampling.json', args.out / 'sampling.json')


if __name__ == '__main__':
  main()
