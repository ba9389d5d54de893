"""Published tables: `moon-jax show TABLE...`, our results beside them."""

import collections
from collections.abc import Container, Mapping, Sequence
import pathlib
import re
import shlex
import shutil

from moon_jax.cli import grids
from moon_jax.config import Config
from moon_jax.data.io import files as files_lib
from moon_jax.errors import UserError
from moon_jax.results import arms as arms_lib
from moon_jax.results import page as page_lib
from moon_jax.results import read, table_file, table_page
from moon_jax.results.arms import Key
from moon_jax.results.page import Page
from moon_jax.results.read import Run
from moon_jax.results.table_file import Table
from moon_jax.runs import plan, values
from moon_jax.runs import run as run_lib
from moon_jax.runs.grid import Sweep


def run(config: Config, paths: Sequence[str], given: Container[str], *,
        budget: str = 'full', train: bool = False, out: str = '',
        dry_run: bool = False) -> None:
  """Shows tables with results, and may train their missing runs before.

  `paths` are tables, see `read.tables`, and directories of runs; `given` are
  the settings that are named on the command line. The keywords are flags of
  the command.
  """
  workdir = grids.directory(config)
  if 'flagfile' in given:
    raise UserError('flagfile', 'cannot be given, since the files of tables '
                    'name flag files themselves', '', 'Remove it')
  directory = page_lib.directory(out) if out else None
  replacing = grids.given(config, given)
  tables, further = _read(paths, budget, replacing)
  # Tables of times have runs that trained alone, in a directory of their own.
  ended: dict[bool, dict[Key, Run]] = {}
  for is_timed, place in (False, workdir), (True, f'{workdir}/alone'):
    chosen = [table for table in tables if table.pages != ('data',)
              and (table.headline == 'time') == is_timed]
    find = lambda: arms_lib.find([
        *filter(pathlib.Path.is_dir, [pathlib.Path(place)]), *further])
    ended[is_timed] = find() if chosen else {}
    missing = (_missing(chosen, ended[is_timed]) if train or dry_run
               else None)
    if dry_run and (chosen or not is_timed):
      print(plan.dry_run(run_lib.Runs(
          missing.configs, missing.axes, place), int(is_timed)) if missing
            else 'all runs have ended')
    elif missing:
      run_lib.run_sweep(missing, place, int(is_timed))
      ended[is_timed] = find()
  if dry_run:
    return
  pages = {}
  for table in tables:
    arms = [] if table.pages == ('data',) else arms_lib.of_table(
        table, ended[table.headline == 'time'])
    pages[_stem(table)] = table_page.make(
        table, arms, _command(paths, budget, replacing), config.data_dir)
  if directory is None:
    return _print(pages.values())
  for stem, page in pages.items():
    print(f'{page.title}: {page.write(directory, stem)}', flush=True)
  if len(pages) > 1:
    index = Page('Tables', '', ['\n'.join(
        f'- [{page.title}]({stem}.html): {page.banner}'
        for stem, page in pages.items())])
    print(f'all pages: {index.write(directory, "index")}')


def _print(pages):
  """Prints pages without their figures."""
  from rich.console import Console
  from rich.markdown import Markdown

  console = Console(width=shutil.get_terminal_size().columns)
  for page in pages:
    console.print(Markdown(page._replace(parts=[
        part for part in page.parts if isinstance(part, str)
        and part != '## Curves']).markdown()))


def _read(paths, budget, replacing) -> tuple[list[Table], list[pathlib.Path]]:
  """Returns the tables, and the directories of runs, that paths name."""
  files = {path: read.tables(path) for path in paths}
  tables = [table_file.read(str(file), budget, replacing)
            for inside in files.values() for file in inside]
  for stem, count in collections.Counter(map(_stem, tables)).items():
    if count > 1:
      raise UserError('', f'{" ".join(paths)} must have pages of different '
                      'names', f'{stem} {count} times',
                      'Show them one by one, each with its own --out')
  return tables, [files_lib.user_path(path)
                  for path, inside in files.items() if not inside]


def _stem(table):
  """Returns the name of the files of a table's page."""
  return '-'.join(filter(None, [table.name, table.budget, table.changed]))


def _missing(tables: Sequence[Table], ended: Mapping[Key, Run]
             ) -> Sweep | None:
  """Returns the runs that have not ended, each once; None if there are none."""
  configs = [config for table in tables for config in table.sweep.configs]
  first: dict[Key, Config] = {}
  for key, config in zip(arms_lib.keys(configs), configs):
    first.setdefault(key, config)
  missing = tuple(config for key, config in first.items() if key not in ended)
  axes = dict.fromkeys(axis for table in tables for axis in table.sweep.axes)
  return Sweep(missing, tuple(axes)) if missing else None


def _command(paths, budget, replacing) -> str:
  """Returns the command of a page, without directories of this machine."""
  settings = replacing | ({} if budget == 'full' else {'budget': budget})
  if 'data_dir' in settings:
    settings['data_dir'] = 'DATA_DIR'
  # Without directories above the project's.
  shown = [re.sub(r'^/(.*?/)?(?=experiments/|[^/]*$)', '', path.rstrip('/'))
           for path in paths]
  return shlex.join(['moon-jax', 'show', *shown, *(
      f'--{name}={values.show(value)}' for name, value in settings.items())])
