"""Finds how many lanes fit into a GPU's memory, with few compilations."""

from collections.abc import Callable
import os
from typing import NamedTuple

from moon_jax.errors import UserError

# The environment variable of JAX, and its older name.
_FRACTION_VARIABLES = (
    'XLA_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_MEM_FRACTION')
_DEFAULT_FRACTION = .75  # of a GPU's memory, if neither variable is set
_MAX_CONFIRMATIONS = 2  # compilations to confirm an answer


class Fit(NamedTuple):
  """The maximum number of lanes that fit, and how it was found."""

  num_lanes: int  # the maximum, total over all devices; 0 if none fits
  is_compiled: bool  # False: from a linear fit, not verified by compiling
  compiled: tuple[int, ...]  # numbers of lanes that were compiled
  is_most: bool  # whether more lanes could not be used
  is_bound: bool = False  # whether num_lanes + unit is known not to fit


def usable(memory_bytes: int) -> int:
  """Returns the bytes of a GPU's memory that JAX can use."""
  return int(memory_bytes * fraction())


def fraction() -> float:
  """Returns the fraction of a GPU's memory that JAX preallocates.

  Raises:
    UserError: if the environment variable is not in (0, 1].
  """
  name = next(filter(os.environ.get, _FRACTION_VARIABLES), None)
  if name is None:
    return _DEFAULT_FRACTION
  text = os.environ[name]
  try:
    value = float(text)
  except ValueError:
    value = 0.
  if not 0 < value <= 1:
    raise UserError(f'{name} must be above 0 and at most 1, got {text}; '
                    f'unset it for the default, {_DEFAULT_FRACTION}')
  return value


def most_lanes(need: Callable[[int], int], limit: int, now: int, most: int,
               unit: int, is_cheap: Callable[[], bool]) -> Fit:
  """Finds the maximum number of lanes whose round fits.

  Memory grows almost linearly with lanes. The round is therefore compiled for
  two numbers of lanes, and the maximum is computed from a linear fit. If
  compiling is cheap, the maximum is verified by compiling it. The answer 0 is
  always verified.

  Args:
    need: compiles a round with a given number of lanes and returns the bytes
      that it needs on each device.
    limit: bytes available on each device.
    now: lanes of the configuration.
    most: maximum number of lanes that can be used; a multiple of `unit`.
    unit: number of devices; lanes are a multiple of it.
    is_cheap: returns whether another compilation is cheap; called after two
      compilations.
  """
  needs = {now: need(now)}

  def answer(num_lanes, is_compiled=True):
    return Fit(num_lanes, is_compiled, tuple(needs), num_lanes >= most,
               needs.get(num_lanes + unit, 0) > limit)

  def least():
    if unit not in needs:
      needs[unit] = need(unit)
    return answer(unit if needs[unit] <= limit else 0)

  fits = needs[now] <= limit
  if fits and now >= most:
    return answer(now)
  if not fits and now <= unit:
    return least()
  second = min(most, 2 * now) if fits else _rounded_down(now // 2, unit) or unit
  needs[second] = need(second)
  for _ in range(_MAX_CONFIRMATIONS):
    guess = _linear_guess(needs, limit, most, unit)
    if guess == 0:
      return least()
    if guess in needs:
      return answer(guess)
    if not is_cheap():
      return answer(guess, False)
    needs[guess] = need(guess)
  fitting = [lanes for lanes, size in needs.items() if size <= limit]
  return answer(max(fitting)) if fitting else least()


def _linear_guess(needs, limit, most, unit):
  """Returns the maximum number of lanes according to a linear fit.

  The line goes through the two compiled numbers whose memory is closest to the
  limit. The result is below each number that is known not to fit, and at least
  the largest number that is known to fit.
  """
  fitting = [lanes for lanes, size in needs.items() if size <= limit]
  too_many = [lanes for lanes, size in needs.items() if size > limit]
  low, high = sorted(sorted(
      needs, key=lambda lanes: abs(needs[lanes] - limit))[:2])
  slope = (needs[high] - needs[low]) / (high - low)
  guess = most if slope <= 0 else _rounded_down(
      int(low + (limit - needs[low]) / slope), unit)
  guess = min(guess, most, *(lanes - unit for lanes in too_many))
  return max(0, guess, *fitting)


def _rounded_down(lanes, unit):
  return lanes // unit * unit
