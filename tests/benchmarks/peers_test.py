"""Tests the comparison with other simulators, without running these."""

import argparse
import os
import pathlib
import subprocess
import sys
import time

import pytest

from benchmarks import blazefl_own, common
from benchmarks.peers import __main__ as peers
from benchmarks.peers import check, report

pytestmark = pytest.mark.bench
PYTHON = os.environ.get('MOON_JAX_PEERS_PYTHON', '')  # Python with BlazeFL


def run_of(side, algorithm, seconds):
  return {'side': side, 'algorithm': algorithm, 'accuracy': .25,
          'clients': 10, 'peak_bytes': 1e9, 'round_seconds': [
              99., 98., *seconds]}


def test_the_table_compares_means_of_runs_without_warm_up():
  text = report.markdown({'runs': [
      run_of('slow', 'fedavg', [10., 11., 50.]), run_of('slow', 'moon', [24.]),
      run_of('moon_jax', 'fedavg', [5.]), run_of('moon_jax', 'moon', [6.]),
      run_of('moon_jax', 'moon', [8.]), run_of('moon_jax', 'fedavg', [6.])]})
  rows = [[cell.strip() for cell in line.split('|')[1:-1]]
          for line in text.splitlines()]
  assert rows[2] == ['moon_jax', '5.50 (5.00 to 6.00)', '1.0', '1.0',
                     '7.00 (6.00 to 8.00)', '1.0', '1.0',
                     'fedavg 0.250, moon 0.250']
  assert rows[3][:6] == ['slow', '11.00', '2.0', '1.0', '24.00', '3.4']


def test_another_number_of_clients_makes_a_second_table():
  few = run_of('moon_jax', 'fedavg', [5.])
  many = run_of('moon_jax', 'fedavg', [2.]) | {
      'peak_bytes': 2e9, 'clients': 1000}
  first, second = report.markdown({'runs': [few, many]}).split('\n\n')
  assert '5.00 | 1.0 | 1.0 | fedavg 0.250' in first
  assert '2.00' not in first
  assert second.splitlines()[0].endswith(
      '| 1,000 clients, s a round | 1,000 clients, x | 1,000 clients, GB |')
  assert second.endswith('| 2.00 | 1.0 | 2.0 |')


def test_a_ratio_has_two_factors_and_file_reads_are_counted_apart():
  reads = {'read_seconds': [0., 0., 4.]}
  text = report.by_part([
      run_of('moon_jax', 'fedavg', [5.]),
      run_of('PyTorch loop', 'fedavg', [8.]),
      run_of('PyTorch loop, processes', 'fedavg', [6.]),
      run_of('slow, processes', 'fedavg', [9.]),
      run_of('reader', 'fedavg', [16.]) | reads])
  rows = [[cell.strip() for cell in line.split('|')[1:-1]]
          for line in text.splitlines()[2:]]
  assert rows == [
      ['slow, processes', '1.80', '1.20', '1.50'],
      ['reader, without its file reads', '2.40', '1.60', '1.50'],
      ['reader', '3.20', '1.60', '2.00']]


def test_blazefls_benchmark_has_ratios_with_and_without_compiling():
  run = lambda side, seconds, **more: more | {
      'side': side, 'round_seconds': seconds, 'accuracies': [.1, .3],
      'peak_bytes': 1e9, 'other_cores': 0., 'load_average_before': 0.}
  results = {'runs': [run('BlazeFL', [12., 18.]),
                      run('moon_jax', [4., 6.], compile_seconds=5.)]}
  rows = [[cell.strip() for cell in line.split('|')[1:-1]]
          for line in blazefl_own.markdown(results).splitlines()[2:]]
  assert [row[:5] for row in rows] == [
      ['moon_jax', '10.00', '1.00', '5.0', '1.00'],
      ['BlazeFL', '30.00', '3.00', '0.0', '2.00']]
  assert blazefl_own.multiple(results, 'BlazeFL') == 3.


@pytest.mark.skipif(not PYTHON, reason='needs MOON_JAX_PEERS_PYTHON')
@pytest.mark.parametrize('side', [
    'BlazeFL', 'BlazeFL, batched, processes', 'BlazeFL, batched, threads'])
def test_blazefl_computes_what_the_loop_computes(side, tmp_path):
  found = check.differences([side], argparse.Namespace(
      python=PYTHON, sources=tmp_path))
  assert 0 < found[side] < 1e-6


@pytest.fixture
def measured(monkeypatch):
  """Returns a function that measures a side that takes a second."""
  def run(*_, **__):
    time.sleep(1)
    return {'accuracy': accuracy, 'round_seconds': [1.]}

  accuracy = .5
  monkeypatch.setattr(common, 'run', run)

  def call(max_others=.15, of=.5):
    nonlocal accuracy
    accuracy = of
    return peers._measured('moon_jax', 'moon', 10, argparse.Namespace(
        data_dir='', repeats=1, max_others=max_others), pathlib.Path())

  return call


def test_a_busy_machine_publishes_nothing(measured):
  """A process that began before a run, and takes a core, is an error."""
  with subprocess.Popen([sys.executable, '-c', 'while True: pass']) as other:
    try:
      with pytest.raises(ValueError, match='at most --max_others=0.15 cores'):
        measured()
      found = measured(max_others=100)
    finally:
      other.kill()
  assert found['other_cores'] > .15


def test_a_side_that_does_not_learn_is_an_error(measured):
  with pytest.raises(ValueError, match='moon_jax must learn, got accuracy 0.1'):
    measured(of=.1)
