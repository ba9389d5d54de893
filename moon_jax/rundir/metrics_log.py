"""metrics.jsonl: a line a round, only ever added to by the one run at work."""

import fcntl
import hashlib
import json
import os
import pathlib
from typing import Any

from moon_jax.data.io import files
from moon_jax.errors import UserError


class MetricsLog:
  """The lines of a run.

  A checkpoint remembers by `mark` what was written before it; `check` finds
  whether that is still so, and `cut` drops what came after, which runs again.
  """

  def __init__(self, path: pathlib.Path):
    self._path = path
    self._lock = None
    self._written, self._bytes = hashlib.sha256(), 0

  @property
  def exists(self) -> bool:
    return os.path.lexists(self._path)

  def lines(self) -> list[dict[str, Any]]:
    """What whole lines say, of rounds 1, 2, ....

    Raises:
      UserError: where they are no lines of metrics.
    """
    if not self.exists:
      return []
    try:
      text = files.read_regular(self._path).decode('utf-8')
      # A line that a crash cut short has no end.
      whole = text[:text.rfind('\n') + 1]
      lines = [json.loads(line) for line in whole.splitlines()]
      for number, line in enumerate(lines, 1):
        if line['round'] is True or line['round'] != number:
          raise ValueError(f'line {number} is of round {line["round"]}')
      return lines
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
      raise UserError(
          f'--workdir={self._path.parent}: metrics.jsonl is damaged '
          f'({error!r}); mend it, or name another directory') from error

  def lock(self) -> None:
    """Makes the file, where there is none, and keeps other runs off it.

    Raises:
      UserError: where another run is at work.
    """
    self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
      fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      self.close()
      raise UserError(
          f'--workdir={self._path.parent}: another run is at work there; wait '
          'for it, or name another directory') from error
    except OSError:
      pass  # a file system without locks

  def check(self, mark: dict[str, Any] | None) -> None:
    """Raises UserError where what a checkpoint marked is not there; changes
    nothing."""
    size = mark['bytes'] if mark else 0
    content = files.read_regular(self._path)[:size]
    if mark and hashlib.sha256(content).hexdigest() != mark['sha256']:
      raise UserError(
          f'--workdir={self._path.parent}: metrics.jsonl is not what the run '
          'had written when it saved its checkpoint; restore it from a copy, '
          'or name another --workdir')

  def cut(self, mark: dict[str, Any] | None) -> None:
    """Drops what was written after a mark, or all."""
    self._bytes = mark['bytes'] if mark else 0
    os.truncate(self._path, self._bytes)
    self._written = hashlib.sha256(files.read_regular(self._path))

  def append(self, line: dict[str, Any]) -> None:
    """Adds a line; raises OSError where that cannot be, or the file is gone."""
    text = (json.dumps(line, allow_nan=False) + '\n').encode()
    with open(self._path, 'rb+') as out:  # which makes no file anew
      out.seek(0, os.SEEK_END)
      out.write(text)
    self._written.update(text)
    self._bytes += len(text)

  def mark(self) -> dict[str, Any]:
    """What is written by now, on the disk itself."""
    with open(self._path, 'rb') as written:
      os.fsync(written.fileno())
    return {'bytes': self._bytes, 'sha256': self._written.hexdigest()}

  def close(self) -> None:
    """Lets other runs at it."""
    if self._lock is not None:
      os.close(self._lock)
      self._lock = None
