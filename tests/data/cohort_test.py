"""Cohorts: the published ones, and what any must be."""

import json

import numpy as np
import pytest

from moon_jax.data import cohort
from moon_jax.errors import UserError


def test_equals_published_cohorts(golden_dir):
  for case in json.loads((golden_dir / 'sampling.json').read_text()):
    size = int(case['clients'] * case['fraction'])
    found = cohort.sample(
        case['clients'], size, case['rounds'], case['seed'])
    assert found == case['lists']


def test_more_rounds_begin_alike():
  assert cohort.sample(20, 5, 9, 3)[:4] == (
      cohort.sample(20, 5, 4, 3))


def test_all_take_part_in_order():
  assert cohort.sample(3, 3, 2, 0) == [[0, 1, 2]] * 2


def test_list_is_read_as_it_is_written(tmp_path):
  path = tmp_path / 'cohorts.txt'
  given = [[3, 0], [11], [1, 2, 5, 4]]
  path.write_text(cohort.text_of(given))
  assert cohort.read(str(path), 12, 3) == given
  path.write_text('# rounds\n3, 0\n\n11  # alone\n1\t2,5 4\n7\n')
  assert cohort.read(str(path), 12, 3) == [*given, [7]]


@pytest.mark.parametrize('text, words', [
    ('0 1\n12\n', "line 2: '12' is no client.*0 to 11"),
    ('0 1\n-1\n', "line 2: '-1' is no client"),
    ('0 1\n1.5\n', "line 2: '1.5' is no client"),
    ('0 1\n\u0663\n', 'line 2: .* is no client'),  # a digit, not of ASCII
    ('0 1\n' + '9' * 5000 + '\n', 'line 2: .* is no client'),
    ('0 1\n3 4 3\n', 'line 2 has a client twice'),
    ('0 1\n', 'clients of 1 rounds; --num_rounds=2'),
    ('', 'clients of 0 rounds'),
    ('\0', 'is no client'),
])
def test_what_is_wrong_in_a_list_is_told(text, words, tmp_path):
  path = tmp_path / 'cohorts.txt'
  path.write_text(text)
  with pytest.raises(UserError, match=f'--cohorts_file=.*{words}'):
    cohort.read(str(path), 12, 2)


@pytest.mark.parametrize('name', ['missing.txt', '', 'binary'])
def test_what_is_no_list_is_told(name, tmp_path):
  (tmp_path / 'binary').write_bytes(b'\xff\xfe\0')
  with pytest.raises(UserError, match='--cohorts_file=.*cannot be read'):
    cohort.read(str(tmp_path / name), 12, 2)


def test_clients_fail_at_the_rate_given():
  """In each round, each client by itself, and each seed by itself."""
  def lost(rate, seed=0):
    return np.array([[cohort.is_lost(rate, seed, t, c) for c in range(100)]
                     for t in range(100)])

  few, other = lost(.3), lost(.3, seed=1)
  assert abs(few.mean() - .3) < .02  # 4 standard deviations
  for axis in 0, 1:  # of a round, of a client: 4 of the largest of 100
    assert np.abs(few.mean(axis) - .3).max() < .2
  # No seed, round or client is another one's, nor the next of another seed.
  for found, another in ((few, other), (few[1:], few[:-1]),
                         (few[:, 1:], few[:, :-1]), (few[1:], other[:-1]),
                         (few[:, 1:], other[:, :-1]), (few, few.T)):
    assert abs((found == another).mean() - (.3**2 + .7**2)) < .03
  assert not any(cohort.is_lost(0., 0, t, 0) for t in range(100))
  # Whoever fails at a rate fails at a higher one, in any order of asking.
  assert (lost(.6) >= few).all()
