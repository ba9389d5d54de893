"""From a command line to trained runs, and from these to the files of pages."""

import collections
from collections.abc import Container, Mapping, Sequence
import os
import pathlib
import re
import shlex

from moon_jax.cli import grids, toml_file
from moon_jax.config import Config
from moon_jax.data.io import files as files_lib
from moon_jax.errors import UserError
from moon_jax.results import arms as arms_lib
from moon_jax.results import table_file, table_page
from moon_jax.results.arms import Key
from moon_jax.results.page import Page
from moon_jax.results.read import Run
from moon_jax.results.table_file import Table
from moon_jax.runs import directory as directory_lib
from moon_jax.runs import plan, values
from moon_jax.runs import sweep as sweep_lib
from moon_jax.runs.grid import Sweep

_PAGE_FILES = '.html', '.htm', '.md', '.pdf', '.svg', '.png', '.txt'


def run(config: Config, paths: Sequence[str], given: Container[str], *,
        budget: str = 'full', train: bool = True, runs: Sequence[str] = (),
        out: str = '', dry_run: bool = False) -> None:
  """Trains the missing runs of tables and writes their pages.

  `paths` are files of tables, directories of such files, or directories of
  runs; `given` are the flags that are named on the command line. The keywords
  are the command's own flags.
  """
  workdir = grids.directory(config)
  if 'flagfile' in given:
    raise UserError('--flagfile cannot be given, since the files of tables '
                    'name flag files themselves; remove it')
  replacing = grids.given(config, given)
  tables, directories = _read(paths, budget, replacing)
  directory = _directory(out, workdir, directories if not (
      tables or 'workdir' in given) else ())
  # Tables of times have runs that trained alone, in a directory of their own.
  ended: dict[bool, dict[Key, Run]] = {}
  for is_timed, place, further in (
      (False, workdir, [*map(files_lib.user_path, runs), *directories]),
      (True, f'{workdir}/alone', [])):
    chosen = [table for table in tables if table.pages != ('data',)
              and (table.headline == 'time') == is_timed]
    find = lambda: arms_lib.find([
        *filter(pathlib.Path.is_dir, [pathlib.Path(place)]),
        *further])
    ended[is_timed] = find() if chosen else {}
    missing = (_missing(chosen, ended[is_timed]) if train or dry_run
               else None)
    if dry_run and (chosen or not is_timed):
      print(plan.dry_run(missing, place, int(is_timed)) if missing
            else 'all runs have ended')
    elif missing:
      sweep_lib.run_sweep(missing, place, int(is_timed))
      ended[is_timed] = find()
  if dry_run:
    return
  for path in directories:
    if names := [name for name in replacing if name != 'data_dir']:
      raise UserError(f'--{names[0]} does not change the runs in {path}, which '
                      'have ended; remove it')
  arms_of = lambda table: [] if table.pages == ('data',) else arms_lib.of_table(
      table, ended[table.headline == 'time'])
  # A page of a directory shows its own runs, whatever runs others hold.
  sources = [*((table, arms_of(table)) for table in tables),
             *map(arms_lib.of_directory, directories)]
  written = []
  for table, arms in sources:
    page = table_page.make(table, arms, _command(paths, budget, replacing),
                      config.data_dir)
    path = _write(page, directory, _stem(table))
    written.append((page, path.name))
    print(f'{page.title}: {path}', flush=True)
  if len(written) > 1:
    index = Page('Tables', '', ['\n'.join(
        f'- [{page.title}]({name}): {page.banner}' for page, name in written)])
    print(f'all pages: {_write(index, directory, "index")}')


def _directory(out, workdir, directories) -> pathlib.Path:
  """Returns the directory of pages: that of runs, if all pages are of runs."""
  if out:
    path = files_lib.user_path(out, 'out')
    if path.suffix.lower() in _PAGE_FILES and not path.is_dir():
      raise UserError(f'--out={out} must be a directory, which gets NAME.html '
                      'and NAME.md of each table; write '
                      f'--out={path.with_suffix("")}')
    return path
  if len(directories) > 1:
    workdir = os.path.commonpath([path.absolute() for path in directories])
  elif directories:
    workdir = directories[0]
  return pathlib.Path(workdir) / 'reports'


def _read(paths, budget, replacing) -> tuple[list[Table], list[pathlib.Path]]:
  """Returns the tables, and the directories of runs, that paths name."""
  if not paths:
    raise UserError('name one or more tables, such as experiments/tables/'
                    'mu.toml, a directory of tables, or a directory of runs')
  files, directories = [], []
  for text in paths:
    path = files_lib.user_path(text)
    inside = [
        file for file in sorted(path.glob('*.toml'))
        if not toml_file.content(file).keys() <= {*table_file.BUDGETS}]
    files += inside if path.is_dir() else [path]
    directories += [path] * (path.is_dir() and not inside)
  tables = [table_file.read(str(file), budget, replacing) for file in files]
  stems = [*map(_stem, tables), *(path.absolute().name for path in directories)]
  for stem, count in collections.Counter(stems).items():
    if count > 1:
      raise UserError(f'{count} of {" ".join(paths)} have a page named {stem}; '
                      'make them one by one, each with its own --out')
  return tables, directories


def _stem(table):
  """Returns the name of the files of a table's page."""
  return '-'.join(filter(None, [table.name, table.budget, table.changed]))


def _missing(tables: Sequence[Table], found: Mapping[Key, Run]
             ) -> Sweep | None:
  """Returns the runs that have not ended, each once; None if there are none."""
  configs = [config for table in tables for config in table.sweep.configs]
  first: dict[Key, Config] = {}
  for key, config in zip(arms_lib.keys(configs), configs):
    first.setdefault(key, config)
  missing = tuple(config for key, config in first.items() if key not in found)
  axes = dict.fromkeys(axis for table in tables for axis in table.sweep.axes)
  return Sweep(missing, tuple(axes)) if missing else None


def _write(page, out, stem):
  """Writes STEM.html, which it returns, STEM.md and the figures in STEM."""
  path = out / f'{stem}.html'
  files = {path: page.html(), out / f'{stem}.md': page.markdown(stem)}
  files |= {out / stem / f'{figure.name}.svg': figure.svg
            for figure in page.figures}
  try:
    for file, text in files.items():
      file.parent.mkdir(parents=True, exist_ok=True)
      directory_lib.write_atomically(file, text.encode())
  except OSError as error:
    raise UserError(f'--out={out} must be writable, got '
                    f'{error.strerror or error}; name another directory'
                    ) from error
  return path


def _command(paths, budget, replacing) -> str:
  """Returns the command of a page, without directories of this machine."""
  settings = replacing | ({} if budget == 'full' else {'budget': budget})
  if 'data_dir' in settings:
    settings['data_dir'] = 'DATA_DIR'
  # Without directories above the project's.
  shown = [re.sub(r'^/(.*?/)?(?=experiments/|[^/]*$)', '', path.rstrip('/'))
           for path in paths]
  return shlex.join(['moon-jax', 'report', *shown, *(
      f'--{name}={values.show(value)}' for name, value in settings.items())])
