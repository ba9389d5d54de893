"""Tests kernel counts on a small HLO module written by hand, as for a GPU."""

import json
import pathlib

import pytest

from benchmarks import kernel_counts
from moon_jax.targets import kernels

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (pathlib.Path(__file__).parent / 'round.hlo').read_text()


def test_kernels_of_a_row():
  """The row has 3 fusions, an inner loop 2 in 3 iterations, and calls 2."""
  counts = kernels.count(TEXT)
  assert counts.row == {
      'fusions': 3 + 3 * 2 + 2, 'library calls': 1, 'copies': 1,
      'inner loops': 1, 'conditionals': 1, 'other': 0}
  assert counts.launches() == 11 + 1 + 1
  assert counts.collectives == {'all-reduce': 1} and not counts.in_loops


def test_changed_modules():
  """Unknown trip counts, other loops and operations, and collectives."""
  def changed(old, new):
    assert old in TEXT
    return kernels.count(TEXT.replace(old, new))

  assert changed('"known_trip_count":{"n":"3"}', '').row['fusions'] == 3 + 2 + 2
  assert kernels.count(TEXT) == changed(
      'ROOT %while.9', '%while.8 = (s32[], f32[10]{0}) while(%copy.9), '
      'condition=%row_condition, body=%inner_body\n  ROOT %while.9')
  row = changed('f32[10]{0} copy(%small)', 'f32[10]{0} sort(%small)').row
  assert (row['copies'], row['other']) == (0, 1)
  counts = changed('%copy.9 =', '%g = f32[20]{0} all-gather(%x), '
                   'dimensions={0}\n  %copy.9 =')
  assert counts.collectives == {'all-reduce': 1, 'all-gather': 1}
  assert counts.in_loops == {'all-gather': 1}


def test_a_module_without_a_row_loop_is_an_error():
  with pytest.raises(ValueError, match='no loop inside a loop'):
    kernels.count(TEXT.replace('while.9 = (s32[], f32[10]{0}) while',
                               'while.9 = (s32[], f32[10]{0}) copy'))


def test_counts_are_formatted_as_a_table():
  row = {'case': 'resnet18:10:1:convolution=native', 'kernels_per_row': 1693,
         'fusions': 1572, 'library calls': 99, 'copies': 22, 'inner loops': 0,
         'conditionals': 1, 'collectives': {'all-reduce': 1},
         'temporary_bytes': 4.26e9}
  assert kernel_counts.table([row]).splitlines()[2] == (
      '| resnet18, 10 lanes, 1 GPU(s), `--convolution=native` | 1,693 | '
      '1,572, 99 | 22 | 0, 1 | 1 all-reduce | 4.260 |')


def test_the_results_page_has_the_committed_counts():
  folder = ROOT / 'experiments' / 'results'
  rows = json.loads(
      (folder / 'kernel_counts' / 'kernel_counts.json').read_text())
  assert {row['case'] for row in rows} == set(kernel_counts.CASES)
  assert kernel_counts.table(rows) in (folder / 'README.md').read_text()
