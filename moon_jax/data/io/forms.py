"""The files of a published data set, and whether given files are those."""

from collections.abc import Callable
from collections.abc import Mapping
import hashlib
import types
from typing import NamedTuple

import numpy as np

from moon_jax.errors import UserError


class Form(NamedTuple):
  """A published layout: a directory of files, also packed as one archive.

  Without an archive the files may lie among others, each also as NAME.gz.
  """

  directory: str
  archive: str  # '' where there is none
  # Of each file, unpacked; all of the first part of the data set in order, then
  # of the next, and of the test part last.
  md5: Mapping[str, str]
  # bytes of each file of a part -> (images uint8 [n, H, W, C], labels [n])
  decode: Callable
  num_bytes: tuple[int, ...] = ()  # of each file, unpacked; for messages
  # (bytes of a file with another md5, number of images of its part) -> None,
  # or raises ValueError, which says why the file is not whole. Without it every
  # such file is refused.
  check_unknown: Callable | None = None


class Published(NamedTuple):
  """A data set."""

  name: str
  title: str
  url: str
  url_md5: str  # '' where `url` is a page, from which nothing is downloaded
  forms: tuple[Form, ...]  # in the order in which they are looked for
  num_images: tuple[int, ...]  # of each part
  shape: tuple[int, int, int]  # of an image: H, W, C
  class_names: tuple[str, ...]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  augmentation: str
  prepared_name: str  # that of tensorflow-datasets
  # md5 of a file of another data set that has files of the same names ->
  # that data set, as in --dataset
  namesakes: Mapping[str, str] = types.MappingProxyType({})


class NamesakeError(UserError):
  """A file is that of another data set, whose files have the same names."""


def remedy(published: Published) -> str:
  """What to do about a bad file, as messages end."""
  if not published.url_md5:
    return f'Get it again from {published.url}'
  return ('Restore it from the published archive, or remove the directory or '
          'archive it is in and run again to download')


def read(published: Published, form: Form, read_fn: Callable):
  """Reads, checks and decodes the files of a form, in the official order.

  Args:
    published: the data set.
    form: one of its forms.
    read_fn: a reader, see `moon_jax.data.io.files`.

  Returns:
    Train images, train labels, test images, test labels.

  Raises:
    NamesakeError: where a file is another data set's.
    UserError: where a file is missing, or is not the published one.
  """
  images = np.empty((sum(published.num_images), *published.shape), np.uint8)
  labels = np.empty(len(images), np.int32)
  files_per_part = len(form.md5) // len(published.num_images)
  names = list(form.md5)
  begin = 0
  for i, count in enumerate(published.num_images):
    paths, blobs = zip(*[
        _verified(published, form, name, count, *read_fn(name))
        for name in names[i * files_per_part:(i + 1) * files_per_part]])
    part = slice(begin, begin + count)
    try:
      images[part], labels[part] = _checked(
          published, count, *form.decode(*blobs))
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(f'--data_dir: {" or ".join(paths)} is damaged: {error}. '
                      f'{remedy(published)}') from error
    begin += count
  split = begin - published.num_images[-1]
  return images[:split], labels[:split], images[split:], labels[split:]


def _verified(published: Published, form: Form, name: str, count: int,
              path: str, blob: bytes):
  """The path and bytes as given, where they are those of the file `name`."""
  expected, found = form.md5[name], hashlib.md5(blob).hexdigest()
  if expected in ('', found):
    return path, blob
  if found in published.namesakes:
    raise NamesakeError(
        f'--data_dir: {path} is the file of that name of --dataset='
        f'{published.namesakes[found]}, not of --dataset={published.name}')
  sizes = dict(zip(form.md5, form.num_bytes))
  what = (f'not the published file: {len(blob):,} bytes with md5 {found}, '
          f'where {f"{sizes[name]:,} bytes with " if name in sizes else ""}md5 '
          f'{expected} was expected')
  if not form.check_unknown:
    raise UserError(f'--data_dir: {path} is {what}. {remedy(published)}')
  try:
    form.check_unknown(blob, count)
  except ValueError as error:
    raise UserError(f'--data_dir: {path} is damaged: {error}. It is {what}. '
                    f'{remedy(published)}') from error
  print(f'{path} has md5 {found} where {expected} was expected. It is used, '
        'since its labels are complete; in another order of images partitions '
        'differ from the published ones', flush=True)
  return path, blob


def check_prepared(published: Published, directory, arrays):
  """As given, where it is what tensorflow-datasets makes of the data set.

  Raises:
    UserError: where it is not.
  """
  *counts, num_test = published.num_images
  try:
    _checked(published, sum(counts), *arrays[:2])
    _checked(published, num_test, *arrays[2:])
  except ValueError as error:
    raise UserError(
        f'--data_dir: {directory} is not the whole of {published.title}: '
        f'{error}. Prepare it again') from error
  return arrays


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
