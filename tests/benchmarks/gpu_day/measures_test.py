"""Tests the parts that run tests and training, and their recorded results."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from benchmarks.gpu_day import results
from benchmarks.gpu_day import tests
from benchmarks.gpu_day import train

ROOT = pathlib.Path(__file__).parents[3]
TESTS = """
    import os, time

    def test_golden():
      assert os.environ['MOON_JAX_GOLDEN'] == '/golden'
      assert os.environ['JAX_DEFAULT_MATMUL_PRECISION'] == 'highest'

    def test_wrong():
      assert 1 == 2, 'one is not two'

    def test_hangs():
      time.sleep(SECONDS)
"""


@pytest.fixture
def task(tmp_path):
  return {'part': 'contract', 'scratch': str(tmp_path), 'kind': 'tests',
          'results': str(tmp_path / 'stage1.jsonl')}


def write_tests(tmp_path, seconds):
  path = tmp_path / 'example_test.py'
  path.write_text(textwrap.dedent(TESTS.replace('SECONDS', str(seconds))))
  return [str(path), '-c', os.devnull, f'--rootdir={tmp_path}']


def test_failures_are_recorded_by_name(task, tmp_path, monkeypatch):
  monkeypatch.chdir(ROOT)
  words = write_tests(tmp_path, 0)
  found = tests.measure(task | {'golden': '/golden', 'words': words})
  assert (found['passed'], found['status']) == (2, 'failed')
  [failure] = found['failed']
  assert failure['test'].endswith('::test_wrong')
  assert 'one is not two' in failure['error']
  with pytest.raises(RuntimeError, match='no test was selected'):
    tests.measure(task | {
        'golden': '/golden', 'words': [*words, '-k', 'nothing']})


def test_a_hanging_test_is_named(task, tmp_path):
  """The signal of the time limit must not end the child process itself."""
  words = write_tests(tmp_path, 60)
  answer = tmp_path / 'answer.json'
  child = subprocess.Popen(
      [sys.executable, '-m', 'benchmarks.gpu_day.child', str(answer)],
      cwd=ROOT, stdin=subprocess.PIPE, process_group=0,
      stdout=subprocess.DEVNULL)
  child.stdin.write(json.dumps(
      task | {'golden': '/golden', 'words': words}).encode())
  child.stdin.close()
  running = tmp_path / 'contract.running'
  for _ in range(600):
    if running.exists() and running.read_text().endswith('::test_hangs'):
      break
    time.sleep(.05)
  os.killpg(child.pid, signal.SIGTERM)
  assert child.wait(20) == 0
  found = json.loads(answer.read_text())
  assert found['status'] == 'stopped' and found['passed'] == 1
  assert found['running'].endswith('::test_hangs')
  assert len(found['failed']) == 1


def test_the_last_outcome_of_a_test_counts():
  lines = [{'test': 'a', 'outcome': 'failed', 'error': 'x'},
           {'test': 'b', 'outcome': 'skipped'}, {'test': 'a',
                                                 'outcome': 'passed'}]
  assert tests.outcome(lines) == {'passed': 1, 'skipped': 1, 'failed': []}


METRICS = [{'round': i, 'seconds': s, 'examples_per_second': 10 * s}
           | ({'test_accuracy': .1 * i} if i % 2 else {})
           for i, s in enumerate((9., 8., 1., 2., 3.), 1)]


@pytest.mark.parametrize('status, expected', [
    (0, None), (143, 'stopped'), (1, RuntimeError)])
def test_rounds_are_recorded_as_they_come(
    task, status, expected, monkeypatch, tmp_path):
  """A resumed run reports each round once."""
  workdir = tmp_path / 'runs' / 'moon'
  workdir.mkdir(parents=True)
  task |= {'part': 'moon', 'flags': ['--num_rounds=5']}
  path = pathlib.Path(task['results'])
  results.append(path, {
      'kind': 'progress', 'part': 'moon', 'progress': METRICS[0]})
  program = f"""
import json, sys
with open({str(workdir / 'metrics.jsonl')!r}, 'w') as file:
  file.writelines(json.dumps(x) + chr(10) for x in {METRICS!r})
  file.write('{{"round": 6')
sys.exit({status})
"""
  start = subprocess.Popen
  commands = []

  def popen(words, **kwargs):
    commands.append(words)
    return start([sys.executable, '-c', program], **kwargs)

  monkeypatch.setattr(train.subprocess, 'Popen', popen)
  monkeypatch.setattr(train, '_POLL_SECONDS', .05)
  if expected is RuntimeError:
    with pytest.raises(RuntimeError, match='status 1'):
      train.measure(task)
  else:
    found = train.measure(task)
    assert found.get('status') == expected
    assert (found['rounds'], found['seconds_per_round']) == (5, 2.)
    assert found['test_accuracy'] == found['best_test_accuracy'] == .5
  assert results.progress(results.read(path), 'moon') == METRICS
  assert f'--workdir={workdir}' in commands[0]


def test_outcome_of_no_or_few_rounds():
  assert train.outcome([])['seconds_per_round'] is None
  assert train.outcome(METRICS[:1])['seconds_per_round'] == 9.
