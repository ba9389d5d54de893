"""Writes log.txt: what a run did, with times, one event per line."""

import pathlib
import sys
import time
import traceback

from moon_jax.errors import (
  DivergedError,
  InterruptedRun,
  OutOfMemory,
  UserError,
)

_EXPECTED = DivergedError, InterruptedRun, OutOfMemory, UserError


class RunLog:
  """The log of a run in its work directory.

  Events before `open`, which needs the lock of the directory, are kept in
  memory. A log that cannot be written ends with a warning, and the run
  continues.
  """

  def __init__(self):
    self._pending: list[str] = []
    self._path: pathlib.Path | None = None
    self._is_broken = False

  def open(self, path: pathlib.Path) -> None:
    """Appends all events to a file, from now on at once."""
    self._path = path
    pending, self._pending = self._pending, []
    self._append(''.join(pending))

  def write(self, text: str) -> None:
    """Adds an event; each further line of the text is indented."""
    stamp = time.strftime('%Y-%m-%dT%H:%M:%S%z')
    first, *rest = text.rstrip('\n').split('\n')
    lines = [f'{stamp} {first}', *(f'    {line}' for line in rest)]
    self._append('\n'.join(lines) + '\n')

  def write_error(self, error: BaseException) -> None:
    """Adds the error that ends the run; with its traceback if unexpected."""
    if isinstance(error, _EXPECTED):
      self.write(f'{type(error).__name__}: {error}')
    else:
      self.write(''.join(traceback.format_exception(error)))

  def _append(self, text):
    if self._path is None:
      self._pending.append(text)
    elif text and not self._is_broken:
      try:
        with open(self._path, 'a', encoding='utf-8') as out:
          out.write(text)
      except OSError as error:
        self._is_broken = True
        print(f'warning: {self._path} cannot be written '
              f'({error.strerror or error}); the run continues without it',
              file=sys.__stderr__, flush=True)


class Copy:
  """A text stream whose complete lines are also written to logs."""

  def __init__(self, stream, logs: list[RunLog]):
    self._stream, self._logs = stream, logs
    self._partial = ''

  def __getattr__(self, name):
    return getattr(self._stream, name)

  def write(self, text: str) -> int:
    self._stream.write(text)
    *lines, self._partial = (self._partial + text).split('\n')
    for line in lines:
      for log in self._logs:
        log.write(line)
    return len(text)
