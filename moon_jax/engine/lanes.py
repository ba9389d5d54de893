"""Chooses the number of lanes: how many clients train in parallel."""

import os

from moon_jax.errors import UserError

# A command that restarts after it ran out of memory sets this environment
# variable to the largest number of lanes that `choose` may return.
MAX_LANES_VARIABLE = 'MOON_JAX_MAX_LANES'

_MIN_CLIENTS_PER_LANE = 4  # on CPUs
_LANES_PER_ACCELERATOR = 16  # not measured yet; see BUILD_NOTES.md


def choose(lanes: int, cohort_size: int, num_devices: int, num_processes: int,
           is_cpu: bool) -> int:
  """Returns the number of lanes of all processes together.

  On CPUs it is at most one lane per device, since batched matrix products gain
  nothing there, and at most one lane per four clients, so that lanes finish at
  about the same time. Cores without a lane share the work of the other lanes.
  Every process has the same number of lanes.

  Args:
    lanes: the configured number of lanes; 0 to choose it here.
    cohort_size: clients per round.
    num_devices: devices of all processes together.
    num_processes: processes of the run.
    is_cpu: whether devices are CPU cores.

  Raises:
    UserError: if `lanes` is not a multiple of `num_processes`.
  """
  if lanes % num_processes:
    raise UserError(
        f'--lanes must be a multiple of the {num_processes} processes of this '
        f'run, got --lanes={lanes}; give a multiple, or 0 to choose it '
        'automatically')
  if lanes == 0:
    lanes = (min(num_devices, cohort_size // _MIN_CLIENTS_PER_LANE) if is_cpu
             else num_devices * _LANES_PER_ACCELERATOR)
    lanes = min(lanes, int(os.environ.get(MAX_LANES_VARIABLE, lanes)))
  return max(1, min(lanes, cohort_size) // num_processes) * num_processes
