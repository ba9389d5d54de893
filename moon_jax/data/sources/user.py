"""--dataset=MODULE:LOADER: a data set of the user's own, as plain arrays."""

from collections.abc import Mapping

from moon_jax import user_code
from moon_jax.data.dataset import Dataset
from moon_jax.data.sources import arrays
from moon_jax.errors import UserError


def load(name: str, data_dir: str) -> Dataset:
  """Calls the loader with --data_dir; it returns a dict of arrays.

  `moon_jax.data.sources.arrays` says which.

  Raises:
    UserError: where there is no such loader, it fails, or returns what no
      data set is.
  """
  loader = user_code.load('dataset', name)
  found = user_code.call('dataset', name, loader, data_dir)
  if not isinstance(found, Mapping):
    raise UserError(f'--dataset={name} must return a dict of arrays, '
                    f'{", ".join(arrays.REQUIRED)}; got a '
                    f'{type(found).__name__}')
  found = user_code.call('dataset', name, dict, found)
  return arrays.dataset(name.rpartition(':')[2], f'--dataset={name}', found)
