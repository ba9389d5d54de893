"""Tables of runs that no file describes, and the list of several pages."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.report import results as results_lib
from moon_jax.report.document import Listing
from moon_jax.report.document import Page
from moon_jax.report.table_file import Block
from moon_jax.report.table_file import Table
from moon_jax.rundir.identity import FREE_FIELDS
from moon_jax.sweep.grid import Sweep


def make(directory: pathlib.Path, replacing: Mapping[str, Any]) -> Table:
  """Returns a table of all runs in a directory that have ended.

  Rows are the settings in which runs differ. FedAvg is the baseline.

  Args:
    directory: holds one work directory per run.
    replacing: settings of the command line, which must be none of runs.

  Raises:
    UserError: if there are no runs, or settings to replace.
  """
  if names := [name for name in replacing if name != 'data_dir']:
    raise UserError(f'--{names[0]} does not change the runs in {directory}, '
                    'which have ended; remove it')
  configs = [results_lib.config_of(path.parent)
             for path in sorted(directory.glob('*/config.json'))
             if results_lib.read(path.parent)]
  if not configs:
    raise UserError(f'{directory} must hold files of tables, or directories of '
                    'runs that have ended, got none')
  axes = tuple(
      field.name for field in dataclasses.fields(Config)
      if field.name not in FREE_FIELDS
      and len({getattr(config, field.name) for config in configs}) > 1)
  sweep = Sweep(tuple(configs), axes)
  return Table(directory.absolute().name, '', '',
               (Block(sweep, {'algorithm': 'fedavg'}, {}),), (),
               f'Runs in {directory.absolute().name}')


def index(pages: Sequence[tuple[Page, str]]) -> Page:
  """Returns a page with links to others.

  Args:
    pages: each with the name of its file.
  """
  return Page('Tables', '', (Listing(tuple(
      f'[{page.title}]({name}){": " * bool(page.banner)}{page.banner}'
      for page, name in pages)),), ())
