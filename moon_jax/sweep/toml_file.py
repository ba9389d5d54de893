"""Files of --sweep: the runs of a table, in TOML.

docs/sweeps.md describes the format, with an example.
"""

from collections.abc import Iterable
import pathlib
import tomllib
from typing import Any, NamedTuple

from moon_jax.cli import command_line
from moon_jax.errors import UserError
from moon_jax.sweep import values as values_lib

# Keys of a file that are not settings, and their types.
_KEYS = {'title': str, 'description': str, 'flagfile': str, 'runs': list}

# Keys that `moon_jax.report.table_file` reads, and their types. Sweeps train
# the runs of the file whatever they are.
_REPORT_KEYS = {
    'source': str, 'budgets': str, 'headline': str, 'pages': list,
    'panels': list, 'best_of': list, 'notes': list,
    'loss_divisor': int, 'baseline': dict, 'budget': dict, 'published': list}

_BLOCKS = ('runs', 'published')  # keys that are blocks [[KEY]]

# The report's keys of a block [[runs]].
_BLOCK_KEYS = {'baseline': dict, 'budget': dict}


class SweepFile(NamedTuple):
  """The content of a file of --sweep.

  Attributes:
    name: the name of the file without its ending.
    title: one line, or ''.
    description: a paragraph, or ''.
    base: the settings of the flag file by name; {} if there is none.
    has_flagfile: whether the file names a flag file.
    blocks: see `moon_jax.sweep.grid.from_blocks`.
    report: what `moon_jax.report` reads, as it is in the file.
    block_reports: the same for each block.
  """

  name: str
  title: str
  description: str
  base: dict[str, Any]
  has_flagfile: bool
  blocks: list[dict[str, Any]]
  report: dict[str, Any] = {}
  block_reports: list[dict[str, Any]] = []


def read(path: str) -> SweepFile:
  """Reads a file of --sweep.

  Raises:
    UserError: if the file is missing, is not TOML, has an unknown key or a
      value of the wrong type.
  """
  file = pathlib.Path(path)
  found = content(file)
  keys = _KEYS | _REPORT_KEYS
  check_types(found, keys, path)
  runs = found.get('runs', [{}])
  if not runs or not all(isinstance(block, dict) for block in runs):
    raise UserError(f'{path}: runs must be one or more blocks [[runs]], got '
                    f'{runs!r}; remove it, or add blocks')
  top = settings(_without(found, keys), path, [*keys])
  blocks = []
  for i, block in enumerate(runs, 1):
    where = f'{path}, block {i} of [[runs]]'
    check_types(block, _BLOCK_KEYS, where)
    blocks.append(settings(_without(block, _BLOCK_KEYS), where))
  base = {}
  if flagfile := found.get('flagfile', ''):
    base = command_line.settings_of_file(file.parent / flagfile, path)
  return SweepFile(
      file.stem, found.get('title', ''), found.get('description', ''),
      base, bool(flagfile),
      [block | _without(top, block) for block in blocks],
      _only(found, _REPORT_KEYS), [_only(run, _BLOCK_KEYS) for run in runs])


def check_types(content: dict[str, Any], keys: dict[str, type], where: str
                ) -> None:
  """Checks the types of the keys that are not settings.

  Raises:
    UserError: if a value has another type; the message begins with `where`.
  """
  for key, kind in keys.items():
    if key in content and not isinstance(content[key], kind):
      name = f'blocks [[{key}]]' if key in _BLOCKS else {
          dict: 'a table', list: 'a list', int: 'an integer', str: 'a string'
          }.get(kind, 'a number')
      raise UserError(f'{where}: {key} must be {name}, got {content[key]!r}')


def _without(content, keys):
  return {key: value for key, value in content.items() if key not in keys}


def _only(content, keys):
  return {key: value for key, value in content.items() if key in keys}


def content(file: pathlib.Path) -> dict[str, Any]:
  """Returns the content of a TOML file.

  Raises:
    UserError: if the file is missing or is not TOML.
  """
  try:
    return tomllib.loads(file.expanduser().read_text(encoding='utf-8-sig'))
  except (OSError, RuntimeError) as error:  # RuntimeError: no such home
    raise UserError(f'{file} must be a file that can be read, got '
                    f'{getattr(error, "strerror", None) or error}') from error
  except (ValueError, RecursionError) as error:
    raise UserError(f'{file} must be TOML, got: {error}. Text stands '
                    'in quotes, and lists in [ ]') from error


def settings(values: dict[str, Any], where: str, others: Iterable[str] = ()
             ) -> dict[str, Any]:
  """Returns settings in their types: lists, which are axes, as tuples.

  Args:
    values: the settings by name.
    where: the beginning of error messages.
    others: further names, for the suggestion of a similar one.

  Raises:
    UserError: if a name is unknown, or a value has the wrong type.
  """
  converted = {}
  for name, value in values.items():
    values_lib.check_name(name, where, [*values_lib.TYPES, *others])
    if name == 'workdir':
      raise UserError(f'{where}: workdir is not a setting of runs; give '
                      '--workdir=DIR on the command line')
    converted[name] = (values_lib.axis(name, value, where)
                       if isinstance(value, list)
                       else values_lib.convert(name, value, where))
  return converted
