"""What a run does when numbers, memory, disks or whole processes fail it."""

import dataclasses
import functools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax
from moon_jax import loggers
from moon_jax.config import Config
from moon_jax.data import cohort, split
from moon_jax.errors import (
  DivergedError,
  InterruptedRun,
  OutOfMemory,
  UserError,
)
from moon_jax.results import read
from moon_jax.runs import directory as directory_lib
from moon_jax.runs import prepare, recorder, run, saved_models
from moon_jax.runs.checkpoint import Checkpoints
from moon_jax.runs.directory import Workdir
from moon_jax.runs.signals import Interrupt
from moon_jax.simulation import checks
from moon_jax.simulation import program as program_lib
from support import made_runs, ROOT, small_runs
from support.small_runs import CONFIG, ended_at_call, lines_of, raising

at = functools.partial(small_runs.at, participation=1.)  # two lanes
_NO_MEMORY = jax.errors.JaxRuntimeError(
    'RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.')


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """The lines of the run without a break."""
  path = tmp_path_factory.mktemp('whole')
  run.run(at(path))
  return lines_of(path)


def test_no_cohort_is_sampled_before_the_data_are_known(tmp_path, monkeypatch):
  """A number of clients that is too large takes no time and no memory."""
  config = checks.validate(at(tmp_path, num_clients=10**9))
  monkeypatch.setattr(cohort, 'sample', raising(AssertionError()))
  with pytest.raises(UserError, match='num_clients must be at most'):
    prepare.prepare(config).build()


@pytest.mark.long
def test_metrics_are_cut_after_damaged_checkpoints_are_renamed(
    tmp_path, monkeypatch, whole):
  """A start that fails in between needs the lines of a checkpoint that only
  seemed damaged.
  """
  every = at(tmp_path, checkpoint_every=1, checkpoint_keep=3)
  with ended_at_call(Workdir, 'append_metrics', 3, KeyboardInterrupt()):
    run.run(every)
  load = Checkpoints._load

  def damaged(self, step, *args):
    if step == 2:
      raise ValueError('cannot be read now')
    return load(self, step, *args)

  monkeypatch.setattr(Checkpoints, '_load', damaged)
  monkeypatch.setattr(Checkpoints, 'open', raising(KeyboardInterrupt()))
  with pytest.raises(KeyboardInterrupt):
    run.run(every)
  monkeypatch.undo()
  run.run(every)
  assert lines_of(tmp_path) == whole


@pytest.mark.parametrize('seconds, where', [
    (0., 'round 2 of 3\n'),
    (99., 'round 0 of 3; rounds that are trained again: 2\n')])
def test_rounds_are_saved_by_time(
    seconds, where, tmp_path, monkeypatch, capsys, whole):
  monkeypatch.setattr(recorder, '_SAVE_SECONDS', seconds)
  monkeypatch.setattr(recorder, '_SAVE_SHARE', float('inf'))
  small_runs.run_until(at(tmp_path), 2)
  run.run(at(tmp_path))
  assert f'resumes after {where}' in capsys.readouterr().out
  assert lines_of(tmp_path) == whole


def test_more_rounds_extend_the_run_in_workdir(
    tmp_path, monkeypatch, capsys, whole):
  """Without --workdir they are another run, from its first round."""
  monkeypatch.chdir(tmp_path)
  run.run(at('', num_rounds=1))
  shorter, = pathlib.Path('runs').iterdir()
  run.run(at('', num_rounds=2))
  longer, = {*pathlib.Path('runs').iterdir()} - {shorter}
  assert 'resumes' not in capsys.readouterr().out
  assert lines_of(shorter) == whole[:1] and lines_of(longer) == whole[:2]
  run.run(at(shorter, num_rounds=3))
  assert 'resumes after round 1 of 3\n' in capsys.readouterr().out
  assert lines_of(shorter) == whole and lines_of(longer) == whole[:2]


def test_a_run_that_cannot_be_extended_keeps_its_results(tmp_path):
  class NoServer(loggers.Logger):
    def start(self, run):
      raise ConnectionError('no route')

  run.run(at(tmp_path, num_rounds=1))
  names = 'config.json', 'summary.json', 'model.safetensors', 'metrics.jsonl'
  before = {name: (tmp_path / name).read_bytes() for name in names}
  with pytest.raises(UserError, match='the logger NoServer must start'):
    run.run(at(tmp_path, num_rounds=2), loggers=[NoServer()])
  assert before == {name: (tmp_path / name).read_bytes() for name in names}
  run.run(at(tmp_path, num_rounds=1))  # it is still finished
  run.run(at(tmp_path, num_rounds=2))
  after = {name: (tmp_path / name).read_bytes() for name in names}
  assert all(after[name] != before[name] for name in names)
  assert json.loads(after['config.json'])['num_rounds'] == 2


def test_a_run_without_checkpoints_is_not_extended(tmp_path):
  """It would begin again, without the results that it has."""
  run.run(at(tmp_path, num_rounds=1, checkpoint_every=0))
  before = {path: path.read_bytes() for path in tmp_path.iterdir()}
  with pytest.raises(UserError, match='from which num_rounds=2 extends the '
                     'finished run; got no checkpoint, and 1 rounds'):
    run.run(at(tmp_path, num_rounds=2, checkpoint_every=0))
  assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}


@pytest.mark.long
@pytest.mark.parametrize('local_epochs', [1, 2])  # 2: frozen models once
def test_padding_is_nobodys_example(local_epochs, tmp_path):
  """Client 0 has the first example, client 4 less than a batch."""
  run.run(dataclasses.replace(
      small_runs.overflowing_data(tmp_path / 'overflow.npz', client=0),
      num_rounds=2, local_epochs=local_epochs, on_nan='skip_client',
      workdir=str(tmp_path / 'run')))
  assert [line['clients_left_out'] for line in lines_of(tmp_path / 'run')
          ] == [[0], [0]]


@pytest.mark.long
def test_a_client_without_numbers_stops_the_run_or_is_left_out(
    tmp_path, capsys):
  cohorts = tmp_path / 'cohorts.txt'
  cohorts.write_text('0 1 2 4\n0 1 2 3\n1 2 3 4\n')
  config = dataclasses.replace(
      small_runs.overflowing_data(tmp_path / 'overflow.npz'),
      cohort=f'file(path={cohorts})', workdir=str(tmp_path / 'run'))
  with pytest.raises(DivergedError) as error:
    run.run(config)
  for words in ('round 2, client 3: its loss became nan', 'algorithm=moon',
                'on_nan=skip_client',
                'The last checkpoint is that of round 1'):
    assert words in str(error.value)
  assert [line['round'] for line in lines_of(tmp_path / 'run')] == [1]
  # The stopped run resumes without that client ...
  skipping = dataclasses.replace(config, on_nan='skip_client')
  summary = run.run(skipping)
  assert 'round 2: left out client 3: its loss became nan at local' in (
      capsys.readouterr().err)
  lines = lines_of(tmp_path / 'run')
  assert [line.get('clients_left_out') for line in lines] == [None, [3], [3]]
  assert summary['clients_left_out'] == 2
  # Other optimizations of XLA round differently.
  assert summary['jax_settings']['jax_disable_most_optimizations'] is True
  with pytest.raises(UserError, match='on_nan=skip_client, which may have'):
    run.run(config)
  # ... as if it had not been there.
  cohorts.write_text('0 1 2 4\n0 1 2\n1 2 4\n')
  run.run(dataclasses.replace(config, workdir=str(tmp_path / 'without')))
  for line, other in zip(lines, lines_of(tmp_path / 'without')):
    line.pop('clients_left_out', None)
    assert line == pytest.approx(other, rel=1e-5)
  # Where no client is left, it stops.
  cohorts.write_text('0 1\n3\n2 4\n')
  with pytest.raises(DivergedError, match='round 2, client 3: its loss'):
    run.run(dataclasses.replace(skipping, workdir=str(tmp_path / 'none')))


def test_memory_that_runs_out_in_a_round_loses_nothing(
    whole, tmp_path, monkeypatch):
  start = program_lib.Round.start

  def fail(self, state, *rest):
    if state.round[0] == 1:
      raise _NO_MEMORY
    return start(self, state, *rest)

  why = (r'out of memory with {} lane\(s\).* \(RESOURCE_EX.*\. Give {}a '
         'smaller batch_size=16').format
  with monkeypatch.context() as changed:
    changed.setattr(program_lib.Round, 'start', fail)
    with pytest.raises(OutOfMemory, match=why(2, 'lanes=1, or ')):
      run.run(at(tmp_path / 'chosen'))
    with pytest.raises(OutOfMemory, match=why(1, '')):
      run.run(at(tmp_path / 'asked', lanes=1))
  assert run.run(at(tmp_path / 'chosen', lanes=1))['lanes'] == 1
  for line, other in zip(lines_of(tmp_path / 'chosen'), whole, strict=True):
    assert line == pytest.approx(other, rel=1e-4)


@pytest.mark.long
def test_memory_that_runs_out_in_an_evaluation_loses_nothing(
    whole, tmp_path, monkeypatch):
  evaluates = at(tmp_path / 'clients', client_eval_every=1)
  with monkeypatch.context() as changed:
    changed.setattr(
        program_lib.Program, 'evaluate', raising(_NO_MEMORY))
    with pytest.raises(OutOfMemory, match='out of memory'):
      run.run(at(tmp_path / 'run'))
    with pytest.raises(OutOfMemory):
      run.run(evaluates)  # local models are not saved
  assert not lines_of(tmp_path / 'run')
  assert not list((tmp_path / 'clients' / 'checkpoints').glob('[0-9]*'))
  run.run(at(tmp_path / 'run'))
  assert lines_of(tmp_path / 'run') == whole


@pytest.mark.parametrize('where, name, remedy', [
    (program_lib.Round, 'compile', 'lanes=1, or '),
    (program_lib, 'TrainingSet', '')])
def test_memory_that_runs_out_in_compiling_or_before(
    where, name, remedy, tmp_path, monkeypatch):
  """Before, the number of lanes is not known, and does not matter."""
  monkeypatch.setattr(where, name, raising(MemoryError('all')))
  with pytest.raises(
      OutOfMemory, match=rf'out of mem.*\(all\)\. Give {remedy}a smaller'):
    run.run(at(tmp_path))


_WITH_LITTLE_MEMORY = """if True:
    import os
    import resource
    from moon_jax import train
    from moon_jax.cli import command_line
    from moon_jax.simulation import program
    from moon_jax.runs import unit

    def limit(num_bytes):
      resource.setrlimit(resource.RLIMIT_AS, (num_bytes,
                                              resource.RLIM_INFINITY))

    def start(self, state, *rest, begin=program.Round.start):
      if state.round[0] == 1 and 'FITS' not in os.environ:
        pages = int(open('/proc/self/statm').read().split()[0])
        limit(pages * resource.getpagesize()
              + int(2.7 * self.temporary_bytes()))  # for two of four devices
      return begin(self, state, *rest)

    def leave(self, of=unit.Unit.save_and_close):
      limit(resource.RLIM_INFINITY)  # of the device, not of the host
      return of(self)

    program.Round.start, unit.Unit.save_and_close = start, leave
    command_line.start('moon_jax.train', train.train, train._PAGE)
    """


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != 'linux', reason='limits are Linux\'s')
def test_a_run_out_of_memory_resumes_with_fewer_lanes(
    tmp_path, compilation_cache):
  """XLA's own error: of one device, for which the others then wait in a sum."""
  random, count = np.random.default_rng(0), 16 * 1024
  np.savez(tmp_path / 'data.npz',
           x_train=random.integers(0, 255, (count, 32, 32, 1), np.uint8),
           y_train=random.integers(0, 10, count),
           x_test=random.integers(0, 255, (100, 32, 32, 1), np.uint8),
           y_test=random.integers(0, 10, 100))
  command = [
      sys.executable, '-c', _WITH_LITTLE_MEMORY, '--dataset=npz',
      f'--data_dir={tmp_path}/data.npz', '--num_clients=16', '--partition=iid',
      '--batch_size=1024', '--num_rounds=3', '--local_epochs=1',
      '--checkpoint_every=100', f'--workdir={tmp_path}/run']
  start = functools.partial(
      subprocess.run, cwd=ROOT, text=True, capture_output=True, timeout=300,
      check=False)
  variables = {
      **os.environ, 'JAX_COMPILATION_CACHE_DIR': compilation_cache,
      'JAX_NUM_CPU_DEVICES': '4', 'MALLOC_MMAP_THRESHOLD_': '4000000'}
  done = start(command, env=variables)
  assert done.returncode == 2, done.stderr
  message = re.fullmatch(
      r'moon_jax.train: out of memory with 4 lane\(s\) after round 1; the same '
      r'command resumes after round 1 \(RESOURCE_EXHAUSTED: '
      r'Out of memory allocating \d+ bytes\..*\. Give (--lanes=2), or .*\n',
      done.stderr)
  assert message, done.stderr
  assert '4 lanes on 4 devices' in done.stdout
  assert (tmp_path / 'run' / 'checkpoints' / '1').is_dir()
  done = start([*command, message[1]], env={**variables, 'FITS': ''})
  assert done.returncode == 0, done.stderr
  assert '2 lanes on 2 devices' in done.stdout
  assert 'resumes after round 1 of 3\n' in done.stdout
  assert [line['round'] for line in lines_of(tmp_path / 'run')] == [1, 2, 3]


def test_a_signal_in_an_evaluation_loses_nothing(whole, tmp_path):
  """In that of the first round, and, once it has resumed, of the last one."""
  for done, call in (1, 2), (3, 5):  # the second evaluates round 1 first
    with ended_at_call(
        Interrupt, 'call', call, InterruptedRun(signal.SIGTERM),
        match=f'resumes after round {done}'):
      run.run(at(tmp_path))
    assert len(lines_of(tmp_path)) == done - 1
  run.run(at(tmp_path))
  assert lines_of(tmp_path) == whole


def test_a_run_that_ends_while_it_begins_resumes(tmp_path, monkeypatch):
  for num_rounds, owner, method in (1, Workdir, 'begin'), (
      2, Checkpoints, 'open'):
    with monkeypatch.context() as changed:
      changed.setattr(owner, method, raising(KeyboardInterrupt()))
      with pytest.raises(KeyboardInterrupt):
        run.run(at(tmp_path, num_rounds=num_rounds))
    assert run.run(at(tmp_path, num_rounds=num_rounds))['rounds'] == num_rounds


@pytest.mark.long
def test_the_model_of_fewer_rounds_is_not_loaded(tmp_path, monkeypatch):
  run.run(at(tmp_path, num_rounds=1))
  assert len(moon_jax.load(tmp_path)) == 2
  with monkeypatch.context() as changed:
    changed.setattr(
        saved_models, 'to_safetensors', raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
      run.run(at(tmp_path))
  with pytest.raises(UserError, match='must be a complete model'):
    moon_jax.load(tmp_path)
  run.run(at(tmp_path))
  assert moon_jax.load(tmp_path)[0].config['num_rounds'] == 3


def test_a_run_that_began_meanwhile_is_seen(tmp_path, monkeypatch):
  """Just before the directory is locked."""
  lock = directory_lib.try_lock

  def begin_another_before(*args):
    monkeypatch.setattr(directory_lib, 'try_lock', lock)
    other = checks.validate(at(tmp_path, learning_rate=.5))
    (tmp_path / 'config.json').write_text(json.dumps(other.to_dict()))
    (tmp_path / 'metrics.jsonl').write_text('{"round": 1}\n')
    return lock(*args)

  monkeypatch.setattr(directory_lib, 'try_lock', begin_another_before)
  with pytest.raises(UserError, match='another configuration: learning_rate'):
    Workdir(checks.validate(at(tmp_path))).lock()


@pytest.mark.parametrize('was, now, is_refused', [
    (10, 10, True), (2000, 10, False), (0, 10, False), (10, 0, True)])
def test_checkpoints_that_are_gone_are_missed(was, now, is_refused, tmp_path):
  config = at(tmp_path, checkpoint_every=was)
  (tmp_path / 'config.json').write_text(json.dumps(config.to_dict()))
  (tmp_path / 'metrics.jsonl').write_text(''.join(
      f'{{"round": {n}}}\n' for n in range(1, 68)))
  workdir = Workdir(at(tmp_path, checkpoint_every=now, num_rounds=99))
  if is_refused:
    with pytest.raises(UserError, match='got none next to metrics of 67 ro'):
      workdir.check()
    summary = made_runs.SUMMARY | dict.fromkeys((
        'rounds', 'test_accuracy', 'best_test_accuracy', 'best_round',
        'seconds_per_round'), 67)
    (tmp_path / 'summary.json').write_text(json.dumps(summary))
    with pytest.raises(UserError, match='got none next to metrics of 67 ro'):
      workdir.check()  # it would be extended
    assert Workdir(at(tmp_path, num_rounds=67)).check() == summary
  else:
    workdir.check()


def test_a_work_directory_that_vanishes_is_reported(tmp_path, monkeypatch):
  path = tmp_path / 'run'
  append = Workdir.append_metrics

  def vanish(self, line):
    if line['round'] == 2:  # at once, while a checkpoint may be being written
      path.rename(tmp_path / 'elsewhere')
    append(self, line)

  monkeypatch.setattr(Workdir, 'append_metrics', vanish)
  with pytest.raises(UserError, match=f'workdir={path} must be writable'):
    run.run(at(path, checkpoint_every=1))


def test_changed_data_are_reported(tmp_path, monkeypatch):
  run.run(at(tmp_path, num_rounds=1))
  make = split.make
  before = (tmp_path / 'config.json').read_bytes()
  with monkeypatch.context() as changed:
    changed.setattr(split, 'make', lambda *args: split.Split(
        make(*args).clients[::-1]))
    with pytest.raises(
        UserError, match=r'partition=dirichlet\(beta=5\) gives other cl'):
      run.run(at(tmp_path))
  with monkeypatch.context() as changed:
    changed.setattr('moon_jax.data.dataset.Dataset.fingerprint', lambda _: 'x')
    with pytest.raises(UserError, match='dataset=breast_.*has changed since'):
      run.run(at(tmp_path))
  with monkeypatch.context() as changed:
    changed.setattr('moon_jax.simulation.simulation.Simulation.frozen_weights',
                    [jnp.ones(2)])
    with pytest.raises(UserError, match='model=.* has changed since the run'):
      run.run(at(tmp_path))
  assert (tmp_path / 'config.json').read_bytes() == before
  assert run.run(at(tmp_path))['rounds'] == 3


def on_a_disk(script, mounted, *flags, cache):
  """Runs a shell script where `$0` is a place to mount, "$@" the command."""
  probe = ['unshare', '--user', '--map-root-user', '--mount', 'true']
  if not shutil.which('unshare') or subprocess.run(
      probe, capture_output=True, check=False).returncode:
    pytest.skip('this machine does not let its users mount')
  mounted.mkdir()
  done = subprocess.run(
      [*probe[:-1], 'sh', '-c', script, mounted, sys.executable, '-m',
       'moon_jax.train', *flags], cwd=ROOT, text=True, capture_output=True,
      timeout=300, check=False,
      env={**os.environ, 'JAX_COMPILATION_CACHE_DIR': cache})
  return done.stdout, done.stderr


@pytest.mark.long
def test_a_full_disk_is_reported_and_the_run_resumes_with_space(
    tmp_path, compilation_cache):
  """The third checkpoint does not fit."""
  mounted = tmp_path / 'disk'
  config = dataclasses.replace(
      CONFIG, dataset='digits', algorithm='moon(num_negatives=2)',
      num_clients=6, model='mlp', num_rounds=5, checkpoint_every=1)
  flags = [f'--{name}={value}' for name, value in config.to_dict().items()
           if getattr(config, name) != getattr(Config(), name)]
  run.run(dataclasses.replace(config, workdir=str(tmp_path / 'whole')))
  out, errors = on_a_disk(
      'mount -t tmpfs -o size=24m tmpfs "$0" || exit; "$@"; echo status $?; '
      'ls "$0/run/checkpoints"; mount -o remount,size=99m "$0"; "$@"; '
      f'echo status $?; cp "$0/run/metrics.jsonl" {tmp_path}',
      mounted, *flags, f'--workdir={mounted}/run', cache=compilation_cache)
  assert out.count('status 2') == 1 and out.count('status 0') == 1, errors
  assert 'resumes after round' in out
  assert 'Traceback' not in errors
  messages = [line for line in errors.splitlines() if '--workdir' in line]
  assert len(messages) == 1, errors
  assert 'must be writable' in messages[0]
  assert lines_of(tmp_path) == lines_of(tmp_path / 'whole')


def test_remedies_of_damaged_files_cost_no_round(tmp_path):
  """Each is obeyed: the run has its summary again, and trains nothing."""
  sweep, rounds = moon_jax.Sweep.grid(at(''), seed=[0]), []
  again = lambda: moon_jax.run_sweep(
      sweep, str(tmp_path), callbacks=[lambda *_: rounds.append(1)])
  first, = again()
  path, count = pathlib.Path(first['workdir']), len(rounds)
  assert count == CONFIG.num_rounds
  files = {name: (path / name).read_bytes()
           for name in ('config.json', 'metrics.jsonl')}

  def check(name, content, remedy):
    (path / name).write_text(content)
    with pytest.raises(UserError, match=rf'{name} .*; got .*\. {remedy}'):
      again()
    if name in files:
      (path / name).write_bytes(files[name])
    else:
      (path / name).unlink()
    found, = again()
    assert found['test_accuracy'] == first['test_accuracy']

  for content in '', '{"rounds": 3, "test_acc', '{"rounds": "3"}':
    check('summary.json', content, 'Delete this file, and the same command')
  (path / 'summary.json').unlink()
  check('diverged.json', '{"rounds', 'Delete this file, and the same command')
  check('config.json', '{', 'Restore it from a copy')
  check('metrics.jsonl', '{}\n', 'Restore it from a copy')
  assert len(rounds) == count


def test_a_reader_of_runs_has_the_same_remedy(tmp_path):
  path = made_runs.write(tmp_path / 'run')
  (path / 'summary.json').write_text('{"rounds": 3, "test_acc')
  with pytest.raises(UserError, match='summary.json must .*Delete this file'):
    read.read(path)
  (path / 'summary.json').unlink()
  assert read.read(path).lines
