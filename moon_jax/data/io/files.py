"""Regular files, directories of data, and the progress of long operations."""

from collections.abc import Callable, Iterator
import contextlib
import errno
import functools
import json
import os
import pathlib
from typing import Any

from moon_jax.errors import require, setting, UserError

# Hexadecimal digits of hashes that name runs and contents of files: 64 bits, so
# that two of 10,000 are equal with a probability of 3e-12.
HASH_DIGITS = 16


def user_path(path: str | os.PathLike, flag: str = '') -> pathlib.Path:
  """Returns a path of the user, where ~ and ~USER are home directories.

  Raises:
    UserError: naming the `flag`, if there is no such home directory.
  """
  try:
    return pathlib.Path(path).expanduser()
  except RuntimeError as error:
    raise UserError(
        flag, 'a path ' * (not flag) + 'must begin with a home directory that '
        'exists', path, 'Write the full path') from error


def read_regular(path: pathlib.Path) -> bytes:
  """Returns the bytes of a regular file; other files raise OSError."""
  if os.path.lexists(path) and not path.is_file():
    raise OSError(errno.EINVAL, 'it is not a regular file')
  return path.read_bytes()


def read_text(path: str, content: str) -> str:
  """Returns a text file, which has `content` on each line."""
  file = user_path(path)
  try:
    return read_regular(file).decode('utf-8-sig')
  except (OSError, ValueError) as error:
    raise UserError(
        'path', f'must name a text file with {content} on each line',
        f'{path}, which cannot be read ({error})', 'Name another') from error


def read_json_object(path: pathlib.Path) -> dict[str, Any] | None:
  """Returns the JSON object in a regular file, or None without a file."""
  try:
    value = json.loads(read_regular(path).decode('utf-8'))
  except (FileNotFoundError, NotADirectoryError):
    return None
  if not isinstance(value, dict):
    raise ValueError('it is not a JSON object')
  return value


def visible(root: pathlib.Path, pattern: str) -> list[pathlib.Path]:
  """Returns the files and folders in `root` that are not hidden, sorted."""
  return [path for path in sorted(root.glob(pattern)) if not any(
      part.startswith('.') for part in path.relative_to(root).parts)]


def existing_directory(name: str, title: str, data_dir: str, content: str,
                       is_downloadable: bool = False) -> pathlib.Path:
  """Returns the directory `data_dir`, which must exist.

  It is not created, because a mistyped path would start a download.

  `name` is the value of --dataset, and `title` the data set's full name.
  """
  requirement = f'must name a directory for {setting("dataset", name)}'
  require(data_dir, 'data_dir', requirement, 'none',
          f'Give one that holds {content}'
          + ', or an empty one to download into' * is_downloadable)
  root = user_path(data_dir, 'data_dir')
  require(not root.exists() or root.is_dir(), 'data_dir', requirement,
          f'{data_dir}, which is a file', 'Name the directory that holds it')
  require(root.is_dir(), 'data_dir', requirement,
          f'{data_dir}, which does not exist',
          f'Name the directory that contains {title}' + (
              f', or create it (mkdir -p {data_dir}) to download into'
              * is_downloadable))
  return root


@contextlib.contextmanager
def show_progress(title: str, total: int, unit: str,
                  done: int = 0) -> Iterator[Callable[[int], None]]:
  """Draws a progress bar if stderr is a terminal; otherwise prints `title`.

  Args:
    title: description of the operation.
    total: amount of work in units; 0 if it is unknown.
    unit: "B" for bytes or a plural noun.
    done: amount of work that was done before.

  Yields:
    advance(count), to call after each `count` units of work.
  """
  from rich import console, progress

  stderr = console.Console(stderr=True)
  if not stderr.is_terminal:
    print(title, flush=True)
  counts = ([progress.DownloadColumn(), progress.TransferSpeedColumn()]
            if unit == 'B' else
            [progress.MofNCompleteColumn(), progress.TextColumn(unit)])
  with progress.Progress(
      progress.TextColumn('{task.description}'), progress.BarColumn(),
      *counts, progress.TimeRemainingColumn(), console=stderr,
      disable=not stderr.is_terminal) as bar:
    task = bar.add_task(title, total=total or None, completed=done)
    yield functools.partial(bar.advance, task)
