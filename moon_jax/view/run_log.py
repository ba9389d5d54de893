"""Writes log.txt: what a run did, with times, one event per line."""

from collections.abc import Callable, Iterable
import pathlib
import sys
import time


class RunLog:
  """The log of a run in its work directory.

  Events before `open`, which needs the lock of the directory, are kept in
  memory. A log that cannot be written ends with a warning, and the run
  continues.
  """

  def __init__(self):
    self._pending: list[str] = []
    self._path: pathlib.Path | None = None

  def open(self, path: pathlib.Path) -> None:
    """Appends all events to a file, from now on at once."""
    self._path = path
    self._append(''.join(self._pending))

  def write(self, text: str) -> None:
    """Adds an event; each further line of the text is indented."""
    stamp = time.strftime('%Y-%m-%dT%H:%M:%S%z')
    text = text.rstrip('\n').replace('\n', '\n    ')
    self._append(f'{stamp} {text}\n')

  def _append(self, text):
    if self._path is None:
      self._pending.append(text)
      return
    try:
      with open(self._path, 'a', encoding='utf-8') as out:
        out.write(text)
    except OSError as error:
      print(f'warning: {self._path} cannot be written '
            f'({error.strerror or error}); the run continues without it',
            file=sys.__stderr__, flush=True)
      self._path = None


class Copy:
  """A text stream whose complete lines are also passed to a function."""

  def __init__(self, stream, write_line: Callable[[str], None]):
    self._stream, self._write_line = stream, write_line
    self._partial = ''

  def __getattr__(self, name):
    return getattr(self._stream, name)

  def writelines(self, lines: Iterable[str]) -> None:
    for line in lines:
      self.write(line)

  def write(self, text: str) -> int:
    self._stream.write(text)
    *lines, self._partial = (self._partial + text).split('\n')
    for line in lines:
      self._write_line(line)
    return len(text)
