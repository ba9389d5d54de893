"""The exceptions that end a run early."""

from collections.abc import Iterator
import contextlib
import contextvars
import io
import re
import signal
import sys

_MAX_CHARACTERS = 200  # of an error of a library in a message
# A flag, but not those of a command that a message recommends.
_FLAG = re.compile(r'(moon-jax .*)|--([a-z]\w*)')


# Arguments in Python -> flags of another name.
_FLAGS = {'dropout_rate': 'rounds.dropout_rate',
          'dropout_stage': 'rounds.dropout_stage'}
# Whether messages name flags, as those of commands, or arguments in Python.
_IS_COMMAND = contextvars.ContextVar('is_command', default=False)


class UserError(ValueError):
  """Invalid input of the user.

  The message states, in one or two lines, the requirement, the flag with the
  value received, and a remedy. `python -m moon_jax.train` exits with status 2.
  """


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
def of_command() -> Iterator[None]:
  """Names settings in messages as a command does: --batch_size=8."""
  token = _IS_COMMAND.set(True)
  try:
    yield
  finally:
    _IS_COMMAND.reset(token)


def names_flags() -> bool:
  """Returns whether messages name flags, and not arguments in Python."""
  return _IS_COMMAND.get()


def setting(name: str, value: object = '') -> str:
  """Returns a setting as messages name it: --seed=1, or seed=1 in Python.

  `value` is left out if it is ''.
  """
  title = f'--{_FLAGS.get(name, name)}' if names_flags() else name
  return title if value == '' else f'{title}={value}'


@contextlib.contextmanager
def in_python(**arguments: str) -> Iterator[None]:
  """Names arguments instead of flags in errors: batch_size=8.

  `arguments` maps flags to arguments that have another name.
  """
  try:
    yield
  except (UserError, DivergedError) as error:
    if not names_flags():
      error.args = (_FLAG.sub(
          lambda match: match[1] or arguments.get(match[2], match[2]),
          str(error)),)
    raise


@contextlib.contextmanager
def in_command(*same: str, **flags: str) -> Iterator[None]:
  """Names flags instead of arguments in UserErrors: --batch_size=8.

  Args:
    *same: arguments with the names of their flags.
    **flags: the flags of other arguments.
  """
  flags |= {name: name for name in same}
  try:
    yield
  except UserError as error:
    if flags:
      error.args = (re.sub(
          rf'(?<![\w./=-])({"|".join(flags)})\b',
          lambda match: f'--{flags[match[1]]}', str(error)),)
    raise


class OutOfMemory(UserError):
  """A device or the host is out of memory; a new process may resume the run."""


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
