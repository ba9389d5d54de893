"""Reads flag files alone, without the rest of a command line."""

from collections.abc import Sequence
import dataclasses
from typing import Any

from absl import flags

from moon_jax.cli import command_line
from moon_jax.cli import flag_errors
from moon_jax.cli import words as words_lib
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.sweep import values


def read(words: Sequence[str], where: str,
         only_runs: bool = True) -> dict[str, Any]:
  """Returns the settings of a run that flag files give, by name.

  Args:
    words: the files, as on a command line: --flagfile=FILE.
    where: the beginning of error messages.
    only_runs: whether flags that are not settings of a run are errors; they are
      ignored otherwise.

  Raises:
    UserError: if a file is missing or has an invalid flag.
  """
  own = flags.FlagValues()
  command_line.define_config(own)
  try:
    rest = own(['', *words_lib.expanded(words, own)], known_only=not only_runs)
  except (flags.Error, OSError, ValueError, RecursionError) as error:
    reason = flag_errors.message(error, values.TYPES, [
        name for name, kind in values.TYPES.items() if kind is bool])
    raise UserError(f'{where}: the flag file must exist and hold flags of a '
                    f'run, got: {reason}') from error
  if only_runs and len(rest) > 1:
    raise UserError(f'{where}: the lines of a flag file must be flags, which '
                    f'start with --, got {rest[1]!r}')
  return {field.name: own[field.name].value
          for field in dataclasses.fields(Config) if own[field.name].present}
