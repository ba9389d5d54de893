"""Data sets read from the files in which they were published, and checked.

Every form of a data set gives the same arrays, in the official order, on which
the published partitions rest (`prepared.read` names the exceptions). A file
that is not the published one is refused, even where another form lies beside
it. Two exceptions: a file of another data set that uses the same file names
(Fashion-MNIST's beside MNIST's) is passed over, and the search continues; and
a file whose published checksum is not known for certain (CIFAR-100's binary
form) may differ from the expected one where its labels are complete.
"""

import pathlib

from moon_jax.data.dataset import Dataset
from moon_jax.data.io import download
from moon_jax.data.io import files
from moon_jax.data.io import forms
from moon_jax.data.io import prepared
from moon_jax.data.io.forms import Form
from moon_jax.data.io.forms import NamesakeError
from moon_jax.data.io.forms import Published
from moon_jax.errors import UserError


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
    return _dataset(published, *forms.check_prepared(
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
  namesake = None
  for form in published.forms:
    # Two data sets of the same names fit in one directory, one of them packed.
    for ends in (('', '.gz'), ('.gz', '')):
      if _is_there(root, form):
        try:
          return forms.read(published, form, files.of_directory(
              root / form.directory, forms.remedy(published), ends))
        except NamesakeError as error:
          namesake = namesake or error
  for form in published.forms:
    if form.archive and (root / form.archive).exists():
      return _read_archive(published, form, root / form.archive)
  directory = prepared.find(root, published.prepared_name)
  if directory:
    return forms.check_prepared(published, directory, prepared.read(directory))
  if not published.url_md5:
    places = ' or '.join(f'{form.directory}/' for form in published.forms[1:])
    where = (f'{_names(published.forms[0])[0]}, itself or in {places}, or '
             f'{published.prepared_name}/ of tensorflow-datasets')
    if namesake:
      raise UserError(
          f'{namesake}, and no other place has {published.title}: {root} must '
          f'hold {where}. Get the files from {published.url}') from namesake
    raise UserError(f'--data_dir={root} must hold {where}; got none of them. '
                    f'Get the files from {published.url}')
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


def _read_archive(published: Published, form: Form, path: pathlib.Path):
  return forms.read(published, form, files.of_archive(
      path, form.md5, f'Remove it and run again: {published.title} is then '
      f'downloaded from {published.url}'))


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
