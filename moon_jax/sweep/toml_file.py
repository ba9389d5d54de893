"""Files of --sweep: the runs of a table, in TOML.

docs/sweeps.md describes the format, with an example.
"""

import pathlib
import tomllib
from typing import Any
from typing import NamedTuple

from moon_jax.errors import UserError
from moon_jax.sweep import flag_files
from moon_jax.sweep import values as values_lib

# Keys of a file that are not settings, and their types.
_KEYS = {'title': str, 'description': str, 'flagfile': str, 'published': dict,
         'runs': list}


class SweepFile(NamedTuple):
  """The content of a file of --sweep.

  Attributes:
    name: the name of the file without its ending.
    title: one line, or ''.
    description: a paragraph, or ''.
    published: the table [published] as it is, {} if there is none.
    base: the settings of the flag file by name; {} if there is none.
    has_flagfile: whether the file names a flag file.
    blocks: see `moon_jax.sweep.grid.from_blocks`.
  """

  name: str
  title: str
  description: str
  published: dict[str, Any]
  base: dict[str, Any]
  has_flagfile: bool
  blocks: list[dict[str, Any]]


def read(path: str) -> SweepFile:
  """Reads a file of --sweep.

  Raises:
    UserError: if the file is missing, is not TOML, has an unknown key or a
      value of the wrong type.
  """
  file = pathlib.Path(path)
  content = _content(file)
  for key, kind in _KEYS.items():
    if key in content and not isinstance(content[key], kind):
      name = {dict: 'a table', list: 'blocks [[runs]]'}.get(kind, 'a string')
      raise UserError(f'{path}: {key} must be {name}, got {content[key]!r}')
  runs = content.get('runs', [{}])
  if not runs or not all(isinstance(block, dict) for block in runs):
    raise UserError(f'{path}: runs must be one or more blocks [[runs]], got '
                    f'{runs!r}; remove it, or add blocks')
  top = _settings({key: value for key, value in content.items()
                   if key not in _KEYS}, path, [*_KEYS])
  blocks = [_settings(block, f'{path}, block {i} of [[runs]]')
            for i, block in enumerate(runs, 1)]
  base = {}
  if flagfile := content.get('flagfile', ''):
    base = flag_files.read([f'--flagfile={file.parent / flagfile}'], path)
  return SweepFile(
      file.stem, content.get('title', ''), content.get('description', ''),
      content.get('published', {}), base, bool(flagfile),
      [block | {name: value for name, value in top.items()
                if name not in block} for block in blocks])


def _content(file):
  """Returns the file as a dict."""
  try:
    return tomllib.loads(file.expanduser().read_text(encoding='utf-8'))
  except (OSError, RuntimeError) as error:  # RuntimeError: no such home
    raise UserError(f'--sweep={file} must be a file that can be read, got '
                    f'{getattr(error, "strerror", None) or error}') from error
  except (ValueError, RecursionError) as error:
    raise UserError(f'--sweep={file} must be TOML, got: {error}. Text stands '
                    'in quotes, and lists in [ ]') from error


def _settings(values, where, others=()):
  """Returns settings in their types: lists, which are axes, as tuples."""
  settings = {}
  for name, value in values.items():
    values_lib.check_name(name, where, [*values_lib.TYPES, *others])
    if name == 'workdir':
      raise UserError(f'{where}: workdir is not a setting of runs; give '
                      '--workdir=DIR on the command line')
    settings[name] = (values_lib.axis(name, value, where)
                      if isinstance(value, list)
                      else values_lib.convert(name, value, where))
  return settings
