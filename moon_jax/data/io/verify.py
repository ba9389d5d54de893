"""Verifies the files of published data sets, and reports each of them."""

import contextlib
import hashlib
import pathlib
from typing import NamedTuple

from moon_jax.data.io import files
from moon_jax.data.io import progress
from moon_jax.data.io import published as published_lib
from moon_jax.data.io.file_formats import Layout
from moon_jax.data.io.file_formats import PublishedDataset
from moon_jax.errors import UserError


class FileState(NamedTuple):
  """A file, or a file in an archive, and what is wrong with it."""

  path: str
  problem: str = ''  # '' if it is the published file
  note: str = ''  # about a file that is used although it is not the published


def verify(published: PublishedDataset, root: pathlib.Path) -> list[FileState]:
  """Returns the state of the files of all layouts in a directory.

  A directory without archive that holds the files of another data set (MNIST
  and Fashion-MNIST share their names) is left out.

  Args:
    published: the data set.
    root: an existing directory, see `moon_jax.data.io.published.load`.
  """
  root = published_lib.parent_of_layout(published, root)
  states = []
  for layout in published.layouts:
    if published_lib.exists(root, layout):
      path = root / layout.directory
      states += _verify(published, layout, str(path), files.directory_reader(
          path, ''))
    if layout.archive and (root / layout.archive).exists():
      path = root / layout.archive
      try:
        states += _verify(published, layout, str(path), files.archive_reader(
            path, layout.md5, ''))
      except UserError as error:  # the archive itself is damaged
        states.append(FileState(str(path), _reason(error, '', '')))
  return states


def has_intact_file(published: PublishedDataset, root: pathlib.Path) -> bool:
  """Returns whether a directory layout has a file with its published md5."""
  for layout in published.layouts:
    read = files.directory_reader(root / layout.directory, '')
    for name, md5 in layout.md5.items():
      with contextlib.suppress(UserError):
        if hashlib.md5(read(name)[1]).hexdigest() == md5:
          return True
  return False


def _verify(published, layout, place, read_fn):
  """Returns the states of the files of a layout, or [] if of another data set.
  """
  states, names = [], list(layout.md5)
  per_part = len(names) // len(published.num_images)
  with progress.show_progress(
      f'verifying {place}', len(names), 'files') as advance:
    for i, name in enumerate(names):
      try:
        path, blob = read_fn(name)
      except UserError as error:
        states.append(FileState(f'{place}/{name}', _reason(error, place, name)))
      else:
        if hashlib.md5(blob).hexdigest() in published.other_datasets:
          return []
        states.append(FileState(path, *_problem_and_note(
            layout, name, published.num_images[i // per_part], blob)))
      advance(1)
  return states


def _problem_and_note(layout: Layout, name: str, count: int,
                      blob: bytes) -> tuple[str, str]:
  """Returns what is wrong with a file, and a note if it is used nevertheless.
  """
  expected, md5 = layout.md5[name], hashlib.md5(blob).hexdigest()
  if expected in ('', md5):
    return '', ''
  num_bytes = dict(zip(layout.md5, layout.num_bytes)).get(name, len(blob))
  if len(blob) != num_bytes:
    state = 'truncated' if len(blob) < num_bytes else 'too long'
    problem = f'{state}: {len(blob):,} of {num_bytes:,} bytes'
  else:
    problem = f'damaged: md5 {md5}, not the published {expected}'
  if layout.check_unknown_fn:
    try:
      layout.check_unknown_fn(blob, count)
    except ValueError as error:
      return (f'{problem} ({error})' if len(blob) == num_bytes else problem), ''
    return '', (f'md5 {md5}, not {expected}; its labels are complete, so it is '
                'used, but partitions may differ from the published ones')
  return problem, ''


def _reason(error: UserError, place: str, name: str) -> str:
  """Returns the reason of an error of a reader, without the path."""
  reason = str(error).removeprefix('--data_dir: ').strip().rstrip('.')
  return reason.removeprefix(f'{place}/{name} ').removeprefix('is ')
