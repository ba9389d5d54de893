"""metrics.jsonl matches the checkpoint, and one run at a time writes to it."""

import fcntl
import json
import os
import threading

import pytest

from moon_jax.errors import UserError
from moon_jax.rundir.metrics_file import MetricsFile

LINES = [{'round': n, 'test_accuracy': n / 7} for n in range(1, 6)]


def write(path, lines, mark=None):
  """Appends lines after a mark; returns the mark after each of them."""
  log = MetricsFile(path)
  log.lock()
  log.check(mark)
  log.cut(mark)
  marks = []
  for line in lines:
    log.append(line)
    marks.append(log.mark())
  log.close()
  return marks


@pytest.mark.parametrize('tail', ['', '{"round": 4, "tra', '{"round": 9}\n'])
def test_lines_after_a_mark_are_replaced(tail, tmp_path):
  path = tmp_path / 'metrics.jsonl'
  marks = write(path, LINES[:3])
  with open(path, 'a') as out:
    out.write(tail)
  assert write(path, LINES[2:], marks[1])[-1] == (
      write(tmp_path / 'other', LINES)[-1])
  assert path.read_bytes() == (tmp_path / 'other').read_bytes()
  assert MetricsFile(path).lines() == LINES
  write(path, LINES[:1])  # without a checkpoint all lines are removed
  assert MetricsFile(path).lines() == LINES[:1]


@pytest.mark.parametrize('change', [
    lambda text: text.replace('0.2857', '0.2858'),
    lambda text: text[:60],
    lambda text: '',
    lambda text: '\n' + text])
def test_lines_that_differ_from_the_checkpoint_are_an_error(change, tmp_path):
  path = tmp_path / 'metrics.jsonl'
  mark = write(path, LINES)[3]
  path.write_text(change(path.read_text()))
  before = path.read_bytes()
  with pytest.raises(UserError, match='metrics.jsonl must begin with the'):
    write(path, [], mark)
  assert path.read_bytes() == before


def test_a_mark_describes_lines_that_are_on_disk(tmp_path, monkeypatch):
  """A checkpoint stores it: a loss of power must not remove the lines."""
  log = MetricsFile(tmp_path / 'metrics.jsonl')
  log.lock()
  log.cut(None)
  log.append(LINES[0])
  synced, fsync = [], os.fsync

  def sync(descriptor):
    fsync(descriptor)
    synced.append(os.stat(descriptor).st_size)

  monkeypatch.setattr(os, 'fsync', sync)
  assert synced == [] and [log.mark()['bytes']] == synced
  log.close()


@pytest.mark.parametrize('content', [b'[1]\n', b'\xff\n', b'{"a": 1}\n',
                                     b'{"round": 1}\n{"round": 3}\n',
                                     b'{"round": true}\n', b'{"round": 0}\n',
                                     b'[' * 10**5 + b'\n', b'nonsense\n'])
def test_invalid_lines_are_an_error(content, tmp_path):
  path = tmp_path / 'metrics.jsonl'
  path.write_bytes(content)
  with pytest.raises(UserError, match='metrics.jsonl must hold one line per'):
    MetricsFile(path).lines()


def test_a_locked_file_is_an_error(tmp_path):
  first, second = (MetricsFile(tmp_path / 'metrics.jsonl') for _ in range(2))
  first.lock()
  with pytest.raises(UserError, match='is in use by another run'):
    second.lock()
  first.close()
  second.lock()
  second.close()


def test_a_lock_that_is_held_for_an_instant_is_tried_again(tmp_path):
  """As `moon-jax inspect` holds it while it looks whether the run is active."""
  log = MetricsFile(tmp_path / 'metrics.jsonl')
  with open(tmp_path / 'metrics.jsonl', 'w') as probe:
    fcntl.flock(probe, fcntl.LOCK_SH)
    threading.Timer(.05, fcntl.flock, (probe, fcntl.LOCK_UN)).start()
    log.lock()
  assert log.is_locked
  log.close()


def test_a_deleted_file_is_not_created_again(tmp_path):
  log = MetricsFile(tmp_path / 'metrics.jsonl')
  log.lock()
  log.cut(None)
  log.append(LINES[0])
  os.unlink(tmp_path / 'metrics.jsonl')
  with pytest.raises(FileNotFoundError):
    log.append(LINES[1])
  assert not log.exists


def test_nan_is_not_written(tmp_path):
  log = MetricsFile(tmp_path / 'metrics.jsonl')
  log.lock()
  log.cut(None)
  with pytest.raises(ValueError):
    log.append({'round': 1, 'test_loss': float('nan')})
  log.append({'round': 1, 'test_loss': 1e-7})
  assert json.loads((tmp_path / 'metrics.jsonl').read_text()) == {
      'round': 1, 'test_loss': 1e-7}
  log.close()
