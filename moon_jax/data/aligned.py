"""NumPy arrays that CPU devices read in place, without a copy.

XLA's CPU client reads a NumPy array in place if it starts at a multiple of 64
bytes. Large arrays that NumPy allocates usually do not.
"""

import weakref

import numpy as np

_ALIGNMENT = 64  # bytes

# The arrays that `aligned` returned, by id. Checking for a read-only flag is
# not enough: a read-only array may be a view of one that is still written to,
# or of a file that changes.
_COPIES: weakref.WeakValueDictionary[int, np.ndarray] = (
    weakref.WeakValueDictionary())


def is_aligned(x: np.ndarray) -> bool:
  """Returns whether `x` is a read-only result of `aligned`."""
  return _COPIES.get(id(x)) is x


def aligned(x: np.ndarray) -> np.ndarray:
  """Returns `x` if it `is_aligned`, else an aligned, read-only copy."""
  if is_aligned(x):
    return x
  buffer = np.empty(x.nbytes + _ALIGNMENT, np.uint8)
  start = -buffer.ctypes.data % _ALIGNMENT
  copy = buffer[start:start + x.nbytes].view(x.dtype).reshape(x.shape)
  copy[...] = x
  copy.flags.writeable = False
  _COPIES[id(copy)] = copy
  return copy
