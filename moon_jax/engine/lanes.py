"""Chooses the number of lanes: how many clients train in parallel."""

from collections.abc import Sequence

from moon_jax.errors import UserError

_MIN_CLIENTS_PER_LANE = 4  # on CPUs
_LANES_PER_ACCELERATOR = 16  # of one run; a guess, see BUILD_NOTES.md

# Lanes of several runs on an accelerator. Kernels of a small network on few
# lanes take about as long as those on many. By the kernels that XLA compiles
# for an H200, not run on one (experiments/results), simple_cnn
# (93,000 parameters) takes 49 us per lane in rows of 10 lanes, 32 of 60, 30 of
# 120 and 31 of 240. Launches take 1% of a row of ResNet-18 (11 million) on 10
# lanes, and 7% of one of ResNet-50 in bfloat16: more lanes gain little there.
_LANES_OF_RUNS = 128
_FEW_PARAMETERS = 2**22


def choose(lanes: int, cohort_size: int, num_devices: int, num_processes: int,
           is_cpu: bool) -> int:
  """Returns the number of lanes of all processes together.

  On CPUs it is at most one lane per device, since batched matrix products gain
  nothing there, and at most one lane per four clients, so that lanes finish at
  about the same time. Cores without a lane share the work of the other lanes.
  Every process has the same number of lanes.

  `lanes` is the configured number; 0 chooses it. `num_devices` counts the
  devices of all processes.
  """
  if lanes % num_processes:
    raise UserError(
        'lanes', f'must be a multiple of the {num_processes} processes of this '
        'run', lanes, '0 chooses it')
  if lanes == 0:
    lanes = (min(num_devices, cohort_size // _MIN_CLIENTS_PER_LANE) if is_cpu
             else num_devices * _LANES_PER_ACCELERATOR)
  return max(1, min(lanes, cohort_size) // num_processes) * num_processes


def choose_for_runs(lanes: Sequence[int], num_devices: Sequence[int],
                    available: int, num_parameters: int,
                    is_cpu: bool) -> tuple[int, int]:
  """Returns the lanes and the devices of several runs in one program.

  Each run keeps the `lanes` and `num_devices` that it has alone. The runs share
  the `available` devices: on CPUs each device has one group of lanes; on
  accelerators all runs of small networks train side by side. The number of
  devices is a multiple of the number for one run.
  """
  alone = max(num_devices)
  used = max(alone, min(available, sum(num_devices)))
  width = max(-(-a // b) for a, b in zip(lanes, num_devices))
  used -= used % alone
  groups = 1
  if not is_cpu and num_parameters <= _FEW_PARAMETERS:
    groups = max(1, min(-(-sum(lanes) // (used * width)),
                        _LANES_OF_RUNS // width))
  return used * width * groups, used
