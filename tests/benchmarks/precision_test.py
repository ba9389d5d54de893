"""Tests the errors of a MOON round at each precision, against float64."""

import json
import pathlib

import pytest

from benchmarks import precision

pytestmark = pytest.mark.bench
# Bounds of the largest error of a weight. Measured: 1.5e-8 (highest), 1e-4.
LIMITS = {
    '--model.precision=highest': (0, 1e-6),
    '--model.dtype=bfloat16': (2e-5, 5e-4)}


@pytest.mark.parametrize('choice', precision.choices())
def test_errors_of_a_round_are_as_documented(golden_cnn, choice):
  errors = precision.round_errors(golden_cnn, **precision.CHOICES[choice])
  low, high = LIMITS[choice]
  assert low <= errors['largest'] <= high
  assert errors['relative'] < 1e3 * high


def test_the_docs_have_the_table_of_the_committed_errors():
  root = pathlib.Path(__file__).parents[2]
  kept = root / 'experiments' / 'results' / 'measurements.json'
  errors = json.loads(kept.read_text())['precision']['errors']
  page = (root / 'docs' / 'numerics.md').read_text()
  assert f'{precision.table(errors)}\n' in page
