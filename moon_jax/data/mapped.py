"""Arrays in a file that may be larger than the memory, and aligned arrays.

Mapped arrays (`numpy.memmap`) are read in parts, and the memory of each part is
released after its use: pages of a file stay in the memory of the process until
it ends otherwise. The functions take arrays in memory too.

XLA's CPU client reads a NumPy array in place, without a copy, if it starts at a
multiple of 64 bytes. Large arrays that NumPy allocates usually do not.
"""

from collections.abc import Iterator
import mmap
import sys
import weakref

import numpy as np

_ALIGNMENT = 64  # bytes
# The arrays that `aligned` returned, by id. Checking for a read-only flag is
# not enough: a read-only array may be a view of one that is still written to,
# or of a file that changes.
_COPIES: weakref.WeakValueDictionary[int, np.ndarray] = (
    weakref.WeakValueDictionary())
_CHUNK_BYTES = 2**26  # of a part
_COUNTED = 1000  # examples whose pixels are counted at once


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


def is_mapped(x: np.ndarray | None) -> bool:
  """Returns whether `x` is a memory-mapped file, or a view of one."""
  return _mapping(x)[0] is not None


def chunks(x: np.ndarray, length: int = 0) -> Iterator[np.ndarray]:
  """Yields consecutive parts of `x`, to be used before the next one is taken.

  `length` 0 chooses that of maps, and all of an array in memory.
  """
  if not length:
    length = max(1, _CHUNK_BYTES * len(x) // max(x.nbytes, 1)) if (
        is_mapped(x)) else max(1, len(x))
  for start in range(0, len(x), length):
    yield x[start:start + length]
    _release(x)


def rows(x: np.ndarray, index: np.ndarray) -> np.ndarray:
  """Returns a copy of the rows `index` of `x` in memory."""
  copy = np.asarray(x[index])
  _release(x)
  return copy


def bounds(x: np.ndarray) -> tuple[int, int]:
  """Returns the smallest and the largest element."""
  pairs = [(part.min(), part.max()) for part in chunks(x)]
  return min(low for low, _ in pairs), max(high for _, high in pairs)


def mean_and_std(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns mean and deviation of uint8 images scaled to 0..1, float64 [C].

  They follow from how often each channel has each of the 256 values, so they
  do not depend on parts. The deviation of a constant channel is 1.
  """
  values = np.arange(256)
  counts_CV = sum(np.stack([
      np.bincount(channel, minlength=256)
      for channel in part.reshape(-1, x.shape[-1]).T])
                  for part in chunks(x, _COUNTED))
  mean = counts_CV @ values / counts_CV.sum(1)
  square = (values - mean[:, None])**2
  std = np.sqrt((counts_CV * square).sum(1) / counts_CV.sum(1))
  return mean / 255, np.where(std > 0, std / 255, 1)


def _mapping(x) -> tuple[mmap.mmap | None, bool]:
  """Returns the mapping that holds an array, and whether it is writeable."""
  is_writeable = False
  while isinstance(x, np.ndarray):
    is_writeable |= x.flags.writeable
    x = x.base
  x = x.obj if isinstance(x, memoryview) else x
  return x if isinstance(x, mmap.mmap) else None, is_writeable


def _release(x: np.ndarray) -> None:
  """Removes the pages of a mapped file from the memory of the process.

  The operating system may keep them as its cache. The pages of a writeable map
  stay, because changes of a private one would be lost.
  """
  mapping, is_writeable = _mapping(x)
  if sys.platform != 'win32' and mapping and not is_writeable:
    mapping.madvise(mmap.MADV_DONTNEED)
