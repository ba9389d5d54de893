"""How a CPU's cores are shared out: to be called before JAX is imported."""

import os

_MAX_DEVICES = 16  # each holds the data set


def share() -> None:
  """Makes of each core a device, so that lanes run beside one another.

  Whoever has told JAX or XLA otherwise is left alone.
  """
  flag = 'xla_force_host_platform_device_count'
  if flag not in os.environ.get('XLA_FLAGS', ''):
    os.environ.setdefault(
        'JAX_NUM_CPU_DEVICES', str(min(_MAX_DEVICES, count())))


def count() -> int:
  """Cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):  # not on macOS
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
