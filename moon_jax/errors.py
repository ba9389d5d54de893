"""The ways in which a run ends early and says why."""

import signal


class UserError(ValueError):
  """A mistake of the user's: one or two lines that name the flag, what was
  given and what would do. `python -m moon_jax.train` exits with status 2."""


class DivergedError(ArithmeticError):
  """A loss became NaN or infinite. `python -m moon_jax.train` exits with 1."""


class InterruptedRun(Exception):
  """A signal asked the run to end. `python -m moon_jax.train` exits with 128
  and the signal's number, as shells and schedulers expect."""

  def __init__(self, number: int, where: str = ''):
    super().__init__(f'ended by {signal.Signals(number).name}{where}')
    self.number = number
