"""Files of runs: those of a table, in TOML.

docs/sweeps.md describes the format, with an example.
"""

from collections.abc import Iterable, Mapping, Sequence
import pathlib
import tomllib
from typing import Any, NamedTuple

from moon_jax.cli import command_line
from moon_jax.config import PARTS
from moon_jax.data.io import files
from moon_jax.errors import UserError
from moon_jax.runs import values as values_lib

# Keys of a file that are not settings, and their types. `results.table_file`
# reads all but the first seven; sweeps train the runs whatever they are.
_KEYS = {
    'title': str, 'description': str, 'flagfile': str, 'runs': list,
    'tune': str, 'tune_seeds': int, 'search': dict,
    'source': str, 'budgets': str, 'headline': str, 'pages': list,
    'panels': list, 'best_of': list, 'notes': list, 'baseline': dict,
    'budget': dict, 'published': list}

_BLOCKS = ('runs', 'published')  # keys that are blocks [[KEY]]

# Keys of a block [[runs]] that are not settings.
_BLOCK_KEYS = {'baseline': dict, 'budget': dict, 'search': dict}


class SweepFile(NamedTuple):
  """The content of a file of runs."""

  name: str = ''  # of the file, without its ending
  base: Mapping[str, Any] = {}  # the settings of its flag file, by name
  blocks: Sequence[dict[str, Any]] = ({},)  # see `moon_jax.runs.grid.each`
  keys: Mapping[str, Any] = {}  # what are not settings, as it is in the file
  block_keys: Sequence[dict[str, Any]] = ({},)  # the same for each block


def read(path: str) -> SweepFile:
  """Reads a file of runs.

  Raises:
    UserError: if the file is missing, is not TOML, has an unknown key or a
      value of the wrong type.
  """
  file = files.user_path(path)
  keys, others = _split(content(file), _KEYS, path)
  runs = keys.get('runs', [{}])
  if not runs or not all(isinstance(block, dict) for block in runs):
    raise UserError('', f'{path}: runs must be one or more blocks [[runs]]',
                    repr(runs), 'Remove it, or add blocks')
  top = settings(others, path, _KEYS)
  blocks, block_keys = [], []
  for i, block in enumerate(runs, 1):
    where = f'{path}, block {i} of [[runs]]'
    own_keys, own = _split(block, _BLOCK_KEYS, where)
    own = settings(own, where)
    # Axes of the block vary slower than those at the top.
    blocks.append(own | {name: top[name] for name in top if name not in own})
    block_keys.append(own_keys)
  base = {}
  if flagfile := keys.get('flagfile'):
    try:
      base = command_line.settings_of([f'--flagfile={file.parent / flagfile}'])
    except UserError as error:
      raise UserError('', f'{path}: the flag file must exist and hold flags of '
                      'a run', error) from error
  return SweepFile(file.stem, base, blocks, keys, block_keys)


def _split(content, keys, where):
  """Returns the values of some keys, whose types it checks, and the others."""
  check_types(content, keys, where)
  return ({key: content[key] for key in content if key in keys},
          {key: content[key] for key in content if key not in keys})


def check_types(content: Mapping[str, Any], keys: Mapping[str, type],
                where: str) -> None:
  """Checks the types of keys; messages begin with `where`."""
  for key, kind in keys.items():
    if key in content and not isinstance(content[key], kind):
      name = f'blocks [[{key}]]' if key in _BLOCKS else {
          dict: 'a table', list: 'a list', int: 'an integer', str: 'a string'
          }.get(kind, 'a number')
      raise UserError('', f'{where}: {key} must be {name}', repr(content[key]))


def content(file: pathlib.Path) -> dict[str, Any]:
  """Returns the content of a TOML file."""
  try:
    return tomllib.loads(file.read_text(encoding='utf-8-sig'))
  except OSError as error:
    raise UserError('', f'{file} must be a file that can be read',
                    error.strerror or error) from error
  except (ValueError, RecursionError) as error:
    raise UserError(
        '', f'{file} must be TOML', error, 'Put text in quotes and lists in '
        '[ ]. If the file has algorithm = ..., quote the key of its argument: '
        '"algorithm.mu" = 5') from error


def settings(values: dict[str, Any], where: str, others: Iterable[str] = ()
             ) -> dict[str, Any]:
  """Returns settings in their types: lists, which are axes, as tuples.

  Error messages begin with `where`, and may suggest a name of `others`.
  """
  converted = {}
  for name, value in _with_arguments(values):
    values_lib.check_name(name, where, [*values_lib.TYPES, *others])
    if name == 'workdir':
      raise UserError('', f'{where}: workdir is not a setting of runs', value,
                      'Give --workdir=DIR on the command line')
    converted[name] = (values_lib.axis(name, value, where)
                       if isinstance(value, list)
                       else values_lib.convert(name, value, where))
  return converted


def _with_arguments(values):
  """Yields names and values; algorithm.mu = 5 is a table in TOML."""
  for name, value in values.items():
    if name in PARTS and isinstance(value, dict):
      yield from ((f'{name}.{key}', x) for key, x in value.items())
    else:
      yield name, value
