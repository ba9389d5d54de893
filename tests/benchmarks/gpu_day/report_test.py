"""Tests the page on made-up results."""

import sys

from benchmarks.gpu_day import report
from benchmarks.gpu_day import results
from benchmarks.gpu_day import tables

COMMAND = {
    'kind': 'surroundings', 'command': 'python -m benchmarks.gpu_day --all',
    'commit': 'abcdef0123456789', 'result': {
        'device': 'NVIDIA H200', 'num_devices': 1,
        'nvidia_smi': {'driver_version': '580.1'},
        'versions': {'jax': '0.11.2', 'torch': '2.11.0', 'python': '3.12.3'}}}
SIDE = {'seconds_per_round': .5, 'lanes': 10, 'compile_seconds': 21.}
PROFILE = {
    'rows': 128, 'num_segments': 10, 'lanes': 10, 'seconds': .2,
    'kernels_per_row': 95.5, 'copies_per_row': 1., 'busy_seconds': .1,
    'span_seconds': .15, 'host_calls': {'cuGraphLaunch': 12_800}, 'top': [
        {'name': 'gemm|x', 'seconds': .05, 'fraction': .5, 'launches': 256}]}
POINT = {
    'num_clients': 10_000, 'cohort_size': 100, 'examples_per_second': 5e5,
    'seconds_per_round': .01, 'lanes': 16, 'lane_utilisation': 1.,
    'planning_seconds': .001, 'compile_seconds': 20., 'peak_gigabytes': 3.,
    'num_compilations_after_first_round': 0}
RESULTS = {
    1: {'golden': {'passed': 40, 'skipped': 2, 'failed': [
        {'test': 'golden_test.py::test_x', 'error': 'off by 2e-6'}]},
        'errors of precision=tf32': {
            'choice': {'precision': 'tf32'},
            'round': {'largest': 3e-4, 'relative': .1},
            'gradients': {'logits': 2e-3, 'gradients': 4e-3}}},
    2: {'moon and PyTorch': {
        'ours': SIDE | {'examples_per_second': 9e5},
        'theirs': SIDE | {'examples_per_second': 3e4}, 'ratio': 30.,
        'ratios': [30.]},
        'moon, 10 clients, 1 lanes': SIDE | {
            'examples_per_second': 123_456., 'repeats': []},
        'agreement': {'moon_losses': 2e-7},
        'rates of products and copies': {
            'gemm_1024_flops_per_second': 45e12,
            'copy_bytes_per_second': 4e12},
        'profile': PROFILE},
    3: {'moon': {
        'rounds': 100, 'test_accuracy': .691, 'best_test_accuracy': .695,
        'seconds_per_round': 1.25, 'examples_per_second': 4e5}},
    4: {'moon, 120 lanes': {
        'num_runs': 12, 'seconds': 1.5, 'rows': 128, 'rows_alone': 1536,
        'seconds_one_by_one': 6., 'ratio': 4., 'first_round_seconds': 30.,
        'largest_difference': 3e-7}},
    5: {'resnet50, 10 lanes, bfloat16': {
        'seconds_per_row': .0125, 'examples_per_second': 51_200.,
        'compile_seconds': 90., 'peak_bytes': 2**34, 'forecast_bytes': 2**33,
        'temporary_bytes': 2**32}},
    6: {'10000 clients': POINT},
}


def lines_of(number):
  return [COMMAND] + [
      {'kind': 'part', 'part': name, 'status': 'ok', 'result': result}
      for name, result in RESULTS[number].items()]


def test_each_stage_has_its_table():
  page = report.page({number: lines_of(number) for number in RESULTS})
  for text in (
      '| 1, 2, 3, 4, 5, 6 | `python -m benchmarks.gpu_day --all` | '
      'abcdef012345 | NVIDIA H200, driver 580.1 | 0.11.2 | 2.11.0 | 3.12.3 |',
      '| golden | 40 | 1 | 2 |', 'off by 2e-6',
      '| `precision=tf32` | 3.0e-04 | 1.0e-01 | 2.0e-03 | 4.0e-03 |',
      '| moon and PyTorch | 900,000 | 30,000 | 30.00 | 0.500 |',
      '| moon, 10 clients, 1 lanes | 10 | 0.500 | 123,456 | 21.0 |',
      'moon_losses 2.0e-07', '45.0 TFLOP/s', '4.00 TB/s',
      '95.5 kernels and 1.0 copies per row', 'cuGraphLaunch 12,800',
      '| `gemm\\|x` | 0.0500 | 50.0% | 256 | 2.00 |',
      '| moon | 100 | 0.6910 | 0.6950 | 1.250 | 400,000 |',
      '| moon, 120 lanes | 12 | 1.500 | 128 | 6.000 | 1,536 | 4.00 |',
      '| resnet50, 10 lanes, bfloat16 | 12.50 | 51,200 | 90 | 16.00 | 8.00 | '
      '2.00 | 4.00 |', '| 10,000 | 100 | 500,000 |'):
    assert text in page, text
  assert 'Not done' not in page and 'Not run' not in page


def test_unfinished_parts_are_listed_with_their_errors():
  page = report.page({5: [
      COMMAND, *lines_of(5)[1:], {
          'kind': 'part', 'part': 'resnet18', 'status': 'failed',
          'error': 'status 1\nTraceback\nout of memory'},
      {'kind': 'part', 'part': 'resnet50', 'status': 'skipped',
       'error': '12 s left, 60 s needed'}]})
  assert '- resnet18: failed (out of memory)' in page
  assert '- resnet50: skipped (12 s left, 60 s needed)' in page
  assert 'Traceback\nout of memory' in page
  assert '| resnet50, 10 lanes, bfloat16 |' in page
  assert page.count('Not run.') == 5


def test_a_killed_part_has_a_result_from_its_progress():
  page = report.page({3: [COMMAND] + [
      {'kind': 'progress', 'part': 'fedavg', 'progress': {
          'round': i, 'seconds': 2., 'examples_per_second': 250_000.,
          'test_accuracy': .1 * i}} for i in (1, 2, 3)]})
  assert '| fedavg | 3 | 0.3000 | 0.3000 | 2.000 | 250,000 |' in page
  assert '- fedavg: killed' in page


def test_the_page_is_written_next_to_the_results(tmp_path, monkeypatch, capsys):
  for number in RESULTS:
    for line in lines_of(number):
      results.append(results.path_of(tmp_path, number), line)
  monkeypatch.setattr(sys, 'argv', ['report', str(tmp_path)])
  report.main()
  text = (tmp_path / 'README.md').read_text()
  assert text == capsys.readouterr().out
  assert all(f'## Stage {n}: {t}' in text for n, t in tables.TITLES.items())
