"""The measurement on a GPU, tried on a CPU."""

import json
import subprocess
import sys

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
  flags = ['--match=12 runs|clients']
  done = run(tmp_path, *flags)
  assert not done.returncode, done.stdout
  names = [line['part'] for line in lines(tmp_path)]
  assert names == [
      'device', 'sweep: 12 runs of moon', 'clients: 20, 4 per round']
  results = {line['part']: line['result'] for line in lines(tmp_path)}
  assert results['sweep: 12 runs of moon']['largest_difference'] < 1e-6
  assert results['clients: 20, 4 per round'][
      'num_compilations_after_first_round'] == 0
  again = run(tmp_path, *flags)
  assert not again.returncode and not again.stdout


@pytest.mark.slow
def test_everything(tmp_path):
  done = run(tmp_path)
  failed = [line['part'] for line in lines(tmp_path) if 'error' in line]
  assert not failed or failed == ['pytorch: moon', 'pytorch: fedavg'], (
      done.stdout)  # without PyTorch


def test_a_part_that_fails_or_hangs_is_an_error():
  task = {'words': ['no_such_file']}
  with pytest.raises(RuntimeError, match='ended with status 1'):
    common.run(gpu._tests, task, limit=100)
  with pytest.raises(RuntimeError, match='not done after 0.01 s'):
    common.run(gpu._tests, task, limit=.01)


def test_all_parts_have_a_kind():
  for is_tiny in False, True:
    found = gpu.parts('', 'cuda', is_tiny)
    assert {task['kind'] for task in found.values()} == (
        set(gpu._KINDS) - {'device'})
    assert all(name.startswith(f'{task["kind"]}: ')
               for name, task in found.items())
