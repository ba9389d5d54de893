"""Finds, downloads, verifies and reads published data sets.

All layouts of a data set give the same arrays in the official order, which the
published partitions need. A file that differs from the published one is an
error, even if the directory also holds another layout.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import gzip
import hashlib
import os
import pathlib
import tarfile
from typing import NamedTuple
import zlib

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.io import files
from moon_jax.errors import UserError

_TIMEOUT = (4, 20)  # seconds: to connect, and between two pieces of data
_CHUNK = 2**18  # bytes


class Download(NamedTuple):
  """A published file or archive."""

  url: str
  md5: str
  directory: str = ''  # where it is written, relative to --data_dir

  def path(self, root: pathlib.Path) -> pathlib.Path:
    """Returns where it is written in the directory --data_dir."""
    return root / self.directory / self.url.rpartition('/')[2]


class Layout(NamedTuple):
  """One published file layout: a directory of files, or an archive of it.

  A data set has one or more parts, such as training batches; the last part is
  the test set. If the layout has no archive, the directory may hold other
  files, and each file may be compressed to NAME.gz.
  """

  directory: str
  archive: str  # '' if there is none
  # File name -> md5 and size in bytes of the uncompressed file, in the order of
  # the parts.
  files: Mapping[str, tuple[str, int]]
  # bytes of all files -> (images uint8 [n, H, W, C], labels [n]) of each part
  decode_fn: Callable[[list[bytes]], Iterable[tuple]]


class PublishedDataset(NamedTuple):
  """A published data set and its file layouts."""

  name: str  # value of --dataset
  title: str  # full name, for messages
  url: str  # of the files
  page: str  # its description
  license: str
  megabytes: int  # of the downloads
  # One archive is also downloaded at the start of a run.
  downloads: tuple[Download, ...]
  layouts: tuple[Layout, ...]  # in search order
  num_images: tuple[int, int]  # for training and testing
  shape: tuple[int, int, int]  # of an image: H, W, C
  class_names: tuple[str, ...]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  augmentation: str
  # md5 of the last file of a data set that uses the same file names, and the
  # name of that data set
  other_dataset: tuple[str, str] = ('', '')

  def content(self) -> str:
    """Returns what --data_dir must hold, for messages."""
    first, *others = self.layouts
    if first.archive:
      return f'{first.directory}/ or {first.archive}'
    directories = ' or '.join(f'{layout.directory}/' for layout in others)
    return (f'{", ".join(first.files)} (each also as .gz), directly or in '
            f'{directories}')


class FileState(NamedTuple):
  """A file, or a file in an archive, and what is wrong with it."""

  path: str
  blob: bytes = b''
  problem: str = ''  # continues the path; '' if it is the published file


def load(published: PublishedDataset, data_dir: str,
         may_download: bool = True) -> Dataset:
  """Reads a data set from `data_dir`, or downloads it into that directory.

  Searches for the directory of each layout, and then the archive of each, in
  the directory `data_dir`, which may also be that of a layout.

  Raises:
    UserError: if files are missing or damaged and cannot be downloaded.
  """
  download = published.downloads[0] if published.layouts[0].archive else None
  root = files.existing_directory(
      published.name, published.title, data_dir, published.content(),
      bool(download))
  found = places(published, root)
  if found:
    arrays = _read(published, *found[0])
  else:
    is_other = any(_exists(layout, root / layout.directory)
                   for layout in published.layouts)
    path = fetch_missing(
        published.name, published.title, root, published.content(),
        download if may_download else None,
        f'files of the same names of --dataset={published.other_dataset[1]}'
        if is_other else 'none of them')
    arrays = _read(published, published.layouts[0], path)
  return Dataset(
      published.name, *arrays, class_names=published.class_names,
      mean=published.mean, std=published.std,
      augmentation=published.augmentation)


def places(published: PublishedDataset,
           root: pathlib.Path) -> list[tuple[Layout, pathlib.Path]]:
  """Returns (layout, path) of all directories and then archives that exist.

  Directories with the files of another data set (MNIST and Fashion-MNIST have
  files of the same names) are left out.
  """
  layouts = published.layouts
  if root.name in [layout.directory for layout in layouts if layout.archive]:
    root = root.parent
  return [(layout, root / layout.directory) for layout in layouts
          if _exists(layout, root / layout.directory)
          and not _is_other(published, layout, root)] + [
              (layout, root / layout.archive) for layout in layouts
              if layout.archive and (root / layout.archive).exists()]


def _exists(layout, directory):
  if layout.archive:
    return directory.exists()
  return any((directory / f'{name}{suffix}').exists()
             for name in layout.files for suffix in ('', '.gz'))


def _is_other(published, layout, root):
  md5, _ = published.other_dataset
  name = list(layout.files)[-1]
  return md5 and md5 == hashlib.md5(
      _state(layout, root / layout.directory, name).blob).hexdigest()


def states(layout: Layout, path: pathlib.Path) -> Iterator[FileState]:
  """Reads and verifies the files of a layout in a directory or archive."""
  archive = None
  if path.name == layout.archive:
    try:
      with tarfile.open(path) as tar:
        archive = {name: tar.extractfile(member).read() for member in tar
                   if (name := member.name.rpartition('/')[2]) in layout.files
                   and member.isfile()}
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error
            ) as error:
      yield FileState(
          f'the archive {path}',
          problem=f'is damaged or not readable ({_short(error)})')
      return
  for name in layout.files:
    yield _state(layout, path, name, archive)


def _state(layout, path, name, archive=None) -> FileState:
  """Compares a file in a directory or archive with the published file."""
  if archive is None:
    file = path / name
    if not file.exists() and (path / f'{name}.gz').exists():
      file = path / f'{name}.gz'
    if not file.is_file():  # reading a pipe or device may never end
      return FileState(str(file), problem='is missing or not a regular file')
    try:
      with (open if file.name == name else gzip.open)(file, 'rb') as opened:
        blob = opened.read()
    except (OSError, EOFError, zlib.error) as error:
      return FileState(str(file), problem=f'cannot be read ({_short(error)})')
  elif name in archive:
    file, blob = f'{path}:{name}', archive[name]
  else:
    return FileState(str(path), problem=f'does not contain {name}')
  (expected, num_bytes), md5 = layout.files[name], hashlib.md5(blob).hexdigest()
  state = FileState(str(file), blob)
  if expected == md5:
    return state
  if len(blob) != num_bytes:
    return state._replace(problem=(
        f'is {"truncated" if len(blob) < num_bytes else "too long"}: '
        f'{len(blob):,} of {num_bytes:,} bytes'))
  return state._replace(
      problem=f'is damaged: md5 {md5}, not the published {expected}')


def _short(error):
  return str(error).partition('\n')[0]


def _read(published, layout, path):
  """Returns training images, training labels, test images, test labels."""
  blobs = []
  for state in states(layout, path):
    if state.problem:
      raise UserError(
          f'--data_dir: {state.path} {state.problem}. Remove it, with all of '
          f'its directory or archive, and download {published.title} again: '
          f'moon-jax data get {published.name} --data_dir=DIR')
    blobs.append(state.blob)
  images, labels = map(np.concatenate, zip(*layout.decode_fn(blobs)))
  labels, split = labels.astype(np.int32), published.num_images[0]
  return images[:split], labels[:split], images[split:], labels[split:]


def fetch_missing(name: str, title: str, root: pathlib.Path, content: str,
                  download: Download | None,
                  got: str = 'none of them') -> pathlib.Path:
  """Downloads a data set that `root` lacks, or raises if `download` is None.

  `content` is what `root` must hold otherwise.
  """
  if not download:
    raise UserError(
        f'--data_dir={root} must hold {title} as {content}; got {got}. '
        f'Download it: moon-jax data get {name} --data_dir={root}')
  print(f'{title} is not in {root} (searched for {content}); downloading '
        f'{download.url}', flush=True)
  return fetch(download.url, download.md5, root)


def fetch(url: str, checksum: str, directory: pathlib.Path,
          algorithm: str = 'md5') -> pathlib.Path:
  """Downloads a file into `directory`, unless it is there, and checks it.

  An interrupted download leaves a file NAME.part in the directory, which must
  exist. The next call resumes from it.
  """
  import requests

  name = url.rpartition('/')[2]
  path, part = directory / name, directory / f'{name}.part'

  def is_intact(path):
    with open(path, 'rb') as file:
      return hashlib.file_digest(file, algorithm).hexdigest() == checksum

  if path.is_file() and is_intact(path):
    return path
  if not os.access(directory, os.W_OK):
    raise UserError(
        f'--data_dir={directory} must be writable to download {name} into it; '
        'name another directory')
  try:
    _download(url, part)
  except (requests.RequestException, OSError) as error:
    raise UserError(
        f'--data_dir={directory} lacks {name}, and {url} could not be '
        f'downloaded ({type(error).__name__}). Download it on a machine with '
        f'network access, copy it into {directory}, and run again') from error
  if not is_intact(part):
    part.unlink()
    raise UserError(
        f'{url} does not have the expected {algorithm} {checksum}. Run again, '
        f'or copy {name} into --data_dir={directory}')
  part.replace(path)
  return path


def _download(url, part):
  """Writes the content of a URL to `part`, after what is there already."""
  import requests

  offset = part.stat().st_size if part.exists() else 0
  headers = {'Range': f'bytes={offset}-'} if offset else {}
  with requests.get(
      url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
    if response.status_code == 416:  # the .part file is complete
      return
    response.raise_for_status()
    if response.status_code != 206:  # the server sends the whole file
      offset = 0
    # The server may send no content-length.
    num_left = int(response.headers.get('content-length', 0))
    total = offset + num_left if num_left else 0
    title = f'downloading {part.stem}' + (
        f', {total / 1e6:,.1f} MB' if total else '') + (
            f', from {offset / 1e6:,.1f} MB' if offset else '')
    with (open(part, 'ab' if offset else 'wb') as out,
          files.show_progress(title, total, 'B', offset) as advance):
      for chunk in response.iter_content(_CHUNK):
        out.write(chunk)
        advance(len(chunk))
  if num_left and part.stat().st_size < offset + num_left:
    raise requests.ConnectionError(
        f'the connection broke after {part.stat().st_size} bytes')
