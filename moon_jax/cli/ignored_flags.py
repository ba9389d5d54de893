"""Checks flags that the configured method ignores.

A flag on the command line that has no effect is an error. Flag files are shared
by methods, so that their flags may have no effect; but a mu chosen for one
method must not silently reach another.
"""

from collections.abc import Sequence
import re

from moon_jax.algorithms import registry
from moon_jax.cli import words as words_lib
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.models import user as user_model


def check(config: Config, words: Sequence[str]) -> None:
  """Checks a configuration against the command line that it came from.

  Args:
    config: as parsed, with a mu of -1 unresolved.
    words: the words of the command line, flag files not expanded.

  Raises:
    UserError: if a flag on the command line has no effect, or the mu of a flag
      file belongs to another method.
  """
  given = words_lib.names(words)
  for name in registry.ignored_flags(config):
    if name in given:
      raise UserError(
          f'--{name}={getattr(config, name)} has no effect with '
          f'{registry.flags_of(config)}; remove it')
  for name in user_model.ignored_flags(config):
    if name in given:
      raise UserError(
          f'--{name}={getattr(config, name)} has no effect with '
          f'--model={config.model}; remove it, or give --model_args')
  if 'mu' in given or config.mu == -1 or 'mu' not in (
      registry.method(config).flags):
    return
  theirs = _algorithm_of_files(words)
  if config.algorithm != theirs:
    raise UserError(
        f'--mu={config.mu} in the flag file is for --algorithm={theirs}; give '
        f'--mu for --algorithm={config.algorithm}, or --mu=-1 for its default '
        f'of {registry.default_mu(config):g}')


def _algorithm_of_files(words):
  """Returns the algorithm that the flag files name, or the default."""
  expanded = words_lib.expanded(words_lib.flag_files(words))
  found = re.findall(r'(?:^|\n)--?algorithm[= \n]+(\S+)', '\n'.join(expanded))
  return found[-1] if found else Config.algorithm
