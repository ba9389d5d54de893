"""Cohorts: the published ones, and what any must be."""

import json

from moon_jax.data import cohort


def test_equals_published_cohorts(golden_dir):
  for case in json.loads((golden_dir / 'sampling.json').read_text()):
    size = int(case['clients'] * case['fraction'])
    found = cohort.sample_cohorts(
        case['clients'], size, case['rounds'], case['seed'])
    assert found == case['lists']


def test_more_rounds_begin_alike():
  assert cohort.sample_cohorts(20, 5, 9, 3)[:4] == (
      cohort.sample_cohorts(20, 5, 4, 3))


def test_all_take_part_in_order():
  assert cohort.sample_cohorts(3, 3, 2, 0) == [[0, 1, 2]] * 2
