"""Kernel counts of a small HLO module and of MOON's round for H200 GPUs."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from benchmarks import kernel_counts
from moon_jax.runs import targets
from support import ROOT

# As XLA writes it for a GPU. The row has 2 fusions, an inner loop 2 in 3
# iterations, and the called computation 1.
TEXT = pathlib.Path(__file__).with_name('round.hlo').read_text()


def test_kernels_of_a_row():
  counts = kernel_counts.count(TEXT)
  assert counts.row == {
      'fusions': 2 + 3 * 2 + 1, 'library calls': 1, 'copies': 1,
      'inner loops': 1, 'conditionals': 1, 'other': 0}
  assert counts.launches() == 9 + 1 + 1
  assert counts.collectives == {'all-reduce': 1} and not counts.in_loops


def test_changed_modules():
  """Unknown trip counts, other loops and operations, and collectives."""
  def changed(old, new):
    assert old in TEXT
    return kernel_counts.count(TEXT.replace(old, new))

  assert changed('"known_trip_count":{"n":"3"}', '').row['fusions'] == 2 + 2 + 1
  assert kernel_counts.count(TEXT) == changed(
      'ROOT %while.9', '%while.8 = (s32[], f32[10]{0}) while(%copy.9), '
      'condition=%row_condition, body=%inner_body\n  ROOT %while.9')
  row = changed('f32[10]{0} copy(%small)', 'f32[10]{0} sort(%small)').row
  assert (row['copies'], row['other']) == (0, 1)
  counts = changed('%copy.9 =', '%g = f32[20]{0} all-gather(%x), '
                   'dimensions={0}\n  %copy.9 =')
  assert counts.collectives == {'all-reduce': 1, 'all-gather': 1}
  assert counts.in_loops == {'all-gather': 1}
  with pytest.raises(ValueError, match='no loop inside a loop'):
    changed('while.9 = (s32[], f32[10]{0}) while',
            'while.9 = (s32[], f32[10]{0}) copy')


def test_the_results_page_has_the_committed_counts():
  folder = ROOT / 'experiments' / 'results'
  rows = json.loads(
      (folder / 'measurements.json').read_text())['kernel_counts']
  assert {row['case'] for row in rows} == set(kernel_counts.CASES)
  assert kernel_counts.table(rows) in (folder / 'README.md').read_text()


@pytest.mark.slow
@pytest.mark.skipif(
    not targets.is_installed(),
    reason='the compiler for NVIDIA GPUs (jax[cuda12]) is not installed')
@pytest.mark.parametrize('case, most, collectives', [
    ('simple_cnn:10:1', 95, {}), ('resnet18:10:1', 700, {}),  # has 95 and 672
    ('simple_cnn:8:8', 1000, {'all-reduce': 1}),
    ('resnet18:8:8', 1000, {'all-reduce': 1})])
def test_kernels_of_the_round_of_moon(case, most, collectives, tmp_path):
  """A row copies no carry and has neither an inner loop nor a branch."""
  env = {key: value for key, value in os.environ.items()
         if not key.startswith('JAX_')}  # as a user's process
  subprocess.run(
      [sys.executable, '-m', 'benchmarks.kernel_counts',
       f'--out={tmp_path}', '--num_examples=1280', case],
      check=True, cwd=ROOT, env=env, timeout=1200)
  counted, = json.loads((tmp_path / 'kernel_counts.json').read_text())
  assert (counted['inner loops'], counted['conditionals']) == (0, 0)
  assert counted['collectives'] == collectives
  assert counted['collectives_in_loops'] == {}
  if not collectives:
    assert counted['copies'] == 0 and counted['other'] == 0
  assert counted['kernels_per_row'] <= most
