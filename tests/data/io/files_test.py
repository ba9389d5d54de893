"""Progress: a bar on a terminal, a line in a log."""

import io
import sys

from moon_jax.data.io import files


def work():
  with files.show_progress('counting', 100, 'sheep', done=98) as advance:
    for _ in range(2):
      advance(1)


def test_a_log_has_one_line_and_a_terminal_a_bar(monkeypatch, capsys):
  work()
  assert capsys.readouterr() == ('counting\n', '')
  terminal = io.StringIO()
  terminal.isatty = lambda: True
  monkeypatch.setattr(sys, 'stderr', terminal)
  work()
  assert '100/100' in terminal.getvalue() and '\r' in terminal.getvalue()
  assert capsys.readouterr().out == ''
