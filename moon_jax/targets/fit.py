"""How many lanes fit into a GPU's memory, with few compilations."""

from collections.abc import Callable
import os
from typing import NamedTuple

from moon_jax.errors import UserError

# Environment variables of JAX, and the name that one had before.
_FRACTION_NAMES = ('XLA_CLIENT_MEM_FRACTION', 'XLA_PYTHON_CLIENT_MEM_FRACTION')
_FRACTION = .75  # of a GPU's memory that JAX takes where neither is set
_MAX_CONFIRMED = 2  # compilations to confirm an answer


class Fit(NamedTuple):
  """The answer, and how it was found."""

  num_lanes: int  # the most that fit, of all devices together; 0: none
  is_compiled: bool  # False: interpolated between programs that were compiled
  compiled: tuple[int, ...]  # numbers of lanes that were compiled
  is_most: bool  # whether no more lanes can be used
  is_bound: bool = False  # whether more were compiled, and do not fit


def usable(memory_bytes: int) -> int:
  """Returns the bytes of a GPU's memory that a process can count on."""
  return int(memory_bytes * fraction())


def fraction() -> float:
  """Returns the fraction of a GPU's memory that JAX takes.

  Raises:
    UserError: where the environment sets one that is no fraction.
  """
  name = next(filter(os.environ.get, _FRACTION_NAMES), None)
  if name is None:
    return _FRACTION
  text = os.environ[name]
  try:
    found = float(text)
  except ValueError:
    found = 0.
  if not 0 < found <= 1:
    raise UserError(f'{name}={text} must be above 0 and at most 1; '
                    f'leave it out for {_FRACTION}')
  return found


def most_lanes(need: Callable[[int], int], limit: int, now: int, most: int,
               unit: int, is_cheap: Callable[[], bool]) -> Fit:
  """Finds the most lanes whose round fits.

  Memory is nearly linear in lanes. So the round is compiled for two numbers of
  lanes, and the answer on their line is confirmed where that is cheap. That not
  even one lane on each device fits is always confirmed.

  Args:
    need: compiles a round of so many lanes; returns the bytes that a device
      needs for it.
    limit: bytes that a device has.
    now: lanes of the configuration.
    most: lanes that a round has clients for; a multiple of `unit`.
    unit: lanes come in multiples of it, one for each device.
    is_cheap: whether one more compilation is; called after two of them.
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
  second = min(most, 2 * now) if fits else _rounded(now // 2, unit) or unit
  needs[second] = need(second)
  for _ in range(_MAX_CONFIRMED):
    guess = _on_line(needs, limit, most, unit)
    if guess == 0:
      return least()
    if guess in needs:
      return answer(guess)
    if not is_cheap():
      return answer(guess, False)
    needs[guess] = need(guess)
  fitting = [lanes for lanes, size in needs.items() if size <= limit]
  return answer(max(fitting)) if fitting else least()


def _on_line(needs, limit, most, unit):
  """The most lanes that fit, on the line through the two nearest numbers.

  Never one that is known not to fit, nor fewer than are known to.
  """
  fitting = [lanes for lanes, size in needs.items() if size <= limit]
  others = [lanes for lanes, size in needs.items() if size > limit]
  low, high = sorted(sorted(
      needs, key=lambda lanes: abs(needs[lanes] - limit))[:2])
  slope = (needs[high] - needs[low]) / (high - low)
  guess = most if slope <= 0 else _rounded(
      int(low + (limit - needs[low]) / slope), unit)
  guess = min(guess, most, *(lanes - unit for lanes in others))
  return max(0, guess, *fitting)


def _rounded(lanes, unit):
  return lanes // unit * unit
