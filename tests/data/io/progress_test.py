"""A bar on a terminal, a few lines elsewhere."""

import io
import sys

import pytest

from moon_jax.data.io import progress


class Clock:
  """A clock that each unit of work moves on by `step` seconds."""

  now = 0.

  def __init__(self, step):
    self.step = step

  def __call__(self):
    return self.now


def work(clock, total, done=0, size=1, known=True):
  with progress.shown('counting', total if known else 0, 'sheep', done,
                      clock) as advance:
    for _ in range(done, total, size):
      clock.now += clock.step * size
      advance(size)


@pytest.mark.parametrize('total', [7, 100, 110_000])
def test_a_line_for_each_tenth_of_long_work(total, capsys):
  work(Clock(100 / total), total)
  out, err = capsys.readouterr()
  first, *lines = out.splitlines()
  assert first == 'counting' and err == ''
  assert len(lines) == min(total, 10)
  assert lines[-1] == 'counting: 100% after 100 s'
  if total >= 10:
    assert lines[2] == 'counting: 30% after 30 s'


def test_lines_are_seconds_apart(capsys):
  work(Clock(.01), 500)  # 5 seconds of it: a tenth is half a second
  assert capsys.readouterr().out.splitlines() == [
      'counting', 'counting: 40% after 2 s', 'counting: 80% after 4 s']


def test_short_work_is_one_line(capsys):
  work(Clock(.01), 100)
  assert capsys.readouterr().out == 'counting\n'


def test_work_of_unknown_length_is_one_line(capsys):
  work(Clock(1), 100, known=False)
  assert capsys.readouterr().out == 'counting\n'


def test_what_was_done_before_counts(capsys):
  work(Clock(1), 100, done=75)
  assert capsys.readouterr().out.splitlines()[1:] == [
      'counting: 80% after 5 s', 'counting: 90% after 15 s',
      'counting: 100% after 25 s']


def test_a_bar_on_a_terminal_alone(monkeypatch, capsys):
  terminal = io.StringIO()
  terminal.isatty = lambda: True
  monkeypatch.setattr(sys, 'stderr', terminal)
  work(Clock(1), 100)
  assert '100/100' in terminal.getvalue() and '\r' in terminal.getvalue()
  assert capsys.readouterr().out == ''
