"""Functions of users' own, named MODULE:FUNCTION on the command line."""

from collections.abc import Callable
import importlib
import importlib.util
import inspect
import pathlib
import traceback
from typing import Any

from moon_jax.errors import UserError

_MAX_NAMED = 10  # functions that a message lists


def source(flag: str, name: str) -> bytes:
  """The text of the module that holds the function, which is not run.

  Args:
    flag: the flag that names the function, for messages.
    name: MODULE:FUNCTION.

  Raises:
    UserError: where there is no such module.
  """
  return pathlib.Path(_file_of(flag, name)).read_bytes()


def load(flag: str, name: str) -> Callable[..., Any]:
  """Imports the module and returns the function.

  Raises:
    UserError: where there is none, or the module's code fails.
  """
  module_name, _, function_name = name.partition(':')
  _file_of(flag, name)
  module = call(flag, name, importlib.import_module, module_name)
  function = getattr(module, function_name, None)
  if not callable(function):
    found = [n for n, v in vars(module).items()
             if inspect.isfunction(v) and v.__module__ == module_name]
    raise UserError(
        f'--{flag}={name}: {module.__file__} has no function {function_name}; '
        f'it has {", ".join(found[:_MAX_NAMED]) or "none"}'
        f'{", ..." if len(found) > _MAX_NAMED else ""}')
  return function


def call(flag: str, name: str, function: Callable[..., Any], *args,
         **kwargs) -> Any:
  """Calls what runs the user's code; its mistakes name their line.

  Raises:
    UserError: for whatever the code raises.
  """
  try:
    return function(*args, **kwargs)
  except UserError:
    raise
  except (Exception, SystemExit) as error:
    own_file = _file_of(flag, name)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == own_file]
    if isinstance(error, SyntaxError) and error.filename == own_file:
      lines.append(error.lineno)
    place = f'{own_file}, line {lines[-1]}' if lines else own_file
    reason = str(error).partition('\n')[0]
    raise UserError(f'--{flag}={name} failed: {type(error).__name__}: {reason} '
                    f'(at {place}); mend it') from error


def _file_of(flag: str, name: str) -> str:
  module, _, _ = name.partition(':')
  try:
    spec = importlib.util.find_spec(module)
  except ImportError:
    spec = None
  except (Exception, SystemExit) as error:  # of a package it lies in
    reason = str(error).partition('\n')[0]
    raise UserError(f'--{flag}={name}: importing the package of {module} failed'
                    f': {type(error).__name__}: {reason}; mend it') from error
  if spec is None or not spec.origin or not pathlib.Path(spec.origin).is_file():
    raise UserError(
        f'--{flag}={name}: there is no file of a module {module}; run in the '
        f'directory of {module.partition(".")[0]}.py, or put that into '
        'PYTHONPATH')
  return spec.origin
