"""Files of a run are on the disk before anything relies on them."""

import os

import pytest

from moon_jax.rundir import workdir


def test_a_file_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
  path = tmp_path / 'summary.json'
  path.write_bytes(b'before')
  calls = []
  fsync, replace = os.fsync, os.replace

  def synced(descriptor):
    fsync(descriptor)
    calls.append(('fsync', os.stat(descriptor).st_size, path.read_bytes()))

  def replaced(source, target):
    calls.append(('replace', os.stat(source).st_size, path.read_bytes()))
    replace(source, target)

  monkeypatch.setattr(os, 'fsync', synced)
  monkeypatch.setattr(os, 'replace', replaced)
  workdir.write_atomically(path, b'afterwards')
  assert calls == [('fsync', 10, b'before'), ('replace', 10, b'before')]
  assert path.read_bytes() == b'afterwards'
  assert os.listdir(tmp_path) == ['summary.json']


def test_a_file_that_cannot_be_written_stays_as_it_was(tmp_path, monkeypatch):
  path = tmp_path / 'summary.json'
  path.write_bytes(b'before')

  def no_room(_):
    raise OSError('no room')

  monkeypatch.setattr(os, 'fsync', no_room)
  with pytest.raises(OSError, match='no room'):
    workdir.write_atomically(path, b'afterwards')
  assert path.read_bytes() == b'before'
