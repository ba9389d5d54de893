"""A cache file of decoded images: an npy file with hashes at its end.

    npy header | pixels | sha256 of pixels and content | content | stamp

`content` is a hash of the files that the images were decoded from. `stamp` is a
hash of their names, sizes and modification times. Other programs can read the
images with `numpy.load` and can delete the file.
"""

import hashlib
import io
import os
import pathlib
import re
import time
from typing import NamedTuple

import numpy as np

_DIGEST = hashlib.sha256().digest_size
# Bytes after the pixels, in this and in the earlier version of the format.
_TRAILERS = (3 * _DIGEST, _DIGEST)
_STALE = 24 * 3600  # seconds without a write after which a .part file is stale


class CachedImages(NamedTuple):
  """The content of a cache file."""

  images: np.ndarray  # uint8 [N, size, size, 3]
  content: bytes  # [32]
  stamp: bytes  # [32]


def read_cached(path: pathlib.Path,
                shape: tuple[int, ...]) -> CachedImages | None:
  """Returns the content of `path`, or None if it is missing or damaged."""
  header = _header(shape)
  images = np.empty(shape, np.uint8)
  try:
    with open(path, 'rb') as file:
      is_complete = (file.read(len(header)) == header
                     and file.readinto(memoryview(images).cast('B'))
                     == images.size)
      trailer = file.read(_TRAILERS[0] + 1)
  except OSError:
    return None
  digest, content, stamp = (
      trailer[i * _DIGEST:(i + 1) * _DIGEST] for i in range(3))
  if (not is_complete or len(trailer) != _TRAILERS[0]
      or _digest(images, content) != digest):
    return None
  return CachedImages(images, content, stamp)


def write_cached(path: pathlib.Path, cached: CachedImages) -> bool:
  """Writes `path` atomically and returns whether it could be written."""
  part = path.with_name(f'{path.name}.{os.getpid()}.part')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
      with open(part, 'wb') as file:
        file.write(_header(cached.images.shape))
        file.write(memoryview(cached.images).cast('B'))
        file.write(_digest(cached.images, cached.content))
        file.write(cached.content + cached.stamp)
      os.replace(part, path)
    finally:
      part.unlink(missing_ok=True)
  except OSError:
    return False
  return True


def restamp_cached(path: pathlib.Path, stamp: bytes) -> None:
  """Replaces the stamp in `path` if the file is writable."""
  try:
    with open(path, 'r+b') as file:
      file.seek(-_DIGEST, os.SEEK_END)
      file.write(stamp)
  except OSError:
    pass  # the next run compares the content again


def remove_old_cached(path: pathlib.Path, prefix: str,
                      shape: tuple[int, ...]) -> list[pathlib.Path]:
  """Removes the cache files next to `path` that it replaces.

  These are files PREFIX-*.npy with the size and header that `write_cached`
  gives to images of this shape, and their .part files without a write for a
  day. No other file is touched.

  Args:
    path: path of the cache file to keep.
    prefix: first part of the names of the cache files.
    shape: shape of the images.

  Returns:
    The paths of the removed files.
  """
  pattern = re.compile(re.escape(prefix) + r'-[0-9a-f]{16}\.npy(\.\d+\.part)?')
  removed = []
  for other in sorted(path.parent.iterdir()):
    match = pattern.fullmatch(other.name)
    if match and other != path and _is_cache_file(other, shape, bool(match[1])):
      try:
        other.unlink()
      except OSError:
        continue
      removed.append(other)
  return removed


def _is_cache_file(path: pathlib.Path, shape: tuple[int, ...],
                   is_part: bool) -> bool:
  header = _header(shape)
  try:
    if path.is_symlink() or not path.is_file():
      return False
    status = path.stat()
    with open(path, 'rb') as file:
      has_header = file.read(len(header)) == header
  except OSError:
    return False
  if is_part:
    return has_header and time.time() - status.st_mtime > _STALE
  num_bytes = len(header) + int(np.prod(shape, dtype=np.int64))
  return has_header and status.st_size - num_bytes in _TRAILERS


def _header(shape: tuple[int, ...]) -> bytes:
  """Returns the header of an npy file of uint8 pixels."""
  header = io.BytesIO()
  np.lib.format.write_array_header_1_0(
      header, {'descr': '|u1', 'fortran_order': False, 'shape': shape})
  return header.getvalue()


def _digest(images: np.ndarray, content: bytes) -> bytes:
  digest = hashlib.sha256(images)
  digest.update(content)
  return digest.digest()
