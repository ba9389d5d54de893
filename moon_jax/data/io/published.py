"""Finds, verifies and reads published data sets.

All layouts of a data set give the same arrays in the official order, which the
published partitions need (`tfds_data.read` names the exceptions). A file that
differs from the published one is an error, even if the directory also holds
another layout. There are two exceptions. If the file belongs to another data
set that uses the same file names (MNIST and Fashion-MNIST), the search
continues. If the published checksum is uncertain (CIFAR-100's binary layout), a
file with complete labels is accepted.
"""

from collections.abc import Callable, Iterator, Mapping
import hashlib
import itertools
import pathlib
import types
from typing import NamedTuple

import numpy as np

from moon_jax.data.dataset import Dataset
from moon_jax.data.io import download, files, progress, tfds_data
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
  # bytes of each file of a part -> (images uint8 [n, H, W, C], labels [n]);
  # raises ValueError if one is damaged
  decode_fn: Callable
  num_bytes: tuple[int, ...] = ()  # of each uncompressed file, for messages
  # (bytes of a file with another md5, number of images in its part) -> None.
  # Raises ValueError if the file is incomplete. None refuses all such files.
  check_unknown_fn: Callable | None = None

  def paths(self, root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the existing directory and archive, or files if no archive."""
    directory = root / self.directory
    found = [directory, root / self.archive] if self.archive else [
        directory / f'{name}{suffix}'
        for name in self.md5 for suffix in ('', '.gz')]
    return [path for path in found if path.exists()]

  def names(self) -> list[str]:
    """Returns the names of files and directories to search for."""
    if self.archive:
      return [f'{self.directory}/', self.archive]
    return [f'{", ".join(self.md5)} (each also as .gz)']


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

  def find(self, root: pathlib.Path) -> list[pathlib.Path]:
    """Returns the paths that exist, the best first, without reading them."""
    prepared = tfds_data.find(root, self.prepared_name)
    return [path for layout in self.layouts for path in layout.paths(root)] + (
        [prepared] if prepared else [])


class FileState(NamedTuple):
  """A file, or a file in an archive, and what is wrong with it."""

  path: str
  problem: str = ''  # '' if it is the published file
  note: str = ''  # about a file that is used although it is not the published
  other: str = ''  # the data set that it belongs to, if that is another one


class _OtherDatasetError(UserError):
  """A file belongs to another data set that uses the same file names."""


def load(published: PublishedDataset, data_dir: str,
         may_download: bool = True) -> Dataset:
  """Reads a data set from `data_dir`, or downloads it into that directory.

  Searches for, in this order: the directory of each layout, the archive of each
  layout, and the directory `published.prepared_name` that tensorflow-datasets
  prepared as array_record.

  `data_dir` is a directory that holds one of these, or one of these. 'tfds'
  prepares the data set with TensorFlow.

  Raises:
    UserError: if files are missing or damaged and cannot be downloaded.
  """
  if data_dir == 'tfds':
    arrays = _checked_prepared(
        published, data_dir, tfds_data.prepare(published.prepared_name))
  else:
    content = ' or '.join(published.layouts[0].names())
    if published.url_md5:
      content += ', or an empty one to download into'
    root = files.existing_directory(published.name, published.title, data_dir,
                                    content, bool(published.url_md5))
    arrays = _find(published, _parent_of_layout(published, root), may_download)
  return Dataset(
      published.name, *arrays, class_names=published.class_names,
      mean=published.mean, std=published.std,
      augmentation=published.augmentation)


def verify(published: PublishedDataset,
           root: pathlib.Path) -> Iterator[FileState]:
  """Yields the state of the files of all layouts in a directory, see `load`.

  A directory without archive that holds the files of another data set (MNIST
  and Fashion-MNIST share their names) is left out.
  """
  for layout, path in _places(published, _parent_of_layout(published, root)):
    states = []
    with progress.show_progress(
        f'verifying {path}', len(layout.md5), 'files') as advance:
      try:
        read_fn = _reader(layout, path)
      except files.FileError as error:  # the archive itself is damaged
        yield FileState(error.path, error.problem)
        continue
      for name in layout.md5:
        try:
          states.append(_state(published, layout, name, *read_fn(name)))
        except files.FileError as error:
          states.append(FileState(error.path, error.problem))
        advance(1)
    if not any(state.other for state in states):
      yield from states


def _places(published, root):
  """Returns (layout, path) of all directories and then archives that exist."""
  return [
      (layout, root / layout.directory) for layout in published.layouts
      if set(layout.paths(root)) - {root / layout.archive}] + [
          (layout, root / layout.archive) for layout in published.layouts
          if layout.archive and (root / layout.archive).exists()]


def _reader(layout, path, suffixes=('', '.gz')):
  if path.name == layout.archive:
    return files.archive_reader(path, layout.md5)
  return files.directory_reader(path, suffixes)


def _state(published: PublishedDataset, layout: Layout, name: str, path: str,
           blob: bytes) -> FileState:
  """Compares a file with the published file `name`."""
  expected, md5 = layout.md5[name], hashlib.md5(blob).hexdigest()
  if expected in ('', md5):
    return FileState(path)
  if md5 in published.other_datasets:
    return FileState(path, other=published.other_datasets[md5])
  num_bytes = dict(zip(layout.md5, layout.num_bytes)).get(name, len(blob))
  if len(blob) != num_bytes:
    problem = (f'{"truncated" if len(blob) < num_bytes else "too long"}: '
               f'{len(blob):,} of {num_bytes:,} bytes')
  else:
    problem = f'damaged: md5 {md5}, not the published {expected}'
  if not layout.check_unknown_fn:
    return FileState(path, problem)
  files_per_part = len(layout.md5) // len(published.num_images)
  part = list(layout.md5).index(name) // files_per_part
  try:
    layout.check_unknown_fn(blob, published.num_images[part])
  except ValueError as error:
    return FileState(path, f'{problem} ({error})')
  return FileState(
      path, note=f'md5 {md5}, not {expected}; its labels are '
      'complete, so it is used, but its images may be in another order, and '
      'partitions may differ from the published ones')


def _parent_of_layout(published, directory):
  """Returns the parent of a directory that has the name of a layout."""
  names = [layout.directory for layout in published.layouts if layout.archive]
  return directory.parent if directory.name in names else directory


def _find(published: PublishedDataset, root: pathlib.Path, may_download: bool):
  """Returns training images, training labels, test images, test labels."""
  other_error = None
  for layout, path in _places(published, root):
    # A directory can hold two data sets of the same file names if one of them
    # is compressed.
    for suffixes in ('', '.gz'), ('.gz', ''):
      try:
        return _read(published, layout, path, suffixes)
      except _OtherDatasetError as error:
        other_error = other_error or error
  directory = tfds_data.find(root, published.prepared_name)
  if directory:
    return _checked_prepared(published, directory, tfds_data.read(directory))
  source = (f'Get the files from {published.url}, or download them: moon-jax '
            f'data get {published.name} --data_dir={root}')
  if not published.url_md5:
    directories = ' or '.join(
        f'{layout.directory}/' for layout in published.layouts[1:])
    content = (f'{published.layouts[0].names()[0]}, directly or in '
               f'{directories}, or {published.prepared_name}/ of '
               'tensorflow-datasets')
    if other_error:
      raise UserError(f'{other_error}. {root} must hold {content} with '
                      f'{published.title}. {source}') from other_error
    raise UserError(f'--data_dir={root} must hold {content}; got none of them. '
                    f'{source}')
  names = ', '.join(
      name for layout in published.layouts for name in layout.names())
  if not may_download:
    raise UserError(
        f'--data_dir={root} must hold {published.title} in one of {names} and '
        f'{published.prepared_name}/; got none of them. {source}')
  print(f'{published.title} is not in {root} (searched for {names} and '
        f'{published.prepared_name}/); downloading {published.url}', flush=True)
  archive = download.fetch(published.url, published.url_md5, root)
  return _read(published, published.layouts[0], archive)


def _read(published, layout, path, suffixes=('', '.gz')):
  """Returns the verified and decoded arrays of a layout, see `_find`."""
  remedy = (
      f'Remove it and run again to download {published.title} from '
      f'{published.url}' if path.name == layout.archive else
      'Restore it from the published archive, or remove the directory and run '
      'again to download' if published.url_md5 else
      f'Get it again from {published.url}')
  try:
    return _decoded(published, layout, _reader(layout, path, suffixes))
  except files.FileError as error:
    raise UserError(f'--data_dir: {error}. {remedy}') from error


def _decoded(published, layout, read_fn):
  images = np.empty((sum(published.num_images), *published.shape), np.uint8)
  labels = np.empty(len(images), np.int32)
  files_per_part = len(layout.md5) // len(published.num_images)
  names = iter(layout.md5)
  start = 0
  for count in published.num_images:
    paths, blobs = [], []
    for name in itertools.islice(names, files_per_part):
      path, blob = read_fn(name)
      state = _state(published, layout, name, path, blob)
      if state.other:
        raise _OtherDatasetError(
            f'--data_dir: {path} must be of --dataset={published.name}, got '
            f'the file of the same name of --dataset={state.other}')
      if state.problem:
        raise files.FileError(
            path, f'is not the published file: {state.problem}')
      if state.note:
        print(f'warning: {path}: {state.note}', flush=True)
      paths.append(path)
      blobs.append(blob)
    part = slice(start, start + count)
    try:
      images[part], labels[part] = _checked(
          published, count, *layout.decode_fn(*blobs))
    except (ValueError, KeyError, TypeError) as error:
      raise files.FileError(
          ' or '.join(paths), f'is damaged: {error}') from error
    start += count
  split = start - published.num_images[-1]
  return images[:split], labels[:split], images[split:], labels[split:]


def _checked_prepared(published, directory, arrays):
  """Returns arrays of tensorflow-datasets if they fit the data set."""
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
  """Returns images and labels as arrays, or raises ValueError."""
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
