"""From a command line to a sweep."""

from collections.abc import Container, Sequence
import dataclasses
import functools
import hashlib
import operator
import re
from typing import Any, NamedTuple

from moon_jax.cli import toml_file
from moon_jax.config import Config, PARTS
from moon_jax.data.io import files
from moon_jax.data.io.files import HASH_DIGITS
from moon_jax.errors import require, UserError
from moon_jax.runs import grid as grid_lib
from moon_jax.runs import identity, values
from moon_jax.runs.grid import Sweep


class Named(NamedTuple):
  """A sweep, and the name, title and description of its table."""

  sweep: Sweep
  name: str
  title: str = ''
  description: str = ''


class Blocks(NamedTuple):
  """What a command line and a file say of runs, before it is multiplied."""

  base: Config  # of the settings that a block does not have
  settings: list[dict[str, Any]]  # of each block; a tuple is an axis
  file: toml_file.SweepFile
  given: dict[str, Any]  # what the command line gives; a tuple is an axis
  # Whether the command line changes the runs of the file.
  is_changed: bool


def given(config: Config, named: Container[str]) -> dict[str, Any]:
  """Returns the settings, and arguments of parts, of a command line by name.

  `named` are the flags that it names.
  """
  return {name: getattr(config, name) for name in values.TYPES
          if name in named and name != 'workdir'} | {
      name: value for kind in PARTS
      for argument, value in getattr(config, kind).arguments
      if (name := f'{kind}.{argument}') in named}


def blocks(config: Config, named: Container[str], grids: Sequence[str],
           path: str = '') -> Blocks:
  """Returns the blocks of a command line.

  `grids` are the values of --grid, and `path` is a TOML file, or ''.
  The flags `named` on the command line replace settings and axes of the file.
  """
  fixed = given(config, named)
  axes: dict[str, tuple] = {}
  for text in grids:
    name, axis = values.parse_axis(text)
    if name in axes:
      raise UserError('', '--grid must name each flag once', f'{name} twice',
                      f'Write --grid {name}=VALUE,VALUE')
    if name in fixed:
      raise UserError(
          '', f'--grid {text} and --{name}={values.show(fixed[name])} exclude '
          'each other', 'both', 'Remove one of them')
    axes[name] = axis
  file = toml_file.read(path) if path else toml_file.SweepFile()
  for flag in 'flagfile', 'recipe':
    if flag in named and 'flagfile' in file.keys:
      raise UserError(
          '', f'--{flag} must not be given with {path}, which names a flag '
          'file', 'both', f'Remove --{flag}, or the key flagfile of the file')
  return Blocks(
      dataclasses.replace(config, **{'workdir': '', **file.base}),
      [{**block, **fixed, **axes} for block in file.blocks], file,
      {**fixed, **axes},
      bool(axes or {name.partition('.')[0] for name in fixed} & {
          *identity.IDENTITY}))


def build(config: Config, named: Container[str], grids: Sequence[str],
          path: str = '') -> Named:
  """Returns the sweep of a command line; see `blocks`."""
  made = blocks(config, named, grids, path)
  file = made.file
  sweep = functools.reduce(operator.or_, grid_lib.each(
      made.base, made.settings, f'{path}, run' if path else ''))
  digest = hashlib.sha256(repr(
      sorted(map(grid_lib.key, sweep.configs))).encode()
                          ).hexdigest()[:HASH_DIGITS]
  parts = [file.name]
  if not file.name:
    dataset = identity.dataset_in_names(sweep.configs[0])
    parts = [dataset, *sweep.axes[:4], digest]
  elif made.is_changed:
    parts.append(digest)
  return Named(sweep, '-'.join(parts), file.keys.get('title', ''),
               file.keys.get('description', ''))


def directory(config: Config) -> str:
  """Returns the directory that holds the directories of the runs."""
  return str(files.user_path(config.workdir or 'runs', 'workdir'))


def path_of(words: Sequence[str]) -> str:
  """Returns the TOML file among the arguments that are not flags; '' if none.
  """
  others = [word for word in words if not word.endswith('.toml')]
  require(not others and len(words) < 2, '',
          'arguments must be flags, and at most one TOML file of runs',
          ' '.join(map(repr, others or words)),
          'Write --FLAG=VALUE without spaces, and --FLAG or --noFLAG for a '
          'switch')
  return words[0] if words else ''


def part(text: str) -> tuple[int, int]:
  """Returns the index and the number of parts of --part=I/N."""
  match = re.fullmatch(r'(\d{1,6})/(\d{1,6})', text)
  index, count = map(int, match.groups()) if match else (0, 0)
  require(index < count, 'part', 'must be I/N with I from 0 to N - 1',
          repr(text), 'Array jobs are numbered from 0: --array=0-3 for 4 parts')
  return index, count
