"""Regular files, directories of data, and the progress of long operations."""

from collections.abc import Callable, Iterator
import contextlib
import errno
import json
import os
import pathlib
import sys
import time
from typing import Any

from moon_jax.errors import UserError

_MIN_INTERVAL = 2  # seconds between two lines of progress


def read_regular(path: pathlib.Path) -> bytes:
  """Returns the bytes of a regular file; other files raise OSError."""
  if os.path.lexists(path) and not path.is_file():
    raise OSError(errno.EINVAL, 'it is not a regular file')
  return path.read_bytes()


def read_json_object(path: pathlib.Path) -> dict[str, Any] | None:
  """Returns the JSON object in a regular file, or None without a file."""
  try:
    value = json.loads(read_regular(path).decode('utf-8'))
  except (FileNotFoundError, NotADirectoryError):
    return None
  if not isinstance(value, dict):
    raise ValueError('it is not a JSON object')
  return value


def existing_directory(name: str, title: str, data_dir: str, content: str,
                       is_downloadable: bool = False) -> pathlib.Path:
  """Returns the directory `data_dir`, which must exist.

  It is not created, because a mistyped path would start a download.

  `name` is the value of --dataset, and `title` the data set's full name.
  """
  if not data_dir:
    raise UserError(
        f'--data_dir must name a directory for --dataset={name}; got none. '
        f'Give one that holds {content}' + (
            ', or an empty one to download into' if is_downloadable else ''))
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


@contextlib.contextmanager
def show_progress(title: str, total: int, unit: str, done: int = 0,
                  clock: Callable[[], float] = time.monotonic
                  ) -> Iterator[Callable[[int], None]]:
  """Shows the progress of an operation.

  If stderr is a terminal, draws a progress bar on it. Otherwise, prints `title`
  at once and then one line per 10% of the work, at most every 2 seconds.

  Args:
    title: description of the operation.
    total: amount of work in units; 0 if it is unknown.
    unit: "B" for bytes or a plural noun.
    done: amount of work that was done before.
    clock: returns the time in seconds.

  Yields:
    advance(count), to call after each `count` units of work.
  """
  if sys.stderr.isatty():
    from rich import console, progress

    counts = ([progress.DownloadColumn(), progress.TransferSpeedColumn()]
              if unit == 'B' else
              [progress.MofNCompleteColumn(), progress.TextColumn(unit)])
    with progress.Progress(
        progress.TextColumn('{task.description}'), progress.BarColumn(),
        *counts, progress.TimeRemainingColumn(),
        console=console.Console(stderr=True)) as bar:
      task = bar.add_task(title, total=total or None, completed=done)
      yield lambda count: bar.update(task, advance=count)
    return

  print(title, flush=True)
  start = last = clock()
  tenths = 10 * done // total if total else 0

  def advance(count):
    nonlocal done, last, tenths
    done += count
    now = clock()
    if total and 10 * done // total > tenths and now - last >= _MIN_INTERVAL:
      last, tenths = now, 10 * done // total
      print(f'{title}: {100 * done // total}% after {now - start:.0f} s',
            flush=True)

  yield advance
