"""Data sets read from the files in which they were published, and checked.

Every form of a data set gives the same arrays, in the official order, on which
the published partitions rest. A file that is not the published one is refused,
even where another form lies beside it.
"""

from collections.abc import Callable
import hashlib
import pathlib
import tarfile
from typing import NamedTuple
import zlib

import numpy as np

from moon_jax.data import download
from moon_jax.data import prepared
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError

_MOST_BYTES = 2**28  # read of a file; more than any published one holds
_REMEDY = ('Restore it from the published archive, or remove the directory or '
           'archive it is in and run again to download')


class Form(NamedTuple):
  """A published layout: a directory of files, also packed as one archive."""

  directory: str
  archive: str
  md5: dict[str, str]  # of the training files in order, then the test file
  decode: Callable  # bytes -> (images uint8 [n, H, W, C], labels [n])


class Published(NamedTuple):
  """A data set."""

  name: str
  title: str
  url: str
  url_md5: str
  forms: tuple[Form, ...]  # in the order in which they are looked for
  num_images: tuple[int, ...]  # of each file
  shape: tuple[int, int, int]  # of an image: H, W, C
  class_names: tuple[str, ...]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  augmentation: str


def load(published: Published, data_dir: str) -> Dataset:
  """Reads a data set from `data_dir`, or downloads it there.

  Looked for, in this order: the directory of each form (python, binary), the
  archive of each, and `cifar10/` or `cifar100/`, prepared by
  tensorflow-datasets as array_record. `data_dir` may also be one of these
  directories itself. "tfds" prepares the last with TensorFlow.

  Raises:
    UserError: see `moon_jax.data.sources.load`.
  """
  python = published.forms[0]
  if not data_dir:
    raise UserError(
        f'--data_dir must name a directory for --dataset={published.name}; got '
        f'none. Give one that holds {python.directory}/ or {python.archive}, '
        'or an empty one to download into')
  if data_dir == 'tfds':
    return _dataset(published, *prepared.prepare(published.name))
  root = pathlib.Path(data_dir).expanduser()
  if root.exists() and not root.is_dir():
    raise UserError(f'--data_dir={data_dir} is a file; name the directory that '
                    'holds it')
  if not root.is_dir():
    raise UserError(
        f'--data_dir={data_dir} is not a directory; create it (mkdir -p '
        f'{data_dir}) to download {published.title} into it, or name the one '
        'that holds it')
  if root.name in [form.directory for form in published.forms]:
    root = root.parent
  return _dataset(published, *_read(published, root))


def _read(published: Published, root: pathlib.Path):
  """Returns train images, train labels, test images, test labels."""
  for form in published.forms:
    if (root / form.directory).exists():
      return _read_files(published, form, _files_of(root / form.directory))
  for form in published.forms:
    if (root / form.archive).exists():
      return _read_archive(published, form, root / form.archive)
  directory = prepared.find(root, published.name)
  if directory:
    return prepared.read(directory)
  names = ', '.join(
      f'{form.directory}/, {form.archive}' for form in published.forms)
  print(f'{published.title} is not in {root} (looked for {names} and '
        f'{published.name}/); downloading {published.url}', flush=True)
  archive = download.fetch(published.url, published.url_md5, root)
  return _read_archive(published, published.forms[0], archive)


def _files_of(directory: pathlib.Path):
  """Returns read(name) -> (path, bytes) of the files in `directory`."""
  def read(name):
    path = directory / name
    if not path.is_file():  # nor a pipe or a device, which never end
      raise UserError(
          f'--data_dir: {path} is missing or no file. {_REMEDY}')
    try:
      with open(path, 'rb') as file:
        return str(path), file.read(_MOST_BYTES)
    except OSError as error:
      raise UserError(f'--data_dir: {path} cannot be read '
                      f'({error.strerror}); mend its permissions') from error
  return read


def _read_archive(published: Published, form: Form, path: pathlib.Path):
  """As `_read_files`, straight from the archive; nothing is unpacked."""
  try:
    with tarfile.open(path) as tar:
      blobs = {}
      for member in tar:
        name = member.name.rpartition('/')[2]
        if name in form.md5 and member.isfile():
          blobs[name] = tar.extractfile(member).read(_MOST_BYTES)
  except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
    reason = str(error).partition('\n')[0]
    raise UserError(f'--data_dir: {path} is not a whole archive ({reason}). '
                    f'{_REMEDY}') from error

  def read(name):
    if name not in blobs:
      raise UserError(f'--data_dir: {path} holds no {name}. {_REMEDY}')
    return f'{path}:{name}', blobs.pop(name)

  return _read_files(published, form, read)


def _read_files(published: Published, form: Form, read: Callable):
  """Checks and decodes the files, in the official order."""
  images = np.empty((sum(published.num_images), *published.shape), np.uint8)
  labels = np.empty(len(images), np.int32)
  begin = 0
  for (name, expected), count in zip(form.md5.items(), published.num_images):
    path, blob = read(name)
    found = hashlib.md5(blob).hexdigest()
    if expected and found != expected:
      raise UserError(
          f'--data_dir: {path} is not the published file: {len(blob):,} bytes '
          f'with md5 {found}, where {expected} was expected. {_REMEDY}')
    part = slice(begin, begin + count)
    try:
      images[part], labels[part] = _checked(
          published, count, *form.decode(blob))
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(
          f'--data_dir: {path} is damaged: {error}. {_REMEDY}') from error
    begin += count
  split = begin - published.num_images[-1]
  return images[:split], labels[:split], images[split:], labels[split:]


def _checked(published: Published, count: int, images, labels):
  """As given, where they are what the data set has.

  Raises:
    ValueError: saying what they are and should be.
  """
  images, labels = np.asarray(images), np.asarray(labels)
  for found, expected in ((images, (count, *published.shape)),
                          (labels, (count,))):
    if found.shape != expected or found.dtype.kind not in 'iu':
      raise ValueError(f'holds {found.dtype} {list(found.shape)} where '
                       f'{list(expected)} was expected')
  if images.dtype != np.uint8:
    raise ValueError(f'holds {images.dtype} pixels, not uint8')
  for worst in (labels.min(), labels.max()):
    if not 0 <= worst < len(published.class_names):
      raise ValueError(f'a label is {worst}')
  return images, labels


def _dataset(published: Published, train_inputs, train_labels, test_inputs,
             test_labels) -> Dataset:
  return Dataset(
      name=published.name,
      train_inputs=train_inputs,
      train_labels=train_labels,
      test_inputs=test_inputs,
      test_labels=test_labels,
      class_names=published.class_names,
      mean=published.mean,
      std=published.std,
      augmentation=published.augmentation,
  )
