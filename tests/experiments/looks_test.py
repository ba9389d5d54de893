"""The looks of AMENDMENT.md, on made-up runs."""

import math

import numpy as np
import pytest

from experiments.full import analysis, looks, questions, report
from moon_jax.results import stats


def blocks(differences, num_rounds=100):
  """FedAvg at 60 in all rounds; MOON is behind by 5 in round 1."""
  made = []
  for seed, d in enumerate(differences):
    new = np.full(num_rounds, 60. + d)
    new[0] = 55.
    made.append(analysis.Block(seed, np.full(num_rounds, 60.), new))
  return made


@pytest.mark.parametrize('d, number, verdict, is_interim', [
    ([2., 2.1, 1.9], 0, 'open', True),
    ([2., 2.1, 1.9, 2.], 1, 'higher', False),
    ([-2., -2.1, -1.9, -2.], 1, 'lower', False),
    ([2., 0., -1., 2.], 1, 'open', False),
    ([2., 1., 0., 1., 1.1], 2, 'open', False),
    ([2., 1., 0., 1., 1.1, 1.], 2, 'open', True),
    ([2., 2.1, 1.9, 2., -9.], 1, 'higher', True),  # the verdict stays
    ([2., 0., 1., 1.1, .9, 1., 1., 1.], 3, 'higher', False),
    ([2., 0., -1., 1., -1., 0., 1., 1.], 3, 'open', False)])
def test_a_look_follows_while_the_verdict_is_open(
    d, number, verdict, is_interim):
  found = looks.state(np.array(d))
  assert (found.number, found.verdict, found.is_interim) == (
      number, verdict, is_interim)


def test_the_levels_are_those_of_the_looks():
  """0.02: t(3, .99) = 4.541; 0.01: t(7, .995) = 3.499."""
  assert looks.LOOKS == ((4, .02), (5, .02), (8, .01))
  d = np.array([1., 2., 3., 4.])
  half = 4.541 * d.std(ddof=1) / 2
  assert looks.paired.interval(d, .02) == pytest.approx(
      (2.5 - half, 2.5 + half), abs=1e-3)
  d = np.array([1., 2., 3., 4.] * 2)
  half = 3.499 * d.std(ddof=1) / math.sqrt(8)
  assert looks.paired.interval(d, .01)[0] == pytest.approx(
      2.5 - half, abs=1e-3)


@pytest.mark.parametrize('d, text', [
    ([1.9, .5, .4], 'interim: +0.9 points over 3 pairs; the first look'),
    ([2., 2.1, 1.9, 2.], 'higher: +2.0 points over 4 pairs (look 1, 98'),
    ([2., 0., -1., 2.], 'open: +0.8 points over 4 pairs (look 1, 98%'),
    ([2., 0., -1., 1., -1., 0., 1., 1.], 'open, final: +0.4 points over 8'),
    ([2., 1., 0., 1., 1.1, 4.], 'Interim: +1.5 points over 6 pairs')])
def test_sentences(d, text):
  assert text in looks.sentence(blocks(d))


@pytest.mark.parametrize('d, num_planned', [
    ([2.], 4), ([2., 0., -1., 2.], 5), ([2., 2.1, 1.9, 2.], 4),
    ([2., 1., 0., 1., 1.1, 1.], 8)])
def test_a_verdict_needs_no_further_pairs(d, num_planned):
  assert looks.num_planned(np.array(d)) == num_planned
  sentence = report.full_verdict(questions.SPLIT, blocks(d))
  unfinished = f'{len(d)} of {num_planned} pairs so far'
  assert (unfinished in sentence) == (len(d) < num_planned)


def test_a_verdict_that_needs_pair_0_says_so():
  only = [1.3, 1.1, 1., .4]
  assert looks.sentence(blocks(only)).startswith('higher: ')
  assert 'only with pair 0' in looks.sentence(blocks(only))
  assert 'only with' not in looks.sentence(blocks([2., 2.1, 1.9, 2.]))


def test_the_mean_of_the_last_rounds_has_the_interval_of_the_look():
  d = [2., 2.4, 1.6, 2.]
  half = 4.541 * np.std(d, ddof=1) / 2  # t(3, .99)
  text = f'+2.0 points (98% interval {2 - half:+.1f} to {2 + half:+.1f})'
  assert looks.size(blocks(d), stats.mean_of_last) == text
  assert looks.size(  # interim: that of the look
      blocks([*d, 9.]), stats.mean_of_last) == text
  assert looks.size(blocks(d[:3]), stats.mean_of_last) == '+2.0 points'


def test_differences_by_round_begin_in_round_1():
  means, low, high = looks.by_round(blocks([1., 3.]))
  assert means[:2].tolist() == [-5., 2.] and len(means) == 100
  assert (low[0], high[0]) == (-5., -5.)
  assert low[1] == pytest.approx(2 - 12.706, abs=1e-3)  # t(1, .975) times 1
  rows = looks.round_table(blocks([1., 3.]))
  assert [row[0] for row in rows[1:]] == [
      '1', '2', '3', '5', '10', '15', '20', '50', '100']
  assert rows[2][1:] == ['+2.00', '-10.71 to +14.71']
