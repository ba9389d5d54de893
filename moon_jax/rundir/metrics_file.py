"""metrics.jsonl: one line per round, appended by the only active run."""

import fcntl
import hashlib
import json
import os
import pathlib
import time
from typing import Any

from moon_jax.data.io import files
from moon_jax.errors import UserError

_RETRIES, _PAUSE = 10, .02  # of a lock that others hold; seconds


class InUse(UserError):
  """Another run uses the work directory."""


class MetricsFile:
  """The metrics file of a run.

  Attributes:
    has_locks: False once the file system has turned out to have no locks.

  A checkpoint stores the result of `mark`, which identifies the lines written
  before it. A run that resumes from the checkpoint uses `check` to verify that
  these lines are unchanged, and `cut` to remove later lines, since it repeats
  their rounds.
  """

  def __init__(self, path: pathlib.Path):
    self._path = path
    self._lock = None
    self.has_locks = True
    self._written, self._bytes = hashlib.sha256(), 0

  @property
  def is_locked(self) -> bool:
    """Whether this run has locked the file."""
    return self._lock is not None

  @property
  def exists(self) -> bool:
    return os.path.lexists(self._path)

  def lines(self) -> list[dict[str, Any]]:
    """Returns the metrics of rounds 1, 2, ..., without an incomplete last line.

    Raises:
      UserError: if the file has other content.
    """
    if not self.exists:
      return []
    try:
      text = files.read_regular(self._path).decode('utf-8')
      # A line that a crash interrupted has no line break.
      complete = text[:text.rfind('\n') + 1]
      lines = [json.loads(line) for line in complete.splitlines()]
      for number, line in enumerate(lines, 1):
        if line['round'] is True or line['round'] != number:
          raise ValueError(f'line {number} has round {line["round"]}')
      return lines
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
      raise UserError(
          f'--workdir={self._path.parent}: metrics.jsonl must hold one line '
          f'per round, got {error!r}; restore it from a copy, or name another '
          'directory') from error

  def lock(self) -> None:
    """Locks the file for this run; creates it if it does not exist.

    `moon-jax inspect` holds the lock for an instant to see whether it is free,
    so a lock that another process holds is tried for 0.2 seconds.

    Raises:
      InUse: if another run holds the lock.
    """
    self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
    for remaining in reversed(range(_RETRIES)):
      try:
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
      except BlockingIOError as error:
        if not remaining:
          self.close()
          raise InUse(
              f'--workdir={self._path.parent} is in use by another run; wait '
              'until it ends, or name another directory') from error
        time.sleep(_PAUSE)
      except OSError:
        self.has_locks = False  # the file system has none
        return

  def check(self, mark: dict[str, Any] | None) -> None:
    """Verifies that the lines of a mark are unchanged; writes nothing.

    Args:
      mark: from `mark`, or None for no lines.

    Raises:
      UserError: if they are missing or differ.
    """
    size = mark['bytes'] if mark else 0
    content = files.read_regular(self._path)[:size]
    if mark and hashlib.sha256(content).hexdigest() != mark['sha256']:
      raise UserError(
          f'--workdir={self._path.parent}: metrics.jsonl must begin with the '
          'lines that the run had written when it saved its checkpoint, got '
          'other content; restore it from a copy, or name another --workdir')

  def cut(self, mark: dict[str, Any] | None) -> None:
    """Removes the lines after a mark, or all lines if the mark is None."""
    self._bytes = mark['bytes'] if mark else 0
    os.truncate(self._path, self._bytes)
    self._written = hashlib.sha256(files.read_regular(self._path))

  def append(self, line: dict[str, Any]) -> None:
    """Appends a line.

    Raises:
      OSError: if the file cannot be written or no longer exists.
    """
    text = (json.dumps(line, allow_nan=False) + '\n').encode()
    with open(self._path, 'rb+') as out:  # 'ab' would create a deleted file
      out.seek(0, os.SEEK_END)
      out.write(text)
    self._written.update(text)
    self._bytes += len(text)

  def mark(self) -> dict[str, Any]:
    """Flushes the file to disk and returns its length and hash."""
    with open(self._path, 'rb') as written:
      os.fsync(written.fileno())
    return {'bytes': self._bytes, 'sha256': self._written.hexdigest()}

  def close(self) -> None:
    """Releases the lock."""
    if self._lock is not None:
      os.close(self._lock)
      self._lock = None
