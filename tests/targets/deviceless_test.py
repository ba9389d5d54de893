"""Kernel counts of MOON's round compiled for H200 GPUs, without a GPU."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from moon_jax import targets

ROOT = pathlib.Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not targets.is_installed(),
        reason='the compiler for NVIDIA GPUs (jax[cuda12]) is not installed')]


@pytest.fixture(scope='module')
def counts(tmp_path_factory):
  """Returns a function that counts one case in a separate process.

  The process uses the same JAX settings as a user's process.
  """
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
def test_kernels_per_row_of_ten_lanes_on_one_gpu(counts, model):
  """A row copies no carry and has neither an inner loop nor a branch."""
  counted = counts(f'{model}:10:1')
  assert (counted['inner loops'], counted['conditionals']) == (0, 0)
  assert counted['collectives'] == {}
  assert counted['copies'] == 0 and counted['other'] == 0
  limit = {'simple_cnn': 95, 'resnet18': 700}[model]  # measured: 95 and 672
  assert counted['kernels_per_row'] <= limit


@pytest.mark.parametrize('model', ['simple_cnn', 'resnet18'])
def test_eight_gpus_synchronize_once_per_round(counts, model):
  counted = counts(f'{model}:8:8')
  assert counted['collectives'] == {'all-reduce': 1}
  assert counted['collectives_in_loops'] == {}
  assert (counted['inner loops'], counted['conditionals']) == (0, 0)
