"""The exceptions that end a run early."""

from collections.abc import Iterator, Mapping
import contextlib
import contextvars
import importlib.util
import io
import signal
import sys
import types

# Exit status when the reader of the output has ended. Windows has no SIGPIPE.
BROKEN_PIPE = 128 + 13
_MAX_CHARACTERS = 200  # of an error of a library in a message


# Arguments in Python -> flags of another name, for functions that a part has
# returned and that raise later, in a round or while they are traced.
_FLAGS = {'candidates': 'cohort.candidates', 'head': 'algorithm.head',
          'selection': 'cohort', 'staleness': 'rounds.staleness',
          **{name: f'model.{name}' for name in (
              'epsilon', 'init', 'num_heads', 'patch_size', 'resize')}}
# Whether messages name flags, as those of commands, or arguments in Python.
_IS_COMMAND = contextvars.ContextVar('is_command', default=False)
# Arguments of the function that runs -> settings of the run, '' for none.
_ARGUMENTS: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar(
    'arguments', default=types.MappingProxyType({}))
_MISSING = object()


class UserError(ValueError):
  """Invalid input of the user: "SETTING REQUIREMENT; got GOT. REMEDY".

  `python -m moon_jax.train` exits with status 2.

  Attributes:
    setting: the setting or argument that is invalid, such as "batch_size" or
      "attack=backdoor"; '' if it is none, as for the content of a file, which
      the requirement then begins with.
    requirement: what must hold, such as "must be at least 1".
    got: the value received, as text; '' if the requirement contains it.
    remedy: what to do; a sentence or several.

  Examples:
    >>> str(UserError('batch_size', 'must be at least 1', 0, '64 is usual'))
    'batch_size must be at least 1; got 0. 64 is usual'
  """

  def __init__(self, setting: str, requirement: str, got: object = '',
               remedy: str = ''):
    self.setting, self.requirement = setting, requirement
    self.got, self.remedy = str(got), remedy
    super().__init__(_text(setting, requirement, self.got, remedy))

  def __reduce__(self):  # the text is as its reader names settings
    return ValueError.__new__, (type(self), *self.args), vars(self)


def _text(name, requirement, got, remedy):
  text = f'{setting(name)} {requirement}' if name else requirement
  text += f'; got {got}' if got else ''
  return f'{text}. {remedy}' if remedy else text


def require(is_valid: object, setting: str, requirement: str, got: object = '',
            remedy: str = '') -> None:
  """Raises a UserError unless `is_valid`."""
  if not is_valid:
    raise UserError(setting, requirement, got, remedy)


def require_package(package: str, what: str, extra: str = '') -> None:
  """Checks that a package is installed, without importing it.

  A directory of this name in the current one, where W&B and MLflow write their
  files, is not the package.

  Args:
    package: name of its module.
    what: what needs it.
    extra: of moon_jax, which installs it; '' names the package.
  """
  try:
    spec = importlib.util.find_spec(package)
  except (ImportError, ValueError):
    spec = None
  require(spec is not None and spec.origin is not None, '',
          f'{what} needs the package {package}', 'no such package',
          f"Run: pip install 'moon_jax[{extra}]'" if extra else
          f'Run: pip install {package}')


def first_line(error: BaseException) -> str:
  """Returns the type and the first line of an error, shortened."""
  line = str(error).strip().partition('\n')[0][:_MAX_CHARACTERS]
  return f'{type(error).__name__}: {line}' if line else type(error).__name__


def escape_output() -> None:
  """Makes printing safe: characters that a stream cannot encode are escaped.

  Names of directories, data sets and clients may have any character, also in a
  terminal, a log or a pipe that takes ASCII only. Commands call this first.
  """
  for stream in sys.stdout, sys.stderr:
    if isinstance(stream, io.TextIOWrapper):  # not what tests put there
      stream.reconfigure(errors='backslashreplace')


@contextlib.contextmanager
def of_command(is_command: bool = True) -> Iterator[None]:
  """Names settings in messages as a command does, or as Python: batch_size=8.
  """
  token = _IS_COMMAND.set(is_command)
  try:
    yield
  finally:
    _IS_COMMAND.reset(token)


def names_flags() -> bool:
  """Returns whether messages name flags, and not arguments in Python."""
  return _IS_COMMAND.get()


@contextlib.contextmanager
def naming(**flags: str) -> Iterator[None]:
  """Names arguments of functions by settings of a run: mu="algorithm.mu".

  They are named in Python as well. An argument that is no setting has ''.
  """
  token = _ARGUMENTS.set({**_ARGUMENTS.get(), **flags})
  try:
    yield
  finally:
    _ARGUMENTS.reset(token)


def setting(name: str, value: object = _MISSING) -> str:
  """Returns a setting as messages name it: --seed=1, or seed=1 in Python.

  `name` is a flag, or an argument of a function; it may end with =VALUE.
  """
  name, *text = name.split('=', 1)
  known = _ARGUMENTS.get()
  flag = known.get(name, _FLAGS.get(name, name))
  title = f'--{flag}' if flag and names_flags() else known.get(name) or name
  given = text if value is _MISSING else [*text, value]
  return '='.join([title, *map(str, given)])


class StageError(UserError):
  """An error of the user's code with debug=True; see `moon_jax.debugging`."""


class OutOfMemory(UserError):
  """A device or the host is out of memory; a new process may resume the run."""


@contextlib.contextmanager
def within(place: str) -> Iterator[None]:
  """Begins messages on invalid input with its place, '' for none.

  `OutOfMemory` names what needs the memory, and stays as it is.
  """
  try:
    yield
  except UserError as error:
    if place and not isinstance(error, OutOfMemory):
      error.args = f'{place}: {error}',
    raise


class DivergedError(ArithmeticError):
  """A loss became NaN or infinite.

  `python -m moon_jax.train` exits with status 1.

  Attributes:
    reason: what became so, and where.
    remedy: what to change; '' if not known.
  """

  def __init__(self, reason: str, remedy: str = ''):
    super().__init__(f'{reason}. {remedy}' if remedy else reason)
    self.reason, self.remedy = reason, remedy


class InterruptedRun(Exception):
  """A signal ended the run.

  `python -m moon_jax.train` exits with status 128 + the signal's number, as
  shells and schedulers expect.

  Attributes:
    number: the number of the signal.
  """

  def __init__(self, number: int, where: str = ''):
    super().__init__(f'ended by {signal.Signals(number).name}{where}')
    self.number = number
