"""Loads and calls user-defined functions, given as MODULE:FUNCTION flags."""

from collections.abc import Callable
import importlib
import importlib.util
import inspect
import pathlib
import traceback
from typing import Any

from moon_jax.errors import UserError

_MAX_LISTED = 10  # functions that an error message lists


def source(flag: str, name: str) -> bytes:
  """Returns the source of the function's module, without importing it.

  Args:
    flag: the name of the flag, for error messages.
    name: the value of the flag, MODULE:FUNCTION.

  Raises:
    UserError: if there is no such module.
  """
  return pathlib.Path(_file_of(flag, name)).read_bytes()


def load(flag: str, name: str) -> Callable[..., Any]:
  """Imports the module and returns the function.

  Args:
    flag: the name of the flag, for error messages.
    name: the value of the flag, MODULE:FUNCTION.

  Raises:
    UserError: if the module or the function does not exist, or if importing the
      module fails.
  """
  module_name, _, function_name = name.partition(':')
  _file_of(flag, name)
  module = call(flag, name, importlib.import_module, module_name)
  function = getattr(module, function_name, None)
  if not callable(function):
    functions = [n for n, v in vars(module).items()
                 if inspect.isfunction(v) and v.__module__ == module_name]
    raise UserError(
        f'--{flag}={name}: {module.__file__} has no function {function_name}; '
        f'it has {", ".join(functions[:_MAX_LISTED]) or "none"}'
        f'{", ..." if len(functions) > _MAX_LISTED else ""}')
  return function


def call(flag: str, name: str, function: Callable[..., Any], *args,
         **kwargs) -> Any:
  """Calls a function that runs user-defined code.

  Args:
    flag: the name of the flag, for error messages.
    name: the value of the flag, MODULE:FUNCTION.
    function: the function to call.
    *args: its arguments.
    **kwargs: its keyword arguments.

  Raises:
    UserError: if the code raises any exception; the message contains the line
      of the user's module.
  """
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
    reason = str(error).partition('\n')[0]
    raise UserError(f'--{flag}={name} failed: {type(error).__name__}: {reason} '
                    f'(at {place}); fix it') from error


def _file_of(flag: str, name: str) -> str:
  module, _, _ = name.partition(':')
  try:
    spec = importlib.util.find_spec(module)
  except ImportError:
    spec = None
  except (Exception, SystemExit) as error:  # raised by its parent package
    reason = str(error).partition('\n')[0]
    raise UserError(f'--{flag}={name}: importing the package of {module} failed'
                    f': {type(error).__name__}: {reason}; fix it') from error
  if spec is None or not spec.origin or not pathlib.Path(spec.origin).is_file():
    raise UserError(
        f'--{flag}={name}: found no source file of module {module}; run in the '
        f'directory of {module.partition(".")[0]}.py, or add that directory to '
        'PYTHONPATH')
  return spec.origin
