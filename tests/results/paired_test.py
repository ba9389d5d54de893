"""Paired statistics match closed forms, published tables and plain loops."""

import math
import types

import numpy as np
import pytest
import scipy.stats

from moon_jax.results import arms as arms_lib
from moon_jax.results import paired, stats

# W. S. Gosset (Student), The Probable Error of a Mean, Biometrika 6, 1908:
# additional hours of sleep by two drugs; t = 4.0621, p = 0.002833.
SLEEP_1 = (.7, -1.6, -.2, -1.2, -.1, 3.4, 3.7, .8, 0., 2.)
SLEEP_2 = (1.9, .8, 1.1, .1, -.1, 4.4, 5.5, 1.6, 4.6, 3.4)


def test_paired_t_test_matches_students_example():
  result = paired.compare(SLEEP_2, SLEEP_1)
  assert result.mean == pytest.approx(1.58)
  assert result.p_value == pytest.approx(.002833, abs=1e-6)
  assert (result.low, result.high) == pytest.approx((.7001142, 2.4598858))


def test_equivalence_p_value_matches_two_one_sided_tests():
  """t = (1 - |mean|) / (s / sqrt(n)); two degrees of freedom in closed form."""
  result = paired.compare([.1, .3, -.1], [0., 0., 0.])
  s = np.std([.1, .3, -.1], ddof=1)
  t = (1 - .1) / (s / math.sqrt(3))
  one_sided = .5 - t / (2 * math.sqrt(2 + t * t))
  assert result.equivalence_p == pytest.approx(one_sided, rel=1e-9)
  assert result.equivalence_p < .05
  assert paired.compare([3., 3.2, 2.9], [0.] * 3).equivalence_p > .99
  assert paired.compare([-3., -3.2, -2.9], [0.] * 3).equivalence_p > .99


def test_holm():
  """3 x .01; 2 x .03; and at least the previous adjusted value."""
  assert paired.holm([.01, .04, .03]) == pytest.approx([.03, .06, .06])
  assert paired.holm([.5, math.nan, .9]) == pytest.approx(
      [1., math.nan, 1.], nan_ok=True)
  assert paired.holm([]) == []


def test_welch_matches_the_test_on_individual_values():
  ours, theirs = [66.1, 67., 65.2, 66.4], [66.3, 66.8, 65.8]
  found = paired.welch(ours, np.mean(theirs), np.std(theirs, ddof=1), 3)
  expected = scipy.stats.ttest_ind(ours, theirs, equal_var=False)
  assert found.mean == pytest.approx(np.mean(ours) - np.mean(theirs))
  assert found.p_value == pytest.approx(expected.pvalue)
  interval = expected.confidence_interval()
  assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
  # Three published runs are assumed; without spreads there is no interval.
  assert paired.welch(ours, 66.3, .5) == paired.welch(ours, 66.3, .5, 3)
  assert math.isnan(paired.welch([68.2], 66.3, .5, 3).low)
  assert math.isnan(paired.welch(ours, 66.3).p_value)


@pytest.mark.parametrize('differences, words', [
    ([1., 1.2, .9], 'higher'), ([-1., -1.2, -.9], 'lower'),
    ([1., -1.2, .9], 'open'), ([.1, -.1, .05, -.02], 'within ±1 point'),
    ([], 'no common seeds'), ([1.], 'too few pairs'),
    ([0., 0.], 'equal in all pairs'),
    ([2., 2.], 'same difference in all pairs')])
def test_verdicts(differences, words):
  """Equal differences, such as from few test examples, have no test."""
  pairs = paired.compare(differences, [0] * len(differences))
  assert paired.verdict(pairs, .01) == words
  assert math.isnan(pairs.low) == math.isnan(pairs.p_value) == (
      'pair' in words or not differences)
  if words in ('higher', 'lower'):
    assert paired.verdict(pairs, .1) == f"{words} (not by Holm's p)"


@pytest.mark.parametrize('differences, text', [
    ([1., 1.2, .9], '+0.65 to +1.41'), ([], ''), ([1., 1., 1.], ''),
    ([1.], 'too few pairs'), ([10., 12.], 'too few pairs'),
    ([80., -70., 10.], 'interval too wide')])  # ±186 points
def test_intervals_that_say_nothing_are_not_shown(differences, text):
  pairs = paired.shown(paired.compare(differences, [0] * len(differences)))
  assert paired.interval_text(pairs) == text
  assert ('pairs' in text or 'wide' in text) <= math.isnan(pairs.p_value)


def test_only_intervals_of_accuracies_have_a_limit():
  new, base = (types.SimpleNamespace(values=lambda *_, values=values: values)
               for values in (
                   {(0, 0): 300., (1, 1): 100., (2, 2): 200.},
                   {(0, 0): 0, (1, 1): 0, (2, 2): 0}))
  assert arms_lib.compare(new, base, measure='test_loss').high > 400
  assert math.isnan(arms_lib.compare(new, base).high)


def test_runs_that_share_a_split_are_one_pair():
  """Three seeds on each of three splits are no nine independent pairs."""
  arm = lambda values: types.SimpleNamespace(values=lambda *_: values)
  of_split = {0: 1., 1: 2., 2: 4.}
  crossed = {(seed, split): of_split[split] + .1 * seed
             for seed in range(3) for split in range(3)}
  zeros = dict.fromkeys(crossed, 0.)
  found = arms_lib.compare(arm(crossed), arm(zeros))
  np.testing.assert_allclose(found.differences, [1.1, 2.1, 4.1])
  on_one = {seed: value for seed, value in crossed.items() if not seed[1]}
  assert len(arms_lib.compare(arm(on_one), arm(zeros)).differences) == 3


def test_a_target_is_reached_by_the_running_median():
  accuracies = [.1, .9, .1, .2, .3, .4, .5, .6]
  reached = lambda target, window: stats.first_reached(
      accuracies, target, window)
  assert reached(.3, 5) == 5  # .9, .1, .2, .3, .4
  assert reached(.2, 5) == 4
  assert reached(.55, 5) is None
  assert reached(.6, 1) == 1 and reached(.9, 1) == 1
  assert reached(.91, 1) is None


@pytest.mark.parametrize('reached, text', [
    ([3, 5, 4], '4'), ([3, 5], '5'), ([3, None, 4], '4 (2 of 3)'),
    ([3, None], 'never (1 of 2)'),
    ([None, None, 3], 'never (1 of 3)'), ([None], 'never'),
    ([], '')])
def test_never_is_later_than_all_rounds(reached, text):
  assert stats.rounds_text(reached) == text


@pytest.mark.parametrize('name, values, text', [
    ('epsilon', [1578.4449] * 3, '1578.4'),
    ('epsilon', [8., 9.], '8.5000 ± 0.7071'),
    ('test_loss', [.5, .5], '0.5000 ± 0.0000'), ('test_loss', [13.5], '13.500'),
    ('test_accuracy', [.5, .75], '62.5 ± 17.7'),
    ('test_loss', [4e-5, 5e-5], '0.0000450 ± 0.0000071'),
    ('test_loss', [4e-9, 5e-9], '4.50e-09 ± 7.07e-10'),
    ('test_loss', [0., 0.], '0.0000 ± 0.0000'),
    ('test_loss', [math.nan, .5], '0.5000 (1 of 2)'),
    ('test_loss', [math.nan], 'not finite'), ('test_loss', [], '-')])
def test_metrics_have_five_digits_and_a_spread_if_seeds_decide(
    name, values, text):
  assert stats.metric_text(name, values, '-') == text
