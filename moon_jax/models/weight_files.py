"""Reads weights that programs of PyTorch and Hugging Face saved.

PyTorch is not needed. The pickle in a file of torch.save could run any code
when it is loaded. The unpickler here knows only the names that a dict of
tensors needs, makes them for each file, and refuses all others.
"""

import contextlib
import functools
import io
import math
import pathlib
import pickle
from typing import Any, NamedTuple
import zipfile

import jax.numpy as jnp
import numpy as np
import safetensors

from moon_jax.data.io import files
from moon_jax.errors import first_line, UserError

_PICKLES = ('.bin', '.pt', '.pth')
_IN_DIRECTORIES = (  # patterns, of which the first that has files counts
    'model.safetensors', 'model-*-of-*.safetensors', 'pytorch_model.bin',
    'pytorch_model-*-of-*.bin')
_STORAGES = {  # classes of torch that name the type of numbers
    'DoubleStorage': 'float64', 'FloatStorage': 'float32',
    'HalfStorage': 'float16', 'BFloat16Storage': 'bfloat16',
    'LongStorage': 'int64', 'IntStorage': 'int32', 'ShortStorage': 'int16',
    'CharStorage': 'int8', 'ByteStorage': 'uint8', 'BoolStorage': 'bool'}
_DICTS = ('state_dict', 'model')  # entries of checkpoints that hold tensors


def files_of(path: str) -> list[pathlib.Path]:
  """Returns the files of weights that `path`, a file or directory, names."""
  root = files.user_path(path, 'init')
  if root.is_file() and root.suffix in ('.safetensors', *_PICKLES):
    return [root]
  for pattern in _IN_DIRECTORIES:
    if found := sorted(root.glob(pattern)):
      return found
  raise UserError(
      'init', 'must name a file of weights (.safetensors, '
      f'{", ".join(_PICKLES)}) or a directory with '
      + ' or '.join(_IN_DIRECTORIES),
      path if root.exists() else f'{path}, which does not exist',
      'Give a local path: moon_jax downloads no weights')


def config_of(path: str) -> dict[str, Any]:
  """Returns the config.json of Hugging Face beside weights; {} without one."""
  file = files_of(path)[0].parent / 'config.json'
  with _errors_of(file):
    return files.read_json_object(file) or {}


def read(path: str) -> dict[str, np.ndarray]:
  """Returns tensors by name, in their types.

  Raises:
    UserError: if there is no file of weights, or it holds anything but tensors.
  """
  found: dict[str, np.ndarray] = {}
  for file in files_of(path):
    with _errors_of(file):
      if file.suffix in _PICKLES:
        found |= _of_pickle(file)
      else:
        with safetensors.safe_open(file, framework='numpy') as content:
          found |= {name: content.get_tensor(name) for name in content.keys()}
  return found


@contextlib.contextmanager
def _errors_of(file):
  try:
    yield
  except MemoryError:
    raise
  except Exception as error:  # a damaged file can raise almost anything
    raise UserError(
        'init', 'must name files of tensors, and a config.json beside them '
        'must be valid JSON', f'{file} ({first_line(error)})', 'Write it '
        'again, for example with safetensors.torch.save_file('
        'model.state_dict(), FILE) or torch.save(model.state_dict(), FILE)'
        ) from error


class _Tensor(NamedTuple):
  """What a pickle says of a tensor, which is made after it has been read."""

  dtype: str
  key: str  # of its storage
  offset: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]


class _Unpickler(pickle.Unpickler):
  """Reads dicts of tensors; anything else raises an error."""

  def __init__(self, file):
    super().__init__(file)
    self._known: dict[str, Any] = {
        'torch._utils._rebuild_tensor_v2':
            lambda storage, offset, shape, strides, *_: _Tensor(
                *storage, offset, tuple(shape), tuple(strides)),
        'torch._utils._rebuild_parameter': lambda tensor, *_: tensor,
        'collections.OrderedDict': type('OrderedDict', (dict,), {}),
        **{f'torch.{name}': dtype for name, dtype in _STORAGES.items()}}

  def find_class(self, module, name):
    if (known := self._known.get(f'{module}.{name}')) is None:
      raise pickle.UnpicklingError(
          f'it holds {module}.{name}, which is not a tensor and could run code')
    return known

  def persistent_load(self, pid):
    return pid[1:3]  # type and key of a storage


def _of_pickle(file):
  if not zipfile.is_zipfile(file):
    raise ValueError('it is not a file of torch.save of PyTorch 1.6 or later')
  archive = zipfile.ZipFile(file)
  root, = (name.removesuffix('data.pkl') for name in archive.namelist()
           if name.endswith('/data.pkl'))
  order = f'{root}byteorder'
  if order in archive.namelist() and archive.read(order) != b'little':
    raise ValueError('its numbers are big-endian')
  made = _Unpickler(io.BytesIO(archive.read(f'{root}data.pkl'))).load()
  for name in _DICTS:
    if isinstance(made, dict) and isinstance(made.get(name), dict):
      made = made[name]
  if not isinstance(made, dict) or not all(
      isinstance(x, _Tensor) for x in made.values()):
    raise ValueError('its content is not a dict of tensors')
  storage = functools.cache(lambda key: archive.read(f'{root}data/{key}'))
  return {str(name): _array(x, storage(x.key)) for name, x in made.items()}


def _array(tensor, content):
  """Returns the array of a tensor, a view of its storage if it can be one.

  All of its numbers must be there. A stride of 0 could make it of any size.
  """
  storage = np.frombuffer(content, jnp.dtype(tensor.dtype))
  if not math.prod(tensor.shape):
    return np.zeros(tensor.shape, storage.dtype)
  last = tensor.offset + sum((n - 1) * step for n, step in zip(
      tensor.shape, tensor.strides, strict=True))
  if min(tensor.offset, *tensor.shape, *tensor.strides, 0) < 0 or (
      last >= len(storage)) or math.prod(tensor.shape) > len(storage):
    raise ValueError('a tensor exceeds its storage')
  return np.asarray(np.lib.stride_tricks.as_strided(
      storage[tensor.offset:], tensor.shape,
      [step * storage.itemsize for step in tensor.strides]), order='C')
