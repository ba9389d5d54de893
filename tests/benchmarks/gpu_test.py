"""The measurement on a GPU, tried on a CPU."""

import json
import subprocess
import sys
import types

import pytest

from benchmarks import common, gpu
from support.docs_pages import ROOT

pytestmark = pytest.mark.bench


def run(out, *flags):
  return subprocess.run(
      [sys.executable, '-m', 'benchmarks.gpu', f'--out={out}', '--tiny',
       '--device=cpu', *flags], cwd=ROOT, text=True, stdout=subprocess.PIPE,
      check=False)


def lines(out):
  return [json.loads(line) for line in
          (out / 'results.jsonl').read_text().splitlines()]


def test_parts_are_measured_once(tmp_path):
  flags = ['--match=moon, 4 runs|20 clients']
  done = run(tmp_path, *flags)
  assert not done.returncode, done.stdout
  names = [line['part'] for line in lines(tmp_path)]
  assert names == [
      'device', 'rounds: moon, 4 runs', 'rounds: 20 clients, 4 per round']
  speeds = [line['result']['ours'] for line in lines(tmp_path)[1:]]
  assert [speed['runs'] for speed in speeds] == [3, 1]
  assert all(speed['seconds'] > 0 and speed['flops_per_second'] > 0
             for speed in speeds)
  assert '| rounds: moon, 4 runs |' in (tmp_path / 'results.md').read_text()
  again = run(tmp_path, *flags)
  assert not again.returncode and not again.stdout


def test_a_part_that_hangs_ends_only_its_process(tmp_path, monkeypatch):
  """The profile needs the program that is measured before it, too."""
  monkeypatch.setenv('JAX_PLATFORMS', 'cpu')
  tasks = {name: task | {'out': str(tmp_path)}
           for name, task in gpu.parts('', 'cpu', True).items()
           if name.endswith(': moon') and task['kind'] in gpu._SHARED}
  tasks['rounds: moon']['limit'] = .01
  gpu.Measurement(types.SimpleNamespace(
      out=tmp_path, seconds=600, tiny=True), tasks).run()
  hung, profile = lines(tmp_path)
  assert hung['error'] == 'not done after 0.01 s'
  assert profile['result']['by_time'] and profile['result']['rows'] > 0


@pytest.mark.slow
def test_everything(tmp_path):
  done = run(tmp_path)
  failed = [line['part'] for line in lines(tmp_path) if 'error' in line]
  assert all('pytorch' in part for part in failed), done.stdout  # without it


def test_a_part_that_fails_or_hangs_is_an_error():
  task = {'words': ['no_such_file']}
  with pytest.raises(RuntimeError, match='ended with status 1'):
    common.run(gpu._tests, task, limit=100)
  with pytest.raises(RuntimeError, match='not done after 0.01 s'):
    common.run(gpu._tests, task, limit=.01)


def test_all_parts_have_a_kind():
  for is_tiny in False, True:
    for name, task in gpu.parts('', 'cuda', is_tiny).items():
      assert task['kind'] in {**gpu._SHARED, **gpu._ALONE}
      assert name.startswith(f'{task["kind"]}: ')
