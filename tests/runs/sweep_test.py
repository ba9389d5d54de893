"""Sweeps that are interrupted, shared, extended and resumed."""

import dataclasses
import hashlib
import os
import pathlib
import shutil
import signal
import time

import jax
import pytest

from moon_jax import loggers
from moon_jax.config import Config
from moon_jax.distributed import host
from moon_jax.engine import lanes as lanes_lib
from moon_jax.errors import InterruptedRun, OutOfMemory, UserError
from moon_jax.results import arms as arms_lib
from moon_jax.runs import directory as directory_lib
from moon_jax.runs import prepare, saved_models, unit
from moon_jax.runs import run as run_lib
from moon_jax.runs.checkpoint import Checkpoints
from moon_jax.runs.directory import Workdir
from moon_jax.runs.grid import Sweep
from moon_jax.runs.signals import Interrupt
from moon_jax.simulation import program as program_lib
from support import made_runs, small_runs
from support.small_runs import ended_at_call, raising

CONFIG = dataclasses.replace(small_runs.CONFIG, checkpoint_every=1)
FILES = ('config.json', 'partition.npz', 'cohorts.txt', 'model.safetensors')


def sweep_of(*seeds, **fields):
  return Sweep.grid(dataclasses.replace(CONFIG, **fields), seed=seeds or (
      0, 1, 2))


class Rounds(list):
  """A callback: the (seed, round) of each line of metrics, in order."""

  def __call__(self, simulation, line):
    self.append((simulation.federation.seed, line['round']))


RARELY = {'checkpoint_every': 100}


def lines_of(found):
  """Returns the lines of results; the other files name the flags."""
  return {name: lines for name, (lines, *_) in found.items()}


def results(workdir):
  """Returns the results of all runs in a directory, by run."""
  return {run.name: (small_runs.lines_of(run), *(
      (run / name).read_bytes() for name in FILES))
          for run in sorted(workdir.glob('breast*'))}


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """The results of the sweep without interruption."""
  path = tmp_path_factory.mktemp('whole')
  run_lib.run_sweep(sweep_of(), str(path))
  return results(path)


class Killed(BaseException):
  """Ends a process; nothing catches it or saves anything."""


@pytest.mark.parametrize('owner, name, number', [
    (Workdir, 'append_metrics', 5), *[
        pytest.param(*at, marks=pytest.mark.slow) for at in (
            (Workdir, 'write_summary', 3), (Workdir, 'begin', 2),
            (program_lib.Program, 'compile', 1),
            (program_lib.Round, 'start', 2), (Checkpoints, 'save', 5),
            (saved_models, 'to_safetensors', 2))]])
def test_a_sweep_killed_anywhere_resumes_to_the_same_bits(
    owner, name, number, whole, tmp_path):
  rounds = Rounds()
  with ended_at_call(owner, name, number, Killed()):
    run_lib.run_sweep(sweep_of(), str(tmp_path), callbacks=[rounds])
  before = len(rounds)
  finished = {path: path.stat().st_mtime_ns
              for path in tmp_path.glob('*/summary.json')}
  assert len(finished) == {'write_summary': 2, 'to_safetensors': 1
                           }.get(name, 0)
  summaries = run_lib.run_sweep(sweep_of(), str(tmp_path), callbacks=[rounds])
  assert results(tmp_path) == whole
  assert all(path.stat().st_mtime_ns == was for path, was in finished.items())
  # At most the round that was being trained or recorded is repeated.
  assert len(rounds[before:]) <= 9 - before + 3
  assert {*rounds} == {(seed, n) for seed in range(3) for n in (1, 2, 3)}
  assert [summary['rounds'] for summary in summaries] == [3] * 3


def test_a_signal_saves_all_runs(whole, tmp_path):
  rounds = Rounds()
  with ended_at_call(
      Interrupt, 'call', 2, InterruptedRun(signal.SIGTERM), match=(
          'ended by SIGTERM with 3 of 3 runs unfinished; the same command resum'
      )):
    run_lib.run_sweep(sweep_of(**RARELY), str(tmp_path), callbacks=[rounds])
  run_lib.run_sweep(sweep_of(**RARELY), str(tmp_path), callbacks=[rounds])
  assert sorted(rounds) == [(seed, n) for seed in range(3) for n in (1, 2, 3)]
  assert lines_of(results(tmp_path)) == lines_of(whole)


def test_a_signal_while_a_program_ends_ends_the_sweep(tmp_path, monkeypatch):
  write = Workdir.write_summary

  def write_and_kill(self, summary):
    write(self, summary)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(.2)  # until the thread of Interrupt has read it

  monkeypatch.setattr(Workdir, 'write_summary', write_and_kill)
  with pytest.raises(InterruptedRun, match='SIGTERM; the same command trains'):
    run_lib.run_sweep(sweep_of(num_rounds=1), str(tmp_path), max_runs=1)
  assert len(list(tmp_path.glob('*/summary.json'))) == 1


def test_more_values_train_only_new_runs_with_the_unfinished(
    whole, tmp_path, monkeypatch, capsys):
  """In one program, although they would be in two with the finished ones."""
  monkeypatch.chdir(tmp_path)
  run_lib.run(dataclasses.replace(CONFIG, seed=1))
  rounds = Rounds()
  run_lib.run_sweep(sweep_of(), max_runs=2, callbacks=[rounds])
  out = capsys.readouterr().out
  assert '1 of 3 runs are finished' in out
  assert '2 runs in one program, 6 rounds in all' in out
  assert {seed for seed, _ in rounds} == {0, 2}
  assert results(tmp_path / 'runs') == whole
  rounds.clear()
  logged = []

  class Logged(loggers.Logger):

    def log(self, line):
      logged.append(line['round'])

  summaries = run_lib.run_sweep(
      sweep_of(), callbacks=[rounds], loggers=[Logged])
  assert not rounds and [s['rounds'] for s in summaries] == [3] * 3
  assert logged == [1, 2, 3] * 3  # a new logger gets all rounds


@pytest.mark.long
def test_runs_of_fewer_rounds_stay(whole, tmp_path):
  """Also that of a single run: runs of more rounds have their own results."""
  fewer = sweep_of(0, num_rounds=2)
  run_lib.run(dataclasses.replace(
      fewer.configs[0],
      workdir=str(prepare.prepare(fewer.configs[0], root=str(tmp_path))
                  .workdir.path)))
  before = results(tmp_path)
  run_lib.run_sweep(sweep_of(), str(tmp_path))
  assert results(tmp_path) == before | whole


def units_of(sweep, workdir):
  return run_lib.Runs(sweep.configs, sweep.axes, str(workdir))


def directory_of(workdir, seed):
  """Returns the `Workdir` of a run of the sweep."""
  config, = sweep_of(seed).configs
  return prepare.prepare(config, root=str(workdir)).workdir


@pytest.mark.long
def test_runs_of_other_processes_are_left_to_them(
    whole, tmp_path, monkeypatch, capsys):
  """A process trains runs 0 and 2 of a program; run 0 ends, and it dies."""
  others = [directory_of(tmp_path, seed) for seed in (0, 2)]
  for other in others:
    other.lock()
  elsewhere, rounds, waits = tmp_path / 'elsewhere', Rounds(), []
  run_lib.run_sweep(sweep_of(0), str(elsewhere))

  def wait(*_):
    waits.append(len(rounds))
    if len(waits) == 2:  # seed 1 has been trained meanwhile
      shutil.copytree(elsewhere / others[0].path.name, others[0].path,
                      dirs_exist_ok=True)
      for other in others:
        other.close()

  monkeypatch.setattr(run_lib, 'wait', wait)
  summaries = run_lib.run_sweep(sweep_of(), str(tmp_path), callbacks=[rounds])
  out = capsys.readouterr().out
  assert out.count('waiting for 3 runs that other processes train') == 1
  assert out.count('waiting for 2 runs that other processes train') == 1
  assert waits == [0, 3]
  assert rounds == [(seed, n) for seed in (1, 2) for n in (1, 2, 3)]
  assert all(summaries)
  assert results(tmp_path) == whole


def test_a_signal_ends_the_wait_for_other_processes(tmp_path, monkeypatch):
  other = directory_of(tmp_path, 0)
  other.lock()
  monkeypatch.setattr(run_lib, '_POLL_SECONDS', 60.)
  call = Interrupt.call

  def call_and_kill(self, function):
    os.kill(os.getpid(), signal.SIGTERM)
    return call(self, function)

  monkeypatch.setattr(Interrupt, 'call', call_and_kill)
  with pytest.raises(InterruptedRun, match='the same command waits') as raised:
    run_lib.run_sweep(sweep_of(0), str(tmp_path))
  assert raised.value.number == signal.SIGTERM
  other.close()


def test_a_run_that_diverged_ends_alone_and_is_not_repeated(tmp_path, capsys):
  sweep = Sweep.grid(CONFIG, learning_rate=[.02, 1e30])
  rounds = Rounds()
  for _ in range(2):
    good, bad = run_lib.run_sweep(sweep, str(tmp_path), callbacks=[rounds])
    assert good['rounds'] == 3
    assert bad['rounds'] == 0 and 'round 1' in bad['diverged']
  assert len(rounds) == 3
  out, err = capsys.readouterr()
  assert err.count('run learning_rate=1e+30: round 1') == 1
  assert '1 of 2 runs are finished, 1 diverged' in out


@pytest.mark.long
def test_a_run_that_diverged_resumes_without_the_client(tmp_path):
  base = dataclasses.replace(
      small_runs.overflowing_data(tmp_path / 'overflow.npz', client=1),
      num_rounds=1)
  stopped, = run_lib.run_sweep(Sweep.grid(base, seed=[0]), str(tmp_path))
  assert 'client 1' in stopped['diverged']
  skip = dataclasses.replace(base, on_nan='skip_client')
  resumed, = run_lib.run_sweep(Sweep.grid(skip, seed=[0]), str(tmp_path))
  assert resumed.get('rounds') == 1 and 'diverged' not in resumed


@pytest.mark.long
def test_a_run_that_ends_before_it_is_locked_is_not_trained(
    whole, tmp_path, monkeypatch):
  run_lib.run_sweep(sweep_of(0), str(tmp_path / 'elsewhere'))
  run, = (tmp_path / 'elsewhere').glob('breast*')
  lock, rounds = Workdir.lock, Rounds()

  def end_and_lock(self):
    if self.path.name == run.name and not self.path.exists():
      shutil.copytree(run, self.path)
    lock(self)

  monkeypatch.setattr(Workdir, 'lock', end_and_lock)
  assert all(run_lib.run_sweep(
      sweep_of(0, 1), str(tmp_path), callbacks=[rounds]))
  assert {seed for seed, _ in rounds} == {1}
  assert results(tmp_path).items() <= whole.items()
  summary = (tmp_path / run.name / 'summary.json').read_bytes()
  assert summary == (run / 'summary.json').read_bytes()


@pytest.mark.long
def test_an_error_in_the_files_of_a_run_saves_the_others(
    whole, tmp_path, monkeypatch, capsys):
  """The directory of one run vanishes; checkpoints are rare."""
  append, gone = Workdir.append_metrics, []

  def vanish(self, line):
    if line['round'] == 2 and not gone:
      gone.append(self.path)
      shutil.rmtree(self.path)
    append(self, line)

  sweep, rounds = sweep_of(**RARELY), Rounds()
  with monkeypatch.context() as changed:
    changed.setattr(Workdir, 'append_metrics', vanish)
    with pytest.raises(UserError, match='must be writable; got No such file'):
      run_lib.run_sweep(sweep, str(tmp_path), callbacks=[rounds])
  assert len(rounds) == 3
  rounds.clear()
  capsys.readouterr()
  run_lib.run_sweep(sweep, str(tmp_path), callbacks=[rounds])
  assert len(rounds) == 3 + 2 + 2  # of the first run all rounds
  # Its rounds that were trained but not recorded count when they are recorded.
  assert '\n9/9 rounds of 3 runs' in capsys.readouterr().out
  assert lines_of(results(tmp_path)) == lines_of(whole)


def test_locks_are_released_after_an_error(tmp_path):
  with ended_at_call(
      Workdir, 'lock', 3, UserError('', 'no room'), match='no room'):
    run_lib.run_sweep(sweep_of(), str(tmp_path))
  for seed in range(3):
    workdir = directory_of(tmp_path, seed)
    workdir.lock()
    workdir.close()


@pytest.mark.long
def test_a_file_system_without_locks_is_reported_once(
    tmp_path, monkeypatch, capsys):
  """And programs, one run each, do not hold the federations of others."""
  held = small_runs.held_federations(monkeypatch)
  monkeypatch.setattr(directory_lib, 'try_lock', raising(OSError('none')))
  run_lib.run_sweep(sweep_of(num_rounds=1), str(tmp_path), max_runs=1)
  err = capsys.readouterr().err
  assert err == (f'warning: {tmp_path} has no file locks; start one process '
                 'only, or give each its own part\n')
  assert len(held) == 2 * 3 and held[3:] == [0, 0, 0]  # planned, trained


@pytest.mark.parametrize('changes, memory, words', [
    ({'num_clients': 300}, 2**60, 'run num_clients=300: .*300'),
    ({'num_clients': 5}, 10**4,
     'run num_clients=8: the run needs at least 0.0 GB of memory')])
def test_a_run_that_is_impossible_ends_the_sweep_before_it_trains(
    changes, memory, words, tmp_path, monkeypatch):
  monkeypatch.setattr(unit.Unit, 'train', raising(
      AssertionError('it trains')))
  monkeypatch.setattr(host, 'machine_bytes', lambda: memory)
  sweep = Sweep([CONFIG, dataclasses.replace(CONFIG, **changes)],
                ['num_clients'])
  with pytest.raises(UserError, match=words):
    run_lib.run_sweep(sweep, str(tmp_path))


def test_runs_whose_names_are_equal_are_refused(tmp_path, monkeypatch):
  """Their hashes may be equal by chance; results of one are not the other's."""
  hashed = hashlib.sha256
  monkeypatch.setattr(hashlib, 'sha256', lambda *_: hashed())
  both = sweep_of(0, **RARELY) | sweep_of(1, **RARELY)
  assert both.configs == sweep_of(0, 1, **RARELY).configs
  first, second = arms_lib.keys(both.configs)
  assert first != second
  with pytest.raises(UserError, match=(
      'run seed=0 and run seed=1 must have directories of their own')):
    run_lib.run_sweep(both, str(tmp_path))
  path = directory_of(tmp_path, 0).path
  made_runs.write(path, [.5], **both.configs[0].to_dict())
  with pytest.raises(UserError, match=(
      r'must hold a run of the same configuration; got .* seed=0 \(now 1\)')):
    run_lib.run_sweep(sweep_of(1, **RARELY), str(tmp_path))


def test_parts_are_disjoint_and_wait_for_nobody(whole, tmp_path, monkeypatch):
  monkeypatch.setattr(run_lib, 'wait', raising(AssertionError()))
  other = directory_of(tmp_path, 1)
  other.lock()
  first, second = Rounds(), Rounds()
  run_lib.run_sweep(sweep_of(), str(tmp_path), 1, (0, 2), [first])
  other.close()
  summaries = run_lib.run_sweep(
      sweep_of(), str(tmp_path), 1, (1, 2), [second])
  assert {seed for seed, _ in first} == {0, 2}
  assert {seed for seed, _ in second} == {1}
  assert all(summaries) and results(tmp_path) == whole


@pytest.mark.long
@pytest.mark.parametrize('has_locks', [True, False])
def test_equal_files_with_other_names_are_trained_once(
    has_locks, tmp_path, monkeypatch):
  if not has_locks:
    monkeypatch.setattr(directory_lib, 'try_lock', raising(OSError('none')))
  cohorts = []
  for name in 'ab':
    cohorts.append(str(tmp_path / f'{name}.txt'))
    pathlib.Path(cohorts[-1]).write_text('0 1\n2 3\n')
  rounds = Rounds()
  sweep = Sweep.grid(
      dataclasses.replace(CONFIG, num_rounds=2, participation=1.,
                          cohort='file(path=x)'),
      **{'cohort.path': cohorts})
  assert len(units_of(sweep, tmp_path / 'sweep').planned(0)[0]) == 1
  summaries = run_lib.run_sweep(
      sweep, str(tmp_path / 'sweep'), callbacks=[rounds])
  assert rounds == [(0, 1), (0, 2)]
  assert len(summaries) == 2 and summaries[0] == summaries[1]


@pytest.mark.parametrize('lanes, devices, is_cpu, expected', [
    ([1, 1, 1], [1, 1, 1], True, (2, 2)),
    ([2, 2], [2, 2], True, (2, 2)),
    ([200, 200], [1, 1], True, (400, 2)),
    ([16] * 12, [1] * 12, False, (2 * 96, 2)),
    # At most 128 per device.
    ([16] * 40, [1] * 40, False, (2 * 128, 2))])
def test_the_lanes_of_several_runs(lanes, devices, is_cpu, expected):
  assert lanes_lib.choose_for_runs(
      lanes, devices, 2, 1000, is_cpu) == expected


@pytest.mark.parametrize('available, expected', [
    (2, (20, 2)), (5, (50, 5)), (8, (50, 5)), (16, (60, 15))])
def test_devices_are_used_in_groups_of_those_of_a_run(available, expected):
  """Five runs of 10 lanes on 5 devices: three more devices have no run."""
  runs = 2 if available == 2 else 5
  devices = min(available, 5)
  assert lanes_lib.choose_for_runs(
      [10] * runs, [devices] * runs, available, 1000, False) == expected


@pytest.mark.long
def test_memory_that_runs_out_names_fewer_runs(whole, tmp_path, monkeypatch):
  error = jax.errors.JaxRuntimeError(
      'RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.')
  with monkeypatch.context() as changed:
    changed.setattr(program_lib.Round, 'start', raising(error))
    with pytest.raises(OutOfMemory, match=(
        r'with 2 lane\(s\) with 3 of 3 runs unfinished; the same command '
        'resumes them .*Give max_runs=1, or ')):
      run_lib.run_sweep(sweep_of(), str(tmp_path))
  run_lib.run_sweep(sweep_of(), str(tmp_path), max_runs=1)
  assert results(tmp_path) == whole  # one lane per run, as before


def test_runs_with_other_functions_are_traced_for_themselves(
    tmp_path, monkeypatch):
  """Their state may have other shapes; memory is planned for it."""
  (tmp_path / 'stateful_factory.py').write_text("""
import jax.numpy as jnp
import moon_jax

def make(exponent: int = 1):
  size = 10**exponent
  return moon_jax.fedavg()._replace(
      init_client=lambda variables: jnp.zeros(size),
      finish=lambda variables, view: (view.client, moon_jax.Message(variables)))
""")
  monkeypatch.syspath_prepend(str(tmp_path))
  config = Config(dataset='digits', model='mlp', num_clients=3,
                  train_examples=60, algorithm='stateful_factory:make')
  units = units_of(Sweep.grid(
      config, **{'algorithm.exponent': [1, 3]}), tmp_path)
  assert [spec.client_bytes for spec in units.specs([0, 1])] == [40, 4000]
  assert units.planned(0) == [[0], [1]]
