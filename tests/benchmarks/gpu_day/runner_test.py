"""Tests parts that fail, hang, are killed or are run again."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from benchmarks.gpu_day import results
from benchmarks.gpu_day import runner

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.fixture
def stage(tmp_path, monkeypatch):
  monkeypatch.setattr(runner, '_GRACE_SECONDS', 1.)
  return runner.Stage(3, tmp_path, tmp_path / 'scratch', 100.,
                      {'PYTHONPATH': str(HERE)})


def part(name, kind, **kwargs):
  return runner.Part(name, f'stand_in:{kind}', {}, **kwargs)


def parts_of(stage):
  return results.parts(results.read(results.path_of(stage.out, 3)))


def test_a_failing_part_does_not_affect_other_parts(stage, capfd):
  statuses = runner.run(stage, [
      part('a', 'ok'), part('b', 'fail'), part('c', 'half'), part('d', 'ok')])
  found = parts_of(stage)
  assert {name: found[name]['status'] for name in found} == {
      'a': 'ok', 'b': 'failed', 'c': 'failed', 'd': 'ok'}
  assert 'ValueError: b cannot be measured' in found['b']['error']
  assert 'b cannot be measured' in capfd.readouterr().err
  assert found['c']['result'] == {'value': 1}
  assert runner.exit_status(statuses) == 1


def test_the_same_command_runs_unfinished_parts(stage):
  runner.run(stage, [part('a', 'ok'), part('b', 'fail')])
  assert runner.run(stage, [part('a', 'ok'), part('b', 'ok')]) == []
  assert {p['status'] for p in parts_of(stage).values()} == {'ok'}
  assert (stage.scratch / 'a.ran').read_text() == 'x'
  assert runner.exit_status([]) == 0


def test_a_hanging_part_is_killed_with_its_children(stage):
  statuses = runner.run(stage, [
      part('a', 'hang', limit=2.), part('b', 'ok')])
  found = parts_of(stage)
  assert statuses == ['stopped'] and found['b']['status'] == 'ok'
  assert found['a']['error'].startswith('stopped at its limit of 2 s')
  assert found['a']['seconds'] < 10
  assert not is_running(int((stage.scratch / 'pid').read_text()))
  assert runner.exit_status(statuses) == 3


def test_parts_without_enough_time_are_skipped(stage):
  statuses = runner.run(stage._replace(seconds=20.), [
      part('a', 'ok', least=30.), part('b', 'ok', least=10.)])
  found = parts_of(stage)
  assert statuses == ['skipped'] and found['b']['status'] == 'ok'
  assert found['a']['status'] == 'skipped'
  assert '30 s needed' in found['a']['error']


def test_a_kill_loses_only_the_running_part(stage):
  program = f"""
import pathlib
from benchmarks.gpu_day import runner
out = pathlib.Path({str(stage.out)!r})
runner.run(runner.Stage(3, out, out / 'scratch', 100., {stage.env!r}), [
    runner.Part(n, 'stand_in:' + n, {{}}) for n in ('ok', 'hang')])
"""
  child = subprocess.Popen([sys.executable, '-c', program], cwd=ROOT)
  pid = stage.scratch / 'pid'
  wait_until(lambda: pid.exists() and pid.read_text())
  child.send_signal(signal.SIGKILL)
  child.wait()
  assert {n: p['status'] for n, p in parts_of(stage).items()} == {'ok': 'ok'}
  os.killpg(os.getpgid(int(pid.read_text())), signal.SIGKILL)
  runner.run(stage, [part('ok', 'ok'), part('hang', 'ok')])
  assert (stage.scratch / 'ok.ran').read_text() == 'x'
  assert parts_of(stage)['hang']['status'] == 'ok'


def test_a_signal_kills_the_running_part(stage):
  program = f"""
import pathlib, signal, sys
from benchmarks.gpu_day import runner
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
out = pathlib.Path({str(stage.out)!r})
runner.run(runner.Stage(3, out, out / 'scratch', 100., {stage.env!r}), [
    runner.Part('hang', 'stand_in:hang', {{}})])
"""
  child = subprocess.Popen([sys.executable, '-c', program], cwd=ROOT)
  pid = stage.scratch / 'pid'
  wait_until(lambda: pid.exists() and pid.read_text())
  child.send_signal(signal.SIGTERM)
  assert child.wait(10) == 143
  assert not is_running(int(pid.read_text()))


def test_parts_can_run_at_the_same_time(stage):
  """Parts a and b wait for each other."""
  assert runner.run(stage, [
      part('a', 'meet', limit=20.), part('b', 'meet', limit=20.),
      part('c', 'fail')], jobs=2) == ['failed']
  assert {name: p['status'] for name, p in parts_of(stage).items()} == {
      'a': 'ok', 'b': 'ok', 'c': 'failed'}


def test_results_contain_no_paths(stage):
  runner.run(stage, [runner.Part('a', 'stand_in:ok', {
      'golden': '/secret/golden', 'flags': ['--data_dir=/secret', '--x=1/2'],
      'config': {'data_dir': '/secret', 'lanes': 2}})])
  assert parts_of(stage)['a']['task'] == {
      'golden': 'PATH', 'flags': ['--data_dir=PATH', '--x=1/2'],
      'config': {'data_dir': 'PATH', 'lanes': 2}}


def wait_until(is_met):
  for _ in range(300):
    if is_met():
      return
    time.sleep(.05)
  raise TimeoutError


def is_running(pid):
  for _ in range(20):  # init may need a moment to reap it
    stat = pathlib.Path(f'/proc/{pid}/stat')
    if not stat.exists() or stat.read_text().rpartition(')')[2].split()[0] in (
        'Z', 'X'):
      return False
    time.sleep(.05)
  return True
