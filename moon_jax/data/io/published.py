"""Finds, verifies and reads published data sets.

All layouts of a data set give the same arrays in the official order, which the
published partitions need (`prepared.read` names the exceptions). A file that
differs from the published one is an error, even if the directory also holds
another layout. There are two exceptions. If the file belongs to another data
set that uses the same file names (MNIST and Fashion-MNIST), the search
continues. If the published checksum is uncertain (CIFAR-100's binary layout), a
file with complete labels is accepted.
"""

import pathlib

from moon_jax.data.dataset import Dataset
from moon_jax.data.io import download
from moon_jax.data.io import file_formats
from moon_jax.data.io import files
from moon_jax.data.io import tfds_data
from moon_jax.data.io.file_formats import Layout
from moon_jax.data.io.file_formats import OtherDatasetError
from moon_jax.data.io.file_formats import PublishedDataset
from moon_jax.errors import UserError


def load(published: PublishedDataset, data_dir: str,
         may_download: bool = True) -> Dataset:
  """Reads a data set from `data_dir`, or downloads it into that directory.

  Searches for, in this order: the directory of each layout, the archive of each
  layout, and the directory `published.prepared_name` that tensorflow-datasets
  prepared as array_record.

  Args:
    published: the data set.
    data_dir: a directory that holds one of these, or one of these directories.
      'tfds' prepares the data set with TensorFlow.
    may_download: whether a data set that is missing is downloaded.

  Raises:
    UserError: if files are missing or damaged and cannot be downloaded.
  """
  if data_dir == 'tfds':
    return _dataset(published, *file_formats.check_prepared(
        published, data_dir, tfds_data.prepare(published.prepared_name)))
  content = ' or '.join(_names(published.layouts[0]))
  if published.url_md5:
    content += ', or an empty one to download into'
  root = files.existing_directory(published.name, published.title, data_dir,
                                  content, bool(published.url_md5))
  return _dataset(published, *_read(
      published, parent_of_layout(published, root), may_download))


def parent_of_layout(published: PublishedDataset,
                     directory: pathlib.Path) -> pathlib.Path:
  """Returns the parent of a directory that has the name of a layout."""
  names = [layout.directory for layout in published.layouts if layout.archive]
  return directory.parent if directory.name in names else directory


def _names(layout: Layout) -> list[str]:
  """Returns the names of files and directories to search for."""
  if layout.archive:
    return [f'{layout.directory}/', layout.archive]
  return [f'{", ".join(layout.md5)} (each also as .gz)']


def _read(published: PublishedDataset, root: pathlib.Path, may_download: bool):
  """Returns training images, training labels, test images, test labels."""
  other_error = None
  for layout in published.layouts:
    # A directory can hold two data sets of the same file names if one of them
    # is compressed.
    for suffixes in (('', '.gz'), ('.gz', '')):
      if exists(root, layout):
        try:
          remedy = file_formats.remedy(published)
          return file_formats.read(published, layout, files.directory_reader(
              root / layout.directory, remedy, suffixes))
        except OtherDatasetError as error:
          other_error = other_error or error
  for layout in published.layouts:
    if layout.archive and (root / layout.archive).exists():
      return _read_archive(published, layout, root / layout.archive)
  directory = tfds_data.find(root, published.prepared_name)
  if directory:
    return file_formats.check_prepared(
        published, directory, tfds_data.read(directory))
  if not published.url_md5:
    directories = ' or '.join(
        f'{layout.directory}/' for layout in published.layouts[1:])
    content = (f'{_names(published.layouts[0])[0]}, directly or in '
               f'{directories}, or {published.prepared_name}/ of '
               'tensorflow-datasets')
    if other_error:
      raise UserError(
          f'{other_error}. {root} must hold {content} with {published.title}. '
          f'{_source(published, root)}') from other_error
    raise UserError(f'--data_dir={root} must hold {content}; got none of them. '
                    f'{_source(published, root)}')
  names = ', '.join(
      name for layout in published.layouts for name in _names(layout))
  if not may_download:
    raise UserError(
        f'--data_dir={root} must hold {published.title} in one of {names} and '
        f'{published.prepared_name}/; got none of them. '
        f'{_source(published, root)}')
  print(f'{published.title} is not in {root} (searched for {names} and '
        f'{published.prepared_name}/); downloading {published.url}', flush=True)
  archive = download.fetch(published.url, published.url_md5, root)
  return _read_archive(published, published.layouts[0], archive)


def _source(published: PublishedDataset, root: pathlib.Path) -> str:
  return (f'Get the files from {published.url}, or download them: moon-jax '
          f'data get {published.name} --data_dir={root}')


def exists(root: pathlib.Path, layout: Layout) -> bool:
  """Returns whether the directory, or without archive any file, exists."""
  directory = root / layout.directory
  if layout.archive:
    return directory.exists()
  return any((directory / f'{name}{suffix}').exists()
             for name in layout.md5 for suffix in ('', '.gz'))


def _read_archive(published: PublishedDataset, layout: Layout,
                  path: pathlib.Path):
  return file_formats.read(published, layout, files.archive_reader(
      path, layout.md5, f'Remove it and run again to download '
      f'{published.title} from {published.url}'))


def _dataset(published: PublishedDataset, train_inputs, train_labels,
             test_inputs, test_labels) -> Dataset:
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
