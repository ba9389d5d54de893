"""Arrays that devices can read where they lie in the host's memory.

XLA's CPU client takes a buffer of NumPy's as its own, without a copy, where it
starts at a multiple of 64 bytes, as NumPy's own large arrays never do.
"""

import numpy as np

_ALIGNMENT = 64  # bytes


def is_aligned(x: np.ndarray) -> bool:
  """Whether devices can read an array in place, and nobody writes to it."""
  return (x.ctypes.data % _ALIGNMENT == 0 and x.flags.c_contiguous
          and not x.flags.writeable)


def aligned(x: np.ndarray) -> np.ndarray:
  """Returns an array of the same numbers that `is_aligned`: `x`, or a copy."""
  if is_aligned(x):
    return x
  buffer = np.empty(x.nbytes + _ALIGNMENT, np.uint8)
  start = -buffer.ctypes.data % _ALIGNMENT
  copy = buffer[start:start + x.nbytes].view(x.dtype).reshape(x.shape)
  copy[...] = x
  copy.flags.writeable = False
  return copy
