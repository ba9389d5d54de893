"""Reads pickles that hold arrays, lists, strings and numbers, and nothing else.

`pickle.load` runs whatever code a file asks for. Here the few
names that arrays need are known, and stand for the small classes and functions
below: nothing named in the file is ever called.
"""

import io
import pickle
from typing import Any

import numpy as np


class _Dtype:
  """Stands for numpy.dtype(name, align, copy): keeps the name."""

  def __init__(self, name, align=False, copy=False):
    del align, copy
    self.dtype = np.dtype(name)
    if self.dtype.kind not in 'biuf':
      raise pickle.UnpicklingError(f'holds an array of {self.dtype}')

  def __setstate__(self, state):
    order = state[1]
    if order in ('<', '>'):
      self.dtype = self.dtype.newbyteorder(order)


class _Array:
  """Stands for the array that numpy's _reconstruct would make."""

  array: np.ndarray | None = None

  def __setstate__(self, state):
    _, shape, dtype, is_fortran, raw = state
    flat = np.frombuffer(raw, dtype.dtype)
    self.array = flat.reshape(shape, order='F' if is_fortran else 'C')


class _ArrayType:
  """Stands for the class numpy.ndarray, which is only ever an argument."""


def _encode(text, encoding):
  """Stands for _codecs.encode, by which Python 3 writes bytes for Python 2."""
  if encoding not in ('latin1', b'latin1'):
    raise pickle.UnpicklingError(f'holds bytes in {encoding!r}')
  return text.encode('latin1')


def _reconstruct(subtype, shape, typecode):
  del subtype, shape, typecode
  return _Array()


_KNOWN = {
    ('numpy.core.multiarray', '_reconstruct'): _reconstruct,
    ('numpy._core.multiarray', '_reconstruct'): _reconstruct,
    ('_codecs', 'encode'): _encode,
    ('numpy', 'ndarray'): _ArrayType,
    ('numpy', 'dtype'): _Dtype,
}


class _Unpickler(pickle.Unpickler):

  def find_class(self, module, name):
    if (module, name) not in _KNOWN:
      raise pickle.UnpicklingError(f'asks for {module}.{name}')
    return _KNOWN[module, name]


def loads_dict(blob: bytes) -> dict[bytes, Any]:
  """Returns the dict that `blob` holds, its arrays as numpy arrays.

  Strings of Python 2 pickles come back as bytes.

  Raises:
    ValueError: where `blob` is damaged, holds no dict, or asks for anything
      that is not an array, a list, a string or a number.
  """
  try:
    value = _Unpickler(io.BytesIO(blob), encoding='bytes').load()
  except Exception as error:  # a damaged pickle can raise almost anything
    raise ValueError(f'not a pickle of plain arrays: {error}') from error
  if not isinstance(value, dict):
    raise ValueError(f'not a pickled dict but a {type(value).__name__}')
  return {k: v.array if isinstance(v, _Array) else v for k, v in value.items()}
