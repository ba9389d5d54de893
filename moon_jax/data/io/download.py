"""Downloads published archives: checked, resumed, with progress.

pooch checks the hash and moves the file in place in one step; the class below
gives it what it lacks, to resume where a broken download stopped.
"""

import contextlib
import os
import pathlib
import shutil

from moon_jax.data.io import progress
from moon_jax.errors import UserError

_TIMEOUT = (4, 20)  # seconds: to connect, and between two pieces of data
_CHUNK = 2**18  # bytes


class ResumingDownloader:
  """A pooch downloader that keeps what it has in `NAME.part` and resumes."""

  def __init__(self, part: pathlib.Path, is_shown: bool = True):
    self.part = part
    self.is_shown = is_shown

  def __call__(self, url, output_file, pooch):
    import requests

    have = self.part.stat().st_size if self.part.exists() else 0
    headers = {'Range': f'bytes={have}-'} if have else {}
    with requests.get(
        url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
      if response.status_code == 416:  # nothing after what is here already
        shutil.move(self.part, output_file)
        return
      response.raise_for_status()
      if response.status_code != 206:  # the server sends the whole file
        have = 0
      left = int(response.headers.get('content-length', 0))
      with (open(self.part, 'ab' if have else 'wb') as out,
            self._progress(have, left) as advance):
        for chunk in response.iter_content(_CHUNK):
          out.write(chunk)
          advance(len(chunk))
    if left and self.part.stat().st_size < have + left:
      raise requests.ConnectionError(
          f'the connection broke after {self.part.stat().st_size} bytes')
    shutil.move(self.part, output_file)

  def _progress(self, have: int, left: int):
    if not self.is_shown:
      return contextlib.nullcontext(lambda count: None)
    # A server need not say how long a file is.
    total = have + left if left else 0
    title = f'downloading {self.part.stem}' + (
        f', {total / 1e6:,.1f} MB' if total else '') + (
            f', from {have / 1e6:,.1f} MB' if have else '')
    return progress.shown(title, total, 'B', have)


def fetch(url: str, md5: str, directory: pathlib.Path,
          is_shown: bool = True) -> pathlib.Path:
  """Returns the path of the file of `url` in `directory`, downloaded whole.

  Args:
    url: where the file is published.
    md5: its published checksum, in hexadecimal.
    directory: an existing directory; a broken download leaves `NAME.part`.
    is_shown: whether to show the progress.

  Raises:
    UserError: without a network, on a broken download, or a wrong checksum.
  """
  import pooch
  import requests

  name = url.rpartition('/')[2]
  if not os.access(directory, os.W_OK):
    raise UserError(
        f'--data_dir={directory} is not writable, so {name} cannot be '
        'downloaded into it; name another directory')
  downloader = ResumingDownloader(directory / f'{name}.part', is_shown)
  pooch.get_logger().setLevel('ERROR')
  try:
    return pathlib.Path(pooch.retrieve(
        url, f'md5:{md5}', fname=name, path=directory, downloader=downloader))
  except (requests.RequestException, OSError) as error:
    raise UserError(
        f'--data_dir={directory} holds no {name} and {url} could not be '
        f'downloaded ({type(error).__name__}). Download it where there is a '
        f'network, put it into {directory}, and run again') from error
  except ValueError as error:  # pooch's word for a wrong checksum
    raise UserError(
        f'{url} did not give the published file (md5 {md5}). Run again, or '
        f'put {name} into --data_dir={directory} yourself') from error
