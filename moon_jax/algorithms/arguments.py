"""Checks of arguments, for the factories of methods.

Each function raises a UserError that has the requirement, the value and a usual
one: "rho must be above 0; got -1.0. 0.01 is usual".
"""

from collections.abc import Sequence
from typing import Any

from moon_jax.errors import UserError


def above(bound: float, usual: Any, **values: float) -> None:
  """Checks that values, given by name, are above a bound."""
  _check(f'above {bound}', usual, values, lambda value: value > bound)


def at_least(bound: float, usual: Any, **values: float) -> None:
  """Checks that values are a bound or larger."""
  _check(f'at least {bound}', usual, values, lambda value: value >= bound)


def from_0_to_1(usual: Any, **values: float) -> None:
  """Checks that values are 0, 1 or between them."""
  _check('from 0 to 1', usual, values, lambda value: 0 <= value <= 1)


def divisor(number: int, usual: int, **values: int) -> None:
  """Checks that values divide a number without remainder."""
  _check(f'a divisor of {number}', usual, values,
         lambda value: value > 0 and number % value == 0)


def one_of(words: Sequence[str], **values: str) -> None:
  """Checks that values are among `words`; the first one is usual."""
  _check(f'{", ".join(words[:-1])} or {words[-1]}', words[0], values,
         lambda value: value in words)


def _check(requirement, usual, values, is_met):
  for name, value in values.items():
    if not is_met(value):  # as for NaN
      raise UserError(
          name, f'must be {requirement}', repr(value), f'{usual} is usual')
