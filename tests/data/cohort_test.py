"""Cohorts: published ones, cohort files and dropout."""

import json

import numpy as np
import pytest

from moon_jax.data import cohort
from moon_jax.errors import UserError


def test_equals_published_cohorts(golden_dir):
  for case in json.loads((golden_dir / 'sampling.json').read_text()):
    size = int(case['clients'] * case['fraction'])
    actual = cohort.sample(
        case['clients'], size, case['rounds'], case['seed'])
    assert actual == case['lists']


def test_cohorts_do_not_depend_on_the_number_of_rounds():
  assert cohort.sample(20, 5, 9, 3)[:4] == cohort.sample(20, 5, 4, 3)
  assert cohort.sample(3, 3, 2, 0) == [[0, 1, 2]] * 2  # ascending if all


def test_read_inverts_text_of(tmp_path):
  path = tmp_path / 'cohorts.txt'
  given = [[3, 0], [11], [1, 2, 5, 4]]
  path.write_text(cohort.text_of(given))
  assert cohort.read(str(path), 12, 3) == given
  path.write_text('# rounds\n3, 0\n\n11  # alone\n1\t2,5 4\n7\n')
  assert cohort.read(str(path), 12, 3) == [*given, [7]]


@pytest.mark.parametrize('text, words', [
    ('0 1\n12\n', "line 2: clients must be 0 to 11 .*got '12'"),
    ('0 1\n\u0663\n', 'line 2: clients must be'),  # a non-ASCII digit
    ('0 1\n3 4 3\n', 'line 2 must list each client once; got .3 4 3'),
    ('0 1\n', 'must .*each of num_rounds=2; got {path} with 1 rounds'),
    (None, 'must name a text file .*got {path}, which cannot be read'),
])
def test_invalid_files_raise(text, words, tmp_path):
  path = tmp_path / 'cohorts.txt'
  if text:
    path.write_text(text)
  with pytest.raises(UserError, match='^path.*' + words.replace(
   '{path}', str(path))):
    cohort.read(str(path), 12, 2)


def test_clients_drop_out_at_the_given_rate():
  def is_lost(rate, seed=0):
    return np.array([[cohort.is_lost(rate, seed, t, c) for c in range(60)]
                     for t in range(60)])

  few, other = is_lost(.3), is_lost(.3, seed=1)
  assert abs(few.mean() - .3) < .03  # 4 standard deviations
  # Rounds, clients and seeds differ from one another, also shifted by one.
  for mask, another in ((few, other), (few[1:], few[:-1]),
                         (few[:, 1:], few[:, :-1]), (few[1:], other[:-1]),
                         (few[:, 1:], other[:, :-1]), (few, few.T)):
    assert abs((mask == another).mean() - (.3**2 + .7**2)) < .05
  assert not is_lost(0.).any()
  assert (is_lost(.6) >= few).all()  # lost at one rate, lost at higher rates
