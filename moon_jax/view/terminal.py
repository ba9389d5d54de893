"""Draws the view at the bottom of a terminal, below all messages.

While the view is up, file descriptors 2 and, if it is a terminal, 1 are a pipe.
So messages of any code, also of XLA's, are read line by line and written above
the view. `release` restores the terminal; call it before a process ends without
leaving the context.
"""

from collections.abc import Callable, Sequence
import contextlib
import io
import os
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from rich.text import Text

_SECONDS = .25  # between two paintings
_MESSAGE_BYTES = 2**16

_shown: list['Terminal'] = []


def is_possible() -> bool:
  """Returns whether stderr is a terminal that can move its cursor."""
  try:
    return (sys.stderr.isatty() and os.isatty(2)
            and (os.environ.get('TERM') or 'dumb') != 'dumb')
  except (AttributeError, ValueError):  # no stderr, or a closed one
    return False


def release() -> None:
  """Restores the terminal, if a view is on it."""
  for terminal in list(_shown):
    terminal.stop()


class Terminal:
  """A view that is up from its creation until `stop`."""

  def __init__(self, render: Callable[[int, int, bool], list['Text']]):
    """Puts the view up.

    Args:
      render: returns the lines for a width, a height, and whether the terminal
        shows Unicode.
    """
    self._render = render
    self._unicode = 'utf' in (getattr(sys.stderr, 'encoding', '') or '').lower()
    self._lock = threading.Lock()
    self._widths: list[int] = []  # of the lines on the terminal
    self._partial = b''  # the beginning of a message
    self._flush()
    self._terminal = os.dup(2)
    read_end, write_end = os.pipe()
    descriptors = (1, 2) if os.isatty(1) else (2,)
    self._saved = {number: os.dup(number) for number in descriptors}
    for number in descriptors:
      os.dup2(write_end, number)
    os.close(write_end)
    self._ended = threading.Event()
    self._reader = threading.Thread(
        target=self._read, args=(read_end,), daemon=True)
    self._painter = threading.Thread(target=self._paint_often, daemon=True)
    _shown.append(self)
    self._reader.start()
    self._painter.start()

  def stop(self) -> None:
    """Leaves the last view on the terminal, with the cursor below it."""
    if self not in _shown:
      return
    _shown.remove(self)
    self._flush()
    for number, saved in self._saved.items():
      os.dup2(saved, number)
      os.close(saved)
    self._reader.join(.5)  # a child process may keep the pipe open
    self._ended.set()
    self._painter.join()
    with self._lock:
      if self._partial:
        self._write(self._erased() + self._partial + b'\r\n')
        self._widths = []
      self._paint()
      self._write(b'\r\n')
      os.close(self._terminal)
      self._terminal = -1

  def _flush(self):
    for stream in sys.stdout, sys.stderr:
      with contextlib.suppress(AttributeError, OSError, ValueError):
        stream.flush()

  def _read(self, read_end):
    """Writes messages above the view until the pipe is closed."""
    while data := os.read(read_end, _MESSAGE_BYTES):
      with self._lock:
        data = self._partial + data.replace(b'\r', b'')
        lines, newline, self._partial = data.rpartition(b'\n')
        if newline:
          self._write(self._erased() + lines.replace(b'\n', b'\r\n') + b'\r\n')
          self._widths = []
          self._paint()
    os.close(read_end)

  def _paint_often(self):
    while not self._ended.wait(_SECONDS):
      with self._lock:
        self._paint()

  def _paint(self):
    """Draws the view over the one that is on the terminal."""
    width, height = self._size()
    lines = self._render(width - 1, height, self._unicode)
    text = b'\x1b[K\r\n'.join(_encoded(lines, width, self._unicode))
    self._write(self._at_top() + text + b'\x1b[K\x1b[J')
    self._widths = [line.cell_len for line in lines]

  def _erased(self):
    return self._at_top() + b'\x1b[J'

  def _at_top(self):
    """Returns the bytes that move the cursor to the view's beginning.

    A terminal that became narrower has wrapped the lines of the view.
    """
    width, _ = self._size()
    rows = sum(max(-(-used // width), 1) for used in self._widths)
    return b'\r' + (b'\x1b[%dA' % (rows - 1) if rows > 1 else b'')

  def _size(self):
    try:
      columns, rows = os.get_terminal_size(self._terminal)
    except OSError:
      columns, rows = 0, 0
    return columns or 80, rows or 24  # some terminals report 0

  def _write(self, data):
    with contextlib.suppress(OSError):  # the terminal was closed
      while data and self._terminal >= 0:
        data = data[os.write(self._terminal, data):]


def _encoded(lines: Sequence['Text'], width, is_unicode) -> list[bytes]:
  """Returns lines with the escape sequences of their styles."""
  from rich.console import Console

  console = Console(file=io.StringIO(), force_terminal=True, width=width,
                    legacy_windows=False, highlight=False)
  found = []
  for line in lines:
    with console.capture() as capture:
      console.print(line, end='', soft_wrap=True, markup=False)
    found.append(capture.get().encode(
        'utf-8' if is_unicode else 'ascii', 'replace'))
  return found
