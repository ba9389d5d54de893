"""Reads files from a directory or an archive.

A reader is a function read(name) -> (path for messages, bytes), which raises
FileError if a file is missing or damaged.
"""

from collections.abc import Callable, Container
import errno
import gzip
import json
import os
import pathlib
import tarfile
from typing import Any
import zlib

from moon_jax.errors import UserError

MAX_BYTES = 2**28  # per file; more than any published file has


def read_regular(path: pathlib.Path) -> bytes:
  """Returns the bytes of a regular file; other files raise OSError."""
  if os.path.lexists(path) and not path.is_file():
    raise OSError(errno.EINVAL, 'it is not a regular file')
  return path.read_bytes()


def existing_directory(name: str, title: str, data_dir: str, content: str,
                       is_downloadable: bool) -> pathlib.Path:
  """Returns the directory `data_dir`, which must exist.

  It is not created, because a mistyped path would start a download.

  `name` is the value of --dataset, and `title` the data set's full name.
  """
  if not data_dir:
    raise UserError(
        f'--data_dir must name a directory for --dataset={name}; got none. '
        f'Give one that holds {content}')
  root = pathlib.Path(data_dir).expanduser()
  if root.exists() and not root.is_dir():
    raise UserError(f'--data_dir={data_dir} is a file; name the directory that '
                    'holds it')
  if not root.is_dir():
    create = (f'create it (mkdir -p {data_dir}) to download {title} into it, '
              'or ' if is_downloadable else '')
    raise UserError(f'--data_dir={data_dir} is not a directory; {create}name '
                    f'the directory that contains {title}')
  return root


class FileError(ValueError):
  """A file that cannot be read: its path, and what is wrong with it."""

  def __init__(self, path: str, problem: str):
    super().__init__(f'{path} {problem}')
    self.path, self.problem = path, problem


def directory_reader(directory: pathlib.Path,
                     suffixes: tuple[str, ...] = ('', '.gz')) -> Callable:
  """Returns a reader of files in a directory; NAME.gz is decompressed.

  The first of NAME + `suffixes` that exists is read.
  """
  def read(name):
    paths = [directory / f'{name}{suffix}' for suffix in suffixes]
    path = next(filter(pathlib.Path.exists, paths), directory / name)
    open_fn = gzip.open if path.name == f'{name}.gz' else open
    if not path.is_file():  # reading a pipe or device may never end
      raise FileError(str(path), 'is missing or not a regular file')
    try:
      with open_fn(path, 'rb') as file:
        return str(path), file.read(MAX_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
      raise FileError(
          str(path), f'is not a complete gzip file ({error})') from error
    except OSError as error:
      raise FileError(str(path), f'cannot be read ({error.strerror}); fix its '
                      'permissions') from error
  return read


def archive_reader(path: pathlib.Path, names: Container[str]) -> Callable:
  """Returns a reader of the files `names` in a tar archive, each once."""
  try:
    with tarfile.open(path) as tar:
      blobs = {}
      for member in tar:
        name = member.name.rpartition('/')[2]
        if name in names and member.isfile():
          blobs[name] = tar.extractfile(member).read(MAX_BYTES)
  except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
    raise archive_error(path, '', error) from error

  def read(name):
    if name not in blobs:
      raise FileError(str(path), f'does not contain {name}')
    return f'{path}:{name}', blobs.pop(name)

  return read


def archive_error(path: pathlib.Path, name: str, error: Exception) -> FileError:
  """Returns the error for an unreadable archive, or file `name` in it."""
  if isinstance(error, (PermissionError, IsADirectoryError)):
    return FileError(str(path), f'cannot be read ({error.strerror}); fix its '
                     'permissions, or copy the archive there')
  reason = str(error).partition('\n')[0]
  return FileError(f'the archive {path}', 'is damaged'
                   f'{f" at {name}" if name else ""} ({reason})')


def read_json_object(path: pathlib.Path) -> dict[str, Any] | None:
  """Returns the JSON object in a regular file; None if there is no such file.
  """
  try:
    value = json.loads(read_regular(path).decode('utf-8'))
  except (FileNotFoundError, NotADirectoryError):
    return None
  if not isinstance(value, dict):
    raise ValueError('it is not a JSON object')
  return value
