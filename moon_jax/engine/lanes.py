"""How many clients train side by side where the user leaves it open."""

import os

from moon_jax.errors import UserError

# By this environment variable a command that begins anew, since memory ran out,
# tells itself how many lanes to choose at the most.
MAX_LANES_VARIABLE = 'MOON_JAX_MAX_LANES'

_CLIENTS_OF_LANE = 4  # on CPUs, or more
_OF_ACCELERATOR = 16  # a guess until measured; see BUILD_NOTES.md


def choose(lanes: int, cohort_size: int, num_devices: int, num_processes: int,
           is_cpu: bool) -> int:
  """On CPUs one a device, where batched products gain nothing; see DESIGN.

  But no more than leave four clients for each, so that lanes end together; what
  one lane does is then shared among the cores. As many for each process.

  Args:
    lanes: as the configuration has it; 0 to choose.
    cohort_size: clients of a round.
    num_devices: of all processes.
    num_processes: of the run.
    is_cpu: whether devices are cores.

  Raises:
    UserError: where the processes cannot share the lanes.
  """
  if lanes % num_processes:
    raise UserError(f'--lanes={lanes} is no multiple of the {num_processes} '
                    'processes of this run; give one, or 0 to have it chosen')
  if lanes == 0:
    lanes = (min(num_devices, cohort_size // _CLIENTS_OF_LANE) if is_cpu
             else num_devices * _OF_ACCELERATOR)
    lanes = min(lanes, int(os.environ.get(MAX_LANES_VARIABLE, lanes)))
  return max(1, min(lanes, cohort_size) // num_processes) * num_processes
