"""Tests kernel counts on a small HLO module written by hand, as for a GPU."""

import json
import pathlib

import pytest

from benchmarks import kernel_counts
from moon_jax.targets import hlo
from moon_jax.targets import kernels
from moon_jax.targets import products

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (pathlib.Path(__file__).parent / 'round.hlo').read_text()


def computation_and_instruction(module, computation, name):
  return module.computations[computation], module.computations[
      computation][name]


def test_kernels_of_a_row():
  """The row has 3 fusions, an inner loop 2 in 3 iterations, and calls 2."""
  counts = kernels.count(TEXT)
  assert counts.of_row() == {
      'fusions': 3 + 3 * 2 + 2, 'library calls': 1, 'copies': 1,
      'inner loops': 1, 'conditionals': 1, 'other': 0}
  assert counts.launches() == 11 + 1 + 1
  assert counts.collectives == {'all-reduce': 1} and not counts.in_loops


def test_a_loop_with_unknown_trip_count_counts_once():
  text = TEXT.replace('"known_trip_count":{"n":"3"}', '')
  assert kernels.count(text).of_row()['fusions'] == 3 + 2 + 2


def test_the_row_loop_launches_the_most_kernels():
  other = ('%while.8 = (s32[], f32[10]{0}) while(%copy.9), '
           'condition=%row_condition, body=%inner_body\n  ')
  text = TEXT.replace('ROOT %while.9', other + 'ROOT %while.9')
  assert text != TEXT and kernels.count(text) == kernels.count(TEXT)


def test_unknown_operations_are_counted_as_other():
  text = TEXT.replace('f32[10]{0} copy(%small)', 'f32[10]{0} sort(%small)')
  row = kernels.count(text).of_row()
  assert (row['copies'], row['other']) == (0, 1)


def test_other_collectives_are_counted():
  text = TEXT.replace('%copy.9 =', '%g = f32[20]{0} all-gather(%x), '
                      'dimensions={0}\n  %copy.9 =')
  counts = kernels.count(text)
  assert counts.collectives == {'all-reduce': 1, 'all-gather': 1}
  assert counts.in_loops == {'all-gather': 1}


def test_flops_of_products():
  counts = kernels.count(TEXT)
  flops = [kernel.flops for kernel in counts.row if kernel.flops]
  assert flops == [{'float32': 2. * 10 * 64 * 400 * 120},
                   {'bfloat16': 2. * 64 * 400 * 120}]


@pytest.mark.parametrize('attribute, arithmetic, times', [
    ('operand_precision={highest,highest}', 'float32', 1),
    ('operand_precision={high,high}', 'tf32', 1),
    ('algorithm=dot_tf32_tf32_f32', 'tf32', 1),
    ('algorithm=dot_tf32_tf32_f32_x3', 'tf32', 3),
    ('algorithm=dot_bf16_bf16_f32', 'bfloat16', 1),
    ('algorithm=dot_bf16_bf16_f32_x6', 'bfloat16', 6),
    ('algorithm=dot_f32_f32_f32', 'float32', 1),
    ('"precision_config":{"operand_precision":["HIGHEST"]}', 'float32', 1),
    ('"algorithm":"ALG_DOT_TF32_TF32_F32_X3"', 'tf32', 3),
    ('"algorithm":"ALG_UNSET"', 'tf32', 1),
])
def test_arithmetic_of_products(attribute, arithmetic, times):
  text = TEXT.replace('operand_precision={highest,highest}', attribute)
  module = hlo.parse(text)
  assert products.flops(module, *computation_and_instruction(
      module, 'row_body', 'gemm_fusion_dot')) == {
          arithmetic: times * 2. * 10 * 64 * 400 * 120}


@pytest.mark.parametrize('target, shapes', [
    ('__cudnn$convForward', ('x', 'w', 'y')),
    ('__cudnn$convBackwardInput', ('y', 'w', 'x')),
    ('__cudnn$convBackwardFilter', ('x', 'y', 'w')),
])
def test_gradients_of_a_convolution_have_its_operation_count(target, shapes):
  """32 images, 16x16 to 8x8 pixels, 3x3 windows, 4 to 24 channels."""
  shape = {'x': 'f32[32,4,16,16]{3,2,1,0}', 'w': 'f32[24,4,3,3]{3,2,1,0}',
           'y': 'f32[32,24,8,8]{3,2,1,0}'}
  left, right, out = (shape[name] for name in shapes)
  attributes = (f'window={{size=3x3 stride=2x2}}, dim_labels=bf01_oi01->bf01, '
                f'custom_call_target="{target}"')
  module = hlo.parse(f'''ENTRY %main () -> f32[] {{
  %a = {left} parameter(0)
  %b = {right} parameter(1)
  %conv = ({out}, u8[64]{{0}}) custom-call(%a, %b), {attributes}
}}
''')
  assert products.flops(module, *computation_and_instruction(
      module, 'main', 'conv')) == {
      'tf32': 2. * 32 * 8 * 8 * 24 * 3 * 3 * 4}


def test_slices_count_only_the_bytes_of_the_slice():
  row = kernels.count(TEXT).row
  dot, gather, update, gemm, copy = (
      row[i].num_bytes for i in (0, 1, 2, 3, 4))
  assert dot == 4 * 10 * (64 * 400 + 400 * 120 + 64 * 120)
  images = 640 * 32 * 32 * 3
  assert gather == images + 4 * 640 + 4 * images
  # Reads one row and its index; writes the row twice.
  assert update == 40 + 4 + 40 + 40
  assert gemm == 2 * (64 * 400 + 400 * 120 + 64 * 120)  # no workspace
  assert copy == 80


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
