"""Kernel counts of a small HLO module and of MOON's round for H200 GPUs."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from benchmarks import kernel_counts
from moon_jax import targets

ROOT = pathlib.Path(__file__).parents[2]

# As XLA writes it for a GPU. The row has 2 fusions, an inner loop 2 in 3
# iterations, and the called computation 1.
TEXT = """
%inner_condition (arg.4: (s32[], f32[10])) -> pred[] {
  %arg.4 = (s32[], f32[10]{0}) parameter(0)
  ROOT %compare_fusion = pred[] fusion(%arg.4), kind=kLoop, calls=%compare
}

%inner_body (arg.5: (s32[], f32[10])) -> (s32[], f32[10]) {
  %arg.5 = (s32[], f32[10]{0}) parameter(0)
  %x.5 = f32[10]{0} get-tuple-element(%arg.5), index=1
  %fusion.50 = f32[10]{0} fusion(%x.5), kind=kLoop, calls=%small
  ROOT %tuple.5 = (s32[], f32[10]{0}) tuple(%x.5, %fusion.50)
}

%command_buffer (arg.70: f32[10]) -> f32[10] {
  %arg.70 = f32[10]{0} parameter(0)
  ROOT %fusion.70 = f32[10]{0} fusion(%arg.70), kind=kLoop, calls=%small
}

%row_body (arg.1: (s32[], f32[10], /*index=5*/f32[10])) -> (s32[], f32[10]) {
  %arg.1 = (s32[], f32[10]{0}, /*index=5*/bf16[64,400]{1,0}) parameter(0)
  %dot = f32[10,64,120]{2,1,0} fusion(%x, %w), kind=kCustom, calls=%fused_dot
  %update = (f32[20]{0}, f32[10]{0}) fusion(%x), kind=kLoop, calls=%update
  %gemm = (bf16[9]{0}, s8[9]{0}) custom-call(%xb), custom_call_target="__cublas"
  %copy.7 = f32[10]{0} copy(%small)
  %while.7 = (s32[], f32[10]{0}) while(%x), condition=%inner_condition, \
body=%inner_body, backend_config={"known_trip_count":{"n":"3"}}
  %if.7 = f32[10]{0} conditional(%t, %x), branch_computations={%a, %b}
  ROOT %call.7 = f32[10]{0} call(%if.7), to_apply=%command_buffer
}

%row_condition (arg.2: (s32[], f32[10])) -> pred[] {
  ROOT %constant.80 = pred[] constant(true)
}

%segment_body (arg.3: (s32[], f32[10])) -> (s32[], f32[10]) {
  %copy.9 = (s32[], f32[10]{0}) copy(%arg.3)
  ROOT %while.9 = (s32[], f32[10]{0}) while(%copy.9), \
condition=%row_condition, body=%row_body
}

ENTRY %main (arg: f32[10]) -> f32[10] {
  %while.1 = (s32[], f32[10]{0}) while(%start), condition=%row_condition, \
body=%segment_body
  %all-reduce-start = f32[10]{0} all-reduce-start(%out), to_apply=%small
  ROOT %all-reduce-done = f32[10]{0} all-reduce-done(%all-reduce-start)
}
"""


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
      (folder / 'kernel_counts' / 'kernel_counts.json').read_text())
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
