"""Data sets read from the files in which they were published, and checked.

Every form of a data set gives the same arrays, in the official order, on which
the published partitions rest (`prepared.read` names the exceptions). A file
that is not the published one is refused, even where another form lies beside
it.
"""

from collections.abc import Callable
import hashlib
import pathlib
from typing import NamedTuple

import numpy as np

from moon_jax.data import download
from moon_jax.data import files
from moon_jax.data import prepared
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError


class Form(NamedTuple):
  """A published layout: a directory of files, also packed as one archive.

  Without an archive the files may lie among others, each also as NAME.gz.
  """

  directory: str
  archive: str  # '' where there is none
  # Of each file, unpacked; all of the first part of the data set in order, then
  # of the next, and of the test part last.
  md5: dict[str, str]
  # bytes of each file of a part -> (images uint8 [n, H, W, C], labels [n])
  decode: Callable


class Published(NamedTuple):
  """A data set."""

  name: str
  title: str
  url: str
  url_md5: str  # '' where `url` is a page, of which nothing is downloaded
  forms: tuple[Form, ...]  # in the order in which they are looked for
  num_images: tuple[int, ...]  # of each part
  shape: tuple[int, int, int]  # of an image: H, W, C
  class_names: tuple[str, ...]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  augmentation: str
  prepared_name: str  # that of tensorflow-datasets


def load(published: Published, data_dir: str) -> Dataset:
  """Reads a data set from `data_dir`, or downloads it there.

  Looked for, in this order: the directory of each form, the archive of each,
  and `cifar10/` or alike, prepared by tensorflow-datasets as array_record.
  `data_dir` may also be one of these directories itself. "tfds" prepares the
  last with TensorFlow.

  Raises:
    UserError: see `moon_jax.data.sources.load`.
  """
  if data_dir == 'tfds':
    return _dataset(published, *_check_prepared(
        published, data_dir, prepared.prepare(published.prepared_name)))
  wanted = ' or '.join(_names(published.forms[0]))
  if published.url_md5:
    wanted += ', or an empty one to download into'
  root = files.directory_of(published.name, published.title, data_dir, wanted,
                            bool(published.url_md5))
  if root.name in [form.directory for form in published.forms if form.archive]:
    root = root.parent
  return _dataset(published, *_read(published, root))


def _names(form: Form) -> list[str]:
  """What a form is looked for by."""
  if form.archive:
    return [f'{form.directory}/', form.archive]
  return [f'{", ".join(form.md5)} (each also as .gz)']


def _read(published: Published, root: pathlib.Path):
  """Returns train images, train labels, test images, test labels."""
  for form in published.forms:
    if _is_there(root, form):
      return _read_files(published, form, files.of_directory(
          root / form.directory, _remedy(published)))
  for form in published.forms:
    if form.archive and (root / form.archive).exists():
      return _read_archive(published, form, root / form.archive)
  directory = prepared.find(root, published.prepared_name)
  if directory:
    return _check_prepared(published, directory, prepared.read(directory))
  if not published.url_md5:
    places = ' or '.join(f'{form.directory}/' for form in published.forms[1:])
    raise UserError(
        f'--data_dir={root} must hold {_names(published.forms[0])[0]}, itself '
        f'or in {places}, or {published.prepared_name}/ of tensorflow-datasets;'
        f' got none of them. Get the files from {published.url}')
  names = ', '.join(name for form in published.forms for name in _names(form))
  print(f'{published.title} is not in {root} (looked for {names} and '
        f'{published.prepared_name}/); downloading {published.url}', flush=True)
  archive = download.fetch(published.url, published.url_md5, root)
  return _read_archive(published, published.forms[0], archive)


def _is_there(root: pathlib.Path, form: Form) -> bool:
  """Whether the directory is, or any of the files that may lie among others."""
  directory = root / form.directory
  if form.archive:
    return directory.exists()
  return any((directory / f'{name}{end}').exists()
             for name in form.md5 for end in ('', '.gz'))


def _remedy(published: Published) -> str:
  if not published.url_md5:
    return f'Get it anew from {published.url}'
  return ('Restore it from the published archive, or remove the directory or '
          'archive it is in and run again to download')


def _read_archive(published: Published, form: Form, path: pathlib.Path):
  return _read_files(published, form, files.of_archive(
      path, form.md5, _remedy(published)))


def _read_files(published: Published, form: Form, read: Callable):
  """Checks and decodes the files, in the official order."""
  images = np.empty((sum(published.num_images), *published.shape), np.uint8)
  labels = np.empty(len(images), np.int32)
  files_a_part = len(form.md5) // len(published.num_images)
  names = list(form.md5)
  begin = 0
  for i, count in enumerate(published.num_images):
    paths, blobs = zip(*[
        _verified(published, *read(name), form.md5[name])
        for name in names[i * files_a_part:(i + 1) * files_a_part]])
    part = slice(begin, begin + count)
    try:
      images[part], labels[part] = _checked(
          published, count, *form.decode(*blobs))
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(f'--data_dir: {" or ".join(paths)} is damaged: {error}. '
                      f'{_remedy(published)}') from error
    begin += count
  split = begin - published.num_images[-1]
  return images[:split], labels[:split], images[split:], labels[split:]


def _verified(published: Published, path: str, blob: bytes, md5: str):
  """As given, where it is the published file."""
  found = hashlib.md5(blob).hexdigest()
  if md5 and found != md5:
    raise UserError(
        f'--data_dir: {path} is not the published file: {len(blob):,} bytes '
        f'with md5 {found}, where {md5} was expected. {_remedy(published)}')
  return path, blob


def _check_prepared(published: Published, directory, arrays):
  """As given, where it is what tensorflow-datasets makes of the data set."""
  *counts, num_test = published.num_images
  try:
    _checked(published, sum(counts), *arrays[:2])
    _checked(published, num_test, *arrays[2:])
  except ValueError as error:
    raise UserError(
        f'--data_dir: {directory} is not the whole of {published.title}: '
        f'{error}. Prepare it anew') from error
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
