"""Loads and calls custom functions, given as MODULE:FUNCTION flags.

All functions take the name of the flag and its value, for error messages, and
raise UserError if there is no such function or its code fails.
"""

from collections.abc import Callable
import functools
import importlib
import importlib.util
import inspect
import os
import pathlib
import sys
import traceback
from typing import Any

from moon_jax import errors
from moon_jax.errors import first_line, setting, UserError


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
  module_name, _, function_name = name.rpartition(':')
  _file_of(flag, name)
  module = call(flag, name, importlib.import_module, module_name)
  function = getattr(module, function_name, None)
  if not callable(function):
    functions = [n for n, v in vars(module).items()
                 if (inspect.isfunction(v) or inspect.isclass(v))
                 and v.__module__ == module_name]
    raise UserError(
        flag, f'must be a function or class of {module.__file__}, which has '
        f'{", ".join(functions) or "none"}', name, 'Correct the name')
  return function


def call(flag: str, name: str, function: Callable[..., Any], *args,
         **kwargs) -> Any:
  """Calls a function that runs custom code; errors have its line there."""
  try:
    with errors.of_command(False):  # it calls functions with arguments
      return function(*args, **kwargs)
  except UserError as error:
    if name not in str(error):  # of a function of the package
      error.args = (f'{setting(flag, name)}: {error}',)
    raise
  except (Exception, SystemExit) as error:
    user_file = _file_of(flag, name)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == user_file]
    if isinstance(error, SyntaxError) and error.filename == user_file:
      lines.append(error.lineno)
    place = f'{user_file}, line {lines[-1]}' if lines else user_file
    raise UserError(
        flag, 'must name code that runs',
        f'{name}, which failed: {first_line(error)} (at {place})',
        'Fix it' + f'; {setting("debug")} shows the arguments' * (
            flag in ('algorithm', 'metrics', 'model'))) from error


def named(flag: str, name: str, function: Callable[..., Any]
          ) -> Callable[..., Any]:
  """Returns a function that runs custom code as `call` does."""
  @functools.wraps(function)
  def run(*args, **kwargs):
    return call(flag, name, function, *args, **kwargs)

  return run


def guarded(flag: str, name: str, made: Any) -> Any:
  """Returns what a custom function has made, whose functions are `named`.

  It may be a function, or a named tuple of functions.
  """
  if isinstance(made, tuple) and hasattr(made, '_fields'):
    return made._replace(**{
        field: named(flag, name, x) for field, x in made._asdict().items()
        if callable(x)})
  return named(flag, name, made) if callable(made) else made


def made_by(factory: Callable[..., Any]) -> Callable[..., Any]:
  """Returns the function that takes the arguments of a class, or of a function.

  It is `__new__` of a class that has no `__init__`.
  """
  if not inspect.isclass(factory):
    return factory
  make = factory.__init__  # type: ignore[misc]
  is_new = make is object.__init__ and inspect.isfunction(factory.__new__)
  return factory.__new__ if is_new else make


def signature_of(factory: Callable[..., Any]) -> inspect.Signature:
  """Returns the signature of a function, or of the constructor of a class.

  Metaclasses, such as that of Flax NNX, hide the arguments of `__init__`.
  Raises TypeError or ValueError if it has no signature.
  """
  signature = inspect.signature(made_by(factory))
  if not inspect.isclass(factory):
    return signature
  _, *parameters = signature.parameters.values()
  return signature.replace(parameters=parameters)


def split(text: str) -> list[str]:
  """Returns what commas separate that are outside of quotes and brackets."""
  pieces, quote, depth, is_escaped = [''], '', 0, False
  for character in text:
    if quote:
      quote = '' if character == quote and not is_escaped else quote
      is_escaped = character == '\\' and not is_escaped  # \" is no quote
    elif character in '"\'':
      quote = character
    else:
      depth += (character in '([{') - (character in ')]}')
    if character == ',' and not (quote or depth):
      pieces.append('')
    else:
      pieces[-1] += character
  return pieces


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
  module, _, function_name = name.rpartition(':')  # C:\mine.py:load
  try:
    spec = importlib.util.find_spec(module)
  except ImportError:
    spec = None
  except (Exception, SystemExit) as error:  # raised by its parent package
    raise UserError(
        flag, 'must name a module of a package that can be imported',
        f'{name}, which failed: {first_line(error)}', 'Fix it') from error
  if module.endswith('.py') or {*module} & {*'/\\'}:
    stem = pathlib.PureWindowsPath(module).stem  # also of other paths
    raise UserError(
        flag, 'must name a module without directory and .py', name,
        f'Write {setting(flag, stem)}:{function_name} in the '
        f'directory of {stem}.py, or add that directory to PYTHONPATH')
  if spec is None or not spec.origin or not pathlib.Path(spec.origin).is_file():
    raise UserError(
        flag, 'must name a module with a source file', name,
        f'Run in the directory of {module.partition(".")[0]}.py, or add that '
        'directory to PYTHONPATH')
  return spec.origin
