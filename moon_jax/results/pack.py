"""Runs as one file: `moon-jax show RUN --pack=FILE.zip`, which show reads.

The file holds what the results are read from, runs/NAME/config.json and so on,
and what --out writes: a page, tables and figures. It has no models.
"""

import atexit
from collections.abc import Iterable
import os
import pathlib
import shutil
import tempfile
import time
import zipfile
import zlib

from moon_jax.data.io import files
from moon_jax.errors import require, UserError

# The summary first: if a run ends meanwhile, it is packed without one.
_FILES = ('summary.json', 'diverged.json', 'config.json', 'metrics.jsonl',
          'partition.npz', 'timeline.npz', 'cohorts.txt')
_MAX_BYTES = 2**32  # of all files


def target(name: str) -> pathlib.Path:
  """Returns the path that --pack names, in a directory that exists."""
  path = files.user_path(name, 'pack')
  require(path.suffix == '.zip' and not path.is_dir(), 'pack',
          'must be a file that ends in .zip', name, 'Write --pack=runs.zip')
  require(path.absolute().parent.is_dir(), 'pack',
          'must be in a directory that exists', name, 'Create it')
  return path


def write(path: pathlib.Path, runs: Iterable[pathlib.Path],
          pages: pathlib.Path) -> None:
  """Writes the zip file of directories of runs, and of one of pages."""
  part = path.with_name(f'{path.name}.part')
  try:
    with zipfile.ZipFile(part, 'w', zipfile.ZIP_DEFLATED,
                         strict_timestamps=False) as packed:
      used: set[str] = set()
      for run in runs:
        name = stem = run.absolute().name
        while name in used:
          name = f'{stem}-{len(used)}'
        used.add(name)
        for file in (run / file for file in _FILES):
          if file.exists():
            packed.write(file, f'runs/{name}/{file.name}')
      for file in sorted(pages.rglob('*')):
        packed.write(file, file.relative_to(pages))
    os.replace(part, path)
  except OSError as error:
    raise UserError('pack', 'must be writable', f'{path}: {error.strerror}',
                    'Name another file') from error
  finally:
    part.unlink(missing_ok=True)


def extract(path: pathlib.Path) -> pathlib.Path:
  """Returns a temporary directory with the runs of a file of `write`.

  It is removed when the process ends.

  Raises:
    UserError: if the file is damaged, or holds no runs.
  """
  required = f'{path} must be a file that moon-jax show --pack has written'
  place = pathlib.Path(tempfile.mkdtemp(prefix='moon_jax-'))
  atexit.register(shutil.rmtree, place, ignore_errors=True)
  try:
    with zipfile.ZipFile(path) as packed:
      members = [member for member in packed.infolist()
                 if member.filename.startswith('runs/')
                 and member.filename.rpartition('/')[2] in _FILES]
      require(members, '', required, 'a zip file without runs')
      require(sum(member.file_size for member in members) <= _MAX_BYTES, '',
              required, f'more than {_MAX_BYTES:,} bytes')
      for member in members:
        written = packed.extract(member, place / path.name)
        when = time.mktime((*member.date_time, 0, 0, -1))
        os.utime(written, (when, when))  # `show` reports the age of a run
  except (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError,
          NotImplementedError, RuntimeError, OverflowError) as error:
    if isinstance(error, UserError):
      raise
    raise UserError('', required, f'{type(error).__name__}: {error}',
                    'Get another copy') from error
  return place / path.name / 'runs'
