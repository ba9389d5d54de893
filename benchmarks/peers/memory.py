"""Measures the memory of the processes that this process starts. Linux only."""

import contextlib
import os
import pathlib
import threading

_SECONDS = 1.  # between samples, each of which reads all page tables


class Peak:
  """Samples the memory of all descendants of this process in a thread.

  It is their proportional set size: a page that several processes share counts
  once.

  Attributes:
    num_bytes: the largest sample.
  """

  def __init__(self):
    self.num_bytes = 0
    self._is_over = threading.Event()
    self._thread = threading.Thread(target=self._sample, daemon=True)

  def __enter__(self):
    self._thread.start()
    return self

  def __exit__(self, *_):
    self._is_over.set()
    self._thread.join()

  def _sample(self):
    while not self._is_over.wait(_SECONDS):
      self.num_bytes = max(self.num_bytes, sum(map(_bytes, _descendants())))


def stats():
  """Yields the number of each process, and its fields of /proc/PID/stat."""
  for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
    with contextlib.suppress(OSError):  # it has ended
      yield int(path.parent.name), path.read_text().rpartition(')')[2].split()


def _descendants():
  """Returns the numbers of the processes below this one."""
  children = {}
  for process, fields in stats():
    children.setdefault(int(fields[1]), []).append(process)
  found = [*children.get(os.getpid(), [])]
  for process in found:  # which grows
    found += children.get(process, [])
  return found


def _bytes(process):
  with contextlib.suppress(OSError):
    for line in pathlib.Path(
        f'/proc/{process}/smaps_rollup').read_text().splitlines():
      if line.startswith('Pss:'):
        return int(line.split()[1]) * 1024
  return 0
