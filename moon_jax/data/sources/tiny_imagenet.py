"""Tiny-ImageNet: 200 classes of ImageNet in 64x64 pixels (Stanford, CS231n).

http://cs231n.stanford.edu/tiny-imagenet-200.zip. The validation set is used as
the test set, as in the released code of MOON, because the test set has no
labels.

    train/WNID/images/*.JPEG         or train/WNID/*.JPEG
    val/images/*.JPEG                with classes in val/val_annotations.txt,
                                     or val/WNID/*.JPEG, or val/WNID/images/...
    words.txt                        class name of each WNID; optional

Examples are sorted by class and then by file name, as by torchvision's
ImageFolder. The published partitions depend on this order.

Images are decoded by the first run and cached in tiny_imagenet.npy (1.35 GB)
next to the folder or archive or, if that directory is not writable, in the
user's cache directory. After the images, in order, it holds a hash of the
names, sizes and modification times of their files (in an archive, of their
CRCs), and a hash of the pixels. If one differs, the images are decoded again.
"""

from collections.abc import Callable
import concurrent.futures
import glob
import hashlib
import io
import os
import pathlib
import posixpath
import re
from typing import NamedTuple
import zipfile

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.io import files, published
from moon_jax.errors import UserError

DOWNLOAD = published.Download(
    'http://cs231n.stanford.edu/tiny-imagenet-200.zip',
    '90528d7ca1a48142e341f4ef8d21d0de')
NUM_CLASSES = 200
TRAIN_PER_CLASS = 500
NUM_TEST = 10_000
FOLDER = 'tiny-imagenet-200'

_TITLE = 'Tiny-ImageNet'
_REMEDY = (f'Remove it, and copy {FOLDER}.zip from {DOWNLOAD.url} there, or '
           'run again to download it')
# macOS writes hidden files beside the images.
_IMAGE = re.compile(
    r'(train|val)/([^/]+)/(images/)?([^/.][^/]*\.jpeg)', re.IGNORECASE)
_SIZE = 64
_CHUNK = 64  # images per task of a thread; progress is reported per task


class _Tree(NamedTuple):
  """The files of a directory, or of that directory in a zip archive."""

  path: pathlib.Path  # of the directory or archive
  # Name of each image, relative to the directory, with slashes -> its size in
  # bytes and modification time, or CRC in an archive
  stamps: dict[str, tuple[int, int]]
  read_fn: Callable[[str], bytes]  # thread-safe

  def text(self, name: str) -> str:
    """Returns the text of a file, '' if there is none."""
    try:
      return self.read_fn(name).decode('utf-8', 'replace')
    except (OSError, KeyError):
      return ''

  def error(self, requirement: str, got: object) -> UserError:
    return UserError('data_dir', requirement, f'{got} in {self.path}', _REMEDY)


def load(data_dir: str, may_download: bool = True) -> Dataset:
  """Reads Tiny-ImageNet from `data_dir`, or downloads it there."""
  tree = _tree(published.locate(
      'tiny_imagenet', _TITLE, f'{FOLDER}/ or {FOLDER}.zip', DOWNLOAD, find,
      data_dir, may_download))
  train, test = _train(tree), _test(tree)
  wnids = sorted({wnid for wnid, _ in train})
  if unknown := {wnid for wnid, _ in test}.difference(wnids):
    raise tree.error(
        'must hold the same classes in val/ as in train/', min(unknown))
  labels = np.searchsorted(wnids, [wnid for wnid, _ in train + test]).astype(
      np.int32)
  images = _images(tree, [name for _, name in train + test])
  count = len(train)
  words = dict(line.split('\t', 1) for line in
               tree.text('words.txt').splitlines() if '\t' in line)
  return Dataset(
      'tiny_imagenet', images[:count], labels[:count], images[count:],
      labels[count:], class_names=tuple(
          words.get(wnid, wnid).split(',')[0].strip() for wnid in wnids),
      # From the released code of MOON.
      mean=(.5,) * 3, std=(.5,) * 3)


def find(root: pathlib.Path) -> pathlib.Path | None:
  """Returns the folder in or at a directory, or the archive in it, or None.

  The folder at it may have another name. The archive is not unpacked.
  """
  root = root.absolute()  # has a name
  if (root / FOLDER).is_dir():
    return root / FOLDER
  if root.name == FOLDER or (root / 'train').is_dir() and (
      root / 'val').is_dir():
    return root
  archive = root / f'{FOLDER}.zip'
  return archive if archive.exists() else None


def _tree(path: pathlib.Path) -> _Tree:
  if path.is_dir():
    names = [name for pattern in ('*/*/*', '*/*/images/*')
             for name in glob.glob(pattern, root_dir=path)
             if _IMAGE.fullmatch(name)]
    stats = {name: (path / name).stat() for name in names}
    return _Tree(
        path, {name: (stat.st_size, stat.st_mtime_ns)
               for name, stat in stats.items()},
        lambda name: (path / name).read_bytes())
  try:
    archive = zipfile.ZipFile(path)
  except (OSError, zipfile.BadZipFile) as error:
    raise UserError(
        'data_dir', 'must hold a complete and readable archive',
        f'{path} ({error})', _REMEDY) from error
  infos = {info.filename.removeprefix(f'{FOLDER}/'): info
           for info in archive.infolist()}
  return _Tree(
      path, {name: (info.file_size, info.CRC) for name, info in infos.items()
             if _IMAGE.fullmatch(name)},
      lambda name: archive.read(infos[name]))


# The classes and names of the images, sorted by class and file name.


def _by_class(tree: _Tree, part: str) -> list[tuple[str, str]]:
  matches = filter(None, map(_IMAGE.fullmatch, tree.stamps))
  return sorted(((m[2], m[0]) for m in matches if m[1] == part), key=_order)


def _order(pair):
  wnid, name = pair
  return wnid, posixpath.basename(name)


def _train(tree: _Tree) -> list[tuple[str, str]]:
  """Returns the training images; a folder may lack some."""
  pairs = _by_class(tree, 'train')
  wnids, counts = np.unique([wnid for wnid, _ in pairs], return_counts=True)
  incomplete = np.flatnonzero(counts != TRAIN_PER_CLASS)
  if len(incomplete) or len(wnids) != NUM_CLASSES:
    raise tree.error(
        f'must hold train/ with {NUM_CLASSES} classes of {TRAIN_PER_CLASS} '
        'images each', f'{len(wnids)} classes' + (
            f', of which {len(incomplete)} have another number of images: '
            f'{wnids[incomplete[0]]} has {counts[incomplete[0]]}'
            if len(incomplete) else ''))
  return pairs


def _test(tree: _Tree) -> list[tuple[str, str]]:
  """Returns the test images, of val/WNID/ or of val/images/.

  In the published layout, each line of val/val_annotations.txt holds FILE, WNID
  and a bounding box, tab-separated. FILE must be among the images, so no line
  can refer to a file outside of the folder.
  """
  pairs = _by_class(tree, 'val')
  names = {name for wnid, name in pairs if wnid == 'images'}
  if names:
    pairs = []
    lines = tree.text('val/val_annotations.txt').splitlines()
    for number, line in enumerate(lines, 1):
      if not line.strip():
        continue
      file, wnid = (line.split('\t') + [''])[:2]
      if f'val/images/{file}' not in names:
        raise tree.error(
            f'must name an image of val/images/ once in line {number} of '
            'val/val_annotations.txt', repr(line[:60]))
      names.remove(f'val/images/{file}')
      pairs.append((wnid, f'val/images/{file}'))
  if len(pairs) != NUM_TEST:
    raise tree.error(f'must hold val/ with {NUM_TEST:,} images and their '
                     'classes', f'{len(pairs):,}')
  return sorted(pairs, key=_order)


# The pixels, decoded or from the cache.


def _images(tree: _Tree, names: list[str]) -> np.ndarray:
  """Returns the images, uint8 [N, 64, 64, 3]; grayscale ones become RGB."""
  from moon_jax import platforms  # imports JAX

  key = hashlib.sha256(repr([
      (name, *tree.stamps[name]) for name in names]).encode()).digest()
  paths = [directory / 'tiny_imagenet.npy' for directory in
           (tree.path.parent, platforms.user_cache())]
  for path in filter(pathlib.Path.is_file, paths):
    try:
      with open(path, 'rb') as file:
        images = np.load(file, allow_pickle=False)
        if file.read() == key + hashlib.sha256(images).digest():
          return images
    except Exception:  # a damaged file can raise almost anything
      pass
    print(f'{path} is damaged or of other files; decoding the images again',
          flush=True)
  images = _decoded(tree, names)
  for path in paths:
    part = path.with_name(f'{path.name}.{os.getpid()}.part')
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
      try:
        with open(part, 'wb') as file:
          np.save(file, images)
          file.write(key + hashlib.sha256(images).digest())
        os.replace(part, path)
      finally:
        part.unlink(missing_ok=True)
    except OSError:
      continue
    print(f'cached the decoded images of {_TITLE} in {path} '
          f'({path.stat().st_size / 1e6:,.1f} MB) for the next run', flush=True)
    return images
  print(f'{paths[-1]} is not writable; the next run will decode the images '
        'again', flush=True)
  return images


def _decoded(tree: _Tree, names: list[str]) -> np.ndarray:
  images = np.empty((len(names), _SIZE, _SIZE, 3), np.uint8)

  def decode_chunk(start):
    chunk = names[start:start + _CHUNK]
    for i, name in enumerate(chunk, start):
      images[i] = _pixels(tree, name)
    return len(chunk)

  # Threads run in parallel: Pillow releases the GIL.
  with (concurrent.futures.ThreadPoolExecutor() as pool,
        files.show_progress(f'decoding {len(names):,} images of {_TITLE}',
                            len(names), 'images') as advance):
    for done in pool.map(decode_chunk, range(0, len(names), _CHUNK)):
      advance(done)
  return images


def _pixels(tree: _Tree, name: str) -> np.ndarray:
  from PIL import Image

  try:
    image = Image.open(io.BytesIO(tree.read_fn(name)), formats=('JPEG',))
    if image.size == (_SIZE, _SIZE):
      return np.asarray(image.convert('RGB'))
  except Exception as error:  # zipfile and Pillow raise many types
    raise tree.error(f'must hold {name} as a complete JPEG file',
                     type(error).__name__) from error
  raise tree.error(f'must hold {name} with {_SIZE}x{_SIZE} pixels',
                   f'{image.size[0]}x{image.size[1]}')
