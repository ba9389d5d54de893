"""How the rounds of a federation are laid out over lanes and devices.

Simulations and forecasts both use it, so that a forecast describes the program
that runs.
"""

from typing import NamedTuple

import numpy as np

from moon_jax.data import clients as clients_lib
from moon_jax.distributed import devices
from moon_jax.engine import lanes
from moon_jax.engine import schedule
from moon_jax.engine.schedule import Shape
from moon_jax.simulation.federation import Federation


class Layout(NamedTuple):
  """Lanes of a round, devices that share them, and the shape of the table."""

  num_lanes: int  # of all devices together
  num_devices: int  # used by the run; they share the lanes evenly
  steps_C: np.ndarray  # int, local steps of each client in a round
  shape: Shape  # of the round's table


def choose(federation: Federation, num_devices: int, num_processes: int = 1,
           is_cpu: bool = True) -> Layout:
  """Returns the layout of a run on given devices.

  Args:
    federation: the federation.
    num_devices: available devices of all processes.
    num_processes: processes of the run.
    is_cpu: whether the devices are cores of a CPU.

  Raises:
    UserError: if the processes cannot share the lanes.
  """
  num_lanes = lanes.choose(
      federation.lanes, federation.cohort_size, num_devices, num_processes,
      is_cpu)
  used = sum(devices.shares(
      num_lanes, [max(1, num_devices // num_processes)] * num_processes))
  return of(federation, num_lanes, used)


def of(federation: Federation, num_lanes: int, num_devices: int) -> Layout:
  """Returns the layout for given lanes, which the devices share evenly."""
  sizes = clients_lib.sizes(federation.clients)
  # A batch larger than every client is all of its examples, and padding.
  batch_size = min(federation.batch_size, int(sizes.max()))
  steps_C = federation.local_epochs * schedule.steps_per_epoch(
      sizes, batch_size, federation.last_batch)
  return Layout(num_lanes, num_devices, steps_C, schedule.shape(
      steps_C, federation.cohort_size, num_lanes, batch_size, num_devices))


def mean_rows(federation: Federation, layout: Layout,
              num_rounds: int) -> float:
  """Returns the rows of the longest lane, averaged over the first rounds."""
  def rows(round_index):
    clients, _ = federation.trained(round_index)
    if not clients:
      return 0
    return schedule.rows(layout.steps_C[clients], layout.shape).max()

  return float(np.mean([
      rows(index) for index in range(_limit(federation, num_rounds))]))


def _limit(federation, num_rounds):
  return min(num_rounds, federation.num_rounds or num_rounds)
