"""Tests the search for the maximum number of lanes that fit."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from moon_jax.targets import fit


class Compiler:
  """Returns a program's memory by its lanes; records each compilation."""

  def __init__(self, need):
    self._need, self.compiled = need, []

  def __call__(self, num_lanes):
    self.compiled.append(num_lanes)
    return self._need(num_lanes)


def search(need, limit, now, most, unit=1, is_cheap=True):
  compiler = Compiler(need)
  answer = fit.most_lanes(compiler, limit, now, most, unit, lambda: is_cheap)
  assert list(answer.compiled) == compiler.compiled
  assert len(set(compiler.compiled)) == len(compiler.compiled)
  return answer


def test_the_maximum_that_can_be_used_fits():
  answer = search(lambda lanes: 10 * lanes, 100, now=10, most=10)
  assert answer == fit.Fit(10, True, (10,), True)


def test_not_even_one_lane_fits():
  answer = search(lambda lanes: 200, 100, now=1, most=10)
  assert answer == fit.Fit(0, True, (1,), False, True)


@pytest.mark.parametrize('need, most', [
    (lambda lanes: 18.29 + 24.08 * lanes**1.25, 2),
    (lambda lanes: 87.1 + 11.06 * lanes**.9, 1),
    (lambda lanes: 71.9 + 29.6 * lanes**1.25, 0)])
@pytest.mark.parametrize('is_cheap', [True, False])
def test_zero_lanes_is_verified_if_memory_is_not_linear(need, most, is_cheap):
  answer = search(need, 100, now=32, most=32, is_cheap=is_cheap)
  assert (answer.num_lanes == 0) <= (1 in answer.compiled and most == 0)
  if answer.is_compiled:
    assert answer.num_lanes <= most


def test_interpolates_if_compiling_is_expensive():
  need = lambda lanes: 10 + 10 * lanes
  answer = search(need, 100, now=16, most=16, is_cheap=False)
  assert answer == fit.Fit(9, False, (16, 8), False)
  confirmed = search(need, 100, now=16, most=16)
  assert confirmed == fit.Fit(9, True, (16, 8, 9), False)


def test_the_answer_is_a_bound_if_the_next_number_was_compiled():
  assert search(lambda lanes: 10 * lanes, 85, now=9, most=9) == fit.Fit(
      8, True, (9, 4, 8), False, True)


def test_extrapolates_if_more_lanes_fit():
  answer = search(lambda lanes: 10 * lanes, 105, now=3, most=64, is_cheap=False)
  assert answer == fit.Fit(10, False, (3, 6), False)
  answer = search(lambda lanes: 10 * lanes, 100, now=6, most=9, is_cheap=False)
  assert answer == fit.Fit(9, True, (6, 9), True)


def test_lanes_are_a_multiple_of_the_devices():
  answer = search(lambda lanes: 10 * lanes / 4, 50, now=32, most=40, unit=4)
  assert answer.num_lanes == 20 and answer.is_compiled
  none = search(lambda lanes: 100, 50, now=32, most=40, unit=4)
  assert none.num_lanes == 0 and none.compiled[0] == 32


def test_a_wrong_guess_is_corrected_by_compiling():
  """Nine lanes take more memory than the linear fit predicts."""
  need = lambda lanes: 10 * lanes + (20 if lanes == 9 else 0)
  answer = search(need, 100, now=16, most=16)
  assert need(answer.num_lanes) <= 100 and answer.is_compiled


def test_the_answer_is_at_least_what_is_known_to_fit():
  """The line through the two programs closest to the limit gives less."""
  assert fit._linear_guess({5: 10, 20: 111, 18: 110}, 100, 32, 1) == 5


@given(st.integers(0, 50), st.integers(1, 20), st.integers(1, 400),
       st.integers(1, 16), st.integers(1, 5), st.integers(0, 20),
       st.booleans())
def test_the_answer_is_exact_if_memory_is_linear(
    base, slope, limit, now, unit, more, is_cheap):
  now, most = now * unit, (now + more) * unit
  need = lambda lanes: base + slope * lanes
  answer = search(need, limit, now, most, unit, is_cheap)
  expected = max((lanes for lanes in range(0, most + 1, unit)
                  if lanes and need(lanes) <= limit), default=0)
  assert answer.num_lanes == expected
  assert len(answer.compiled) <= 4
  assert answer.is_most == (expected >= most)


@pytest.mark.parametrize('limit', range(5, 120, 5))
def test_is_compiled_is_true_only_for_compiled_numbers(limit):
  """Memory grows linearly with small steps, as XLA's does."""
  need = lambda lanes: 10 * lanes + 7 * (lanes % 3)
  answer = search(need, limit, 10, 10)
  if answer.is_compiled and answer.num_lanes:
    assert answer.num_lanes in answer.compiled
    assert need(answer.num_lanes) <= limit
