"""The ways in which a run ends early and says why."""

import signal


class UserError(ValueError):
  """A mistake of the user's: one or two lines that name the flag, what was
  given and what would do. `python -m moon_jax.train` exits with status 2."""


class OutOfMemory(UserError):
  """A device's memory, or the host's, is used up.

  Attributes:
    fewer_lanes: with which a new process may go on; 0 where none would do.
  """

  def __init__(self, why: str, fewer_lanes: int = 0):
    super().__init__(why)
    self.fewer_lanes = fewer_lanes


class DivergedError(ArithmeticError):
  """A loss became NaN or infinite. `python -m moon_jax.train` exits with 1."""


class InterruptedRun(Exception):
  """A signal asked the run to end. `python -m moon_jax.train` exits with 128
  and the signal's number, as shells and schedulers expect."""

  def __init__(self, number: int, where: str = ''):
    super().__init__(f'ended by {signal.Signals(number).name}{where}')
    self.number = number
