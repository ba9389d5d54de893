"""Files are on disk before they replace others, metrics match the checkpoint,
and one run at a time writes to a directory."""

import contextlib
import json
import os
import threading
import types

import numpy as np
import portalocker
import pytest

from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.runs import directory as directory_lib
from moon_jax.runs import run as run_lib

LINES = [{'round': n, 'test_accuracy': n / 7} for n in range(1, 6)]


def federation(cohorts, num_clients):
  """What `Workdir.begin` reads of a federation."""
  return types.SimpleNamespace(
      clients=[np.arange(3)] * num_clients, client_tests=None, validation=None,
      new_clients=(), data=None,
      rounds=types.SimpleNamespace(cohorts=cohorts, timeline=None))


def begun(path, mark=None):
  """A locked directory in which a run has begun, or has resumed."""
  run = directory_lib.Workdir(Config(workdir=str(path)))
  run.lock()
  run.begin(federation([[0]], 1), mark)
  run.cut_metrics(mark)
  return run


def write(path, lines, mark=None):
  """Appends lines after a mark; returns the mark after each of them."""
  run, marks = begun(path, mark), []
  for line in lines:
    run.append_metrics(line)
    marks.append(run.mark_metrics())
  run.close()
  return marks


def test_a_file_is_on_disk_before_it_is_renamed(tmp_path, monkeypatch):
  path = tmp_path / 'summary.json'
  path.write_bytes(b'before')
  calls = []
  fsync, replace = os.fsync, os.replace

  def recording_fsync(descriptor):
    fsync(descriptor)
    calls.append(('fsync', os.stat(descriptor).st_size, path.read_bytes()))

  def recording_replace(source, target):
    calls.append(('replace', os.stat(source).st_size, path.read_bytes()))
    replace(source, target)

  monkeypatch.setattr(os, 'fsync', recording_fsync)
  monkeypatch.setattr(os, 'replace', recording_replace)
  directory_lib.write_atomically(path, b'afterwards')
  assert calls == [('fsync', 10, b'before'), ('replace', 10, b'before')]
  assert path.read_bytes() == b'afterwards'
  assert os.listdir(tmp_path) == ['summary.json']


def test_a_run_begins_without_what_a_killed_one_left(tmp_path):
  """Results of fewer rounds, temporary ones, but no files of the user."""
  for name in ('model.safetensors.part', 'best.safetensors', 'summary.json',
               'diverged.json.part', 'models.txt', 'cohorts.txt'):
    (tmp_path / name).write_bytes(b'?')
  (tmp_path / 'model').mkdir()
  begun(tmp_path).close()
  assert sorted(os.listdir(tmp_path)) == [
      'config.json', 'metrics.jsonl', 'model', 'models.txt',
      'partition.npz']


@pytest.mark.parametrize('name', ['summary.json', 'checkpoints/1'])
def test_a_summary_is_that_of_the_configuration(name, tmp_path):
  """Also if the metrics are gone, or not written yet."""
  begun(tmp_path).close()
  (tmp_path / name).mkdir(parents=True) if '/' in name else (
      tmp_path / name).write_text('{"rounds": 1}')
  other = Config(workdir=str(tmp_path), algorithm='moon(mu=.125)')
  with pytest.raises(UserError, match='mu=0.125'):
    directory_lib.Workdir(other).check()


@pytest.mark.parametrize('name', [
    'rounds', 'test_accuracy', 'best_test_accuracy', 'best_round',
    'seconds_per_round'])
def test_each_number_of_a_summary_is_checked(name, tmp_path):
  numbers = {'rounds': 100, 'test_accuracy': .5, 'best_test_accuracy': .5,
             'best_round': 3, 'seconds_per_round': 1.}
  made = directory_lib.Workdir(Config(workdir=str(tmp_path)))
  made.write_summary(numbers)
  assert made.summary() == numbers
  for value in None, '1', True:
    made.write_summary(numbers | {name: value})
    with pytest.raises(UserError, match='summary.json that holds numbers for'):
      made.summary()


@pytest.mark.parametrize('name', ['a [b]', 'x[!y]', 'x[[]', 'a**b'])
def test_a_path_that_orbax_takes_for_a_pattern_is_an_error(
    name, tmp_path, monkeypatch):
  """Also of the current directory. It would save checkpoints without arrays.
  """
  (tmp_path / name).mkdir()
  monkeypatch.chdir(tmp_path / name)
  for path in tmp_path / name / 'run', 'run':
    with pytest.raises(UserError) as error:
      directory_lib.Workdir(Config(workdir=str(path))).check()
    assert f'{tmp_path / name / "run"}. Name another' in str(error.value)
    assert directory_lib.Workdir(
        Config(workdir=str(path), checkpoint_every=0)).check() is None


@pytest.mark.parametrize('name', [
    'config.json', 'partition.npz', 'cohorts.txt.part', 'model.safetensors',
    'checkpoints', 'client_state', 'local_models', 'best'])
def test_a_path_of_the_wrong_type_is_an_error_before_any_write(name, tmp_path):
  path = tmp_path / name
  path.mkdir() if '.' in name else path.write_bytes(b'?')
  for method in directory_lib.Workdir.check, directory_lib.Workdir.lock:
    with pytest.raises(UserError, match=f' as {name}; got some.*Move it away'):
      method(directory_lib.Workdir(Config(workdir=str(tmp_path))))
  assert not (tmp_path / 'config.json').is_file()


@pytest.mark.parametrize('tail', ['', '{"round": 4, "tra', '{"round": 4}\n'])
def test_lines_after_a_mark_are_replaced(tail, tmp_path):
  path, other = tmp_path / 'run', tmp_path / 'other'
  marks = write(path, LINES[:3])
  with open(path / 'metrics.jsonl', 'a') as out:
    out.write(tail)
  assert write(path, LINES[2:], marks[1])[-1] == write(other, LINES)[-1]
  assert (path / 'metrics.jsonl').read_bytes() == (
      other / 'metrics.jsonl').read_bytes()
  assert directory_lib.read_lines(path) == LINES
  write(path, LINES[:1])  # without a checkpoint all lines are removed
  assert directory_lib.read_lines(path) == LINES[:1]


def test_a_run_resumes_with_the_clients_that_it_had(tmp_path):
  cohorts = [[0, 1], [2], [0]]

  def begin(cohorts, mark=None):
    run = directory_lib.Workdir(Config(workdir=str(tmp_path)))
    with contextlib.closing(run):
      run.lock()
      run.begin(federation(cohorts, 3), mark)
      run.cut_metrics(mark)
      for line in LINES[:2] if mark is None else ():
        run.append_metrics(line)
      return run.mark_metrics()

  mark = begin(cohorts)
  begin([*cohorts[:2], [1], [2]], mark)  # more rounds
  with pytest.raises(UserError, match='other clients in its first 2 rounds.*na'
                     'me another workdir and .* instead of participation'):
    begin([[0, 2], *cohorts[1:]], mark)


@pytest.mark.parametrize('change', [
    lambda text: text.replace('0.2857', '0.2858'),
    lambda text: text[:60],
    lambda text: ''])
def test_lines_that_differ_from_the_checkpoint_are_an_error(change, tmp_path):
  mark = write(tmp_path, LINES)[3]
  path = tmp_path / 'metrics.jsonl'
  path.write_text(change(path.read_text()))
  before = path.read_bytes()
  (tmp_path / 'summary.json').write_text('')
  with pytest.raises(UserError, match='metrics.jsonl that begins with the'):
    write(tmp_path, [], mark)
  assert path.read_bytes() == before and (tmp_path / 'summary.json').exists()


def test_a_mark_describes_lines_that_are_on_disk(tmp_path, monkeypatch):
  """A checkpoint stores it: a loss of power must not remove the lines."""
  run = begun(tmp_path)
  run.append_metrics(LINES[0])
  synced, fsync = [], os.fsync

  def sync(descriptor):
    fsync(descriptor)
    synced.append(os.stat(descriptor).st_size)

  monkeypatch.setattr(os, 'fsync', sync)
  assert synced == [] and [run.mark_metrics()['bytes']] == synced
  run.close()


@pytest.mark.parametrize('content', [b'[1]\n', b'\xff\n', b'{"a": 1}\n',
                                     b'{"round": 1}\n{"round": 3}\n',
                                     b'{"round": true}\n', b'{"round": 0}\n',
                                     b'[' * 10**5 + b'\n', b'nonsense\n'])
def test_invalid_lines_are_an_error(content, tmp_path):
  (tmp_path / 'metrics.jsonl').write_bytes(content)
  with pytest.raises(UserError, match='metrics.jsonl that holds one line per'):
    directory_lib.read_lines(tmp_path)


def test_a_locked_directory_is_an_error(tmp_path):
  first, second = (directory_lib.Workdir(Config(workdir=str(tmp_path)))
                   for _ in range(2))
  first.lock()
  with pytest.raises(directory_lib.InUse, match='is in use by another run'):
    second.lock()
  first.close()
  second.lock()
  second.close()


def test_a_lock_that_is_held_for_an_instant_is_tried_again(tmp_path):
  """As `moon-jax show` holds it while it looks whether the run is active."""
  with open(tmp_path / 'metrics.jsonl', 'w') as probe:
    assert directory_lib.try_lock(probe, is_shared=True)
    threading.Timer(.05, portalocker.unlock, [probe]).start()
    run = directory_lib.Workdir(Config(workdir=str(tmp_path)))
    run.lock()
  run.close()


def test_a_deleted_file_is_not_created_again(tmp_path):
  run = begun(tmp_path)
  run.append_metrics(LINES[0])
  os.unlink(tmp_path / 'metrics.jsonl')
  with pytest.raises(UserError, match='must be writable; got No such file'):
    run.append_metrics(LINES[1])
  assert not (tmp_path / 'metrics.jsonl').exists()
  run.close()


def test_nan_is_not_written(tmp_path):
  run = begun(tmp_path)
  with pytest.raises(ValueError, match='not JSON compliant'):
    run.append_metrics({'round': 1, 'test_loss': float('nan')})
  run.append_metrics({'round': 1, 'test_loss': 1e-7})
  assert json.loads((tmp_path / 'metrics.jsonl').read_text()) == {
      'round': 1, 'test_loss': 1e-7}
  run.close()


def test_a_run_hides_no_other_runs_and_is_hidden_by_none(tmp_path):
  """`show` does not look below a directory with config.json."""
  write(tmp_path / 'run', LINES)
  above = directory_lib.Workdir(Config(workdir=str(tmp_path)))
  with pytest.raises(UserError, match='must not hold other runs, which'):
    above.check()
  assert run_lib.Runs([Config(dataset='digits')], [], str(tmp_path)).runs
  with pytest.raises(UserError, match='workdir=.*run must not be the dir.*Name '
                     'another workdir'):
    run_lib.Runs([Config(dataset='digits')], [], str(tmp_path / 'run'))
