"""Tests the errors of a MOON round at each precision, against float64."""

import json
import pathlib

import pytest

from benchmarks import precision

pytestmark = pytest.mark.bench
# Bounds of the largest error of a weight. Measured: 1.5e-8 (highest, tf32x3),
# 5.4e-6 (tf32), 1e-4 (bfloat16).
LIMITS = {
    '--precision=highest': (0, 1e-6), '--precision=tf32x3': (0, 1e-6),
    '--precision=tf32': (1e-6, 2e-5), '--precision=bfloat16': (2e-5, 5e-4),
    '--dtype=bfloat16': (2e-5, 5e-4)}


@pytest.mark.parametrize('choice', [
    pytest.param(choice, marks=[pytest.mark.slow] * (
        choice not in ('--precision=tf32x3', '--precision=tf32')))
    for choice in precision.CHOICES])
def test_errors_of_a_round_are_as_documented(golden_cnn, choice):
  errors = precision.round_errors(golden_cnn, **precision.CHOICES[choice])
  low, high = LIMITS[choice]
  assert low <= errors['largest'] <= high
  assert errors['relative'] < 1e3 * high


def test_the_command_writes_its_results(tmp_path, monkeypatch):
  monkeypatch.setattr(precision, 'round_errors', lambda *_, **arithmetic: {
      'largest': .1 if 'dtype' in arithmetic else .001, 'relative': .2})
  monkeypatch.setattr(precision, 'gradient_errors', lambda *_, **arithmetic: {
      'logits': .3, 'gradients': .4})
  monkeypatch.setattr('sys.argv', ['', f'--out={tmp_path}'])
  precision.main()
  rows = (tmp_path / 'precision.md').read_text().splitlines()
  assert rows[2:] == [
      f'| `{choice}` | {"1.0e-01" if "dtype" in choice else "1.0e-03"} | '
      '2.0e-01 | 3.0e-01 | 4.0e-01 |' for choice in precision.CHOICES]
  results = json.loads((tmp_path / 'precision.json').read_text())
  assert results['errors']['--dtype=bfloat16']['round']['largest'] == .1


def test_the_docs_have_the_committed_table():
  root = pathlib.Path(__file__).parents[2]
  table = root / 'experiments' / 'results' / 'precision' / 'precision.md'
  assert table.read_text() in (root / 'docs' / 'precision.md').read_text()
