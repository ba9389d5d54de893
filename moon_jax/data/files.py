"""The bytes of files that users have, in a directory or an archive.

A reader is read(name) -> (path as told to users, bytes).
"""

from collections.abc import Callable
from collections.abc import Container
import gzip
import pathlib
import tarfile
import zlib

from moon_jax.errors import UserError

_MOST_BYTES = 2**28  # read of a file; more than any published one holds


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


def of_directory(directory: pathlib.Path, remedy: str) -> Callable:
  """Reads files in `directory`, each NAME, or else NAME.gz unpacked.

  Args:
    directory: an existing directory.
    remedy: what to do about a bad file, as messages end.

  Returns:
    A reader. It raises UserError where a file is missing or damaged.
  """
  def read(name):
    path, open_fn = directory / name, open
    if not path.exists() and (directory / f'{name}.gz').exists():
      path, open_fn = directory / f'{name}.gz', gzip.open
    if not path.is_file():  # nor a pipe or a device, which never end
      raise UserError(f'--data_dir: {path} is missing or no file. {remedy}')
    try:
      with open_fn(path, 'rb') as file:
        return str(path), file.read(_MOST_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
      raise UserError(f'--data_dir: {path} is not a whole gzip file ({error}). '
                      f'{remedy}') from error
    except OSError as error:
      raise UserError(f'--data_dir: {path} cannot be read '
                      f'({error.strerror}); mend its permissions') from error
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
          blobs[name] = tar.extractfile(member).read(_MOST_BYTES)
  except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
    reason = str(error).partition('\n')[0]
    raise UserError(f'--data_dir: {path} is not a whole archive ({reason}). '
                    f'{remedy}') from error

  def read(name):
    if name not in blobs:
      raise UserError(f'--data_dir: {path} holds no {name}. {remedy}')
    return f'{path}:{name}', blobs.pop(name)

  return read
