"""From a command line to trained runs, and from these to the files of pages."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import pathlib
import shlex
from typing import Any
from typing import NamedTuple

from moon_jax.cli import words as words_lib
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.report import groups
from moon_jax.report import pages
from moon_jax.report import table_file
from moon_jax.report.groups import Key
from moon_jax.report.pages import Section
from moon_jax.report.table_file import Block
from moon_jax.report.table_file import Table
from moon_jax.results.page import Page
from moon_jax.results.read import Run
from moon_jax.rundir import workdir as workdir_lib
from moon_jax.rundir.identity import FREE_FIELDS
from moon_jax.sweep import command as sweep_command
from moon_jax.sweep import plan
from moon_jax.sweep import run as run_lib
from moon_jax.sweep import values
from moon_jax.sweep.grid import Sweep


class Options(NamedTuple):
  """The flags of the command that are not those of runs.

  Attributes:
    budget: see `table_file.read`.
    is_training: whether to train missing runs.
    runs: further directories with finished runs.
    out: directory of the pages, or ''.
    is_dry: whether to print the plan only.
  """

  budget: str
  is_training: bool
  runs: tuple[str, ...]
  out: str
  is_dry: bool


class _Place(NamedTuple):
  """Where the runs of some tables are.

  Tables of times have runs that trained alone, in a directory of their own.
  """

  workdir: str  # where missing runs train
  max_runs: int  # see `sweep.run.run`
  others: list[pathlib.Path]  # further directories with finished runs
  tables: list[Table]

  def find(self) -> dict[Key, Run]:
    """Returns the runs that have ended."""
    path = pathlib.Path(self.workdir)
    return groups.find([*([path] if path.is_dir() else []), *self.others])


def run(config: Config, paths: Sequence[str], words: Sequence[str],
        options: Options) -> None:
  """Trains the missing runs of tables and writes their pages.

  Args:
    config: the values of all flags of runs.
    paths: files of tables, directories of such files, or directories of runs.
    words: the words of the command line.
    options: the other flags.

  Raises:
    UserError: if a file or a flag is invalid, or a run is impossible.
  """
  workdir = sweep_command.directory(config)
  given = words_lib.names(words)
  if 'flagfile' in given:
    raise UserError('--flagfile cannot be given, since the files of tables '
                    'name flag files themselves; remove it')
  replacing = {name: getattr(config, name) for name in values.TYPES
               if name in given and name != 'workdir'}
  tables, directories = _read(paths, options.budget, replacing)
  elsewhere = [pathlib.Path(path).expanduser() for path in options.runs]
  places = [_Place(workdir, 0, [*elsewhere, *directories], [
      table for table in tables
      if table.pages != ('data',) and table.headline != 'time'])]
  timed = [table for table in tables if table.headline == 'time']
  if timed:
    places.append(_Place(f'{workdir}/alone', 1, [], timed))
  for place in places:
    missing = _missing(place.tables, place.find())
    if options.is_dry:
      print(plan.dry_run(missing, place.workdir, place.max_runs) if missing
            else 'all runs have ended')
    elif missing and options.is_training:
      run_lib.run(missing, place.workdir, place.max_runs)
  if options.is_dry:
    return
  found = [place.find() for place in places]
  tables += [_of_runs(path, replacing) for path in directories]
  out = pathlib.Path(options.out or pathlib.Path(workdir) / 'reports')
  shown = map(_shown, _without_places(words))
  command = ' '.join(['python -m moon_jax.report', *shown])
  written = []
  for table in tables:
    ended = found[-1 if table.headline == 'time' else 0]
    page = make_page(table, ended, command, config.data_dir)
    written.append((table, page, write(page, out, _stem(table))))
    print(f'{page.title}: {written[-1][2]}', flush=True)
  if len(written) > 1:
    index = [(page, path.name) for _, page, path in written]
    print(f'all pages: {write(pages.index(index), out, "index")}')


def _read(paths, budget, replacing) -> tuple[list[Table], list[pathlib.Path]]:
  """Returns the tables, and the directories of runs, that paths name."""
  if not paths:
    raise UserError('name one or more tables, such as experiments/tables/'
                    'mu.toml, a directory of tables, or a directory of runs')
  tables, directories = [], []
  for text in paths:
    path = pathlib.Path(text).expanduser()
    if not path.is_dir():
      tables.append(table_file.read(str(path), budget, replacing))
      continue
    files = sorted(path.glob('*.toml'))
    budgets = {table_file.budgets_file(file) for file in files}
    if files:
      tables += [table_file.read(str(file), budget, replacing)
                 for file in files if file.name not in budgets]
    else:
      directories.append(path)
  return tables, directories


def _missing(tables: Sequence[Table], found: Mapping[Key, Run]
             ) -> Sweep | None:
  """Returns the runs that have not ended, each once; None if there are none."""
  from moon_jax.simulation import checks  # imports JAX

  configs: dict[Key, Config] = {}
  axes: dict[str, None] = {}
  for table in tables:
    sweep = table.sweep
    axes |= dict.fromkeys(sweep.axes)
    for config in sweep.configs:
      if (key := groups.key(config)) not in found:
        # Without settings that have no effect, as the page's commands.
        configs.setdefault(key, checks.validate(
            groups.normalized(config)))
  return Sweep(tuple(configs.values()), tuple(axes)) if configs else None


def make_page(table: Table, found: Mapping[Key, Run], command: str,
              data_dir: str) -> Page:
  """Returns the page of a table, with the sections that it adds.

  Args:
    table: the table.
    found: the runs that have ended.
    command: the command of the page.
    data_dir: the directory of the data sets.
  """
  extra: Section = []
  if 'data' in table.pages:
    from moon_jax.report import data_page

    extra += data_page.sections(table.sweep.configs)
    if table.pages == ('data',):
      return pages.without_runs(table, extra, command)
  if 'projections' in table.pages:
    extra += _projections(groups.of_table(table, found), data_dir)
  return pages.make(table, found, command, extra)


def _projections(arms, data_dir):
  """Returns the pictures of the first run of each arm that kept its model."""
  from moon_jax.report import projections

  runs = [next(iter(arm.runs.values()), None) for arm in arms]
  kept = [run.path for run in runs
          if run and (run.path / 'model.safetensors').exists()]
  return projections.section(kept, data_dir) if kept else [
      '## Projections',
      'No finished run has its final model, model.safetensors.']


def _of_runs(directory: pathlib.Path, replacing: Mapping[str, Any]) -> Table:
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
  configs = [groups.config_of(run) for run in groups.ended(directory)]
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


def write(page: Page, out: pathlib.Path, stem: str) -> pathlib.Path:
  """Writes STEM.html, STEM.md and the figures STEM/NAME.svg; returns the first.

  Raises:
    UserError: if the directory cannot be written.
  """
  path = out / f'{stem}.html'
  files = {path: page.html(), out / f'{stem}.md': page.markdown(stem)}
  files |= {out / stem / f'{figure.name}.svg': figure.svg
            for figure in page.figures}
  try:
    for file, text in files.items():
      file.parent.mkdir(parents=True, exist_ok=True)
      workdir_lib.write_atomically(file, text.encode())
  except OSError as error:
    raise UserError(f'--out={out} must be writable, got '
                    f'{error.strerror or error}; name another directory'
                    ) from error
  return path


def _stem(table):
  return '-'.join(filter(None, [table.name, table.budget, table.changed]))


def _without_places(words: Sequence[str]) -> list[str]:
  """Returns the words of the command without directories of this machine."""
  kept, skips = [], False
  for word in words:
    name = next((n for n in ('data_dir', 'workdir', 'runs', 'out')
                 if word.lstrip('-').partition('=')[0] == n
                 and word.startswith('-')), '')
    if skips:
      skips = False
    elif not name:
      kept += [word] if word.lstrip('-') != 'notrain' else []
    else:
      skips = '=' not in word
      kept += ['--data_dir=DATA_DIR'] if name == 'data_dir' else []
  return kept


def _shown(word: str) -> str:
  """Returns a word of a command without directories above the project's."""
  path = pathlib.Path(word)
  if path.is_absolute():
    parts = path.parts
    first = (parts.index('experiments') if 'experiments' in parts
             else len(parts) - 1)
    word = str(pathlib.Path(*parts[first:]))
  return shlex.quote(word)
