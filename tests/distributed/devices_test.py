"""One, two, four and eight devices: results and collective operations.

The number of devices of a process is fixed, so tests start another process.
"""

import os
import pathlib
import subprocess
import sys

import pytest

from moon_jax.distributed import devices

_TESTS = pathlib.Path(__file__).parents[1]
_SCRIPT = """
import re, sys
import jax
import numpy as np
from support.federation import ALL, assert_trees_close, Federation
from moon_jax.methods import registry
from moon_jax.config import Config
from support import networks
from moon_jax.models.user import from_flax

model = from_flax(networks.Linen()) if 'dropout' in sys.argv else None
name = {'moon': 'moon(num_negatives=2)'}.get(sys.argv[1], sys.argv[1])
config = Config(algorithm=name, optimizer='sgd(momentum=0)',
                num_clients=len(ALL))
runs = []
for num_devices in (1, 2, 4, 8):
  federated = Federation(
      registry.make(config, len(ALL)), num_lanes=num_devices, model=model,
      hparams={'momentum': 0.})
  assert federated.mesh.size == num_devices
  lines = []
  for cohort in (ALL, (0, 3, 6), (1, 2, 3, 4, 7)):
    table, metrics = federated.round(cohort)
    is_step = table.job_TL >= 0
    lines.append([
        metrics.loss_TL[is_step].mean(), metrics.cosine_R,
        metrics.drift_J[table.jobs.num_steps > 0].mean(),
        *[x[is_step].mean() for x in metrics.extra_TL.values()]])
  runs.append((federated.state, lines))
  text = federated.round_fn._run.lower(*federated.round_fn.arguments(
      federated.state, federated.hparams, table,
      federated.data)).compile().as_text()
  collectives = re.findall(
      r' (all-[a-z]+|reduce-scatter|collective-[a-z]+|ragged-all-to-all)'
      r'(?:-start)?\\(', text)
  print(num_devices, 'devices:', collectives)
  assert collectives == ['all-reduce'] or num_devices == 1, collectives
for state, lines in runs[1:]:
  assert_trees_close(state, runs[0][0], atol=1e-6)
  assert_trees_close(lines, runs[0][1], atol=1e-6)
"""


@pytest.mark.parametrize('num_lanes, num_devices, used', [
    (8, [4, 4], [4, 4]), (4, [4, 4], [2, 2]), (12, [8, 4], [8, 4]),
    (10, [8, 4], [6, 4]), (6, [4], [3]), (3, [2, 2], None),
    (5, [1, 1, 1], None),
])
def test_devices_divide_the_lanes_evenly(num_lanes, num_devices, used):
  if used is None:
    with pytest.raises(ValueError, match='multiple of the . processes, got'):
      devices.shares(num_lanes, num_devices)
  else:
    assert devices.shares(num_lanes, num_devices) == used


@pytest.mark.long
@pytest.mark.parametrize('algorithm', ['moon'] + [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ('moon dropout', 'scaffold', 'fedavg', 'fedprox', 'solo',
                 'fednova')])
def test_devices_do_not_affect_results(algorithm, compilation_cache):
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'JAX_NUM_CPU_DEVICES': '8',
         'JAX_COMPILATION_CACHE_DIR': compilation_cache,
         'PYTHONPATH': f'{_TESTS}:{_TESTS.parent}'}
  done = subprocess.run(
      [sys.executable, '-c', _SCRIPT, *algorithm.split()], env=env, text=True,
      capture_output=True, timeout=300)
  assert done.returncode == 0, done.stderr[-2000:]
  assert done.stdout.splitlines()[-1].startswith('8 devices'), done.stdout
