"""Lanes that fit, of programs whose memory is a line, and of others."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from moon_jax.targets import fit


class Compiler:
  """Memory of a program by its lanes; counts how often it compiles."""

  def __init__(self, need):
    self._need, self.asked = need, []

  def __call__(self, num_lanes):
    self.asked.append(num_lanes)
    return self._need(num_lanes)


def found(need, limit, now, most, unit=1, is_cheap=True):
  compiler = Compiler(need)
  answer = fit.most_lanes(compiler, limit, now, most, unit, lambda: is_cheap)
  assert list(answer.compiled) == compiler.asked
  assert len(set(compiler.asked)) == len(compiler.asked)  # none twice
  return answer


def test_all_that_can_be_used_fit():
  answer = found(lambda lanes: 10 * lanes, 100, now=10, most=10)
  assert answer == fit.Fit(10, True, (10,), True)


def test_one_lane_does_not_fit():
  answer = found(lambda lanes: 200, 100, now=1, most=10)
  assert answer == fit.Fit(0, True, (1,), False, True)


@pytest.mark.parametrize('need, most', [
    (lambda lanes: 18.29 + 24.08 * lanes**1.25, 2),
    (lambda lanes: 87.1 + 11.06 * lanes**.9, 1),
    (lambda lanes: 71.9 + 29.6 * lanes**1.25, 0)])
@pytest.mark.parametrize('is_cheap', [True, False])
def test_that_none_fits_is_compiled(need, most, is_cheap):
  """Whatever the line says, which bends here."""
  answer = found(need, 100, now=32, most=32, is_cheap=is_cheap)
  assert (answer.num_lanes == 0) <= (1 in answer.compiled and most == 0)
  if answer.is_compiled:
    assert answer.num_lanes <= most


def test_interpolated_where_compiling_is_dear():
  need = lambda lanes: 10 + 10 * lanes
  answer = found(need, 100, now=16, most=16, is_cheap=False)
  assert answer == fit.Fit(9, False, (16, 8), False)
  confirmed = found(need, 100, now=16, most=16)
  assert confirmed == fit.Fit(9, True, (16, 8, 9), False)


def test_the_answer_is_a_bound_where_more_was_compiled():
  assert found(lambda lanes: 10 * lanes, 85, now=9, most=9) == fit.Fit(
      8, True, (9, 4, 8), False, True)


def test_extrapolated_where_more_would_fit():
  answer = found(lambda lanes: 10 * lanes, 105, now=3, most=64, is_cheap=False)
  assert answer == fit.Fit(10, False, (3, 6), False)
  answer = found(lambda lanes: 10 * lanes, 100, now=6, most=9, is_cheap=False)
  assert answer == fit.Fit(9, True, (6, 9), True)


def test_lanes_are_shared_by_devices():
  answer = found(lambda lanes: 10 * lanes / 4, 50, now=32, most=40, unit=4)
  assert answer.num_lanes == 20 and answer.is_compiled
  none = found(lambda lanes: 100, 50, now=32, most=40, unit=4)
  assert none.num_lanes == 0 and none.compiled[0] == 32


def test_a_wrong_guess_is_corrected():
  """More lanes take more than the line says; the answer was compiled."""
  need = lambda lanes: 10 * lanes + (20 if lanes == 9 else 0)
  answer = found(need, 100, now=16, most=16)
  assert need(answer.num_lanes) <= 100 and answer.is_compiled


def test_the_answer_is_never_less_than_what_is_known_to_fit():
  """The two programs nearest to the limit are not of the line below it."""
  assert fit._on_line({5: 10, 20: 111, 18: 110}, 100, 32, 1) == 5


@given(st.integers(0, 50), st.integers(1, 20), st.integers(1, 400),
       st.integers(1, 16), st.integers(1, 5), st.integers(0, 20),
       st.booleans())
def test_of_a_line_the_answer_is_the_most(
    base, slope, limit, now, unit, more, is_cheap):
  now, most = now * unit, (now + more) * unit
  need = lambda lanes: base + slope * lanes
  answer = found(need, limit, now, most, unit, is_cheap)
  expected = max((lanes for lanes in range(0, most + 1, unit)
                  if lanes and need(lanes) <= limit), default=0)
  assert answer.num_lanes == expected
  assert len(answer.compiled) <= 4
  assert answer.is_most == (expected >= most)


@pytest.mark.parametrize('limit', range(5, 120, 5))
def test_what_is_called_compiled_was(limit):
  """Memory as XLA's: a line, with steps."""
  need = lambda lanes: 10 * lanes + 7 * (lanes % 3)
  answer = found(need, limit, 10, 10)
  if answer.is_compiled and answer.num_lanes:
    assert answer.num_lanes in answer.compiled
    assert need(answer.num_lanes) <= limit
