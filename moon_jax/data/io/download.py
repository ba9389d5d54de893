"""Downloads published archives, with checksum, resuming and progress.

pooch verifies the checksum and moves the file into place atomically; resuming
of interrupted downloads is added.
"""

import functools
import os
import pathlib
import shutil

from moon_jax.data.io import progress
from moon_jax.errors import UserError

_TIMEOUT = (4, 20)  # seconds: to connect, and between two pieces of data
_CHUNK = 2**18  # bytes


def _download(url, output_file, pooch, part):
  """A downloader of pooch that saves partial data in `part` and resumes."""
  import requests

  offset = part.stat().st_size if part.exists() else 0
  headers = {'Range': f'bytes={offset}-'} if offset else {}
  with requests.get(
      url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
    if response.status_code == 416:  # the .part file is complete
      shutil.move(part, output_file)
      return
    response.raise_for_status()
    if response.status_code != 206:  # the server sends the whole file
      offset = 0
    num_left = int(response.headers.get('content-length', 0))
    # The server may send no content-length.
    total = offset + num_left if num_left else 0
    title = f'downloading {part.stem}' + (
        f', {total / 1e6:,.1f} MB' if total else '') + (
            f', from {offset / 1e6:,.1f} MB' if offset else '')
    with (open(part, 'ab' if offset else 'wb') as out,
          progress.show_progress(title, total, 'B', offset) as advance):
      for chunk in response.iter_content(_CHUNK):
        out.write(chunk)
        advance(len(chunk))
  if num_left and part.stat().st_size < offset + num_left:
    raise requests.ConnectionError(
        f'the connection broke after {part.stat().st_size} bytes')
  shutil.move(part, output_file)


def fetch(url: str, checksum: str, directory: pathlib.Path) -> pathlib.Path:
  """Downloads a file into `directory`, unless it is there, and checks it.

  `checksum` is its md5. An interrupted download leaves a file NAME.part in the
  directory, which must exist. The next call resumes from it.
  """
  import pooch
  import requests

  name = url.rpartition('/')[2]
  if not os.access(directory, os.W_OK):
    raise UserError(
        f'--data_dir={directory} must be writable to download {name} into it; '
        'name another directory')
  pooch.get_logger().setLevel('ERROR')
  try:
    return pathlib.Path(pooch.retrieve(
        url, f'md5:{checksum}', fname=name, path=directory,
        downloader=functools.partial(
            _download, part=directory / f'{name}.part')))
  except (requests.RequestException, OSError) as error:
    raise UserError(
        f'--data_dir={directory} lacks {name}, and {url} could not be '
        f'downloaded ({type(error).__name__}). Download it on a machine with '
        f'network access, copy it into {directory}, and run again') from error
  except ValueError as error:  # pooch raises it for a wrong checksum
    raise UserError(
        f'{url} does not have the expected md5 {checksum}. Run again, or copy '
        f'{name} into --data_dir={directory}') from error
