"""One npy file of decoded images, kept so that they are decoded once.

    header of npy | pixels | sha256 of pixels and content | content | stamp

`content` is a hash of the files that the images were decoded from, `stamp` a
hash of their names, sizes and modification times. Other programs may read the
images with numpy.load and may delete the file.
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
_TRAILERS = (3 * _DIGEST, _DIGEST)  # bytes after the pixels, now and before
_STALE = 24 * 3600  # seconds after which nobody writes a partial file any more


class Kept(NamedTuple):
  """What such a file holds."""

  images: np.ndarray  # uint8 [N, size, size, 3]
  content: bytes  # 32
  stamp: bytes  # 32


def read(path: pathlib.Path, shape: tuple[int, ...]) -> Kept | None:
  """What `path` holds, or None where it is not as `write` wrote it."""
  header = _header(shape)
  images = np.empty(shape, np.uint8)
  try:
    with open(path, 'rb') as file:
      is_whole = (file.read(len(header)) == header
                  and file.readinto(memoryview(images).cast('B'))
                  == images.size)
      trailer = file.read(_TRAILERS[0] + 1)
  except OSError:
    return None
  digest, content, stamp = (
      trailer[i * _DIGEST:(i + 1) * _DIGEST] for i in range(3))
  if (not is_whole or len(trailer) != _TRAILERS[0]
      or _digest(images, content) != digest):
    return None
  return Kept(images, content, stamp)


def write(path: pathlib.Path, kept: Kept) -> bool:
  """Writes `path` whole or not at all; returns whether it is written."""
  part = path.with_name(f'{path.name}.{os.getpid()}.part')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
      with open(part, 'wb') as file:
        file.write(_header(kept.images.shape))
        file.write(memoryview(kept.images).cast('B'))
        file.write(_digest(kept.images, kept.content))
        file.write(kept.content + kept.stamp)
      os.replace(part, path)
    finally:
      part.unlink(missing_ok=True)
  except OSError:
    return False
  return True


def restamp(path: pathlib.Path, stamp: bytes) -> None:
  """Replaces the stamp in `path`, where that may be written."""
  try:
    with open(path, 'r+b') as file:
      file.seek(-_DIGEST, os.SEEK_END)
      file.write(stamp)
  except OSError:
    pass  # the content is compared again the next time


def remove_others(path: pathlib.Path, prefix: str,
                  shape: tuple[int, ...]) -> list[pathlib.Path]:
  """Removes files of the same kind next to `path`, which has replaced them.

  Those are PREFIX-*.npy of the length and with the header that `write` gives to
  images of this shape, and partial ones that nobody has written to for a day.
  Nothing else is touched.

  Returns:
    The files removed.
  """
  pattern = re.compile(re.escape(prefix) + r'-[0-9a-f]{16}\.npy(\.\d+\.part)?')
  removed = []
  for other in sorted(path.parent.iterdir()):
    match = pattern.fullmatch(other.name)
    if match and other != path and _is_ours(other, shape, bool(match[1])):
      try:
        other.unlink()
      except OSError:
        continue
      removed.append(other)
  return removed


def _is_ours(path: pathlib.Path, shape: tuple[int, ...],
             is_part: bool) -> bool:
  header = _header(shape)
  try:
    if path.is_symlink() or not path.is_file():
      return False
    status = path.stat()
    with open(path, 'rb') as file:
      begins_right = file.read(len(header)) == header
  except OSError:
    return False
  if is_part:
    return begins_right and time.time() - status.st_mtime > _STALE
  whole = len(header) + int(np.prod(shape, dtype=np.int64))
  return begins_right and status.st_size - whole in _TRAILERS


def _header(shape: tuple[int, ...]) -> bytes:
  """What an npy file of pixels begins with."""
  header = io.BytesIO()
  np.lib.format.write_array_header_1_0(
      header, {'descr': '|u1', 'fortran_order': False, 'shape': shape})
  return header.getvalue()


def _digest(images: np.ndarray, content: bytes) -> bytes:
  digest = hashlib.sha256(images)
  digest.update(content)
  return digest.digest()
