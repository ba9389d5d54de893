"""Parts of a run: functions with arguments, written as calls.

    moon(mu=5, num_negatives=2)
    dirichlet(beta=0.1)
    mymethods:fedhalf(fraction=0.5)

A kind of part is a setting of `moon_jax.Config`, such as `algorithm`;
`moon_jax.config.kinds` lists the functions of each. Your own function is named
as MODULE:FUNCTION. In both cases the signature of the function is the schema of
the call:

    mu: Annotated[float, Ge(0)] = 5.0      an argument with a limit
    form: Literal['paper', 'released'] = 'paper'
    num_clients: FromRun[int]              a value of the run, not an argument
    byzantine: OrFromRun[int] = 1          an argument whose default the run has

`checked` makes a function check its arguments by the same schema in Python.
"""

import ast
from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import functools
import importlib
import inspect
import math
import os
import re
import types
import typing
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import annotated_types

from moon_jax import errors, user_code
from moon_jax.config import kinds, spelling
from moon_jax.errors import setting, UserError

_Function = TypeVar('_Function', bound=Callable[..., Any])
_T = TypeVar('_T')

_NAME = r'[^\W\d]\w*'
_BARE = rf'(?:{_NAME}(?:\.{_NAME})*:)?{_NAME}'
_CALL = re.compile(rf'({_BARE})\s*\((.*)\)', re.DOTALL)
_PATH = re.compile(rf'[^\s\'"()=]*[/\\][^\s\'"()=]*:{_NAME}')  # of a function
_WORD = re.compile(r'[^\s\'"(){}\[\],=]+')  # a string without quotes
TINY, HUGE = 1e-30, 1e30  # range of float32 arithmetic
_LONG = 12  # characters of a number that no one wrote, such as 1/6
_FIRST_WORD = re.compile(  # of a sentence; not pFedMe, mu or a_i
    r'[a-z]{3,}(?![A-Z])|(a|an|as|at|by|if|in|no|of|on|or|to)\b')
_MAX_INT = 2**31 - 1  # of JAX's int32
# Kinds whose arguments are no flags, such as --algorithm.mu.
_NO_FLAGS = 'dataset', 'staleness', 'graph', 'tune'
_LIMITS = {
    annotated_types.Ge: ('ge', 'at least', lambda x, y: x >= y),
    annotated_types.Gt: ('gt', 'above', lambda x, y: x > y),
    annotated_types.Le: ('le', 'at most', lambda x, y: x <= y),
    annotated_types.Lt: ('lt', 'below', lambda x, y: x < y),
    annotated_types.MultipleOf: (
        'multiple_of', 'a multiple of', lambda x, y: x % y == 0)}


class _Run(NamedTuple):
  """Marks a parameter that takes a value of the run."""

  is_argument: bool  # whether a call may give it all the same


class _IsFile(NamedTuple):
  """Marks an argument that names a file."""


# The type of an argument that names a file whose content, and not its path,
# identifies a run.
File = Annotated[str, _IsFile()]


# The type of a parameter that gets a value of the run: FromRun[int]. The
# parameter has the name of the value; docs/parts.md lists those of each kind. A
# call cannot give it.
FromRun = Annotated[_T, _Run(False)]
# The type of an argument whose value the run gives unless a call does.
OrFromRun = Annotated[_T, _Run(True)]


# Types of numbers with their usual limits.
NonNegative = Annotated[float, annotated_types.Ge(0)]
Positive = Annotated[float, annotated_types.Gt(0)]
Fraction = Annotated[float, annotated_types.Ge(0), annotated_types.Le(1)]
BelowOne = Annotated[float, annotated_types.Ge(0), annotated_types.Lt(1)]
Natural = Annotated[int, annotated_types.Ge(0)]
Count = Annotated[int, annotated_types.Ge(1)]


@dataclasses.dataclass(frozen=True)
class Part:
  """A call: the name of a function, and arguments by name.

  Equal calls are equal, whatever the order of their arguments.
  """

  name: str
  arguments: tuple[tuple[str, Any], ...] = ()

  def __post_init__(self):
    if isinstance(self.arguments, Mapping):
      object.__setattr__(self, 'arguments', tuple(self.arguments.items()))

  def __str__(self) -> str:
    if not self.arguments:
      return self.name
    shown = [f'{name}={show(value)}' for name, value in self.arguments]
    return f'{self.name}({", ".join(shown)})'

  def __getitem__(self, name: str) -> Any:
    """Returns an argument that the call gives."""
    return dict(self.arguments)[name]

  def replace(self, **arguments: Any) -> 'Part':
    """Returns the call with other or further arguments."""
    return Part(self.name, tuple(
        (dict(self.arguments) | arguments).items()))

  @property
  def is_own(self) -> bool:
    """Whether the function is MODULE:FUNCTION."""
    return ':' in self.name


def show(value: Any) -> str:
  """Returns the text of an argument, from which `parse` makes it again."""
  if getattr(value, 'shape', None) == ():  # a scalar of NumPy or JAX
    value = value.item()
  if isinstance(value, str):
    is_word = _WORD.fullmatch(value) and isinstance(_literal(value), Exception)
    return value if is_word else repr(value)
  if isinstance(value, Part):
    return f'{value.name}()' if not value.arguments else str(value)
  if isinstance(value, float):
    text = f'{value:g}' if float(f'{value:g}') == value else repr(value)
    return text.replace('e-0', 'e-').replace('e+0', 'e')
  if isinstance(value, tuple) and all(isinstance(x, float) for x in value):
    return f'({", ".join(map(show, value))}{"," * (len(value) == 1)})'
  return repr(value)


def _literal(text):
  """Returns a Python literal; the exception if there is none."""
  try:
    return ast.literal_eval(text)
  except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
    return error


def parse(kind: str, text: Any) -> Part:
  """Returns the call that a text such as "moon(mu=5)" describes.

  Arguments are Python literals, calls, or words without quotes, which are
  strings.

  Raises:
    UserError: if it is not a call with named arguments.
  """
  if isinstance(text, Part):
    return text
  try:
    if not isinstance(text, str):
      raise ValueError(f'a {type(text).__name__}')
    if re.fullmatch(_BARE, text.strip()):
      return Part(text.strip())
    opened, closed = text.count('('), text.count(')')
    if opened != closed and not {*text} & {'"', "'"}:
      raise ValueError(f'{opened} times ( and {closed} times )')
    if _PATH.fullmatch(text.strip()):
      return Part(text.strip())  # `user_code.load` says what to write
    made = _parsed(text.strip())
    if not isinstance(made, Part):
      raise ValueError('no call' + (
          '; remove the inner quotes; cmd.exe of Windows takes only "') * (
              text.strip()[0] in '\'"'))
    return made
  except (ValueError, RecursionError) as error:
    raise UserError(
        kind, 'must be a name or a call with named arguments, such as '
        + kinds.KINDS[kind].example, f'{text!r} ({error})',
        f'For {text} rounds give {setting("num_rounds", text)}'
        if kind == 'rounds' and str(text).isdigit() else
        'Pass functions and other values to moon_jax.Federation'
        if not isinstance(text, str | int | float) else
        spelling.colon(kind, text)) from error


def _parsed(text):
  """Returns the value of an argument."""
  if re.match(r'["\'][A-Za-z]:\\(?!\\)', text):  # \n would be a line break
    raise ValueError('in quotes write / or \\\\ instead of \\')
  value = _literal(text)
  if not isinstance(value, Exception):
    return value
  if match := _CALL.fullmatch(text):
    return Part(match[1], tuple(parse_arguments(match[2]).items()))
  if _WORD.fullmatch(text):
    return text
  raise ValueError(f'{text!r} is neither a literal, a call nor a word; write '
                   'text with other characters in quotes')


def dataset_call(text: Any) -> Part | None:
  """Returns the valid call that --dataset=NAME(...) is, or None for others.

  Raises:
    UserError: if there is no such data set, or it has not these arguments.
  """
  call = written_dataset_call(text)
  return call and normal('dataset', call)


def written_dataset_call(text: Any) -> Part | None:
  """Returns the call that --dataset=NAME(...) is, perhaps of another version.

  None for others.
  """
  if not isinstance(text, str) or not re.match(r'\s*\w+\s*\(', text):
    return None
  return parse('dataset', text)


def parse_arguments(text: str) -> dict[str, Any]:
  """Returns the arguments in a text such as "mu=5, pool=all".

  Raises:
    ValueError: if it is not a list of arguments, each given once.
  """
  arguments: dict[str, Any] = {}
  for piece in filter(str.strip, user_code.split(text)):
    name, sign, value = (word.strip() for word in piece.partition('='))
    if not sign or not name.isidentifier():
      raise ValueError(f'{piece.strip()!r} is not NAME=VALUE')
    if name in arguments:
      raise ValueError(f'{name} is given twice')
    arguments[name] = _parsed(value)
  return arguments


def parse_value(text: str) -> Any:
  """Returns the value of a flag such as --algorithm.mu=5.

  Text that is neither a literal nor a call is a string.
  """
  try:
    return _parsed(text.strip())
  except ValueError:
    return text


class Parameter(NamedTuple):
  """An argument of a function, or a value of the run."""

  name: str
  kind: Any  # its type: int, float, bool, str, Part, tuple of numbers, or
  # object for any value
  default: Any  # inspect.Parameter.empty if there is none
  choices: tuple[Any, ...] = ()
  limits: tuple[Any, ...] = ()
  may_be_none: bool = False
  run: _Run | None = None
  part_kind: str = ''  # of an argument that is a part itself
  is_file: bool = False  # see `File`
  most: float = _MAX_INT  # in size, of integers
  hint: str = ''  # what to give besides the default, for messages
  if_fraction: str = ''  # what to give instead of a number that is not whole

  @property
  def is_argument(self) -> bool:
    """Whether a call may give it."""
    return self.run is None or self.run.is_argument

  @property
  def is_required(self) -> bool:
    """Whether a call must give it."""
    return self.run is None and self.default is inspect.Parameter.empty

  def check(self, value: Any) -> Any:
    """Returns a valid value in the type of the argument.

    Raises:
      UserError: with the requirement, the value and a remedy.
    """
    if value is None and (self.may_be_none or self.default is None):
      return None
    if self.choices:
      if isinstance(value, typing.Hashable) and value in self.choices:
        return value
      choices = [*map(str, self.choices)]
      raise self.error(f'one of {", ".join(choices)}', value,
                       spelling.remedy(self.name, value, choices))
    if self.kind is Part:
      made = normal(self.part_kind, parse(self.part_kind, value))
      if not kinds.KINDS[self.part_kind].values:
        make(self.part_kind, made)
      return made
    converted = _converted(self.kind, value)
    if converted is _INVALID:
      raise self.error(_NOUNS[self.kind], value, self._of_type(value))
    values = converted if self.kind is tuple else (converted,)
    for limit in self.limits:
      attribute, words, is_met = _LIMITS[type(limit)]
      bound = getattr(limit, attribute)
      try:
        is_valid = all(is_met(x, bound) for x in values)
      except TypeError:  # of any type, such as text
        is_valid = False
      if not is_valid:
        raise self.error(f'{words} {bound}', value)
    # Values of the run have limits of their own, such as seeds.
    if self.is_argument and self.kind is int and abs(converted) > self.most:
      raise self.error(f'at most {self.most}' + ' in size' * (converted < 0),
                       value)
    if self.kind in (float, tuple) and not all(
        x == 0 or TINY <= abs(x) <= HUGE for x in values):
      raise self.error(f'0 or between {TINY} and {HUGE} in size', value)
    return converted

  def _of_type(self, value):
    """Returns a remedy for a value of another type, '' for the default."""
    if callable(value):
      return 'Pass functions and other values to moon_jax.Federation'
    if hasattr(value, self.name):
      return f'Pass its {self.name}'
    if self.name in ('metrics', 'loggers') and isinstance(
        value, list | tuple) and all(isinstance(x, str) for x in value):
      return f'Pass {setting(self.name, repr(",".join(value)))}'
    if self.kind is not int or not isinstance(value, float):
      return ''
    if not value.is_integer():
      return self.if_fraction
    with contextlib.suppress(UserError):
      return f'Pass {setting(self.name, self.check(int(value)))}'
    return ''

  def error(self, requirement: str, value: Any, remedy: str = '') -> UserError:
    """Returns what to raise; the default remedy is the default."""
    if not remedy and self.default not in (inspect.Parameter.empty, None):
      remedy = f'The default is {setting(self.name, show(self.default))}' + (
          f'; {self.hint}' * bool(self.hint))
    text = str(value) if isinstance(value, Part) else repr(value)
    if '\n' in text or len(text) > _MAX_SHOWN:
      text = f'a {type(value).__name__}'
    return UserError(self.name, f'must be {requirement}', text, remedy)


_MAX_SHOWN = 200  # characters of an invalid value in a message
_INVALID = object()
_NOUNS = {int: 'an integer', float: 'a finite number', bool: 'True or False',
          str: 'a word or text', tuple: 'finite numbers, such as (1, 0.5)'}


def _converted(kind, value):
  """Returns a value in a type; `_INVALID` if it is of another."""
  if kind is bool:
    value = {'true': True, 'false': False}.get(value, value) if isinstance(
        value, str) else value
    is_bool = isinstance(value, bool) or (
        str(getattr(value, 'dtype', '')) == 'bool' and not value.ndim)
    return bool(value) if is_bool else _INVALID
  if kind is int:
    is_int = hasattr(value, '__index__') and not isinstance(value, bool)
    is_one = is_int and not getattr(value, 'ndim', False)
    return int(value) if is_one else _INVALID
  if kind is float:
    if isinstance(value, bool | str) or not hasattr(value, '__float__') or (
        getattr(value, 'ndim', False)):
      return _INVALID
    return float(value) if math.isfinite(value) else _INVALID
  if kind is str:
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    return str(value) if isinstance(value, str) else _INVALID
  if kind is tuple:
    items = [_converted(float, x) for x in value] if isinstance(
        value, tuple | list) else []
    return tuple(items) if items and _INVALID not in items else _INVALID
  return value


@functools.cache
def parameters(function: Callable[..., Any]) -> dict[str, Parameter]:
  """Returns the parameters of a function, or of the constructor of a class."""
  bare = inspect.unwrap(function)
  try:
    hints = typing.get_type_hints(user_code.made_by(bare), include_extras=True)
    if inspect.isclass(bare) and dataclasses.is_dataclass(bare):
      hints = typing.get_type_hints(bare, include_extras=True) | hints
  except Exception:  # names that only type checkers see
    hints = {}
  try:
    signature = user_code.signature_of(bare)
  except (TypeError, ValueError):  # as of min
    return {}
  return {
      x.name: _parameter(x.name, hints.get(x.name), x.default)
      for x in signature.parameters.values()
      if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)
      and not (x.name in ('parent', 'name') and _is_linen(bare))}


def _is_linen(function):
  return inspect.isclass(function) and any(
      base.__module__ == 'flax.linen.module' for base in function.__mro__)


def _parameter(name, hint, default):
  limits, run, part_kind, may_be_none, is_file = [], None, '', False, False
  while typing.get_origin(hint) is Annotated:
    hint, *extras = typing.get_args(hint)
    limits += [x for extra in extras for x in _limits_of(name, extra)]
    run = next((x for x in extras if isinstance(x, _Run)), run)
    part_kind = next((x for x in extras if isinstance(x, str)), part_kind)
    is_file |= any(isinstance(x, _IsFile) for x in extras)
  if typing.get_origin(hint) in (typing.Union, types.UnionType):
    some = [x for x in typing.get_args(hint) if x is not type(None)]
    may_be_none = len(some) < len(typing.get_args(hint))
    inner = _parameter(name, some[0] if len(some) == 1 else object, default)
    return inner._replace(
        limits=(*limits, *inner.limits), run=run or inner.run,
        part_kind=part_kind or inner.part_kind, may_be_none=may_be_none)
  choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
  basic = bool, int, float, str
  if typing.get_origin(hint) is tuple:  # of numbers
    hint = tuple
  kind = Part if part_kind else hint if hint in (*basic, tuple) else (
      type(default) if type(default) in basic and not choices else object)
  return Parameter(name, kind, default, choices, tuple(limits), may_be_none,
                   run, part_kind, is_file)


def _limits_of(name, extra):
  """Returns the limits that an annotation has.

  Raises a UserError for those that are not checked here.
  """
  found = [*extra] if isinstance(
      extra, annotated_types.GroupedMetadata) else [extra]  # as of Interval
  for x in found:
    if isinstance(x, annotated_types.BaseMetadata) and type(x) not in _LIMITS:
      known = ', '.join(limit.__name__ for limit in _LIMITS)
      raise UserError('', f'limits of the argument {name} must be {known} or '
                      'Interval', repr(x), 'Test other limits in the function')
  return [x for x in found if type(x) in _LIMITS]


def checked(function: _Function) -> _Function:
  """Makes a function check its arguments by its annotations.

  Raises:
    UserError: when it is called with an invalid argument.
  """
  signature = inspect.signature(function)

  @functools.wraps(function)
  def call(*args, **kwargs):
    known = parameters(function)
    try:
      bound = signature.bind(*args, **kwargs)
    except TypeError:  # Python's own message has the name of the function
      return function(*args, **kwargs)
    for name, value in bound.arguments.items():
      parameter = known.get(name)
      if parameter and not parameter.part_kind:
        bound.arguments[name] = parameter.check(value)
    return function(*bound.args, **bound.kwargs)

  return call  # type: ignore[return-value]


def function_of(kind: str, part: Part) -> Callable[..., Any]:
  """Returns the function that a call names.

  Raises:
    UserError: if there is none.
  """
  known = kinds.KINDS[kind]
  place = known.functions.get(
      part.name, part.name if part.is_own and known.returns else None)
  if place is None:
    raise UserError(
        kind, f'must be one of {", ".join(known.functions)}'
        + ', or your own as MODULE:FUNCTION' * bool(known.returns),
        repr(part.name),
        spelling.remedy(kind, part.name, list(known.functions)))
  return user_code.load(kind, place)


def reads(kind: str, part: Part, name: str) -> bool:
  """Returns whether a call gets a value of the run: by `FromRun`.

  An argument that the call gives is not one.
  """
  known = parameters(function_of(kind, part))
  return name in known and known[name].run is not None and (
      name not in dict(part.arguments))


@functools.cache
def schema(kind: str, name: str) -> dict[str, Parameter]:
  """Returns the arguments of a function of a kind, by name.

  Those that all functions of the kind have come last.
  """
  own = {key: x for key, x in parameters(
      function_of(kind, Part(name))).items()
         if x.is_argument and key not in kinds.KINDS[kind].by_name}
  common = kinds.KINDS[kind].common
  return own | {key: _parameter(key, File if hint == 'File' else hint, default)
                for key, (hint, default, _) in common.items()
                if name != 'none'}


def normal(kind: str, part: Part) -> Part:
  """Returns an equal call with valid arguments in their types and order.

  Arguments that have their default are left out, so that two calls of the same
  function with the same arguments are equal.

  Raises:
    UserError: naming the first invalid argument, its value and a remedy.
  """
  function_of(kind, part)
  known = schema(kind, part.name)
  values = {}
  for name, value in part.arguments:
    if name not in known:
      listed = f'the arguments {", ".join(known)}' if known else 'no arguments'
      raise UserError(
          f'{kind}={part.name}', f'has {listed}', f'{name}={show(value)}',
          _meant(kind, part, name, value))
    with _naming(kind, part, [name]):
      values[name] = known[name].check(value)
  for name, x in known.items():
    if x.is_required and name not in values:
      of_run = kinds.KINDS[kind].values if part.is_own else ()
      raise UserError(
          f'{kind}={part.name}', f'needs a value of {name}', '',
          f'The run has one: annotate it as {name}: moon_jax.FromRun[...]'
          if name in of_run else (
              f'Give {part.name}({name}=...)' if kind in _NO_FLAGS else
              f'Give {setting(f"{kind}.{name}")}') + (
              f'; values of the run, annotated as moon_jax.FromRun[...], are '
              f'{", ".join(of_run)}' if of_run else ''))
  return Part(part.name, tuple(
      (name, values[name]) for name, x in known.items()
      if name in values and not (
          type(values[name]) is type(x.default) and values[name] == x.default
          and not (x.run and x.run.is_argument))))


def _meant(kind, part, name, value):
  """Returns what to give instead of an argument that a function lacks."""
  if near := spelling.near_argument(kind, name, schema(kind, part.name)):
    return f'Did you mean {near}?'
  flag = spelling.FLAGS.get(name.lower(), name)
  if flag in spelling.FLAGS.values() and '.' not in flag:
    return f'Give {setting(flag, show(value))}'
  others = [other for other in kinds.KINDS[kind].functions
            if not part.is_own and name in schema(kind, other)]
  return 'Remove it' + (
      f', or give {setting(kind, " or ".join(others[:3]))}' if others else '')


@contextlib.contextmanager
def _naming(kind, part, names):
  """Names arguments of a part in errors: --algorithm.mu=5, or mu=5 in Python.

  Those of a part that is itself an argument follow its call. Other errors name
  what they are about.
  """
  if kind not in _NO_FLAGS:
    with errors.naming(**{name: f'{kind}.{name}' for name in names}):
      yield
    return
  try:
    with errors.naming(**dict.fromkeys(names, '')):
      yield
  except UserError as error:
    if error.setting not in names:
      raise
    raise UserError(f'{kind}={part}:', f'{error.setting} {error.requirement}',
                    error.got, error.remedy) from error


def arguments(kind: str, part: Part) -> dict[str, Any]:
  """Returns all arguments of a call, with defaults, by name."""
  given = dict(normal(kind, part).arguments)
  return {name: given.get(name, x.default)
          for name, x in schema(kind, part.name).items()
          if name in given or x.default is not inspect.Parameter.empty}


def files(kind: str, part: Part) -> dict[str, str]:
  """Returns the paths of the files that a call names, by argument.

  Those of an argument that is a part are ARGUMENT.NAME. The call may be one of
  another version, with arguments that are unknown now.
  """
  known = schema(kind, part.name)
  found: dict[str, str] = {}
  for name, value in part.arguments:
    if name in known and isinstance(value, Part):
      found |= {f'{name}.{key}': path for key, path in files(
          known[name].part_kind, value).items()}
    elif name in known and known[name].is_file and value:
      found[name] = value
  return found


def without_files(kind: str, part: Part) -> Part:
  """Returns a call without the paths of the files that it names."""
  known, named = schema(kind, part.name), files(kind, part)
  return Part(part.name, tuple(
      (name, without_files(known[name].part_kind, value)
       if name in known and isinstance(value, Part) else value)
      for name, value in part.arguments if name not in named))


def make(kind: str, part: Part, **run: Any) -> Any:
  """Calls the function of a part.

  Args:
    kind: the kind.
    part: the call.
    **run: the values of the run by name, for parameters of `FromRun`, and for
      arguments of `OrFromRun` that the call does not give.

  Raises:
    UserError: if an argument is invalid or your own function fails; later, if
      a function that it has returned fails.
  """
  function = function_of(kind, part)
  known = parameters(function)
  part = normal(kind, part)
  given = {name: value for name, value in part.arguments
           if name not in kinds.KINDS[kind].common}
  for name, parameter in known.items():
    declared = parameter.run is not None or (
        name in kinds.KINDS[kind].by_name and name in run)
    if name in given or not declared:
      continue
    if name in run:
      given[name] = run[name]
    elif parameter.default is inspect.Parameter.empty:
      raise UserError(
          f'{kind}={part.name}', 'must have arguments without default of the '
          f'names {", ".join(run)}', name, 'Rename it, or give it a default')
  if part.is_own:
    made = user_code.call(kind, part.name, function, **given)
    made = _checked_result(kind, part, made, function)
    # Algorithms and models are traced before a run.
    return made if kind in ('algorithm', 'model') else user_code.guarded(
        kind, part.name, made)
  with _naming(kind, part, [
      name for name in known if known[name].is_argument]):
    return function(**given)


def _checked_result(kind, part, made, function):
  """Returns what your own function has returned, if it is of the right type.

  A function that forgets to return something must not pass as one that changes
  nothing.
  """
  known = kinds.KINDS[kind]
  module, _, name = known.result.partition(':')
  if made is None or module and not isinstance(
      made, getattr(importlib.import_module(module), name)):
    raise UserError(f'{kind}={part.name}', f'must return {known.returns}',
                    'None' if made is None else type(made).__name__,
                    f'Change the function{user_code.place(function)}')
  return made


class Entry(NamedTuple):
  """An argument, as the help and docs/parts.md show it."""

  name: str
  default: str  # as text; '' if it must be given
  limits: str  # such as "at least 0"; '' if there are none
  help: str  # from the docstring of the function


def describe(kind: str, name: str) -> tuple[str, list[Entry]]:
  """Returns what a function of a kind does, and its arguments.

  Both are from its docstring and its signature.
  """
  documented = inspect.getdoc(
      inspect.unwrap(function_of(kind, Part(name)))) or ''
  summary, *_ = documented.partition('\n\n')
  texts = _argument_texts(documented)
  for other in re.findall(r'[Ss]ee `(\w+)`', documented):
    if other in kinds.KINDS[kind].functions:
      texts = _argument_texts(inspect.getdoc(
          inspect.unwrap(function_of(kind, Part(other)))) or '') | texts
  texts = {'nesterov': "Whether the momentum is Nesterov's."} | {
      key: text for key, (_, _, text) in kinds.KINDS[kind].common.items()
  } | texts
  summary = ' '.join(summary.split()).removeprefix('Returns ')
  return _sentence(summary), [
      Entry(x.name, '' if x.default is inspect.Parameter.empty
            else 'of the run' if x.run else _default(x.default), _limits(x),
            texts.get(x.name, ''))
      for x in schema(kind, name).values()]


def _default(value):
  """Returns the text of a default; 1/6 has six digits."""
  text = show(value)
  return text if not isinstance(value, float) or len(text) < _LONG else (
      f'{value:.6g}')


def _argument_texts(documented):
  """Returns the texts of the section Args of a docstring, by argument."""
  match = re.search(
      r'^(?:Args|Attributes):\n((?:  .*\n?|\n)+)', documented, re.M)
  texts: dict[str, str] = {}
  for line in (match[1] if match else '').splitlines():
    if head := re.match(r'  (\w+): (.*)', line):
      name = head[1]
      texts[name] = head[2]
    elif texts and line.startswith('    '):
      texts[name] += f' {line.strip()}'
  return {name: _sentence(text) for name, text in texts.items()}


def _sentence(text):
  """Returns a text with a capital, unless it begins with a name or symbol."""
  return text[:1].upper() + text[1:] if _FIRST_WORD.match(text) else text


def _limits(parameter):
  if parameter.choices:
    return ', '.join(map(str, parameter.choices))
  return ', '.join(
      f'{_LIMITS[type(limit)][1]} {getattr(limit, _LIMITS[type(limit)][0])}'
      for limit in parameter.limits)
