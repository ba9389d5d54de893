"""Several processes of one run, connected over sockets."""

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import moon_jax
from moon_jax.distributed import devices as devices_lib
from moon_jax.distributed import processes
from moon_jax.engine import lanes
from moon_jax.errors import UserError
from moon_jax.runs import run as run_lib
from support import ROOT
from support.docs_pages import config_of
from support.small_runs import assert_same, outcome

pytestmark = pytest.mark.usefixtures('of_command')

_FLAGS = ('--dataset=breast_cancer --model=mlp --model.projection_dim=8 '
          '--num_clients=9 --participation=.5 --local_epochs=2 --batch_size=8 '
          '--num_rounds=4 --checkpoint_every=1 --partition.beta=5 --lanes=4')
_MOON = (f'{_FLAGS} --algorithm=moon --algorithm.num_negatives=2 '
         '--save_local_models')
_BEST = (f'{_MOON} --validation_fraction=.2 --keep_best --eval_on=train '
         '--metrics=f1')
_SOLO = (f'{_FLAGS} --algorithm=solo --client_eval_every=2 '
         '--client_test_fraction=.2')
_SCAFFOLD = f'{_FLAGS} --algorithm=scaffold --optimizer.momentum=0'


def start(flags, workdir, cache, devices=(4,)):
  """Starts one process per entry of `devices`, its number of devices."""
  count = len(devices)
  with socket.socket() as free:
    free.bind(('localhost', 0))
    port = free.getsockname()[1]
  command = [sys.executable, '-m', 'moon_jax.train', f'--workdir={workdir}',
             *flags.split()]
  env = {**os.environ, 'JAX_COMPILATION_CACHE_DIR': str(cache)}
  process_flags = lambda i: [] if count == 1 else [
      f'--coordinator_address=localhost:{port}', f'--num_processes={count}',
      f'--process_id={i}']
  return [subprocess.Popen(
      command + process_flags(i), cwd=ROOT, text=True,
      env=env | {'JAX_NUM_CPU_DEVICES': str(devices[i])},
      stdout=subprocess.PIPE, stderr=subprocess.PIPE) for i in range(count)]


def run(*args, **kwargs):
  """Runs the processes of a run and returns the output of each."""
  children = start(*args, **kwargs)
  outputs = [process.communicate(timeout=200) for process in children]
  for process, (_, errors) in zip(children, outputs):
    assert process.returncode == 0, errors
  return [out for out, _ in outputs]


def run_here(flags, workdir):
  """Runs the command in this process, on its devices."""
  run_lib.run(config_of(flags, workdir=str(workdir)))


@pytest.mark.long
@pytest.mark.parametrize('flags', [
    f'{_MOON} --shard_data', *[pytest.param(flags, marks=pytest.mark.slow)
                               for flags in (_SOLO, _BEST, _SCAFFOLD)]])
def test_several_processes_give_the_results_of_one_and_resume_its_runs(
    flags, tmp_path, compilation_cache):
  """Both have four lanes; the process of these tests trains alone, too."""
  run_here(flags.replace(' --shard_data', ''), tmp_path / 'one')
  first, second = run(flags.replace('rounds=4', 'rounds=2'),
                      tmp_path / 'two', compilation_cache, (2, 2))
  assert '4 devices of 2 processes' in first and not second
  run_here(flags, tmp_path / 'two')
  one = outcome(tmp_path / 'one')
  assert [line['round'] for line in one[0]] == [1, 2, 3, 4]
  assert_same(outcome(tmp_path / 'two'), one, atol=1e-6)
  saved = [sorted((tmp_path / name).glob('local_models/*'))
           for name in ('one', 'two')]
  assert len(saved[0]) == 4 * ('--save_local_models' in flags)
  for ours, theirs in zip(*saved, strict=True):
    assert ours.name == theirs.name
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6),
                 moon_jax.load(ours)[1], moon_jax.load(theirs)[1])


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', ['moon', 'scaffold', 'solo'])
def test_four_processes(algorithm, tmp_path, compilation_cache):
  """They resume the run of one process."""
  flags = f'{_FLAGS} --algorithm={algorithm} --optimizer.momentum=0'
  run(flags, tmp_path / 'one', compilation_cache)
  run(flags.replace('rounds=4', 'rounds=2'), tmp_path / 'four',
      compilation_cache)
  run(flags, tmp_path / 'four', compilation_cache, (1, 1, 1, 1))
  assert_same(outcome(tmp_path / 'four'), outcome(tmp_path / 'one'), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('number, victims', [
    (signal.SIGKILL, (0,)), (signal.SIGKILL, (1,)),
    (signal.SIGTERM, (0, 1)), (signal.SIGTERM, (1,))])
def test_a_signal_to_any_process_ends_all_and_the_run_resumes(
    number, victims, tmp_path, compilation_cache):
  """SIGTERM saves the run, without a checkpoint in each round."""
  is_killed = number == signal.SIGKILL
  flags = _MOON.replace('rounds=4', 'rounds=40')
  if not is_killed:
    flags = flags.replace('every=1', 'every=100')
  run(flags, tmp_path / 'unbroken', compilation_cache, (2, 2))
  children = start(flags, tmp_path / 'broken', compilation_cache, (2, 2))
  metrics = tmp_path / 'broken' / 'metrics.jsonl'
  while not metrics.exists() or len(metrics.read_text().splitlines()) < 10:
    time.sleep(.05)
    assert all(process.poll() is None for process in children)
  for victim in victims:
    children[victim].send_signal(number)
  stderrs = [process.communicate(timeout=60)[1] for process in children]
  done = len(metrics.read_text().splitlines())
  assert 10 <= done < 40
  if is_killed:
    other = 1 - victims[0]
    assert children[other].returncode not in (0, None)
    assert re.search('another (process|task)', stderrs[other]), stderrs
  else:
    assert [process.returncode for process in children] == [143, 143], stderrs
    for errors in stderrs:
      assert re.search(f'ended by SIGTERM after round {done}; .* after round '
                       f'{done}\n', errors)
  out, _ = run(flags, tmp_path / 'broken', compilation_cache, (2, 2))
  assert 'resumes after round' in out
  assert is_killed or f'resumes after round {done} of ' in out
  assert_same(outcome(tmp_path / 'broken'), outcome(tmp_path / 'unbroken'), 0)


def must_not_be_called(*_, **__):
  raise AssertionError('connects to other processes')


def test_no_process_at_the_address_raises(monkeypatch, capsys):
  monkeypatch.setattr(processes, '_CONNECT_SECONDS', .1)
  with socket.socket() as free:  # bound but not listening
    free.bind(('localhost', 0))
    address = f'localhost:{free.getsockname()[1]}'
    with pytest.raises(UserError, match=f'that answers in .*got {address}'):
      processes.join(address, 2, 1)
  assert f'process 1 of 2 waits for the other processes at {address}' in (
      capsys.readouterr().err)


def test_num_processes_1_ignores_the_cluster(monkeypatch):
  monkeypatch.setenv('SLURM_PROCID', '0')
  monkeypatch.setenv('SLURM_STEP_NODELIST', 'node1')
  monkeypatch.setenv('SLURM_NTASKS', '4')
  monkeypatch.setattr(jax.distributed, 'initialize', must_not_be_called)
  processes.join(num_processes=1)
  assert processes.count() == 1 and processes.is_first()
  assert processes.run_on_first_process(lambda: 3) == 3


def test_agreement_and_maximum_over_processes(monkeypatch):
  monkeypatch.setattr(processes, 'count', lambda: 2)
  answer = lambda other: monkeypatch.setattr(
      devices_lib, 'sum_over_processes',
      lambda x: x + np.array([0, other], x.dtype))
  for mine, other in itertools.product((False, True), repeat=2):
    answer(not other)
    assert processes.all_agree(mine) == (mine and other)
  for other in 0, 3, 15:
    answer(other)
    assert processes.max_over_processes(3) == max(3, other)


@pytest.mark.slow
def test_processes_with_different_numbers_of_devices(
    tmp_path, compilation_cache):
  """They need --checkpoint_every=0."""
  flags = f'{_MOON} --participation=1 --lanes=6'
  for process in start(flags, tmp_path / 'run', compilation_cache, (1, 2)):
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors
    assert '--checkpoint_every=0' in errors
  flags = flags.replace('checkpoint_every=1', 'checkpoint_every=0')
  lines = []
  for devices in (3,), (1, 2):
    path = tmp_path / str(len(devices))
    out = run(flags, path, compilation_cache, devices)
    assert 'on 3 devices' in out[0]
    lines.append([json.loads(line) for line in (
        path / 'metrics.jsonl').read_text().splitlines()])
  for line, other in zip(*lines):
    for name in ('test_accuracy', 'test_loss', 'train_loss', 'drift'):
      assert line[name] == pytest.approx(other[name], abs=1e-6)


def test_processes_share_the_lanes_evenly():
  assert lanes.choose(4, 9, num_devices=4, num_processes=2, is_cpu=True) == 4
  assert lanes.choose(0, 8, num_devices=4, num_processes=1, is_cpu=True) == 2
  with pytest.raises(UserError, match='multiple of the 2 processes of this run'
                     '; got 3'):
    lanes.choose(3, 9, num_devices=4, num_processes=2, is_cpu=True)
