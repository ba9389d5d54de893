"""The exceptions that end a run early."""

from collections.abc import Iterator
import contextlib
import io
import re
import signal
import sys

_MAX_CHARACTERS = 200  # of an error of a library in a message
# A flag, but not those of a command that a message recommends.
_FLAG = re.compile(r'(moon-jax .*)|--([a-z]\w*)')


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
def in_python(is_python: bool = True, **arguments: str) -> Iterator[None]:
  """Names arguments instead of flags in errors: batch_size=8.

  `arguments` maps flags to arguments that have another name.
  """
  try:
    yield
  except (UserError, DivergedError) as error:
    if is_python:
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
  """A device or the host is out of memory.

  Attributes:
    fewer_lanes: the number of lanes with which a new process may resume the
      run; 0 if it may not.
  """

  def __init__(self, why: str, fewer_lanes: int = 0):
    super().__init__(why)
    self.fewer_lanes = fewer_lanes


class DivergedError(ArithmeticError):
  """A loss became NaN or infinite.

  `python -m moon_jax.train` exits with status 1.
  """


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
