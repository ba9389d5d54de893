"""Progress: a bar on a terminal, a few lines in a log."""

import io
import sys

import pytest

from moon_jax.data.io import progress


class Clock:
  """A clock that advances by `step` seconds per unit of work."""

  now = 0.

  def __init__(self, step):
    self.step = step

  def __call__(self):
    return self.now


def work(clock, total, done=0, size=1, is_total_known=True):
  with progress.show_progress(
      'counting', total if is_total_known else 0, 'sheep', done,
      clock) as advance:
    for _ in range(done, total, size):
      clock.now += clock.step * size
      advance(size)


@pytest.mark.parametrize('total', [7, 100, 110_000])
def test_long_work_prints_one_line_per_tenth(total, capsys):
  work(Clock(100 / total), total)
  out, err = capsys.readouterr()
  first, *lines = out.splitlines()
  assert first == 'counting' and err == ''
  assert len(lines) == min(total, 10)
  assert lines[-1] == 'counting: 100% after 100 s'
  if total >= 10:
    assert lines[2] == 'counting: 30% after 30 s'


def test_lines_are_at_least_two_seconds_apart(capsys):
  work(Clock(.01), 500)  # 5 seconds, half a second per tenth
  assert capsys.readouterr().out.splitlines() == [
      'counting', 'counting: 40% after 2 s', 'counting: 80% after 4 s']


def test_short_work_prints_one_line(capsys):
  work(Clock(.01), 100)
  assert capsys.readouterr().out == 'counting\n'


def test_unknown_totals_print_one_line(capsys):
  work(Clock(1), 100, is_total_known=False)
  assert capsys.readouterr().out == 'counting\n'


def test_previous_work_counts(capsys):
  work(Clock(1), 100, done=75)
  assert capsys.readouterr().out.splitlines()[1:] == [
      'counting: 80% after 5 s', 'counting: 90% after 15 s',
      'counting: 100% after 25 s']


def test_a_terminal_shows_a_bar(monkeypatch, capsys):
  terminal = io.StringIO()
  terminal.isatty = lambda: True
  monkeypatch.setattr(sys, 'stderr', terminal)
  work(Clock(1), 100)
  assert '100/100' in terminal.getvalue() and '\r' in terminal.getvalue()
  assert capsys.readouterr().out == ''
