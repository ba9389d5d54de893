"""Loads and calls custom functions, given as MODULE:FUNCTION flags.

All functions take the name of the flag and its value, for error messages, and
raise UserError if there is no such function or its code fails.
"""

import ast
from collections.abc import Callable, Mapping
import functools
import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import sys
import traceback
from typing import Any

from moon_jax.errors import first_line, UserError


def search_current_directory() -> None:
  """Makes an installed script import modules as `python -m` does.

  For a script, such as moon-jax, Python puts the directory of the script on the
  path, and not the current directory.
  """
  script = getattr(sys.modules['__main__'], '__file__', None)
  if (script and not sys.flags.safe_path
      and sys.path[:1] == [os.path.dirname(os.path.realpath(script))]):
    sys.path.insert(0, os.getcwd())


def source(flag: str, name: str) -> bytes:
  """Returns the source of the function's module, without importing it."""
  return pathlib.Path(_file_of(flag, name)).read_bytes()


def load(flag: str, name: str) -> Callable[..., Any]:
  """Imports the module and returns the function."""
  module_name, _, function_name = name.partition(':')
  _file_of(flag, name)
  module = call(flag, name, importlib.import_module, module_name)
  function = getattr(module, function_name, None)
  if not callable(function):
    functions = [n for n, v in vars(module).items()
                 if (inspect.isfunction(v) or inspect.isclass(v))
                 and v.__module__ == module_name]
    raise UserError(
        f'--{flag}={name}: {module.__file__} has no function or class '
        f'{function_name}; it has {", ".join(functions) or "none"}')
  return function


def check_call(flag: str, name: str, arguments: str) -> None:
  """Checks that a function can be called with comma-separated arguments."""
  function = load(flag, name)
  try:
    signature = signature_of(function)
    signature.bind(*arguments.split(','))
  except ValueError:  # it has no signature: the call will show
    return
  except TypeError as error:
    function_name = name.rpartition(':')[2]
    raise UserError(
        f'--{flag}={name} is called as {function_name}({arguments}), got '
        f'{function_name}{signature}: {error}{place(function)}') from error


def call(flag: str, name: str, function: Callable[..., Any], *args,
         **kwargs) -> Any:
  """Calls a function that runs custom code; errors have its line there."""
  try:
    return function(*args, **kwargs)
  except UserError:
    raise
  except (Exception, SystemExit) as error:
    user_file = _file_of(flag, name)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == user_file]
    if isinstance(error, SyntaxError) and error.filename == user_file:
      lines.append(error.lineno)
    place = f'{user_file}, line {lines[-1]}' if lines else user_file
    raise UserError(f'--{flag}={name} failed: {first_line(error)} (at {place});'
                    ' fix it') from error


def build(flag: str, name: str, args: str, offered: Mapping[str, Any],
          hint: str) -> Any:
  """Returns the result of a factory.

  Args:
    flag: the flag that names the factory.
    name: its value.
    args: the value of --FLAG_args, keyword arguments of the factory.
    offered: arguments by name that it gets if its signature names them and
      `args` does not; that of `*args` is its first.
    hint: describes these arguments, for error messages.
  """
  factory = load(flag, name)
  kwargs = parse_args(f'{flag}_args', args)
  try:
    signature = signature_of(factory)
  except (TypeError, ValueError) as error:  # some built-in callables
    raise UserError(f'--{flag}={name} cannot be called ({error}); name a '
                    'Python function or class') from error
  kwargs = {k: v for k, v in offered.items()
            if k in signature.parameters} | kwargs
  positional = [kwargs.pop(x.name) for x in signature.parameters.values()
                if x.kind in (x.POSITIONAL_ONLY, x.VAR_POSITIONAL)
                and x.name in kwargs]
  try:
    signature.bind(*positional, **kwargs)
  except TypeError as error:
    given_as = f'--{flag}_args={args}' if args else f'--{flag}={name}'
    raise UserError(
        f'{given_as}: {error}. The signature of --{flag}={name} is '
        f'{name.rpartition(":")[2]}{signature}; {hint}') from error
  return call(flag, name, factory, *positional, **kwargs)


def signature_of(factory: Callable[..., Any]) -> inspect.Signature:
  """Returns the signature of a function, or of the constructor of a class.

  Metaclasses, such as that of Flax NNX, hide the arguments of `__init__`.
  Raises TypeError or ValueError if it has no signature.
  """
  if not inspect.isclass(factory):
    return inspect.signature(factory)
  make = factory.__init__  # type: ignore[misc]
  if make is object.__init__ and inspect.isfunction(factory.__new__):
    make = factory.__new__
  signature = inspect.signature(make)
  _, *parameters = signature.parameters.values()
  return signature.replace(parameters=parameters)


def parse_args(flag: str, text: str) -> dict[str, Any]:
  """Parses NAME=VALUE,...; values are Python literals, else words."""
  args: dict[str, Any] = {}
  try:
    for part in _parts(text):
      name, sign, value = (word.strip() for word in part.partition('='))
      if not (sign and name.isidentifier()):
        raise ValueError('a value without a name')
      if name in args:
        raise ValueError('a name twice')
      args[name] = _value(value)
    return args
  except (SyntaxError, ValueError, RecursionError) as error:
    raise UserError(
        f'--{flag}={text} is not a comma-separated list of name=value with '
        f'numbers, words or other Python literals ({error})') from error


def _parts(text):
  """Splits at commas that are outside of quotes and brackets."""
  parts, quote, depth = [''], '', 0
  for character in re.findall(r'\\?.', text, re.DOTALL):  # \" is no quote
    if quote:
      quote = '' if character == quote else quote
    elif character in '"\'':
      quote = character
    else:
      depth += (character in '([{') - (character in ')]}')
    if character == ',' and not (quote or depth):
      parts.append('')
    else:
      parts[-1] += character
  return parts if parts[-1].strip() else parts[:-1]  # a comma at the end


def _value(text):
  """Returns a literal or a word, which may be a keyword of Python."""
  try:
    return ast.literal_eval(text)
  except (SyntaxError, ValueError):
    if re.fullmatch(r'[^\W\d][\w.:/-]*', text):
      return text
    raise


def place(function: Any) -> str:
  """Returns " (at FILE, line N)" of the user's function or class, else ''."""
  while isinstance(function, functools.partial):
    function = function.func
  try:
    function = inspect.unwrap(function)
    file = inspect.getsourcefile(function)
    line = (function.__code__.co_firstlineno if hasattr(function, '__code__')
            else inspect.getsourcelines(function)[1])
  except (TypeError, OSError, ValueError):
    return ''
  is_ours = pathlib.Path(__file__).parent in pathlib.Path(file or '').parents
  return '' if is_ours or not file else f' (at {file}, line {line})'


def _file_of(flag: str, name: str) -> str:
  module, _, _ = name.partition(':')
  try:
    spec = importlib.util.find_spec(module)
  except ImportError:
    spec = None
  except (Exception, SystemExit) as error:  # raised by its parent package
    raise UserError(f'--{flag}={name}: importing the package of {module} failed'
                    f': {first_line(error)}; fix it') from error
  if module.endswith('.py') or '/' in module:
    stem = pathlib.Path(module).stem
    raise UserError(
        f'--{flag}={name} must name a module without directory and .py; write '
        f'--{flag}={stem}:{name.partition(":")[2]} in the directory of '
        f'{stem}.py, or add that directory to PYTHONPATH')
  if spec is None or not spec.origin or not pathlib.Path(spec.origin).is_file():
    raise UserError(
        f'--{flag}={name}: found no source file of module {module}; run in the '
        f'directory of {module.partition(".")[0]}.py, or add that directory to '
        'PYTHONPATH')
  return spec.origin
