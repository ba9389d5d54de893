"""Reads the words of a command line, and checks that they have an effect.

A flag on the command line that has no effect is an error. Flag files are shared
by methods, so that their flags may have no effect; but a mu chosen for one
method must not silently reach another.
"""

from collections.abc import Sequence
import re
from typing import NamedTuple

from absl import flags

from moon_jax.config import Config
from moon_jax.errors import UserError

_MARK = '\ufeff'  # byte-order mark, with which some editors begin a file


class Words(NamedTuple):
  """The words of a command line.

  Attributes:
    expanded: the words, with the lines of flag files in place of their names.
    of_files: the lines of flag files.
    given: the flags that are named on the command line itself.
  """

  expanded: list[str]
  of_files: list[str]
  given: set[str]


def read(words: Sequence[str], own: flags.FlagValues | None = None) -> Words:
  """Reads the flag files of a command line.

  Args:
    words: of the command line.
    own: the flags that are defined; None for those of the command line.

  Raises:
    absl.flags.Error: if a flag file cannot be opened.
  """
  own = flags.FLAGS if own is None else own
  expanded, of_files, rest = [], [], [*words]
  while rest and rest[0] != '--':
    count = 1 + bool(re.fullmatch(r'--?flagfile', rest[0]))
    found, rest = rest[:count], rest[count:]
    if re.match(r'--?flagfile\b', found[0]):
      found = [*filter(None, map(_line, own.read_flags_from_files(found)))]
      of_files += found
    expanded += found
  return Words([*expanded, *rest], of_files, names(words))


def _line(line):
  bare = line.removeprefix(_MARK).strip()
  is_comment = bare.startswith(('#', '//'))  # absl removes those without mark
  return '' if line != bare and is_comment else bare


def names(words: Sequence[str]) -> set[str]:
  """Returns the flags that are named on a command line."""
  found = [re.match(r'--?(\w+)', word) for word in words]
  return {name for match in found if match
          for name in (match[1], match[1].removeprefix('no'))}


def flag_files(words: Sequence[str]) -> list[str]:
  """Returns the words of a command line that name flag files."""
  return [word for i, word in enumerate(words)
          if re.match(r'--?flagfile\b', word)
          or i and re.fullmatch(r'--?flagfile', words[i - 1])]


def check(config: Config, words: Words) -> None:
  """Checks a configuration against the command line that it came from.

  Args:
    config: as parsed, with a mu of -1 unresolved.
    words: of the command line.

  Raises:
    UserError: if a flag on the command line has no effect, or the mu of a flag
      file belongs to another method.
  """
  from moon_jax.algorithms import (
    registry,  # these modules import JAX
    unused,
  )

  for name, reason in unused.ignored(config).items():
    if name in words.given:
      end = ', or give --model_args' * reason.startswith('--model=')
      raise UserError(f'--{name}={getattr(config, name)} has no effect with '
                      f'{reason}; remove it{end}')
  if 'mu' in words.given or config.mu == -1 or 'mu' not in (
      registry.method(config).flags):
    return
  found = re.findall(r'(?:^|\n)--?algorithm[= \n]+(\S+)',
                     '\n'.join(words.of_files))
  theirs = found[-1] if found else Config.algorithm
  if config.algorithm != theirs:
    raise UserError(
        f'--mu={config.mu} in the flag file is for --algorithm={theirs}; give '
        f'--mu for --algorithm={config.algorithm}, or --mu=-1 for its default '
        f'of {registry.default_mu(config):g}')
