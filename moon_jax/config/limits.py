"""Checks single settings, of configurations and of values in Python."""

import dataclasses
import functools
import math
import numbers
import typing
from typing import Any, SupportsIndex

from moon_jax.config import spelling
from moon_jax.config.parts import HUGE, TINY
from moon_jax.errors import setting, UserError

MAX_SEED = 2**32 - 1  # numpy's legacy generator takes 32 bits


def check(settings: Any) -> None:
  """Checks each field of a dataclass by its type and its metadata.

  The metadata is that of `moon_jax.config.flags.Facts`.

  Raises:
    UserError: naming the first field with an invalid value, its value and a
      remedy.
  """
  for field in dataclasses.fields(settings):
    if not field.metadata.get('is_part'):
      check_value(
          type(settings), field.name, getattr(settings, field.name))


def check_value(settings: type, name: str, value: Any) -> None:
  """Checks a value for a field of a dataclass; see `check`."""
  field, kind = _fields(settings)[name]
  choices = field.metadata.get('choices')
  if kind == int | None and value is not None:
    kind = int
  if choices and not (isinstance(value, str) and value in choices):
    raise UserError(name, f'must be one of {", ".join(choices)}', repr(value),
                    spelling.remedy(name, value, choices))
  if kind in (str, int, float, bool):
    _check_type(name, value, kind, field.metadata.get('if_fraction'))
  if isinstance(value, numbers.Real) or kind in (int, float):
    _check_range(name, value, field)


@functools.cache
def _fields(settings):
  """Returns the fields of a dataclass and their types, by name."""
  hints = typing.get_type_hints(settings)
  return {field.name: (field, hints[field.name])
          for field in dataclasses.fields(settings)}


def _check_range(name, value, field):
  at_least, above, below, hint = map(field.metadata.get, (
      'at_least', 'above', 'below', 'hint'))
  default = field.default
  most = MAX_SEED if 'seed' in name else field.metadata.get(
      'at_most', math.inf)
  if below is not None and not at_least <= value < below:
    limit = f'at least {at_least} and below {below}'
  elif at_least is not None and value < at_least:
    limit = f'at least {at_least}'
  elif above is not None and value <= above:
    limit = f'above {above}'
  elif isinstance(default, float) and value and not (
      TINY <= abs(value) <= HUGE):
    limit = f'0 or between {TINY} and {HUGE} in size'
  elif type(default) is int and value > most:
    limit = f'at most {most}'
  else:
    return
  raise UserError(name, f'must be {limit}', value, 'The default is '
                  + setting(name, default) + f'; {hint}' * bool(hint))


def _check_type(name, value, kind, remedy):
  """Accepts values that equal one of the type, and NaN as a float.

  The range of floats excludes NaN. Integers must have an integer type: ranges
  and shapes of arrays take no floats.
  """
  try:
    is_valid = isinstance(value, str) == (kind is str) and (
        kind(value) == value or (kind is float and math.isnan(value)))
    is_valid &= kind is not int or isinstance(value, SupportsIndex)
  except (TypeError, ValueError, OverflowError):
    is_valid = False
  if not is_valid:
    article = 'an' if kind is int else 'a'
    raise UserError(
        name, f'must be {article} {kind.__name__}', repr(value),
        'Pass functions and other values to moon_jax.Federation'
        if callable(value) else
        f'Pass {name}={int(value)}'
        if isinstance(value, float) and value.is_integer() else
        remedy or '' if kind is int and isinstance(value, numbers.Real) else '')
