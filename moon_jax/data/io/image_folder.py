"""Decodes many small JPEG files to one array, in parallel, and caches it.

The images are in a directory, or in a zip archive, which is not unpacked. The
cache is one file next to them or, if that directory is not writable, in the
user's cache directory. Its path and size are printed. The name contains a hash
of the names and sizes of the images, in order. It is an npy file with hashes at
its end, so other programs can read it with `numpy.load`, and delete it:

    npy header | pixels | sha256 of pixels and content | content | stamp

`content` is a hash of the files that the images were decoded from. `stamp` is a
hash of their names, sizes and modification times.

If the modification times differ from those of the decoded files (in a copied or
newly unpacked folder, or a zip archive instead of a folder), all files are
compared by sha256, which takes seconds. The images are decoded again only if a
file has changed. A changed image of the same size and modification time is not
detected. Writing a cache file removes earlier ones in the same directory.
"""

from collections.abc import Callable
from collections.abc import Iterator
import concurrent.futures
import hashlib
import io
import lzma
import os
import pathlib
import re
import time
from typing import NamedTuple
import zipfile
import zlib

import numpy as np

from moon_jax.data.io import files
from moon_jax.data.io import progress
from moon_jax.errors import UserError

_CHUNK = 64  # images per task of a thread; progress is reported per task
_MAX_DEPTH = 3  # of nested directories
_DIGEST = hashlib.sha256().digest_size
# Bytes after the pixels, in this and in the earlier version of the format.
_TRAILERS = (3 * _DIGEST, _DIGEST)
_STALE = 24 * 3600  # seconds without a write after which a .part file is stale


class FileTree(NamedTuple):
  """All files of a directory, or of that directory in a zip archive."""

  path: pathlib.Path  # of the directory or archive
  # Path relative to the directory, with slashes -> (size in bytes, modification
  # time in a directory or CRC in an archive).
  stamps: dict[str, tuple[int, int]]
  read: Callable  # thread-safe reader of these names
  remedy: str  # last sentence of error messages


def load(tree: FileTree, names: list[str], size: int, title: str,
         prefix: str) -> np.ndarray:
  """Returns the images `names` of `tree` from the cache, or decodes them.

  Args:
    tree: the image files.
    names: names of the images in `tree`, in the order of the result.
    size: height and width of each image in pixels.
    title: name of the data set, for messages.
    prefix: first part of the name of the cache file.

  Returns:
    uint8 [N, size, size, 3]; grayscale images are converted to RGB.

  Raises:
    UserError: if a file is not a JPEG file, is damaged or has another size.
  """
  import platformdirs

  shape = (len(names), size, size, 3)
  key = _hash([(name, tree.stamps[name][0]) for name in names]).hex()[:16]
  stamp = _hash([(name, *tree.stamps[name]) for name in names])
  paths = [pathlib.Path(directory) / f'{prefix}-{key}.npy' for directory in
           (tree.path.parent, platformdirs.user_cache_dir('moon_jax'))]
  content = b''
  for path in paths:
    if not path.is_file():
      continue
    cached = _read_cached(path, shape)
    if cached is None:
      print(f'{path} is damaged; decoding the images again', flush=True)
      continue
    if cached.stamp == stamp:
      return cached.images
    content = content or _hash_files(tree, names, title)
    if cached.content == content:
      _restamp(path, stamp)
      return cached.images
    print(f'{path} was decoded from other files; decoding the images again',
          flush=True)
  images, content = _decode(tree, names, shape, title)
  for path in paths:
    if _write_cached(path, _CachedImages(images, content, stamp)):
      removed = _remove_old(path, prefix, shape)
      print(f'cached the decoded images of {title} in {path} '
            f'({path.stat().st_size / 1e6:,.1f} MB) for the next run' + (
                f'; removed old cache files {", ".join(map(str, removed))}'
                if removed else ''), flush=True)
      return images
  print(f'{paths[-1]} is not writable; the next run will decode the images '
        'again', flush=True)
  return images


def _hash(value) -> bytes:
  return hashlib.sha256(repr(value).encode('utf-8', 'replace')).digest()


def _decode(tree: FileTree, names: list[str], shape: tuple[int, ...],
            title: str) -> tuple[np.ndarray, bytes]:
  """Returns the images and the hash of their files."""
  images = np.empty(shape, np.uint8)
  digests = np.empty((len(names), 32), np.uint8)

  def fill(i):
    path, blob = tree.read(names[i])
    digests[i] = _digest(blob)
    images[i] = _pixels(path, blob, shape[1], tree.remedy)

  _for_each(fill, len(names),
            f'decoding {len(names):,} images of {title}')
  return images, hashlib.sha256(digests).digest()


def _hash_files(tree: FileTree, names: list[str], title: str) -> bytes:
  """Returns the hash of the files, the same as that of `_decode`."""
  digests = np.empty((len(names), 32), np.uint8)

  def fill(i):
    digests[i] = _digest(tree.read(names[i])[1])

  _for_each(fill, len(names), f'comparing {len(names):,} images of {title} '
            'with the cache, as their modification times changed')
  return hashlib.sha256(digests).digest()


def _digest(blob: bytes) -> np.ndarray:
  return np.frombuffer(hashlib.sha256(blob).digest(), np.uint8)


def _for_each(fill, count: int, title: str) -> None:
  """Calls fill(i) for each i below `count` in threads and shows progress."""
  def fill_chunk(start):
    chunk = range(start, min(start + _CHUNK, count))
    for i in chunk:
      fill(i)
    return len(chunk)

  # Threads run in parallel: Pillow and hashlib release the GIL.
  with (concurrent.futures.ThreadPoolExecutor() as pool,
        progress.show_progress(title, count, 'images') as advance):
    for done in pool.map(fill_chunk, range(0, count, _CHUNK)):
      advance(done)


def _pixels(path: str, blob: bytes, size: int, remedy: str) -> np.ndarray:
  from PIL import Image

  try:
    image = Image.open(io.BytesIO(blob), formats=('JPEG',))
    if image.size == (size, size):
      return np.asarray(image.convert('RGB'))
  except Exception as error:  # Pillow raises many types
    raise UserError(f'--data_dir: {path} must be a complete JPEG file, got '
                    f'{type(error).__name__}. {remedy}') from error
  raise UserError(f'--data_dir: {path} must have {size}x{size} pixels, got '
                  f'{image.size[0]}x{image.size[1]}. {remedy}')


class _CachedImages(NamedTuple):
  """The content of a cache file."""

  images: np.ndarray  # uint8 [N, size, size, 3]
  content: bytes  # [32]
  stamp: bytes  # [32]


def _read_cached(path: pathlib.Path,
                 shape: tuple[int, ...]) -> _CachedImages | None:
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
      or _trailer_digest(images, content) != digest):
    return None
  return _CachedImages(images, content, stamp)


def _write_cached(path: pathlib.Path, cached: _CachedImages) -> bool:
  """Writes `path` atomically and returns whether it could be written."""
  part = path.with_name(f'{path.name}.{os.getpid()}.part')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
      with open(part, 'wb') as file:
        file.write(_header(cached.images.shape))
        file.write(memoryview(cached.images).cast('B'))
        file.write(_trailer_digest(cached.images, cached.content))
        file.write(cached.content + cached.stamp)
      os.replace(part, path)
    finally:
      part.unlink(missing_ok=True)
  except OSError:
    return False
  return True


def _restamp(path: pathlib.Path, stamp: bytes) -> None:
  """Replaces the stamp in `path` if the file is writable."""
  try:
    with open(path, 'r+b') as file:
      file.seek(-_DIGEST, os.SEEK_END)
      file.write(stamp)
  except OSError:
    pass  # the next run compares the content again


def _remove_old(path: pathlib.Path, prefix: str,
                shape: tuple[int, ...]) -> list[pathlib.Path]:
  """Removes the cache files next to `path` that it replaces.

  These are files PREFIX-*.npy with the size and header that `_write_cached`
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


def _trailer_digest(images: np.ndarray, content: bytes) -> bytes:
  digest = hashlib.sha256(images)
  digest.update(content)
  return digest.digest()


def directory_tree(directory: pathlib.Path, entries: tuple[str, ...],
                   remedy: str) -> FileTree:
  """Returns the files and subdirectories `entries` of a directory as a tree.

  Raises:
    UserError: if a directory cannot be read.
  """
  try:
    stamps = dict(_scan(directory, '', _MAX_DEPTH, entries))
  except OSError as error:
    raise UserError(f'--data_dir: {error.filename} cannot be read '
                    f'({error.strerror}); fix its permissions') from error
  return FileTree(
      directory, stamps, files.directory_reader(directory, remedy), remedy)


def _scan(directory, prefix: str, depth: int, entries=None
          ) -> Iterator[tuple[str, tuple[int, int]]]:
  """Yields names with sizes and times, following links to a bounded depth."""
  with os.scandir(directory) as scanned:
    for entry in scanned:
      name = f'{prefix}{entry.name}'
      if entries and name not in entries:
        continue
      if entry.is_file():  # false for pipes and devices
        status = entry.stat()
        yield name, (status.st_size, status.st_mtime_ns)
      elif depth and entry.is_dir():
        yield from _scan(entry.path, f'{name}/', depth - 1)


def zip_tree(path: pathlib.Path, directory: str, remedy: str) -> FileTree:
  """Returns the files of `directory` in a zip archive, which is not unpacked.

  Raises:
    UserError: if the archive is damaged or has no such directory.
  """
  # zipfile raises the last three for unsupported features, encrypted files and
  # invalid fields.
  errors = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError,
            NotImplementedError, RuntimeError, ValueError)
  try:
    archive = zipfile.ZipFile(path)
  except errors as error:
    raise files.archive_error(path, '', error, remedy) from error
  infos = {info.filename.removeprefix(f'{directory}/'): info
           for info in archive.infolist()
           if info.filename.startswith(f'{directory}/') and not info.is_dir()}
  if not infos:
    raise UserError(f'--data_dir: the archive {path} must contain '
                    f'{directory}/, got other files. {remedy}')

  def read(name):
    try:
      with archive.open(infos[name]) as file:
        return f'{path}:{name}', file.read(files.MAX_BYTES)
    except errors as error:
      raise files.archive_error(path, name, error, remedy) from error

  stamps = {name: (info.file_size, info.CRC) for name, info in infos.items()}
  return FileTree(path, stamps, read, remedy)
