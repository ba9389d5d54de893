"""MOON's round as XLA compiles it for H200s, which need not be here."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from moon_jax.targets import deviceless

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not deviceless.is_installed(),
        reason='the compiler for NVIDIA GPUs (jax[cuda12]) is not installed')]


@pytest.fixture(scope='module')
def counts(tmp_path_factory):
  """Counts a case, in a process that compiles as users do."""
  def count(case):
    path = tmp_path_factory.mktemp('counts') / 'counts.json'
    env = {key: value for key, value in os.environ.items()
           if not key.startswith('JAX_')}
    subprocess.run(
        [sys.executable, ROOT / 'benchmarks' / 'kernel_counts.py',
         f'--out={path}', '--num_examples=1280', case],
        check=True, cwd=ROOT, env=env, timeout=1200)
    return json.loads(path.read_text())[0]

  return count


@pytest.mark.parametrize('model', ['simple_cnn', 'resnet18'])
def test_a_row_of_ten_lanes_on_one_gpu(counts, model):
  """Nothing but steps: no copy of the carry, no inner loop, no branch."""
  found = counts(f'{model}:10:1')
  assert (found['inner loops'], found['conditionals']) == (0, 0)
  assert found['collectives'] == {}
  assert found['copies'] == 0 and found['other'] == 0
  most = {'simple_cnn': 95, 'resnet18': 700}[model]  # 95 and 672 were seen
  assert found['kernels_per_row'] <= most


@pytest.mark.parametrize('model', ['simple_cnn', 'resnet18'])
def test_eight_gpus_meet_once_a_round(counts, model):
  found = counts(f'{model}:8:8')
  assert found['collectives'] == {'all-reduce': 1}
  assert found['collectives_in_loops'] == {}
  assert (found['inner loops'], found['conditionals']) == (0, 0)
