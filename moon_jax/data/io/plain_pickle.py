"""A safe reader of pickles that hold only arrays, lists, strings and numbers.

`pickle.load` can run arbitrary code. This reader accepts only the few names
that pickled arrays need and replaces them by the classes and functions below,
so no function that a file names is called.
"""

import io
import pickle
from typing import Any

import numpy as np


class _Dtype:
  """Replaces numpy.dtype(name, align, copy)."""

  def __init__(self, name, align=False, copy=False):
    del align, copy
    self.dtype = np.dtype(name)
    if self.dtype.kind not in 'biuf':
      raise pickle.UnpicklingError(f'arrays of {self.dtype} are not allowed')

  def __setstate__(self, state):
    order = state[1]
    if order in ('<', '>'):
      self.dtype = self.dtype.newbyteorder(order)


class _Array:
  """Replaces the array that numpy's _reconstruct returns."""

  array: np.ndarray | None = None

  def __setstate__(self, state):
    _, shape, dtype, is_fortran, raw = state
    flat = np.frombuffer(raw, dtype.dtype)
    self.array = flat.reshape(shape, order='F' if is_fortran else 'C')


class _ArrayType:
  """Replaces numpy.ndarray, which pickles use only as an argument."""


def _encode(text, encoding):
  """Replaces _codecs.encode, which Python 3 uses for bytes in protocol 2."""
  if encoding not in ('latin1', b'latin1'):
    raise pickle.UnpicklingError(f'encoding {encoding!r} is not allowed')
  return text.encode('latin1')


def _reconstruct(subtype, shape, typecode):
  del subtype, shape, typecode
  return _Array()


_ALLOWED = {
    ('numpy.core.multiarray', '_reconstruct'): _reconstruct,
    ('numpy._core.multiarray', '_reconstruct'): _reconstruct,
    ('_codecs', 'encode'): _encode,
    ('numpy', 'ndarray'): _ArrayType,
    ('numpy', 'dtype'): _Dtype,
}


class _Unpickler(pickle.Unpickler):

  def find_class(self, module, name):
    if (module, name) not in _ALLOWED:
      raise pickle.UnpicklingError(f'{module}.{name} is not allowed')
    return _ALLOWED[module, name]


def loads_dict(blob: bytes) -> dict[bytes, Any]:
  """Unpickles a dict of plain values and numpy arrays.

  Strings of Python 2 pickles are returned as bytes.

  Raises:
    ValueError: if `blob` is damaged, is not a dict, or holds anything other
      than arrays, lists, strings and numbers.
  """
  try:
    value = _Unpickler(io.BytesIO(blob), encoding='bytes').load()
  except Exception as error:  # a damaged pickle can raise almost anything
    raise ValueError(f'not a pickle of plain arrays: {error}') from error
  if not isinstance(value, dict):
    raise ValueError(f'not a pickled dict, got a {type(value).__name__}')
  return {k: v.array if isinstance(v, _Array) else v for k, v in value.items()}
