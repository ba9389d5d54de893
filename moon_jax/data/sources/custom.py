"""Data of your own: an npz file, npy files, or a function that returns arrays.

The arrays are those of `moon_jax.data.sources.arrays`.

    --dataset=npz --data_dir=FILE.npz      an archive of them
    --dataset=npy --data_dir=DIRECTORY     x_train.npy, y_train.npy, x_test.npy,
                                           y_test.npy and, for example,
                                           client_train.npy mean.npy std.npy
    --dataset=MODULE:LOADER                LOADER(data_dir) returns a dict

x_train.npy may be larger than the memory: it is memory-mapped, and each round
reads the examples of its clients. The other arrays are loaded. Pickled objects
are refused, so a file cannot run code.
"""

from collections.abc import Mapping
import pathlib
import zipfile

import numpy as np

from moon_jax import user_code
from moon_jax.data.dataset import Dataset
from moon_jax.data.io import files
from moon_jax.data.sources import arrays
from moon_jax.errors import UserError

_NPY = b'\x93NUMPY'  # `numpy.load` would try to unpickle files of other content


def load_npz(data_dir: str) -> Dataset:
  """Reads the arrays of an npz file, whose path is `data_dir`.

  Raises:
    UserError: if the file is missing or damaged, or holds invalid arrays.
  """
  path = pathlib.Path(data_dir).expanduser()
  if not path.is_file():
    raise UserError(
        f'--data_dir must name a file for --dataset=npz; got {data_dir!r}. '
        'numpy.savez(FILE, x_train=..., y_train=..., x_test=..., y_test=...) '
        'writes one')
  source = f'--data_dir={data_dir}'
  try:
    with open(path, 'rb') as file:
      magic = file.read(len(_NPY))
    if magic == _NPY:
      raise ValueError('one array, not an archive of several')
    if not magic.startswith(b'PK') or not zipfile.is_zipfile(path):
      raise ValueError(f'its {path.stat().st_size:,} bytes are not a complete '
                       'zip archive')
    with np.load(path, allow_pickle=False) as archive:
      loaded = {key: archive[key] for key in archive.files}
  except Exception as error:  # a damaged file can raise almost anything
    raise UserError(f'{source} cannot be read as an npz file of plain arrays '
                    f'({_short(error)}); write it again with numpy.savez'
                    ) from error
  return arrays.to_dataset(path.stem, source, loaded)


def load_npy(data_dir: str) -> Dataset:
  """Reads `data_dir`/*.npy.

  The checks, the hash of the content and the default mean and standard
  deviation read all of x_train.npy, in parts. The files must not change during
  a run.

  Raises:
    UserError: if a file is missing or damaged, or holds an invalid array.
  """
  root = files.existing_directory(
      'npy', 'the arrays', data_dir, 'x_train.npy, y_train.npy, x_test.npy and '
      'y_test.npy', False)
  loaded = {path.stem: _read_npy(path) for path in sorted(root.glob('*.npy'))}
  return arrays.to_dataset(
      root.resolve().name, f'--data_dir={data_dir}', loaded)


def _read_npy(path: pathlib.Path) -> np.ndarray:
  try:
    with open(path, 'rb') as file:
      if file.read(len(_NPY)) != _NPY:
        raise ValueError('it does not begin like an npy file')
    return np.load(path, mmap_mode='r' if path.stem == 'x_train' else None,
                   allow_pickle=False)
  except (OSError, ValueError, EOFError) as error:
    raise UserError(
        f'--data_dir: {path} cannot be read as a plain npy file '
        f'({_short(error)}); write it again with numpy.save') from error


def _short(error: Exception) -> str:
  """Returns the first line, without numpy's advice to enable pickles."""
  text = str(error).partition('\n')[0]
  return 'it holds pickled objects' if 'pickle' in text else text


def load(name: str, data_dir: str) -> Dataset:
  """Calls a loader and converts its arrays to a data set.

  Args:
    name: MODULE:LOADER. The loader maps `data_dir` to a dict of arrays.
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
