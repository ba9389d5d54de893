"""Describes, verifies and decodes the files of published data sets."""

from collections.abc import Callable
from collections.abc import Mapping
import hashlib
import types
from typing import NamedTuple

import numpy as np

from moon_jax.errors import UserError


class Layout(NamedTuple):
  """One published file layout: a directory of files, or an archive of it.

  A data set has one or more parts, such as training batches; the last part is
  the test set. If the layout has no archive, the directory may hold other
  files, and each file may be compressed to NAME.gz.
  """

  directory: str
  archive: str  # '' if there is none
  # File name -> md5 of the uncompressed file, '' to skip the check. Files are
  # in the order of the parts.
  md5: Mapping[str, str]
  # bytes of each file of a part -> (images uint8 [n, H, W, C], labels [n])
  decode_fn: Callable
  num_bytes: tuple[int, ...] = ()  # of each uncompressed file, for messages
  # (bytes of a file with another md5, number of images in its part) -> None.
  # Raises ValueError if the file is incomplete. None refuses all such files.
  check_unknown_fn: Callable | None = None


class PublishedDataset(NamedTuple):
  """A published data set and its file layouts."""

  name: str  # value of --dataset
  title: str  # full name, for messages
  url: str
  url_md5: str  # '' if `url` is a web page and not an archive to download
  layouts: tuple[Layout, ...]  # in search order
  num_images: tuple[int, ...]  # of each part
  shape: tuple[int, int, int]  # of an image: H, W, C
  class_names: tuple[str, ...]
  mean: tuple[float, ...]
  std: tuple[float, ...]
  augmentation: str
  prepared_name: str  # in tensorflow-datasets
  # md5 of a file of another data set that uses the same file names -> value of
  # --dataset for that data set
  other_datasets: Mapping[str, str] = types.MappingProxyType({})


class OtherDatasetError(UserError):
  """A file belongs to another data set that uses the same file names."""


def remedy(published: PublishedDataset) -> str:
  """Returns the last sentence of messages about an invalid file."""
  if not published.url_md5:
    return f'Get it again from {published.url}'
  return ('Restore it from the published archive, or remove the directory or '
          'archive it is in and run again to download')


def read(published: PublishedDataset, layout: Layout, read_fn: Callable):
  """Reads, verifies and decodes the files of a layout.

  Args:
    published: the data set.
    layout: one of its layouts.
    read_fn: a reader of the files, see `moon_jax.data.io.files`.

  Returns:
    Training images, training labels, test images and test labels, in the
    official order.

  Raises:
    OtherDatasetError: if a file belongs to another data set.
    UserError: if a file is missing or differs from the published one.
  """
  images = np.empty((sum(published.num_images), *published.shape), np.uint8)
  labels = np.empty(len(images), np.int32)
  files_per_part = len(layout.md5) // len(published.num_images)
  names = list(layout.md5)
  start = 0
  for i, count in enumerate(published.num_images):
    paths, blobs = zip(*[
        _verified(published, layout, name, count, *read_fn(name))
        for name in names[i * files_per_part:(i + 1) * files_per_part]])
    part = slice(start, start + count)
    try:
      images[part], labels[part] = _checked(
          published, count, *layout.decode_fn(*blobs))
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(f'--data_dir: {" or ".join(paths)} is damaged: {error}. '
                      f'{remedy(published)}') from error
    start += count
  split = start - published.num_images[-1]
  return images[:split], labels[:split], images[split:], labels[split:]


def _verified(published: PublishedDataset, layout: Layout, name: str,
              count: int, path: str, blob: bytes):
  """Returns path and bytes if they are those of the published file `name`."""
  expected, md5 = layout.md5[name], hashlib.md5(blob).hexdigest()
  if expected in ('', md5):
    return path, blob
  if md5 in published.other_datasets:
    raise OtherDatasetError(
        f'--data_dir: {path} must be of --dataset={published.name}, got the '
        'file of the same name of --dataset='
        f'{published.other_datasets[md5]}')
  sizes = dict(zip(layout.md5, layout.num_bytes))
  size = f'{sizes[name]:,} bytes with ' if name in sizes else ''
  difference = (f'not the published file: expected {size}md5 {expected}, got '
                f'{len(blob):,} bytes with md5 {md5}')
  if not layout.check_unknown_fn:
    raise UserError(f'--data_dir: {path} is {difference}. {remedy(published)}')
  try:
    layout.check_unknown_fn(blob, count)
  except ValueError as error:
    raise UserError(f'--data_dir: {path} is damaged: {error}. It is '
                    f'{difference}. {remedy(published)}') from error
  print(f'warning: expected md5 {expected} of {path}, got {md5}. The file is '
        'used, as its labels are complete, but its images may be in another '
        'order, so partitions may differ from the published ones', flush=True)
  return path, blob


def check_prepared(published: PublishedDataset, directory, arrays):
  """Returns arrays read from tensorflow-datasets if they fit the data set.

  Args:
    published: the data set.
    directory: origin of the arrays, for messages.
    arrays: training images, training labels, test images and test labels.

  Raises:
    UserError: if an array has another shape or invalid values.
  """
  *counts, num_test = published.num_images
  try:
    _checked(published, sum(counts), *arrays[:2])
    _checked(published, num_test, *arrays[2:])
  except ValueError as error:
    raise UserError(
        f'--data_dir: {directory} is not a complete {published.title}: '
        f'{error}. Prepare it again') from error
  return arrays


def _checked(published: PublishedDataset, count: int, images, labels):
  """Returns images and labels as arrays if they fit the data set.

  Raises:
    ValueError: if the shape, dtype or a label is wrong.
  """
  images, labels = np.asarray(images), np.asarray(labels)
  for array, shape in (images, (count, *published.shape)), (labels, (count,)):
    if array.shape != shape or array.dtype.kind not in 'iu':
      raise ValueError(f'expected integers of shape {list(shape)}, got '
                       f'{array.dtype} {list(array.shape)}')
  if images.dtype != np.uint8:
    raise ValueError(f'pixels must be uint8, got {images.dtype}')
  num_classes = len(published.class_names)
  for label in labels.min(), labels.max():
    if not 0 <= label < num_classes:
      raise ValueError(f'labels must be 0 to {num_classes - 1}, got {label}')
  return images, labels
