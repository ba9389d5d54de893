"""User-defined data sets, for --dataset=MODULE:LOADER."""

from collections.abc import Mapping

from moon_jax import user_code
from moon_jax.data.dataset import Dataset
from moon_jax.data.sources import arrays
from moon_jax.errors import UserError


def load(name: str, data_dir: str) -> Dataset:
  """Calls the loader and converts its arrays to a data set.

  Args:
    name: MODULE:LOADER. The loader maps `data_dir` to a dict of the arrays of
      `moon_jax.data.sources.arrays`.
    data_dir: value of --data_dir, passed to the loader.

  Raises:
    UserError: if the loader is missing, fails or returns invalid arrays.
  """
  loader = user_code.load('dataset', name)
  loaded = user_code.call('dataset', name, loader, data_dir)
  if not isinstance(loaded, Mapping):
    raise UserError(f'--dataset={name} must return a dict of arrays, '
                    f'{", ".join(arrays.REQUIRED)}; got a '
                    f'{type(loaded).__name__}')
  loaded = user_code.call('dataset', name, dict, loaded)
  return arrays.to_dataset(
      name.rpartition(':')[2], f'--dataset={name}', loaded)
