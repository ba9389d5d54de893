"""Data sets in npz files, for --dataset=npz --data_dir=FILE.npz."""

import pathlib
import zipfile

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.sources import arrays
from moon_jax.errors import UserError


def load(data_dir: str) -> Dataset:
  """Reads the arrays of `moon_jax.data.sources.arrays` from an npz file.

  Pickled objects are refused, so a file cannot run code.

  Args:
    data_dir: path of the file.

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
    _check_archive(path)
    file = np.load(path, allow_pickle=False)
    if isinstance(file, np.ndarray):
      raise ValueError('one array, not an archive of several')
    with file:
      loaded = {key: file[key] for key in file.files}
  except Exception as error:  # a damaged file can raise almost anything
    raise UserError(f'{source} cannot be read as an npz file of plain arrays '
                    f'({_short(error)}); write it again with numpy.savez'
                    ) from error
  return arrays.to_dataset(path.stem, source, loaded)


def _check_archive(path: pathlib.Path) -> None:
  """Raises ValueError unless the file is a zip archive or an npy file.

  `numpy.load` tries to unpickle all other files.
  """
  with open(path, 'rb') as file:
    magic = file.read(6)
  if magic != b'\x93NUMPY' and not (
      magic.startswith(b'PK') and zipfile.is_zipfile(path)):
    raise ValueError(f'its {path.stat().st_size:,} bytes are not a complete '
                     'zip archive')


def _short(error: Exception) -> str:
  """Returns the first line, without numpy's advice to enable pickles."""
  text = str(error).partition('\n')[0]
  return 'it holds pickled objects' if 'pickle' in text else text
