"""Tests the search for the maximum number of lanes that fit."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from moon_jax.targets import fit


def search(need, limit, now, most, unit=1, is_cheap=True):
  compiled = []

  def compile_fn(num_lanes):
    compiled.append(num_lanes)
    return need(num_lanes)

  answer = fit.most_lanes(compile_fn, limit, now, most, unit, lambda: is_cheap)
  assert list(answer.compiled) == compiled
  assert len(set(compiled)) == len(compiled)
  return answer


@pytest.mark.parametrize('need, limit, now, most, is_cheap, expected', [
    # The configured number is the most that can be used.
    (lambda lanes: 10 * lanes, 100, 10, 10, True,
     fit.Fit(10, True, (10,), True)),
    # Not even one fits.
    (lambda lanes: 200, 100, 1, 10, True, fit.Fit(0, True, (1,), False, True)),
    # The linear fit is confirmed where compiling is cheap.
    (lambda lanes: 10 + 10 * lanes, 100, 16, 16, False,
     fit.Fit(9, False, (16, 8), False)),
    (lambda lanes: 10 + 10 * lanes, 100, 16, 16, True,
     fit.Fit(9, True, (16, 8, 9), False)),
    # It is a bound if the next number was compiled.
    (lambda lanes: 10 * lanes, 85, 9, 9, True,
     fit.Fit(8, True, (9, 4, 8), False, True)),
    # More lanes fit than are configured.
    (lambda lanes: 10 * lanes, 105, 3, 64, False,
     fit.Fit(10, False, (3, 6), False)),
    (lambda lanes: 10 * lanes, 100, 6, 9, False,
     fit.Fit(9, True, (6, 9), True))])
def test_answers(need, limit, now, most, is_cheap, expected):
  assert search(need, limit, now, most, is_cheap=is_cheap) == expected


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
