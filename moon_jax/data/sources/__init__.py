"""Built-in data sets by name.

To add one, write a module here and register its loader in `SOURCES`, one with
arguments in the kind "dataset" (`moon_jax.config.kinds`), or its description of
published files in `PUBLISHED` (`images.py`).
"""

from collections.abc import Callable
import functools
from typing import Any

from moon_jax.config import (
  DATASETS,
  HUGGINGFACE,
  KINDS,
  Part,
  parts,
  suggest,
)
from moon_jax.data import mapped
from moon_jax.data.dataset import Dataset
from moon_jax.data.io import published
from moon_jax.data.sources import (
  arrays,
  benchmarks,
  bundled,
  huggingface,
  leaf,
  tiny_imagenet,
)
from moon_jax.data.sources.images import PUBLISHED
from moon_jax.errors import UserError

# name -> loader(data_dir), of data sets without arguments.
SOURCES: dict[str, Callable[..., Dataset]] = {
    **{name: functools.partial(published.load, data)
       for name, data in PUBLISHED.items()},
    'digits': bundled.load_digits,
    'tiny_imagenet': tiny_imagenet.load,
    'shakespeare': leaf.load_shakespeare,
    'shakespeare_tokens': leaf.load_shakespeare_tokens,
    'femnist': leaf.load_femnist,
    'breast_cancer': bundled.load_breast_cancer,
    'har': benchmarks.har,
    'npz': arrays.load_npz,
    'npy': arrays.load_npy,
}


# Data sets whose content depends on the files; those of MNIST do not any more,
# but the fingerprints of earlier runs have it.
_VARYING = ('mnist', 'fashion_mnist', 'emnist', 'har', 'adult', 'csv', 'images',
            'text', 'npz', 'npy', 'stackoverflow_tags', 'shakespeare',
            'shakespeare_tokens', 'femnist')


def varies(name: str) -> bool:
  """Returns whether two data sets of this name can have different content.

  A run hashes the content of these data sets into its configuration.
  """
  name = name.partition('(')[0].strip()  # of a call
  return name in _VARYING or name not in DATASETS


def load_dataset(dataset: str, data_dir: str = '', *,
                 may_download: bool = True) -> Dataset:
  """Loads a data set by name.

  `train_inputs` and `train_labels` are read-only and aligned to 64 bytes, so
  that CPU devices read them in place. Memory-mapped inputs stay in their file.

  Args:
    dataset: a built-in data set (one of `DATASETS`), or a call of one with
      arguments, such as csv(label=ill); or MODULE:LOADER for a
      custom one: `LOADER(data_dir)` of the importable module MODULE must
      return a dict of arrays, see `moon_jax.data.sources.arrays`. hf:NAME is a
      data set of Hugging Face, see `moon_jax.data.sources.huggingface`.
    data_dir: directory that holds the data set's files. CIFAR-10, CIFAR-100 and
      Tiny-ImageNet are downloaded into it if it exists and does not hold them.
      For 'npz', the path of the file. Unused by 'digits' and 'breast_cancer'.
    may_download: whether these are downloaded.

  Returns:
    The data set.

  Raises:
    UserError: if files are missing or damaged and cannot be downloaded, or a
      custom loader fails or returns invalid arrays.

  Examples:
    >>> dataset = moon_jax.load_dataset('digits')
    >>> dataset.train_inputs.shape
    (1438, 32, 32, 1)
  """
  suggest.check_names('dataset', dataset, DATASETS, 'MODULE:LOADER')
  source = SOURCES.get(dataset) or functools.partial(
      huggingface.load if dataset.startswith(HUGGINGFACE)
      else arrays.load_custom, dataset)
  call = parts.dataset_call(dataset)
  if dataset in KINDS['dataset'].functions:
    call = Part(dataset)
  if call:
    source = functools.partial(
        parts.function_of('dataset', call), **dict(call.arguments))
  if not may_download and dataset in (*PUBLISHED, 'tiny_imagenet'):
    source = functools.partial(source, may_download=False)
  try:
    loaded: Any = source(data_dir)
  except OSError as error:  # for example, a directory without search permission
    raise UserError(
        'data_dir', 'must be readable',
        f'{data_dir} ({error.strerror or error})',
        'Fix its permissions, or name another directory') from error
  # One field at a time, so that each original array is freed.
  for field in 'train_inputs', 'train_labels':
    if not mapped.is_mapped(getattr(loaded, field)):
      loaded = loaded._replace(**{
          field: mapped.aligned(getattr(loaded, field))})
  return loaded
