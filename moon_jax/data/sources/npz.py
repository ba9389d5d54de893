"""--dataset=npz --data_dir=FILE.npz: arrays as numpy.savez writes them."""

import pathlib
import zipfile

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.sources import arrays
from moon_jax.errors import UserError


def load(data_dir: str) -> Dataset:
  """Reads the file `data_dir`, as `moon_jax.data.sources.arrays` describes it.

  Pickled objects are not read: a file cannot run code.

  Raises:
    UserError: where there is no such file, or it is damaged or holds what no
      data set does.
  """
  path = pathlib.Path(data_dir).expanduser()
  if not path.is_file():
    raise UserError(
        f'--data_dir must name a file for --dataset=npz; got {data_dir!r}. '
        'numpy.savez(FILE, x_train=..., y_train=..., x_test=..., y_test=...) '
        'writes one')
  where = f'--data_dir={data_dir}'
  try:
    _check_archive(path)
    file = np.load(path, allow_pickle=False)
    if isinstance(file, np.ndarray):
      raise ValueError('one array, not an archive of several')
    with file:
      found = {key: file[key] for key in file.files}
  except Exception as error:  # a damaged file can raise almost anything
    raise UserError(f'{where} cannot be read as an npz file of plain arrays '
                    f'({_short(error)}); write it again with numpy.savez'
                    ) from error
  return arrays.dataset(path.stem, where, found)


def _check_archive(path: pathlib.Path) -> None:
  """Raises ValueError where a file is no zip archive, nor one array.

  numpy would take it for a pickle.
  """
  with open(path, 'rb') as file:
    begin = file.read(6)
  if begin != b'\x93NUMPY' and not (
      begin.startswith(b'PK') and zipfile.is_zipfile(path)):
    raise ValueError(f'its {path.stat().st_size:,} bytes are not a whole zip '
                     'archive, as npz files are')


def _short(error: Exception) -> str:
  """The first line, without numpy's advice to unpickle."""
  text = str(error).partition('\n')[0]
  return 'it holds objects' if 'pickle' in text else text
