"""Checks plain settings, of configurations and of values in Python.

`moon_jax.config.parts.Parameter` checks them as it checks arguments of parts.
"""

import dataclasses
import functools
import math
import numbers
import typing
from typing import Any

from annotated_types import Ge, Gt, Lt

from moon_jax.config.parts import Parameter

MAX_SEED = 2**32 - 1  # numpy's legacy generator takes 32 bits
_TYPES = bool, int, float, str


def check(settings: Any) -> dict[str, Any]:
  """Checks each field of a dataclass by its type and its metadata.

  The metadata is that of `moon_jax.config.flags.Facts`.

  Returns the values by name, plain ones in the types of their fields: a scalar
  of NumPy as a number of Python.

  Raises:
    UserError: naming the first field with an invalid value, its value and a
      remedy.
  """
  return {
      field.name: check_value(
          type(settings), field.name, getattr(settings, field.name))
      for field in dataclasses.fields(settings)
      if not field.metadata.get('is_part')}


def check_value(settings: type, name: str, value: Any) -> Any:
  """Checks and returns a value for a field of a dataclass; see `check`."""
  parameter, is_plain = _parameters(settings)[name]
  if parameter.kind is bool and isinstance(value, str):  # true, as in calls
    raise parameter.error('True or False', value)
  if is_plain or parameter.kind in (int, float) and isinstance(
      value, numbers.Real):
    return parameter.check(value)
  return value


@functools.cache
def _parameters(settings):
  """Returns the fields of a dataclass, and whether their type is plain."""
  hints = typing.get_type_hints(settings)
  return {field.name: _parameter(field, hints[field.name])
          for field in dataclasses.fields(settings)}


def _parameter(field, hint):
  get, may_be_none = field.metadata.get, hint == int | None
  kind = int if may_be_none else hint
  return Parameter(
      field.name, kind if kind in _TYPES else type(field.default),
      field.default, get('choices') or (), tuple(
          limit(get(name)) for name, limit in (
              ('at_least', Ge), ('above', Gt), ('below', Lt))
          if get(name) is not None), may_be_none,
      most=MAX_SEED if 'seed' in field.name else get('at_most', math.inf),
      hint=get('hint', ''), if_fraction=get('if_fraction', '')), kind in _TYPES
