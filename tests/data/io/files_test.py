"""Progress: a bar on a terminal, a few lines in a log."""

import io
import sys

import pytest

from moon_jax.data.io import files


def work(step, total, done=0, shown=None):
  """Counts from `done` to `total`, one in `step` seconds."""
  now = 0.
  with files.show_progress(
      'counting', total if shown is None else shown, 'sheep', done,
      lambda: now) as advance:
    for _ in range(done, total):
      now += step
      advance(1)


@pytest.mark.parametrize('total', [7, 100, 110_000])
def test_long_work_prints_one_line_per_tenth(total, capsys):
  work(100 / total, total)
  out, err = capsys.readouterr()
  first, *lines = out.splitlines()
  assert first == 'counting' and err == ''
  assert len(lines) == min(total, 10)
  assert lines[-1] == 'counting: 100% after 100 s'
  if total >= 10:
    assert lines[2] == 'counting: 30% after 30 s'


def test_lines_are_at_least_two_seconds_apart(capsys):
  work(.01, 500)  # 5 seconds, half a second per tenth
  assert capsys.readouterr().out.splitlines() == [
      'counting', 'counting: 40% after 2 s', 'counting: 80% after 4 s']
  work(.01, 100)  # 1 second
  work(1, 100, shown=0)  # an unknown total
  assert capsys.readouterr().out == 'counting\n' * 2


def test_previous_work_counts(capsys):
  work(1, 100, done=75)
  assert capsys.readouterr().out.splitlines()[1:] == [
      'counting: 80% after 5 s', 'counting: 90% after 15 s',
      'counting: 100% after 25 s']


def test_a_terminal_shows_a_bar(monkeypatch, capsys):
  terminal = io.StringIO()
  terminal.isatty = lambda: True
  monkeypatch.setattr(sys, 'stderr', terminal)
  work(1, 100)
  assert '100/100' in terminal.getvalue() and '\r' in terminal.getvalue()
  assert capsys.readouterr().out == ''
