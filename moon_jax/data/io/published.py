"""Finds, downloads, verifies and reads published data sets.

All places of a data set give the same arrays in the official order, which the
published partitions need. A file that differs from the published one is an
error, even if another place has it, too.
"""

from collections.abc import Callable, Iterable, Mapping
import contextlib
import functools
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
from moon_jax.errors import require, setting, UserError

_TIMEOUT = (4, 20)  # seconds: to connect, and between two pieces of data
_CHUNK = 2**18  # bytes
# What a damaged file or archive raises.
_DAMAGE = (OSError, EOFError, ValueError, tarfile.TarError, zlib.error)


class Download(NamedTuple):
  """A published file or archive."""

  url: str
  md5: str
  directory: str = ''  # where it is written, relative to --data_dir

  def path(self, root: pathlib.Path) -> pathlib.Path:
    """Returns where it is written in the directory --data_dir."""
    return root / self.directory / self.url.rpartition('/')[2]


class PublishedDataset(NamedTuple):
  """A published data set: its files and what is in them.

  The files are in one of several directories, among other files, and each may
  be compressed to NAME.gz. If the only download is an archive of the directory,
  the files are read from that archive, too.

  A data set has one or more parts, such as training batches; the last part is
  the test set.
  """

  name: str  # value of --dataset
  title: str  # full name, for messages
  page: str  # its description
  license: str
  megabytes: int  # of the downloads
  # One archive is also downloaded at the start of a run.
  downloads: tuple[Download, ...]
  directories: tuple[str, ...]  # relative to --data_dir, in search order
  # File name -> md5 and size in bytes of the uncompressed file, in the order of
  # the parts.
  files: Mapping[str, tuple[str, int]]
  # bytes of all files -> (images uint8 [n, H, W, C], labels [n]) of each part
  decode_fn: Callable[[list[bytes]], Iterable[tuple]]
  num_images: tuple[int, int]  # for training and testing
  shape: tuple[int, int, int]  # of an image: H, W, C
  class_names: tuple[str, ...]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  augmentation: str
  # md5 of the last file of a data set that uses the same file names, and the
  # name of that data set
  other_dataset: tuple[str, str] = ('', '')

  @property
  def archive(self) -> Download | None:
    """The archive of the directory, or None if each file is a download."""
    return self.downloads[0] if len(self.downloads) == 1 else None

  def content(self) -> str:
    """Returns what --data_dir must hold, for messages."""
    first, *others = (f'{directory}/' for directory in self.directories)
    if self.archive:
      return f'{first} or {self.archive.path(pathlib.Path())}'
    _, other = self.other_dataset
    return (f'{", ".join(self.files)} (each also as .gz'
            + f', and not those of {other}' * bool(other)
            + f'), directly or in {" or ".join(others)}')


def load(published: PublishedDataset, data_dir: str,
         may_download: bool = True) -> Dataset:
  """Reads a data set from `data_dir`, or downloads it into that directory.

  Raises:
    UserError: if files are missing or damaged and cannot be downloaded.
  """
  path = locate(
      published.name, published.title, published.content(), published.archive,
      functools.partial(find, published), data_dir, may_download)
  return Dataset(
      published.name, *_read(published, path),
      class_names=published.class_names, mean=published.mean,
      std=published.std, augmentation=published.augmentation)


def find(published: PublishedDataset,
         root: pathlib.Path) -> pathlib.Path | None:
  """Returns the directory or else the archive with the files, or None.

  `root` may also be the directory of the archive. Directories with the files of
  another data set (MNIST and Fashion-MNIST have files of the same names) are
  left out.
  """
  archive = published.archive
  if archive and root.name in published.directories:
    root = root.parent
  for directory in published.directories:
    path = root / directory
    exists = path.exists() if archive else any(
        (path / f'{name}{suffix}').exists()
        for name in published.files for suffix in ('', '.gz'))
    if exists and not _is_other(published, path):
      return path
  path = archive and archive.path(root)
  return path if path and path.exists() else None


def _is_other(published, path):
  other, _ = published.other_dataset
  with contextlib.suppress(*_DAMAGE):
    return other and other == _md5(
        uncompressed(file_or_gz(path, list(published.files)[-1])))
  return False


def file_or_gz(directory: pathlib.Path, name: str) -> pathlib.Path:
  """Returns the path of a file, or of NAME.gz if only that file exists."""
  path, compressed = directory / name, directory / f'{name}.gz'
  return compressed if compressed.exists() and not path.exists() else path


def uncompressed(file: pathlib.Path) -> bytes:
  """Returns the bytes of a regular file, uncompressed if it is .gz."""
  if not file.is_file():  # reading a pipe or device may never end
    raise ValueError('no such file')
  with (gzip.open if file.suffix == '.gz' else open)(file, 'rb') as opened:
    return opened.read()


def _read(published, path):
  """Returns training images, training labels, test images, test labels."""
  file, blobs = path, {}  # `file` is the one that is read
  try:
    if path.is_file():
      with tarfile.open(path) as tar:
        blobs = {name: tar.extractfile(member).read() for member in tar
                 if (name := member.name.rpartition('/')[2]) in published.files
                 and member.isfile()}
    for name, (md5, size) in published.files.items():
      if path.is_dir():
        file = file_or_gz(path, name)
        blobs[name] = uncompressed(file)
      if name not in blobs:
        raise ValueError(f'it has no file {name}')
      if len(blobs[name]) != size:
        raise ValueError(f'{name} has {len(blobs[name]):,} of {size:,} bytes')
      if (actual := _md5(blobs[name])) != md5:
        raise ValueError(f'{name} has md5 {actual}, not the published {md5}')
  except _DAMAGE as error:
    reason = str(error).partition('\n')[0].rstrip(': ')
    title = published.title
    remove = path if published.archive else (
        f'that file and the other files of {title} beside it')
    remedy = ('Download it again' if _is_replaced(published, path, file) else
              f'Remove {remove}, and download {title} again')
    raise UserError(
        'data_dir', f'must hold {title}, complete and readable',
        f'{file}, which is damaged or not readable: {reason}', f'{remedy}: '
        f'moon-jax data get {published.name} --data_dir=DIR') from error
  images, labels = map(np.concatenate, zip(*published.decode_fn(
      [blobs[name] for name in published.files])))
  labels, split = labels.astype(np.int32), published.num_images[0]
  return images[:split], labels[:split], images[split:], labels[split:]


def _md5(blob):
  return hashlib.md5(blob).hexdigest()


def _is_replaced(published, path, file):
  """Returns whether a download replaces one damaged file of several."""
  is_download = not published.archive and any(
      download.path(path.parent) == file for download in published.downloads)
  return is_download and not any(
      (path / name).exists() for name in published.files)


def locate(name: str, title: str, content: str, download: Download | None,
           find_fn: Callable[[pathlib.Path], pathlib.Path | None],
           data_dir: str, may_download: bool) -> pathlib.Path:
  """Returns the path of a data set in `data_dir`; downloads what it lacks.

  `content` is what the directory must hold, in words, and `download` the
  archive of it, if there is one.
  """
  root = files.existing_directory(
      name, title, data_dir, content, bool(download))
  if path := find_fn(root):
    return path
  if not (download and may_download):
    raise UserError(
        'data_dir', f'must hold {title} as {content}', f'{root} without them',
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
  require(os.access(directory, os.W_OK), 'data_dir', 'must be writable to '
          f'download {name} into it', directory, 'Name another directory')
  try:
    _download(url, part)
  except requests.RequestException as error:
    raise UserError(
        'data_dir', f'must hold {name} if {url} cannot be downloaded',
        f'{directory} without it, and {type(error).__name__}',
        f'Download it on a machine with network access, copy it into '
        f'{directory}, and run again') from error
  except OSError as error:
    raise UserError(
        'data_dir', f'must be a directory in which {name} can be written',
        f'{directory} ({error.strerror or error})',
        'Free space or name another') from error
  if not is_intact(part):
    part.unlink()
    raise UserError(
        '', f'{url} must have the {algorithm} {checksum}', 'another file',
        f'Run again, or copy {name} into {setting("data_dir", directory)}')
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
    total = num_left and offset + num_left
    title = f'downloading {part.stem}' + (
        f', {total / 1e6:,.1f} MB' if total else '') + (
            f', from {offset / 1e6:,.1f} MB' if offset else '')
    with (open(part, 'ab' if offset else 'wb') as out,
          files.show_progress(title, total, 'B', offset) as advance):
      for chunk in response.iter_content(_CHUNK):
        out.write(chunk)
        advance(len(chunk))
  if num_left and part.stat().st_size < offset + num_left:
    raise requests.ConnectionError('the connection broke')
