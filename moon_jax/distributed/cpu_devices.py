"""Makes each core of a CPU a device of JAX."""

import os
import sys

_MAX_DEVICES = 16  # each may hold test examples and temporary arrays
_VARIABLE = 'JAX_NUM_CPU_DEVICES'


def share() -> None:
  """Makes each core a JAX device, so that lanes run in parallel.

  It does nothing if the environment or the program has set the number of CPU
  devices, or once JAX has created its devices.
  """
  if 'xla_force_host_platform_device_count' in os.environ.get('XLA_FLAGS', ''):
    return
  if _VARIABLE in os.environ:
    return
  num_devices = min(_MAX_DEVICES, count())
  os.environ[_VARIABLE] = str(num_devices)  # read when JAX is imported
  if 'jax' not in sys.modules:
    return
  import jax

  if jax.config.jax_num_cpu_devices < 1:  # not set
    try:
      jax.config.update('jax_num_cpu_devices', num_devices)
    except RuntimeError:  # JAX has its devices already
      pass


def count() -> int:
  """Returns the number of cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):  # not on macOS
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1
