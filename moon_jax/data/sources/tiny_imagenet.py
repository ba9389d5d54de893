"""Tiny-ImageNet: 200 classes of ImageNet in 64x64 pixels (Stanford, CS231n).

http://cs231n.stanford.edu/tiny-imagenet-200.zip. The validation set is used as
the test set, as in the released code of MOON, because the test set has no
labels.

    train/WNID/images/*.JPEG         or train/WNID/*.JPEG
    val/images/*.JPEG                with classes in val/val_annotations.txt,
                                     or val/WNID/*.JPEG, or val/WNID/images/...
    words.txt                        class name of each WNID; optional
    wnids.txt                        the WNIDs, for error messages; optional

Examples are sorted by class and then by file name, as by torchvision's
ImageFolder. The published partitions depend on this order.

Images are decoded by the first run and cached in one file of 1.35 GB next to
the folder or archive or, if that directory is not writable, in the user's cache
directory. Its path is printed. The name contains a hash of the names and sizes
of the images, in order. It is an npy file with hashes at its end, so other
programs can read it with `numpy.load`, and delete it:

    npy header | pixels | sha256 of pixels and content | content | stamp

`content` is a hash of the files that the images were decoded from. `stamp` is a
hash of their names, sizes and modification times. If the times differ from
those of the decoded files (in a copied or newly unpacked folder, or a zip
archive instead of a folder), all files are compared by sha256, which takes
seconds. The images are decoded again only if a file has changed. A changed
image of the same size and modification time is not detected. Writing a cache
file removes earlier ones in the same directory.
"""

from collections.abc import Callable, Collection, Iterator
import concurrent.futures
import hashlib
import io
import lzma
import os
import pathlib
import posixpath
import re
import time
from typing import NamedTuple
import zipfile
import zlib

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.io import download, files, progress
from moon_jax.errors import UserError

URL = 'http://cs231n.stanford.edu/tiny-imagenet-200.zip'
MD5 = '90528d7ca1a48142e341f4ef8d21d0de'
NUM_CLASSES = 200
TRAIN_PER_CLASS = 500
NUM_TEST = 10_000

_TITLE = 'Tiny-ImageNet'
_FOLDER = 'tiny-imagenet-200'
_SIZE = 64
_FOLDER_REMEDY = (f'Unpack {_FOLDER}.zip again, or remove the folder and run '
                  'again to read or download the archive')
_ARCHIVE_REMEDY = ('Remove it and run again to download it, or copy the '
                   f'archive from {URL} there')
_CHUNK = 64  # images per task of a thread; progress is reported per task
_MAX_DEPTH = 3  # of nested directories
_CACHE_NAME = re.compile(r'tiny_imagenet-[0-9a-f]{16}\.npy(\.\d+\.part)?')
_DIGEST = hashlib.sha256().digest_size
# Bytes after the pixels, in this and in the earlier version of the format.
_TRAILERS = (3 * _DIGEST, _DIGEST)
_STALE = 24 * 3600  # seconds without a write after which a .part file is stale


class _Tree(NamedTuple):
  """All files of a directory, or of that directory in a zip archive."""

  path: pathlib.Path  # of the directory or archive
  # Path relative to the directory, with slashes -> (size in bytes, modification
  # time in a directory or CRC in an archive).
  stamps: dict[str, tuple[int, int]]
  reader: Callable  # thread-safe, of these names
  remedy: str  # last sentence of error messages

  def read(self, name: str) -> tuple[str, bytes]:
    """Returns the path for messages, and the content of a file."""
    try:
      return self.reader(name)
    except files.FileError as error:
      raise self.error(str(error)) from error

  def error(self, message: str) -> UserError:
    return UserError(f'--data_dir: {message}. {self.remedy}')


def load(data_dir: str, may_download: bool = True) -> Dataset:
  """Reads Tiny-ImageNet from `data_dir`, or downloads it into that directory.

  Searches for, in this order: the folder tiny-imagenet-200/ in `data_dir`, the
  same folder at `data_dir`, and tiny-imagenet-200.zip in `data_dir`, which is
  not unpacked.
  """
  if data_dir == 'tfds':
    raise UserError('--data_dir=tfds does not support --dataset=tiny_imagenet; '
                    'give --data_dir=DIRECTORY to read or download it')
  root = files.existing_directory(
      'tiny_imagenet', _TITLE, data_dir, f'{_FOLDER}/ or {_FOLDER}.zip, or an '
      'empty one to download into', True).absolute()
  tree = _tree(root, may_download)
  train = _train(tree)
  wnids = sorted(train)
  test = _test(tree, set(wnids))
  train_names = [name for wnid in wnids for name in train[wnid]]
  images = _images(tree, train_names + [name for _, name in test])
  class_of = {wnid: k for k, wnid in enumerate(wnids)}
  return Dataset(
      name='tiny_imagenet',
      train_inputs=images[:len(train_names)],
      train_labels=np.repeat(np.arange(len(wnids), dtype=np.int32),
                             [len(train[wnid]) for wnid in wnids]),
      test_inputs=images[len(train_names):],
      test_labels=np.array([class_of[wnid] for wnid, _ in test], np.int32),
      class_names=_class_names(tree, wnids),
      # From the released code of MOON.
      mean=(.5,) * 3,
      std=(.5,) * 3)


# The files.


def _tree(root: pathlib.Path, may_download: bool) -> _Tree:
  folder = root / _FOLDER
  if not folder.is_dir() and (
      root.name == _FOLDER or (root / 'train').is_dir()):
    folder = root
  if folder.is_dir():
    return _directory_tree(folder)
  archive = root / f'{_FOLDER}.zip'
  if not archive.exists():
    if not may_download:
      raise UserError(
          f'--data_dir={root} must hold {_FOLDER}/ or {_FOLDER}.zip; got none '
          'of them. Download it: moon-jax data get tiny_imagenet '
          f'--data_dir={root}')
    print(f'{_TITLE} is not in {root} (searched for {_FOLDER}/ and '
          f'{_FOLDER}.zip); downloading {URL}', flush=True)
    archive = download.fetch(URL, MD5, root)
  return _zip_tree(archive)


def _directory_tree(directory: pathlib.Path) -> _Tree:
  entries = 'train', 'val', 'words.txt', 'wnids.txt'
  try:
    stamps = dict(_scan(directory, '', _MAX_DEPTH, entries))
  except OSError as error:
    raise UserError(f'--data_dir: {error.filename} cannot be read '
                    f'({error.strerror}); fix its permissions') from error
  return _Tree(
      directory, stamps, files.directory_reader(directory), _FOLDER_REMEDY)


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


def _zip_tree(path: pathlib.Path) -> _Tree:
  # zipfile raises the last three for unsupported features, encrypted files and
  # invalid fields.
  errors = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError,
            NotImplementedError, RuntimeError, ValueError)
  try:
    archive = zipfile.ZipFile(path)
  except errors as error:
    error = files.archive_error(path, '', error)
    raise UserError(f'--data_dir: {error}. {_ARCHIVE_REMEDY}') from error
  infos = {info.filename.removeprefix(f'{_FOLDER}/'): info
           for info in archive.infolist()
           if info.filename.startswith(f'{_FOLDER}/') and not info.is_dir()}
  if not infos:
    raise UserError(f'--data_dir: the archive {path} must contain {_FOLDER}/, '
                    f'got other files. {_ARCHIVE_REMEDY}')

  def read(name):
    try:
      with archive.open(infos[name]) as file:
        return f'{path}:{name}', file.read(files.MAX_BYTES)
    except errors as error:
      raise files.archive_error(path, name, error) from error

  stamps = {name: (info.file_size, info.CRC) for name, info in infos.items()}
  return _Tree(path, stamps, read, _ARCHIVE_REMEDY)


# The names and classes of the images.


def _by_class(tree: _Tree, part: str) -> dict[str, list[str]]:
  """Returns the images in PART/WNID/ and PART/WNID/images/ by WNID."""
  images = {}
  for name in tree.stamps:
    match name.split('/'):
      case [top, wnid, file] | [top, wnid, 'images', file] if (
          top == part and file.lower().endswith('.jpeg')
          and not file.startswith('.')):  # hidden files of macOS
        images.setdefault(wnid, []).append(name)
  return images


def _train(tree: _Tree) -> dict[str, list[str]]:
  """Returns the sorted names of the training images of each class.

  Images may be missing, as after interrupted unpacking.
  """
  images = _by_class(tree, 'train')
  incomplete = sorted(wnid for wnid, names in images.items()
                      if len(names) != TRAIN_PER_CLASS)
  if incomplete or len(images) != NUM_CLASSES:
    wnids = set(_text(tree, 'wnids.txt').split())
    if len(wnids) != NUM_CLASSES:
      wnids = set(images)
    reason = f'got {len(images)} classes'
    if missing := wnids - set(images):
      reason += f'; missing: {_first(missing)}'
    elif unknown := set(images) - wnids:
      reason += f'; not in wnids.txt: {_first(unknown)}'
    if incomplete:
      wnid = incomplete[0]
      reason += f'; {wnid} has {len(images[wnid])} images' + _difference(
          images[wnid], f'{wnid}_', TRAIN_PER_CLASS)
    if incomplete[1:]:
      reason += f'; other incomplete classes: {len(incomplete) - 1}'
    raise tree.error(f'{tree.path} must hold train/ with {NUM_CLASSES} classes '
                     f'of {TRAIN_PER_CLASS} images each; {reason}')
  return {wnid: sorted(names, key=posixpath.split)
          for wnid, names in images.items()}


def _text(tree: _Tree, name: str) -> str:
  """Returns the text of a file, '' if there is none."""
  if name not in tree.stamps:
    return ''
  return tree.read(name)[1].decode('utf-8', 'replace')


def _difference(names: Collection[str], prefix: str, count: int) -> str:
  """Returns a message about missing or additional files, '' if there are both.

  Published files are PREFIX0.JPEG, PREFIX1.JPEG and so on.
  """
  published = {f'{prefix}{i}.JPEG' for i in range(count)}
  actual = set(map(posixpath.basename, names))
  if actual < published:
    return f'; missing: {_first(published - actual)}'
  if published < actual:
    return f'; not published: {_first(actual - published)}'
  return ''


def _first(names: Collection[str]) -> str:
  """Returns the first three names and the number of the others."""
  first = sorted(names, key=lambda name: (len(name), name))[:3]
  rest = len(names) - len(first)
  return ', '.join(first) + (f' and {rest:,} more' if rest else '')


def _test(tree: _Tree, wnids: set[str]) -> list[tuple[str, str]]:
  """Returns (WNID, name) of the test images, sorted by class and file name."""
  by_class = _by_class(tree, 'val')
  if 'images' in by_class:  # the published layout
    images = {name for name in by_class['images'] if name.count('/') == 2}
    pairs = _annotated(tree, images, wnids)
    unlabeled = images - {name for _, name in pairs}
    reason = (f'; {len(unlabeled):,} of {len(images):,} images have no line in '
              'val/val_annotations.txt: '
              + _first(set(map(posixpath.basename, unlabeled))) if unlabeled
              else _difference(images, 'val_', NUM_TEST))
  else:
    unknown = sorted(set(by_class) - wnids)
    if unknown:
      raise tree.error('classes in val/ must be in train/, got '
                       f'{tree.path}/val/{unknown[0]}/')
    pairs = [(wnid, name) for wnid, names in by_class.items() for name in names]
    reason = _difference([name for _, name in pairs], 'val_', NUM_TEST)
  if len(pairs) != NUM_TEST:
    raise tree.error(f'{tree.path} must hold val/ with {NUM_TEST:,} images and '
                     f'their classes; got {len(pairs):,}{reason}')
  return sorted(pairs, key=lambda pair: (
      pair[0], posixpath.basename(pair[1])))


def _annotated(tree: _Tree, names: set[str],
               wnids: set[str]) -> list[tuple[str, str]]:
  """Returns the (WNID, name) pairs of val/val_annotations.txt.

  Each line holds FILE, WNID and a bounding box, tab-separated. FILE must be
  among `names`, so no line can refer to a file outside of the folder.
  """
  if 'val/val_annotations.txt' not in tree.stamps:
    raise tree.error(f'{tree.path} lacks val/val_annotations.txt, the classes '
                     'of val/images/')
  pairs = {}
  lines = _text(tree, 'val/val_annotations.txt').split('\n')
  for number, line in enumerate(lines, 1):
    if not line.strip():
      continue
    file, wnid = (line.strip('\r').split('\t') + [''])[:2]
    name = f'val/images/{file}'
    if name not in names or wnid not in wnids or name in pairs:
      reason = ('no such image in val/images/' if name not in names else
                'duplicate image' if name in pairs else
                'no such class in train/')
      raise tree.error(f'{tree.path}, val/val_annotations.txt, line {number}: '
                       f'{reason}: {line[:60]!r}')
    pairs[name] = wnid
  return [(wnid, name) for name, wnid in pairs.items()]


def _class_names(tree: _Tree, wnids: list[str]) -> tuple[str, ...]:
  """Returns the first name of each class in words.txt, or else its WNID."""
  words = dict(line.split('\t', 1) for line in
               _text(tree, 'words.txt').splitlines() if '\t' in line)
  return tuple(words.get(wnid, wnid).split(',')[0].strip() for wnid in wnids)


# The pixels, decoded or from the cache.


def _images(tree: _Tree, names: list[str]) -> np.ndarray:
  """Returns the images, uint8 [N, 64, 64, 3]; grayscale ones become RGB."""
  import platformdirs

  images = np.empty((len(names), _SIZE, _SIZE, 3), np.uint8)
  key = _hash([(name, tree.stamps[name][0]) for name in names]).hex()[:16]
  stamp = _hash([(name, *tree.stamps[name]) for name in names])
  paths = [pathlib.Path(directory) / f'tiny_imagenet-{key}.npy' for directory in
           (tree.path.parent, platformdirs.user_cache_dir('moon_jax'))]
  content = b''
  for path in filter(pathlib.Path.is_file, paths):
    cached = _read_cached(path, images)
    if not cached:
      print(f'{path} is damaged; decoding the images again', flush=True)
      continue
    if cached[1] == stamp:
      return images
    content = content or _read_all(
        tree, names, f'comparing {len(names):,} images of {_TITLE} with the '
        'cache, as their modification times changed')
    if cached[0] == content:
      _restamp(path, stamp)
      return images
    print(f'{path} was decoded from other files; decoding the images again',
          flush=True)
  content = _read_all(
      tree, names, f'decoding {len(names):,} images of {_TITLE}', images)
  for path in paths:
    if _write_cached(path, images, content, stamp):
      removed = _remove_old(path, images)
      print(f'cached the decoded images of {_TITLE} in {path} '
            f'({path.stat().st_size / 1e6:,.1f} MB) for the next run' + (
                f'; removed old cache files {", ".join(removed)}'
                if removed else ''), flush=True)
      return images
  print(f'{paths[-1]} is not writable; the next run will decode the images '
        'again', flush=True)
  return images


def _hash(value) -> bytes:
  return hashlib.sha256(repr(value).encode('utf-8', 'replace')).digest()


def _read_all(tree: _Tree, names: list[str], title: str,
              images: np.ndarray | None = None) -> bytes:
  """Returns the hash of the files, which it decodes to `images` if given."""
  digests = [b''] * len(names)

  def read_chunk(start):
    chunk = range(start, min(start + _CHUNK, len(names)))
    for i in chunk:
      path, blob = tree.read(names[i])
      digests[i] = hashlib.sha256(blob).digest()
      if images is not None:
        images[i] = _pixels(tree, path, blob)
    return len(chunk)

  # Threads run in parallel: Pillow and hashlib release the GIL.
  with (concurrent.futures.ThreadPoolExecutor() as pool,
        progress.show_progress(title, len(names), 'images') as advance):
    for done in pool.map(read_chunk, range(0, len(names), _CHUNK)):
      advance(done)
  return hashlib.sha256(b''.join(digests)).digest()


def _pixels(tree: _Tree, path: str, blob: bytes) -> np.ndarray:
  from PIL import Image

  try:
    image = Image.open(io.BytesIO(blob), formats=('JPEG',))
    if image.size == (_SIZE, _SIZE):
      return np.asarray(image.convert('RGB'))
  except Exception as error:  # Pillow raises many types
    raise tree.error(f'{path} must be a complete JPEG file, got '
                     f'{type(error).__name__}') from error
  raise tree.error(f'{path} must have {_SIZE}x{_SIZE} pixels, got '
                   f'{image.size[0]}x{image.size[1]}')


def _read_cached(path: pathlib.Path,
                 images: np.ndarray) -> tuple[bytes, bytes] | None:
  """Reads `images`; returns content and stamp, or None if it is damaged."""
  header = _header(images)
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
  return content, stamp


def _write_cached(path: pathlib.Path, images: np.ndarray, content: bytes,
                  stamp: bytes) -> bool:
  """Writes `path` atomically and returns whether it could be written."""
  part = path.with_name(f'{path.name}.{os.getpid()}.part')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
      with open(part, 'wb') as file:
        file.write(_header(images))
        file.write(memoryview(images).cast('B'))
        file.write(_trailer_digest(images, content) + content + stamp)
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


def _remove_old(path: pathlib.Path, images: np.ndarray) -> list[str]:
  """Removes the cache files next to `path` that it replaces; returns them.

  These have the size and header that `_write_cached` gives to images of this
  shape, or are .part files without a write for a day. No other file is touched.
  """
  removed, header = [], _header(images)
  for other in sorted(path.parent.iterdir()):
    match = _CACHE_NAME.fullmatch(other.name)
    if (not match or other == path or other.is_symlink()
        or not other.is_file()):
      continue
    try:
      with open(other, 'rb') as file:
        has_header = file.read(len(header)) == header
      status = other.stat()
      is_old = (time.time() - status.st_mtime > _STALE if match[1] else
                status.st_size - len(header) - images.size in _TRAILERS)
      if has_header and is_old:
        other.unlink()
        removed.append(str(other))
    except OSError:
      continue
  return removed


def _header(images: np.ndarray) -> bytes:
  """Returns the header of an npy file of uint8 pixels."""
  header = io.BytesIO()
  np.lib.format.write_array_header_1_0(header, {
      'descr': '|u1', 'fortran_order': False, 'shape': images.shape})
  return header.getvalue()


def _trailer_digest(images: np.ndarray, content: bytes) -> bytes:
  digest = hashlib.sha256(images)
  digest.update(content)
  return digest.digest()
