"""The bytes of files that users have, in a directory or an archive.

A reader is read(name) -> (path as told to users, bytes).
"""

from collections.abc import Callable
from collections.abc import Container
from collections.abc import Iterator
import errno
import gzip
import lzma
import os
import pathlib
import tarfile
from typing import NamedTuple
import zipfile
import zlib

from moon_jax.errors import UserError

_MAX_BYTES = 2**28  # read of a file; more than any published one holds
_MAX_DEPTH = 3  # of directories that are looked into


class Tree(NamedTuple):
  """Many files, below a directory or in the zip archive that holds it."""

  path: pathlib.Path
  # name below the directory, with slashes -> size in bytes, and what differs
  # when the content does: the time in a directory, a checksum in an archive
  stamps: dict[str, tuple[int, int]]
  read: Callable  # a reader of these names, for any number of threads
  remedy: str  # what to do about a bad file, as messages end


def read_regular(path: pathlib.Path) -> bytes:
  """The bytes of a file; raises OSError of pipes, devices and directories."""
  if os.path.lexists(path) and not path.is_file():
    raise OSError(errno.EINVAL, 'it is no regular file')
  return path.read_bytes()


def directory_of(name: str, title: str, data_dir: str, wanted: str,
                 is_downloaded: bool) -> pathlib.Path:
  """The directory `data_dir`, which must exist.

  A mistyped path would else start a download.

  Args:
    name: of the data set, as in --dataset.
    title: likewise, for people.
    data_dir: as in --data_dir.
    wanted: what the directory should hold.
    is_downloaded: whether an empty one would do.

  Raises:
    UserError: where it is no directory.
  """
  if not data_dir:
    raise UserError(
        f'--data_dir must name a directory for --dataset={name}; got none. '
        f'Give one that holds {wanted}')
  root = pathlib.Path(data_dir).expanduser()
  if root.exists() and not root.is_dir():
    raise UserError(f'--data_dir={data_dir} is a file; name the directory that '
                    'holds it')
  if not root.is_dir():
    create = (f'create it (mkdir -p {data_dir}) to download {title} into it, '
              'or ' if is_downloaded else '')
    raise UserError(f'--data_dir={data_dir} is not a directory; {create}name '
                    f'the one that holds {title}')
  return root


def of_directory(directory: pathlib.Path, remedy: str,
                 ends: tuple[str, ...] = ('', '.gz')) -> Callable:
  """Reads files in `directory`, each NAME, or else NAME.gz unpacked.

  Args:
    directory: an existing directory.
    remedy: what to do about a bad file, as messages end.
    ends: of file names, '' or '.gz': the first that exists is read.

  Returns:
    A reader. It raises UserError where a file is missing or damaged.
  """
  def read(name):
    path = next((path for path in (directory / f'{name}{end}' for end in ends)
                 if path.exists()), directory / name)
    open_fn = gzip.open if path.name == f'{name}.gz' else open
    if not path.is_file():  # nor a pipe or a device, which never end
      raise UserError(f'--data_dir: {path} is missing or no file. {remedy}')
    try:
      with open_fn(path, 'rb') as file:
        return str(path), file.read(_MAX_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
      raise UserError(f'--data_dir: {path} is not a whole gzip file ({error}). '
                      f'{remedy}') from error
    except OSError as error:
      raise UserError(f'--data_dir: {path} cannot be read '
                      f'({error.strerror}); fix its permissions') from error
  return read


def of_archive(path: pathlib.Path, names: Container[str],
               remedy: str) -> Callable:
  """Reads files straight from a tar archive; nothing is unpacked.

  Args:
    path: of the archive, which may be compressed.
    names: of the files that will be read, once each.
    remedy: what to do about a bad file, as messages end.

  Returns:
    A reader. It raises UserError where a file is missing.

  Raises:
    UserError: where the archive is damaged.
  """
  try:
    with tarfile.open(path) as tar:
      blobs = {}
      for member in tar:
        name = member.name.rpartition('/')[2]
        if name in names and member.isfile():
          blobs[name] = tar.extractfile(member).read(_MAX_BYTES)
  except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
    raise _archive_error(path, '', error, remedy) from error

  def read(name):
    if name not in blobs:
      raise UserError(f'--data_dir: {path} holds no {name}. {remedy}')
    return f'{path}:{name}', blobs.pop(name)

  return read


def _archive_error(path: pathlib.Path, name: str, error: Exception,
                   remedy: str) -> UserError:
  """What to raise where an archive, or the file `name` in it, is unreadable."""
  if isinstance(error, (PermissionError, IsADirectoryError)):
    return UserError(f'--data_dir: {path} cannot be read ({error.strerror}); '
                     'fix its permissions, or put the archive there')
  reason = str(error).partition('\n')[0]
  return UserError(f'--data_dir: the archive {path} is damaged'
                   f'{f" at {name}" if name else ""} ({reason}). {remedy}')


def tree_of_directory(directory: pathlib.Path, tops: tuple[str, ...],
                      remedy: str) -> Tree:
  """The files below `directory` whose path begins with one of `tops`.

  Raises:
    UserError: where a directory cannot be read.
  """
  try:
    stamps = dict(_scan(directory, '', _MAX_DEPTH, tops))
  except OSError as error:
    raise UserError(f'--data_dir: {error.filename} cannot be read '
                    f'({error.strerror}); fix its permissions') from error
  return Tree(directory, stamps, of_directory(directory, remedy), remedy)


def _scan(directory, prefix: str, depth: int, tops=None
          ) -> Iterator[tuple[str, tuple[int, int]]]:
  """Names with sizes and times; links are followed, to a bounded depth."""
  with os.scandir(directory) as entries:
    for entry in entries:
      name = f'{prefix}{entry.name}'
      if tops and name not in tops:
        continue
      if entry.is_file():  # nor a pipe or a device
        status = entry.stat()
        yield name, (status.st_size, status.st_mtime_ns)
      elif depth and entry.is_dir():
        yield from _scan(entry.path, f'{name}/', depth - 1)


def tree_of_zip(path: pathlib.Path, directory: str, remedy: str) -> Tree:
  """The files of `directory` in a zip archive; nothing is unpacked.

  Raises:
    UserError: where the archive is damaged or has no such directory.
  """
  # The last three: of features that it lacks, of passwords, and of bad fields.
  errors = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError,
            NotImplementedError, RuntimeError, ValueError)
  try:
    archive = zipfile.ZipFile(path)
  except errors as error:
    raise _archive_error(path, '', error, remedy) from error
  infos = {info.filename.removeprefix(f'{directory}/'): info
           for info in archive.infolist()
           if info.filename.startswith(f'{directory}/') and not info.is_dir()}
  if not infos:
    raise UserError(f'--data_dir: the archive {path} is whole but holds no '
                    f'{directory}/, so it is not the published one. {remedy}')

  def read(name):
    try:
      with archive.open(infos[name]) as file:
        return f'{path}:{name}', file.read(_MAX_BYTES)
    except errors as error:
      raise _archive_error(path, name, error, remedy) from error

  stamps = {name: (info.file_size, info.CRC) for name, info in infos.items()}
  return Tree(path, stamps, read, remedy)
