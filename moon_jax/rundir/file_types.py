"""Checks the paths in a work directory before any write."""

import os
import pathlib
import tempfile

from moon_jax.errors import UserError

_FILES = ('config.json', 'partition.npz', 'partition.png', 'cohorts.txt',
          'metrics.jsonl', 'log.txt', 'summary.json', 'diverged.json',
          'model.safetensors', 'best.safetensors')

_DIRECTORIES = ('checkpoints', 'client_state', 'model', 'best', 'local_models')


def check(directory: pathlib.Path) -> None:
  """Checks that existing paths have the expected types, before any write.

  Raises:
    UserError: naming the first path of another type.
  """
  for name in _FILES:
    for path in directory / name, directory / f'{name}.part':
      if os.path.lexists(path) and not path.is_file():
        raise UserError(
            f'--workdir={directory}: {path.name} must be a regular file, got '
            'something else; move it away, or name another directory')
  for name in _DIRECTORIES:
    path = directory / name
    if os.path.lexists(path) and not path.is_dir():
      raise UserError(
          f'--workdir={directory}: {path.name} must be a directory, got '
          'something else; move it away, or name another directory')


def check_writable(directory: pathlib.Path) -> None:
  """Checks that files can be written to a directory, or that it can be made.

  Raises:
    OSError: if a temporary directory in it, or in the closest parent that
      exists, cannot be made.
  """
  while not os.path.lexists(directory):
    directory = directory.parent
  with tempfile.TemporaryDirectory(dir=directory, prefix='.moon_jax-'):
    pass
