"""The two ways in which a run ends early and says why."""


class UserError(ValueError):
  """A mistake of the user's: one or two lines that name the flag, what was
  given and what would do. `python -m moon_jax.train` exits with status 2."""


class DivergedError(ArithmeticError):
  """A loss became NaN or infinite. `python -m moon_jax.train` exits with 1."""
