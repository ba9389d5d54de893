"""Settings of a sweep: their names, their types and their text in commands."""

from collections.abc import Iterable
import functools
import re
import typing
from typing import Any

from absl import flags

from moon_jax.algorithms import registry
from moon_jax.config import Config, flags_with, limits, suggest
from moon_jax.errors import UserError

TYPES: dict[str, type] = typing.get_type_hints(Config)  # of settings, by name

# Settings that are the same for all runs of a sweep; on_nan is not in the names
# of their directories.
_SHARED = *flags_with(is_shared=True), 'on_nan'


def check_name(name: str, where: str, known: Iterable[str] = TYPES) -> None:
  """Checks that a name is a setting, or suggests the nearest one.

  Here and below, error messages begin with `where`.
  """
  known = list(known)
  if is_argument(name) and name not in known:
    raise UserError(f'{where} must name a setting of a run, got the argument '
                    f'{name!r} of a method; give algorithm_args = '
                    f'"{name}=VALUE"')
  if name not in known:
    near = suggest.flag(name, [*known, *_arguments()])
    advice = suggest.advice(name)
    hint = (f'; {advice}' if advice else
            f'; the nearest is {near!r}' if near else '')
    raise UserError(f'{where} must name a setting of a run, got {name!r}{hint}.'
                    ' docs/flags.md lists them')


def convert(name: str, value: Any, where: str) -> Any:
  """Returns a valid value in the type of a setting; strings are not parsed."""
  try:
    limits.check_value(Config, name, value)
  except UserError as error:
    raise UserError(f'{where}: {error}') from error
  return TYPES[name](value)


def is_argument(name: str) -> bool:
  """Returns whether a name is an argument of a built-in method, and no flag."""
  return name not in TYPES and name in _arguments()


@functools.cache
def _arguments():
  """Returns the arguments of built-in methods that are no flags, sorted."""
  return sorted({name for method in registry.METHODS.values()
                 for name in method.arguments})


def argument(name: str, value: Any, where: str) -> str | tuple[str, ...]:
  """Returns a value of an argument of a method, or its axis if it is a list,
  as parts of algorithm_args."""
  found = axis(name, value if isinstance(value, list) else [value], where)
  return found if isinstance(value, list) else found[0]


def axis(name: str, values: Any, where: str) -> tuple[Any, ...]:
  """Returns the values of an axis, distinct and of the type of its setting.

  Those of an argument of a method are parts of algorithm_args, "alpha=0.1".
  """
  if not is_argument(name):
    check_name(name, where)
  if name in _SHARED:
    raise UserError(f'{where} must name a setting in which runs may differ, got'
                    f' {name!r}, which all runs of a sweep share; give '
                    f'--{name}={name.upper()} once')
  if isinstance(values, str) or not isinstance(values, Iterable):
    raise UserError(f'{where}: {name} must be a list of values, got '
                    f'{values!r}; write {name}=[...], with a value per run')
  if is_argument(name):
    return axis('algorithm_args', [f'{name}={x}' for x in values], where)
  converted = tuple(convert(name, value, where) for value in values)
  if not converted:
    raise UserError(f'{where}: {name} must have one value or more, got an '
                    'empty list; remove it, or list values')
  for i, value in enumerate(converted):
    if value in converted[:i]:
      raise UserError(f'{where}: {name} must have distinct values, got '
                      f'{value!r} twice; remove one')
  return converted


def parse_axis(text: str) -> tuple[str, tuple[Any, ...]]:
  """Returns the name and the values of an argument NAME=V1,V2,... of --grid."""
  name, equals, listed = text.partition('=')
  where = f'--grid {text}'
  if not equals or not name.isidentifier():
    found = re.fullmatch(r'\W*([^\W\d]\w*)(?:[\s:=]+(\S.*))?\s*', text)
    name, given = found.groups() if found else ('NAME', '')
    listed = ','.join(re.split(r'[\s,]+', (given or 'VALUE,VALUE').strip()))
    raise UserError(f'--grid must be NAME=V1,V2,..., got {text!r}; write '
                    f'--grid {name}={listed}')
  return name, axis(name, [_parse(name, word.strip(), where)
                           for word in listed.split(',')], where)


def _parse(name, word, where):
  if not word:
    raise UserError(f'{where}: {name} must have values between commas, got an '
                    'empty one; lists in a file of --sweep may hold empty '
                    'strings and values with commas')
  kind = TYPES.get(name, str)  # `axis` refuses unknown names
  try:
    return flags.BooleanParser().parse(word) if kind is bool else kind(word)
  except ValueError:
    return word  # `convert` refuses it


def named(name: str, value: str, sign: str = '=') -> str:
  """Returns a setting and its text: algorithm=moon; no algorithm_args."""
  if value:
    return f'{name}{sign}{value}'
  return f'no {name.removeprefix("content of ")}'


def show(value: Any) -> str:
  """Returns a value as text, such as 5 for 5.0."""
  return str(value).removesuffix('.0') if isinstance(value, float) else str(
      value)
