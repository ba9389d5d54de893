"""Downloads a published data set into a directory."""

import pathlib
import shutil

from moon_jax.config import suggest
from moon_jax.data import catalog
from moon_jax.data.io import download
from moon_jax.errors import UserError

_MEGABYTE = 10**6


def entry(name: str) -> catalog.Entry:
  """Returns the description of a data set that can be downloaded.

  Raises:
    UserError: if there is no such data set or it must be obtained by hand.
  """
  if name not in catalog.ENTRIES:
    hint = suggest.value('dataset', name, list(catalog.ENTRIES))
    raise UserError(f'NAME must be one of {", ".join(catalog.ENTRIES)}; got '
                    f'{name}{hint.replace("--dataset=", "")}')
  found = catalog.ENTRIES[name]
  if found.by_hand:
    raise UserError(f'{found.title} has no file that can be downloaded without '
                    f'you. See {found.page}: {found.by_hand}')
  return found


def get(found: catalog.Entry, root: pathlib.Path, mirror: str = '') -> None:
  """Downloads the files of a data set that a directory lacks.

  Each is checked against its published checksum. An interrupted download
  resumes.

  Args:
    found: the data set.
    root: a directory, which is created.
    mirror: URL of a directory that holds the same files; '' downloads them
      from where they are published.

  Raises:
    UserError: if the directory cannot be written, the disk is too small, or a
      file cannot be downloaded.
  """
  try:
    root.mkdir(parents=True, exist_ok=True)
    for file in found.downloads:
      (root / file.directory).mkdir(exist_ok=True)
    free = shutil.disk_usage(root).free
  except OSError as error:
    raise UserError(f'--data_dir={root} must be a writable directory, got '
                    f'{error.strerror}; name another') from error
  needed = found.disk_megabytes * _MEGABYTE - sum(
      path.stat().st_size for path in map(
          lambda file: _path(root, file), found.downloads) if path.is_file())
  if free < needed:
    raise UserError(
        f'--data_dir={root} must have {needed / _MEGABYTE:,.0f} MB free for '
        f'{found.title}, got {free / _MEGABYTE:,.0f} MB; name a directory of '
        'another disk')
  for i, file in enumerate(found.downloads):
    url = file.url
    if mirror:
      url = f'{mirror.rstrip("/")}/{url.rpartition("/")[2]}'
    try:
      download.fetch(url, file.checksum, root / file.directory)
    except UserError as error:
      others = [_others(root, other) for other in found.downloads[i + 1:]]
      raise UserError(f'{error}' + '. The same for '.join(
          ['', *filter(None, others)])) from error


def _path(root: pathlib.Path, file: catalog.Download) -> pathlib.Path:
  return root / file.directory / file.url.rpartition('/')[2]


def _others(root: pathlib.Path, file: catalog.Download) -> str:
  return '' if _path(root, file).exists() else file.url
