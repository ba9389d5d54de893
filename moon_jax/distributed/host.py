"""Reads how much memory and processor time this process may use.

Containers and batch systems limit both by control groups, whatever the size of
the machine is. Beyond the limit Linux kills the process.
"""

from collections.abc import Iterator
import os
import pathlib

_CGROUPS = pathlib.Path('/sys/fs/cgroup')
_OWN = pathlib.Path('/proc/self/cgroup')
_UNLIMITED = 2**60  # version 1 writes a number above instead of "max"


def memory_bytes() -> int:
  """Returns the bytes that this process may use: of machine and cgroup."""
  return min(machine_bytes(), cgroup_bytes() or machine_bytes())


def machine_bytes() -> int:
  """Returns the bytes of the machine's memory."""
  return os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')


def cgroup_bytes() -> int | None:
  """Returns the least memory limit of the cgroups, version 2 or 1, or None."""
  limits = [int(text) for text in (
      *_read('', 'memory.max'), *_read('memory', 'memory.limit_in_bytes'))
            if text.isdigit() and int(text) < _UNLIMITED]
  return min(limits, default=None)


def cgroup_cores() -> float | None:
  """Returns the least limit of processor time of the cgroups, in cores."""
  pairs = [text.split() for text in _read('', 'cpu.max')]
  pairs += [list(pair) for pair in zip(
      _read('cpu', 'cpu.cfs_quota_us'), _read('cpu', 'cpu.cfs_period_us'))]
  return min((float(quota) / float(period) for quota, period in pairs
              if quota not in ('max', '-1')), default=None)


def _read(controller: str, name: str) -> Iterator[str]:
  """Yields a file of this process's cgroup and of each above it.

  Args:
    controller: of version 1, whose directory it names; '' for version 2.
    name: of the file.
  """
  for directory in _directories(controller):
    try:
      yield (directory / name).read_text().strip()
    except OSError:
      pass  # not limited there


def _directories(controller):
  root = _CGROUPS / controller
  try:
    lines = _OWN.read_text().splitlines()
  except OSError:  # not Linux
    return [root]
  for line in lines:  # such as 0::/user.slice or 4:memory:/docker/1
    _, controllers, path = line.split(':', 2)
    if controller in controllers.split(','):
      own = root / path.lstrip('/')
      return [root, *(
          directory for directory in (own, *own.parents)
          if root in directory.parents)]
  return [root]
