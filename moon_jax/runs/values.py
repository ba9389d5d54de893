"""Settings of a sweep: names, types, text, and those in which runs differ.

A name is a setting, such as seed or algorithm, or an argument of a part, such
as algorithm.mu.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import dataclasses
import re
import typing
from typing import Any

from absl import flags

from moon_jax import user_code
from moon_jax.config import (
  Config,
  FACTS,
  flags_with,
  limits,
  PARTS,
  parts,
  suggest,
)
from moon_jax.errors import setting, UserError, within
from moon_jax.runs.identity import IDENTITY

TYPES: dict[str, type] = typing.get_type_hints(Config)  # of settings, by name

# Settings that are the same for all runs of a sweep; on_nan is not in the names
# of their directories.
_SHARED = *flags_with(is_shared=True), 'on_nan'

# Runs that differ only in these settings are replicates, which share a row of a
# table.
SEEDS = ('seed', 'partition_seed')
# Settings that are never columns of a table unless they are axes.
_HIDDEN = {*SEEDS, *FACTS} - {*IDENTITY, 'init_from'} | {*SEEDS}
NO_VALUE = '–'  # of an argument that a function does not have


def is_argument(name: str) -> bool:
  """Returns whether a name is an argument of a part."""
  kind, dot, argument = name.partition('.')
  return bool(dot) and kind in PARTS and argument.isidentifier()


def check_name(name: str, where: str, known: Iterable[str] = TYPES) -> None:
  """Checks that a name is a setting, or suggests the nearest one.

  Here and below, error messages begin with `where`.
  """
  known = list(known)
  if name not in known and not is_argument(name):
    near, advice = suggest.flag(name, known), suggest.advice(name)
    hint = (f'; {advice}' if advice else
            f'; the nearest is {near!r}' if near else '')
    raise UserError('', f'{where} must name a setting of a run',
                    f'{name!r}{hint}', 'docs/flags.md lists them')


def convert(name: str, value: Any, where: str) -> Any:
  """Returns a valid value in the type of a setting; strings are not parsed.

  Calls of parts are.
  """
  if is_argument(name):
    return parts.parse_value(value) if isinstance(value, str) else value
  with within(where):
    if name in PARTS:
      call = parts.parse(name, value)
      parts.function_of(name, call)  # its arguments may stand elsewhere, too
      return call
    return limits.check_value(Config, name, value)


def replace(config: Config, settings: Mapping[str, Any]) -> Config:
  """Returns a configuration with other settings and arguments of parts.

  Arguments replace those of the part in `config`.

  Raises:
    UserError: if a part and an argument of `settings` contradict each other.
  """
  plain = {name: x for name, x in settings.items() if not is_argument(name)}
  config = dataclasses.replace(config, **plain)
  for name, value in settings.items():
    if is_argument(name):
      kind, _, argument = name.partition('.')
      call = getattr(config, kind)
      if kind in plain and dict(call.arguments).get(argument, value) != value:
        raise UserError(f'{kind}={call}', f'and {setting(name, show(value))} '
                        'exclude each other', '', 'Remove one')
      config = dataclasses.replace(config, **{
          kind: call.replace(**{argument: value})})
  return config


def get(config: Config, name: str) -> Any:
  """Returns a setting, or an argument of a part; None if it has none."""
  if not is_argument(name):
    return getattr(config, name)
  kind, _, argument = name.partition('.')
  return arguments(config, kind).get(argument)


def arguments(config: Config, kind: str) -> dict[str, Any]:
  """Returns the arguments of a part by name.

  Of the user's own function that is gone, those that the call gives.
  """
  try:
    return config.args(kind)
  except UserError:
    if not (call := getattr(config, kind)).is_own:
      raise
    return dict(call.arguments)


def is_value(config: Config, name: str, value: Any) -> bool:
  """Returns whether a configuration has a value.

  A call of a part is one with these arguments and any others.
  """
  ours = get(config, name)
  if name not in PARTS:
    return bool(ours == value)
  value, given = parts.parse(name, value), arguments(config, name)
  return ours.name == value.name and all(
      argument in given and given[argument] == x
      for argument, x in value.arguments)


def axis(name: str, values: Any, where: str) -> tuple[Any, ...]:
  """Returns the values of an axis, distinct and of the type of its setting."""
  check_name(name, where)
  if name in _SHARED:
    raise UserError(
        '', f'{where} must name a setting in which runs may differ',
        f'{name!r}, which all runs of a sweep share',
        f'Give {setting(name, name.upper())} once')
  if isinstance(values, str) or not isinstance(values, Iterable):
    raise UserError('', f'{where}: {name} must be a list of values',
                    repr(values), f'Write {name}=[...], with a value per run')
  converted = tuple(convert(name, value, where) for value in values)
  if not converted:
    raise UserError('', f'{where}: {name} must have one value or more',
                    'an empty list', 'Remove it, or list values')
  for i, value in enumerate(converted):
    if value in converted[:i]:
      raise UserError('', f'{where}: {name} must have distinct values',
                      f'{show(value)} twice', 'Remove one')
  return converted


def parse_axis(text: str) -> tuple[str, tuple[Any, ...]]:
  """Returns the name and the values of an argument NAME=V1,V2,... of --grid."""
  name, equals, listed = text.partition('=')
  where = f'--grid {text}'
  if not equals or not re.fullmatch(r'\w+(\.\w+)?', name):
    match = re.fullmatch(r'\W*([^\W\d][\w.]*)(?:[\s:=]+(\S.*))?\s*', text)
    name, given = match.groups() if match else ('NAME', '')
    listed = ','.join(re.split(r'[\s,]+', (given or 'VALUE,VALUE').strip()))
    raise UserError('', '--grid must be NAME=V1,V2,...', repr(text),
                    f'Write --grid {name}={listed}')
  return name, axis(name, [_parse(name, word.strip(), where)
                           for word in user_code.split(listed)], where)


def _parse(name, word, where):
  if not word:
    raise UserError('', f'{where}: {name} must have values between commas',
                    'an empty one', 'Lists in a TOML file may hold empty '
                    'strings and values with commas')
  if is_argument(name):
    return parts.parse_value(word)
  kind = TYPES.get(name, str)  # `axis` refuses unknown names
  if name in PARTS:
    return word
  try:
    return flags.BooleanParser().parse(word) if kind is bool else kind(word)
  except ValueError:
    return word  # `convert` refuses it


def named(name: str, value: str, sign: str = '=') -> str:
  """Returns a setting and its text: seed=1; no init_from."""
  if value:
    return f'{name}{sign}{value}'
  return f'no {name.removeprefix("content of ")}'


def run_name(config: Config, axes: Iterable[str]) -> str:
  """Returns how messages name a run of a sweep: run seed=1.

  Arguments that its functions do not have are left out.
  """
  return 'run ' + ' '.join(
      named(name, value) for name, value in zip(axes, shown(config, axes))
      if value != NO_VALUE)


def show(value: Any) -> str:
  """Returns a value as text, such as 5 for 5.0."""
  if isinstance(value, float):
    return parts.show(value).removesuffix('.0')
  return str(value)


def columns(configs: Sequence[Config], axes: Sequence[str]) -> list[str]:
  """Returns the settings in which rows of a table of runs differ.

  The axes of the sweep come last, in their order. Other settings differ between
  the grids of a union.
  """
  last = [name for name in axes if name not in SEEDS]
  others = distinguishing(configs, {*_HIDDEN, *last})
  return [*differing(others, [shown(config, others) for config in configs]),
          *last]


def distinguishing(configs: Sequence[Config], hidden: Collection[str] = ()
                   ) -> list[str]:
  """Returns the names of settings that can distinguish configurations.

  If all have the same function of a kind, these are the arguments that one of
  them gives, as in algorithm.mu; otherwise the kind.
  """
  names = []
  for name in TYPES:
    if name in hidden:
      continue
    calls = [getattr(config, name) for config in configs if name in PARTS]
    if len({call.name for call in calls}) == 1:
      given = dict.fromkeys(
          f'{name}.{key}' for call in calls for key, _ in call.arguments)
      names += [key for key in given if key not in hidden]
    else:
      names.append(name)
  return names


def differing(names: Sequence[str], rows: Sequence[Sequence[str]]
              ) -> list[str]:
  """Returns the settings in which rows differ, whose values are text.

  An argument that a function does not have differs from no other value.
  """
  return [name for name, column in zip(names, zip(*rows))
          if len({*column} - {NO_VALUE}) > 1]


def shown(config: Config, names: Sequence[str]) -> tuple[str, ...]:
  """Returns the values of settings as text, a dash for absent arguments.

  Calls are shown without arguments that are among the names themselves.
  """
  return tuple(_shown(config, name, names) for name in names)


def _shown(config, name, names):
  kind, _, argument = name.partition('.')
  if argument and argument not in arguments(config, kind):
    return NO_VALUE
  value = get(config, name)
  if name in PARTS:
    value = dataclasses.replace(value, arguments=tuple(
        (key, x) for key, x in value.arguments if f'{name}.{key}' not in names))
  return show(value)
