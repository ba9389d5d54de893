"""The exceptions that end a run early."""

import signal


class UserError(ValueError):
  """Invalid input of the user.

  The message states, in one or two lines, the requirement, the flag with the
  value received, and a remedy. `python -m moon_jax.train` exits with status 2.
  """


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
