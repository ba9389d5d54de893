"""What this process may use of its machine: cores and memory.

Containers and batch systems limit both by control groups, whatever the size of
the machine is. Beyond the limit Linux kills the process.
"""

from collections.abc import Iterator
import os
import pathlib
import sys

from moon_jax.errors import require

_MAX_DEVICES = 16  # each may hold test examples and temporary arrays
_VARIABLE = 'JAX_NUM_CPU_DEVICES'
_UNSET = '-1'  # JAX's default
_CGROUPS = pathlib.Path('/sys/fs/cgroup')
_OWN = pathlib.Path('/proc/self/cgroup')
_UNLIMITED = 2**60  # version 1 writes a number above instead of "max"


def check_environment() -> None:
  """Checks a number of CPU devices in the environment, before JAX reads it.

  Raises:
    UserError: if it is not a number of at least 1.
  """
  text = os.environ.get(_VARIABLE, '') or _UNSET
  require(text == _UNSET or text.isdecimal() and int(text) > 0, '',
          f'the environment variable {_VARIABLE} must be an integer of at '
          'least 1', text,
          f'Unset it: up to {_MAX_DEVICES} cores are then devices')


def share_cores() -> None:
  """Makes each core a JAX device, so that lanes run in parallel.

  It does nothing if the environment or the program has set the number of CPU
  devices, or once JAX has created its devices.

  Raises:
    UserError: as `check_environment`.
  """
  check_environment()
  if (_VARIABLE in os.environ or 'xla_force_host_platform_device_count'
      in os.environ.get('XLA_FLAGS', '')):
    return
  import jax

  if jax.config.jax_num_cpu_devices < 1:  # not set
    try:
      jax.config.update('jax_num_cpu_devices', min(_MAX_DEVICES, num_cores()))
    except RuntimeError:  # JAX has its devices already
      pass


def num_cores() -> int:
  """Returns the number of cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):  # not on macOS
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def memory_bytes() -> int:
  """Returns the bytes that this process may use: of machine and cgroup."""
  return min(machine_bytes(), cgroup_bytes() or machine_bytes())


def machine_bytes() -> int:
  """Returns the bytes of the machine's memory."""
  import psutil

  return psutil.virtual_memory().total


def peak_bytes() -> int:
  """Returns the most bytes of memory that this process has had so far."""
  if sys.platform == 'win32':
    import psutil

    return psutil.Process().memory_info().peak_wset
  import resource

  unit = 1024 if sys.platform != 'darwin' else 1
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def cgroup_bytes() -> int | None:
  """Returns the least memory limit of the cgroups, version 2 or 1, or None."""
  texts = *_read('', 'memory.max'), *_read('memory', 'memory.limit_in_bytes')
  return min((int(text) for text in texts
              if text.isdigit() and int(text) < _UNLIMITED), default=None)


def cgroup_cores() -> float | None:
  """Returns the least limit of processor time of the cgroups, in cores."""
  pairs = [*map(str.split, _read('', 'cpu.max')), *zip(
      _read('cpu', 'cpu.cfs_quota_us'), _read('cpu', 'cpu.cfs_period_us'))]
  return min((float(quota) / float(period) for quota, period in pairs
              if quota not in ('max', '-1')), default=None)


def _read(controller: str, name: str) -> Iterator[str]:
  """Yields the content of a file of this process's cgroup and of each above.

  `controller` is one of version 1, or '' for version 2.
  """
  root = _CGROUPS / controller
  directories = [root]
  lines = _OWN.read_text('utf-8').splitlines() if _OWN.exists() else []
  for line in lines:  # such as 0::/user.slice or 4:memory:/docker/1
    _, controllers, path = line.split(':', 2)
    if controller in controllers.split(','):
      own = root / path.lstrip('/')
      directories += [directory for directory in (own, *own.parents)
                      if root in directory.parents]
      break
  for directory in directories:
    try:
      yield (directory / name).read_text('utf-8').strip()
    except OSError:
      pass  # not limited there
