"""Arrays that devices can read where they lie in the host's memory.

XLA's CPU client reads a NumPy array in place, without a copy, if it starts at a
multiple of 64 bytes. Large arrays that NumPy allocates usually do not.
"""

import weakref

import numpy as np

_ALIGNMENT = 64  # bytes

# What `aligned` has made, by id. A read-only flag is not enough: the array may
# be a view of one that is written to, or of a file that changes.
_COPIES: weakref.WeakValueDictionary[int, np.ndarray] = (
    weakref.WeakValueDictionary())


def is_aligned(x: np.ndarray) -> bool:
  """Returns whether devices can read an array in place: nobody can write it."""
  return _COPIES.get(id(x)) is x


def aligned(x: np.ndarray) -> np.ndarray:
  """Returns `x` if it `is_aligned`, else an aligned and read-only copy."""
  if is_aligned(x):
    return x
  buffer = np.empty(x.nbytes + _ALIGNMENT, np.uint8)
  start = -buffer.ctypes.data % _ALIGNMENT
  copy = buffer[start:start + x.nbytes].view(x.dtype).reshape(x.shape)
  copy[...] = x
  copy.flags.writeable = False
  _COPIES[id(copy)] = copy
  return copy
