"""The view fits terminals, and shares them with messages of any code."""

import dataclasses
import fcntl
import io
import itertools
import os
import pty
import re
import struct
import sys
import termios
import threading
import time

import pytest
from rich.cells import cell_len
from rich.console import Console

from moon_jax.view import terminal
from moon_jax.view.progress import Progress

pyte = pytest.importorskip('pyte')

_SCRIPT = """if True:
    import os, subprocess, sys, time
    from moon_jax.view.progress import Progress, release
    LINE = {'seconds': 1., 'examples_per_second': 1000.}
    with Progress('the title') as shown:
      shown.training(4, 0)
      %s
    print('the end')
    """


class Screen:
  """A terminal that runs a script."""

  def __init__(self, body, columns=60, rows=20, pipe='', **env):
    self.screen = pyte.HistoryScreen(columns, rows, history=500)
    stream = pyte.ByteStream(self.screen)
    self.raw = b''
    pid, self._fd = pty.fork()
    if not pid:
      os.environ.update({'TERM': 'xterm-256color', 'PYTHONUTF8': '1'} | env)
      os.execv('/bin/sh', ['sh', '-c', f'"$0" -c "$1" {pipe}', sys.executable,
                           _SCRIPT % body])
    self.pid = pid
    self.resize(columns, rows)

    def read():
      while True:
        try:
          data = os.read(self._fd, 65536)
        except OSError:  # the script has ended
          return
        if not data:
          return
        self.raw += data
        stream.feed(data)

    self._thread = threading.Thread(target=read, daemon=True)
    self._thread.start()

  def resize(self, columns, rows):
    fcntl.ioctl(self._fd, termios.TIOCSWINSZ,
                struct.pack('HHHH', rows, columns, 0, 0))

  def wait(self):
    """Returns the exit status."""
    _, status = os.waitpid(self.pid, 0)
    self._thread.join(10)
    os.close(self._fd)
    return os.waitstatus_to_exitcode(status)

  def lines(self):
    rows = [''.join(row[i].data for i in range(self.screen.columns)).rstrip()
            for row in self.screen.history.top]
    rows += [row.rstrip() for row in self.screen.display]
    return [row for row in rows if row]


def test_messages_of_any_code_are_above_the_view():
  screen = Screen("""
      for number in range(1, 5):
        print('printed', number)
        os.write(2, b'from C++ %d\\n' % number)
        print('warning', number, file=sys.stderr)
        subprocess.run(['echo', 'child', str(number)])
        with shown.busy('training'):
          time.sleep(.3)
        shown.rounds([LINE | {'round': number, 'test_accuracy': number / 8}])
      sys.stderr.write('half a line')
      """)
  assert screen.wait() == 0
  found = screen.lines()
  messages = [text for number in range(1, 5) for text in (
      f'printed {number}', f'from C++ {number}', f'warning {number}',
      f'child {number}')]
  assert found[:17] == [*messages, 'half a line']
  assert found[17] == 'the title' and found[-1] == 'the end'
  assert found[18].startswith('round 4 of 4 ━') and '100%' in found[18]
  assert len(found) == 22


def test_a_view_survives_resizing():
  screen = Screen("""
      for number in range(1, 5):
        shown.rounds([LINE | {'round': number, 'test_accuracy': number / 8}])
        time.sleep(.2)
      """, columns=100)
  time.sleep(.3)
  screen.resize(50, 20)
  assert screen.wait() == 0
  last = [line for line in screen.raw.decode().splitlines()
          if 'round 4 of 4' in line][-1]
  plain = re.sub(r'\x1b\[[0-9;?]*[a-zA-Z]', '', last).strip('\r')
  assert len(plain) <= 50


@pytest.mark.parametrize('body, status, text', [
    ('raise KeyError("what")', 1, "KeyError: 'what'"),
    ('release(); print("bye", flush=True); os._exit(3)', 3, 'bye')])
def test_the_last_message_is_visible(body, status, text):
  screen = Screen(body)
  assert screen.wait() == status
  assert screen.lines()[-1] == text
  assert not screen.screen.cursor.hidden


@pytest.mark.parametrize('options', [
    {'TERM': 'dumb'}, {'TERM': ''}, {'pipe': '| cat'}])
def test_a_terminal_without_a_view_gets_lines(options):
  """It cannot move its cursor, or stdout reaches it through a program."""
  screen = Screen("shown.rounds([LINE | {'round': 1}])", **options)
  assert screen.wait() == 0
  assert screen.lines() == ['round 1/4  1,000 examples/s  1.0 s', 'the end']
  assert b'\x1b' not in screen.raw


def status(num_runs=1, rounds=5):
  shown = Progress('digits, moon, seed 0: runs/digits-moon-0123abcd', num_runs)
  shown.training(20 * num_runs, 0)
  for number in range(1, rounds + 1):
    shown.rounds(
        [{'round': number, 'seconds': 2., 'examples_per_second': 12345.,
          'test_accuracy': number / 8, 'train_loss': 2. - number / 4,
          'drift': 12345.678, 'users_metric': -1e-9}] * num_runs, .93)
  return dataclasses.replace(
      shown.status, activity=f'round {rounds + 1}: training', since=20.,
      first=(0, 10.), last_end=20.)


def text(state, width=80, height=24, encoding='utf-8'):
  out = io.TextIOWrapper(io.BytesIO(), encoding, errors='replace')
  console = Console(file=out, width=width, height=height)
  console.print(terminal.render(
      state, 23., width, height, encoding == 'utf-8'))
  out.flush()
  return [line.rstrip() for line in out.buffer.getvalue().decode().split('\n')]


def test_a_view_at_80_columns():
  assert text(status()) == [
      'digits, moon, seed 0: runs/digits-moon-0123abcd',
      'round 5 of 20 ' + '━' * 12 + '╸' + ' ' * 37 + '  25%  28 s left',
      'round 6: training' + ' ' * 60 + '3 s',
      'test accuracy    62.50%  ▁▃▅▇█  best 62.50% after round 5',
      'train loss       0.7500  █▇▅▃▁',
      'drift          1.23e+04  ▁▁▁▁▁',
      'users metric     -1e-09  ▁▁▁▁▁',
      '12,345 examples/s, 2.0 s per round, lanes 93% used', '']


def test_a_view_is_as_wide_as_the_terminal():
  states = status(), status(3), status(rounds=0), status(rounds=1000)
  for width, height in itertools.product((1, 2, 12, 33, 80, 300), (1, 8, 50)):
    for state in states:
      assert all(cell_len(line) <= width for line in text(state, width, height))


def test_a_view_without_unicode():
  assert text(status(), encoding='ascii')[3] == (
      'test accuracy    62.50%  _-+%#  best 62.50% after round 5')


def test_a_view_of_several_runs():
  lines = text(status(3))
  assert lines[1].startswith('15 of 60 rounds of 3 runs ━')
  assert lines[3].endswith('▁▃▅▇█  62.50% to 62.50%')
