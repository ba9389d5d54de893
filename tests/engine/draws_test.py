"""Numbers of a few places equal those of the whole stream, bit for bit."""

import numpy as np
import pytest

from moon_jax.engine import schedule


@pytest.mark.parametrize('places', [
    [], [0], [99_999], [5, 6, 7, 3], [40_000, 2, 2, 99_999, 0, 1],
    list(range(500, 700))])
@pytest.mark.parametrize('count', [100_000, 10**7])
def test_equals_drawing_all_numbers(places, count):
  places = np.array(places, np.int64)
  ours, theirs = np.random.default_rng([3, 7]), np.random.default_rng([3, 7])
  for _ in range(2):  # the state afterwards is the same, too
    np.testing.assert_array_equal(
        schedule.numbers_at(ours, count, places), theirs.random(count)[places])


def test_other_generators_draw_all_numbers():
  ours, theirs = (np.random.Generator(np.random.MT19937(1)) for _ in range(2))
  np.testing.assert_array_equal(
      schedule.numbers_at(ours, 10**5, np.array([7])),
      theirs.random(10**5)[[7]])


def test_few_places_of_a_long_stream_are_not_drawn_one_by_one():
  """10^15 numbers would take months."""
  number = schedule.numbers_at(
      np.random.default_rng(0), 10**15, np.array([10**14]))
  assert 0 <= number[0] < 1
