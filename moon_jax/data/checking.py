"""Finds data sets in a directory, verifies them and counts their examples."""

from collections.abc import Iterator
import pathlib

import numpy as np

from moon_jax.data import catalog
from moon_jax.data import sources
from moon_jax.data.dataset import Dataset
from moon_jax.data.io import published as published_lib
from moon_jax.data.io import tfds_data
from moon_jax.data.sources import cifar
from moon_jax.data.sources import tiny_imagenet
from moon_jax.errors import UserError

_MAX_CLASSES = 20  # listed one by one
_TINY_IMAGENET = pathlib.PurePosixPath(tiny_imagenet.URL)
_SAME_FILES = {'mnist', 'fashion_mnist'}  # have files of the same names
# Loaders that download what is missing unless they are asked not to.
_LOADERS = {
    'cifar10': cifar.load_cifar10,
    'cifar100': cifar.load_cifar100,
    'tiny_imagenet': tiny_imagenet.load,
}


def find(data_dir: str) -> list[str]:
  """Returns the names of the data sets of which files are in a directory.

  Args:
    data_dir: an existing directory, or an npz file.

  Raises:
    UserError: if it does not exist.
  """
  root = pathlib.Path(data_dir).expanduser()
  if root.suffix == '.npz' and root.is_file():
    return ['npz']
  if not root.is_dir():
    raise UserError(f'DIR must be a directory or an npz file, got {data_dir}')
  names = [name for name, entry in catalog.ENTRIES.items()
           if entry.published and (
               any(_present(entry.published, root))
               or tfds_data.find(root, entry.published.prepared_name))]
  if {*names} >= _SAME_FILES:  # keep the one that the files are of
    intact = {name for name in _SAME_FILES if published_lib.has_intact_file(
        catalog.ENTRIES[name].published, root)} or {'mnist'}
    names = [name for name in names if name not in _SAME_FILES - intact]
  if (root.name == _TINY_IMAGENET.stem or (root / _TINY_IMAGENET.stem).is_dir()
      or (root / _TINY_IMAGENET.name).exists()):
    names.append('tiny_imagenet')
  if (root / 'x_train.npy').exists():
    names.append('npy')
  return names


def _present(published, root):
  """Yields the files that exist, without reading them."""
  for layout in published.layouts:
    for name in filter(None, (layout.archive, *layout.md5)):
      path = root / (layout.directory if name != layout.archive else '') / name
      for file in path, path.with_name(f'{path.name}.gz'):
        if file.is_file():
          yield file


def check(name: str, data_dir: str) -> tuple[list[str], bool]:
  """Verifies a data set, loads it and counts its examples.

  Args:
    name: a data set, as in `moon_jax.data.sources.load`.
    data_dir: where it is.

  Returns:
    Lines that describe it, and whether it is complete.
  """
  entry = catalog.ENTRIES.get(name)
  lines, states = [], []
  if entry and entry.published and pathlib.Path(data_dir).is_dir():
    states = published_lib.verify(entry.published, pathlib.Path(data_dir))
    lines = [f'  {"BAD" if state.problem else "ok":4}'
             f'{state.path.removeprefix(f"{pathlib.Path(data_dir)}/")}'
             + f': {state.problem or state.note}'.removesuffix(': ')
             for state in states]
  bad = [state for state in states if state.problem]
  if bad:
    return lines + [f'{len(bad)} of {len(states)} files are missing or damaged.'
                    f' {_remedy(name, data_dir)}'], False
  try:
    dataset = _LOADERS[name](data_dir, may_download=False) if (
        name in _LOADERS) else sources.load(name, data_dir)
  except UserError as error:
    return lines + [str(error)], False
  return [*lines, *describe(dataset)], True


def _remedy(name: str, data_dir: str) -> str:
  return ('Remove the directory or archive that holds them, then download it: '
          f'moon-jax data get {name} --data_dir={data_dir}')


def describe(dataset: Dataset) -> Iterator[str]:
  """Yields lines about the sizes, classes and clients of a data set."""
  train, test = (np.bincount(labels, minlength=dataset.num_classes)
                 for labels in (dataset.train_labels, dataset.test_labels))
  kind = ('images' if dataset.is_images else
          f'sequences of {dataset.num_tokens} tokens' if dataset.num_tokens
          else 'rows of features')
  shape = 'x'.join(map(str, dataset.train_inputs.shape[1:]))
  yield (f'  {train.sum():,} training and {test.sum():,} test examples: '
         f'{kind}, {shape}, {dataset.num_classes} classes')
  if train.min() == train.max() and test.min() == test.max():
    yield f'  {train[0]:,} and {test[0]:,} of each class'
  elif dataset.num_classes <= _MAX_CLASSES:
    width = max(5, *map(len, dataset.class_names))
    yield f'  {"class":{width}} {"training":>9} {"test":>9}'
    for row in zip(dataset.class_names, train, test):
      yield f'  {row[0]:{width}} {row[1]:9,} {row[2]:9,}'
  else:
    for part, counts in ('training', train), ('test', test):
      low, high = counts.argmin(), counts.argmax()
      yield (f'  {counts[low]:,} ({dataset.class_names[low]}) to '
             f'{counts[high]:,} ({dataset.class_names[high]}) {part} examples '
             'per class')
  if dataset.train_clients is not None:
    sizes = np.bincount(dataset.train_clients)
    yield (f'  {len(sizes):,} natural clients with {sizes.min():,} to '
           f'{sizes.max():,} training examples, median {np.median(sizes):,.0f}')
