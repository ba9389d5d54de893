"""Files of a run are on disk before they replace earlier ones."""

import os

import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.rundir import workdir


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
  workdir.write_atomically(path, b'afterwards')
  assert calls == [('fsync', 10, b'before'), ('replace', 10, b'before')]
  assert path.read_bytes() == b'afterwards'
  assert os.listdir(tmp_path) == ['summary.json']


def test_a_file_that_cannot_be_written_is_unchanged(tmp_path, monkeypatch):
  path = tmp_path / 'summary.json'
  path.write_bytes(b'before')

  def fail(_):
    raise OSError('disk full')

  monkeypatch.setattr(os, 'fsync', fail)
  with pytest.raises(OSError, match='disk full'):
    workdir.write_atomically(path, b'afterwards')
  assert path.read_bytes() == b'before'


def test_a_run_begins_without_what_a_killed_one_left(tmp_path):
  """Results of fewer rounds, temporary ones, but no files of the user."""
  for name in ('model.safetensors.part', 'best.safetensors', 'summary.json',
               'diverged.json.part', 'models.txt'):
    (tmp_path / name).write_bytes(b'?')
  for name in 'model', 'model.orbax-checkpoint-tmp', 'models_of_mine':
    (tmp_path / name).mkdir()
    (tmp_path / name / 'file').write_bytes(b'?')
  run = workdir.Workdir(Config(workdir=str(tmp_path)))
  run.begin([np.arange(3)], [[0]])
  assert sorted(os.listdir(tmp_path)) == [
      'config.json', 'models.txt', 'models_of_mine', 'partition.npz']
