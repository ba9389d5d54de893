"""Tests plans of sweeps on GPUs with a fake compiler."""

import dataclasses
import pathlib
import subprocess
import sys

import pytest

from moon_jax import plan as plan_command
from moon_jax import targets
from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.errors import UserError
from moon_jax.simulation import lane_layout
from moon_jax.sweep import axis_flags
from moon_jax.sweep import target_plan
from moon_jax.sweep import target_report
from moon_jax.targets import command as target_command
from moon_jax.targets import deviceless
from moon_jax.targets import fit as fit_lib

HLO = (pathlib.Path(__file__).parents[1] / 'targets' / 'round.hlo').read_text()
CONFIG = Config(
    dataset='breast_cancer', model='mlp', partition='iid', num_clients=16,
    participation=.5, local_epochs=3, batch_size=8, num_rounds=7)
DATASET = sources.load('breast_cancer', '')
H200 = targets.find('h200')
USABLE = fit_lib.usable(H200.memory_bytes)


class Compiler:
  """A fake compiler: each run takes `run_bytes` of temporaries."""

  def __init__(self, run_bytes):
    self.calls, self._run_bytes = [], run_bytes

  def __call__(self, spec, num_devices, largest, num_runs):
    self.calls.append((num_runs, spec.layout.num_lanes, num_devices, largest))
    return deviceless.Compiled(
        spec.layout.num_lanes, num_runs * self._run_bytes, {'arguments': 300},
        40, HLO, 1.)


def make_plan(compiler, num_runs=6, num_devices=1, **changes):
  configs = [dataclasses.replace(CONFIG, seed=seed, **changes)
             for seed in range(num_runs)]
  specs, = target_plan.groups(configs, num_devices, DATASET)
  return target_plan.plan(specs, H200, num_devices, compiler)


def test_runs_that_fit_train_in_one_program_side_by_side():
  compiler = Compiler(1)
  found = make_plan(compiler)
  # Alone a run has 8 lanes, one for each client of a round.
  assert sorted(compiler.calls) == [(1, 8, 1, 29), (6, 48, 1, 29)]
  assert found.fits and found.splits == [6] and found.fit.num_lanes == 6
  # A round of 6 runs has as many rows as a round of one run: 9 steps.
  assert found.alone.estimate.rows == found.program.estimate.rows == 7 * 9
  # The fake programs have the same kernels, so that 6 runs take as long as one.
  assert found.launch_speedup == found.speedup == 6
  assert found.alone_seconds == pytest.approx(
      6 * found.alone.estimate.seconds)


def test_runs_on_few_lanes_have_more_rows():
  """Each of 6 runs has 2 lanes, on 4 devices that share them."""
  found = make_plan(Compiler(1), num_devices=4, lanes=2)
  assert (found.alone.num_lanes, found.alone.num_devices) == (2, 2)
  assert (found.program.num_lanes, found.program.num_devices) == (12, 4)
  assert found.launch_speedup == 6 / 1


def test_runs_that_do_not_fit_are_split():
  compiler = Compiler(USABLE // 5)
  found = make_plan(compiler, 12)
  assert found.fit.num_lanes == 4 and found.splits == [4, 4, 4]
  assert found.program.num_runs == 4 and found.fits
  assert found.launch_speedup == 4
  text = target_report.show(found, ['seed'])
  assert 'It does not fit: at most 4 runs. So 3 programs of 4 runs' in text
  uneven = make_plan(compiler, 6)
  assert uneven.splits == [3, 3]
  none = make_plan(Compiler(2 * USABLE))
  assert not none.fits and none.splits == [1] * 6
  assert 'not even one run' in target_report.show(none, ['seed'])


def test_the_report():
  text = target_report.show(make_plan(Compiler(10**9)), ['seed'])
  for words in (
      'NVIDIA H200 141GB HBM3e: 6 runs, --algorithm=moon --model=mlp: '
      'seed=0,1,2,3,4,5\n', 'one run        6 runs', '  of them copies',
      'It fits: 6 runs in one program.', '6.0 by the estimate',
      'bound by launch overhead', 'Not validated on a GPU'):
    assert words in text, words
  rows = {line[:44].strip(): line[44:].split() for line in text.splitlines()}
  assert rows['lanes'] == ['8', '48']
  assert rows['rows per round, of the longest lane'] == ['9', '9']
  assert rows['kernels launched per row'] == ['13', '13']
  assert rows['of them copies'] == ['1', '1']
  assert rows['temporaries of the compiled round'] == ['1.000', '6.000']
  assert rows['usable'] == ['113.548', '113.548']


def test_groups_are_the_programs_of_a_sweep():
  configs = [dataclasses.replace(CONFIG, mu=1.),
             dataclasses.replace(CONFIG, algorithm='fedavg'),
             dataclasses.replace(CONFIG, mu=2.)]
  moon, fedavg = target_plan.groups(configs, 1, DATASET)
  assert [spec.federation.config.mu for spec in moon] == [1., 2.]
  assert len(fedavg) == 1
  assert moon[0].layout.num_lanes == lane_layout.choose(
      moon[0].federation, 1, is_cpu=False).num_lanes


class Flag:
  def __init__(self, value):
    self.value = value


def test_the_command_plans_each_program(monkeypatch, capsys):
  compiler = Compiler(1)
  original = target_plan.plan
  monkeypatch.setattr(target_plan, 'plan', lambda specs, target, num_devices: (
      original(specs, target, num_devices, compiler)))
  monkeypatch.setattr(deviceless, 'is_installed', lambda: True)
  monkeypatch.setattr(axis_flags, 'SWEEP', Flag(''))
  monkeypatch.setattr(
      axis_flags, 'GRID', Flag(['algorithm=fedavg,moon', 'seed=0,1,2']))
  monkeypatch.setattr(target_command, 'TARGET', Flag('h200'))
  monkeypatch.setattr(plan_command, '_PROCESSES', Flag(1))
  monkeypatch.setattr(plan_command, '_DEVICES', Flag(0))
  monkeypatch.setattr(sys, 'argv', ['plan', *(
      f'--{name}={getattr(CONFIG, name)}' for name in (
          'dataset', 'model', 'partition', 'num_clients', 'participation',
          'local_epochs', 'batch_size', 'num_rounds'))])
  plan_command.plan(CONFIG)
  text = capsys.readouterr().out
  assert text.startswith('6 runs, which could share 2 program(s)')
  assert 'algorithm=fedavg seed=0,1,2\n' in text
  assert [call[0] for call in compiler.calls] == [1, 3, 1, 3]
  monkeypatch.setattr(compiler, '_run_bytes', 2 * USABLE)
  with pytest.raises(UserError, match='does not fit .* even alone'):
    plan_command.plan(CONFIG)


def test_a_sweep_without_target_is_an_error():
  done = subprocess.run(
      [sys.executable, '-m', 'moon_jax.plan', '--dataset=digits',
       '--grid=seed=0,1'], text=True, capture_output=True, timeout=120,
      cwd=pathlib.Path(__file__).parents[2])
  assert (done.returncode, done.stdout) == (2, '')
  assert '--grid and --sweep need --target' in done.stderr
