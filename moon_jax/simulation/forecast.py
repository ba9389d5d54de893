"""Measures the speed of a run on this machine by short rounds of its clients.

    seconds of a round = a x rows of the longest lane + b x jobs of a device

with a and b from rounds of two lengths (a alone, if clients are too small for
two). `moon_jax.sweep.plan` estimates the cost of runs from them.
"""

import dataclasses
import resource
import statistics
import sys
import time
from typing import NamedTuple

import jax

from moon_jax.data import clients as clients_lib
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.simulation import Simulation

_TRIAL_ROWS = 24  # of each lane in the shorter rounds that measure; about
_LONGER = 4  # ratio of the rows of longer to shorter rounds
_REPEATS = 3
_LONG_EVALUATION = 10.  # seconds, from which an evaluation is not repeated
_MAX_FIRST = 5  # rounds before measuring, in which client state fills


class Rates(NamedTuple):
  """Speed of a device, and memory of the process that measured it."""

  seconds_per_row: float
  seconds_per_job: float
  evaluation_seconds: float
  resident_bytes: int = 0  # of this process, without the state of its clients
  temporary_bytes: int = 0  # of the compiled round, on a device
  compile_seconds: float = 0.


class Trial:
  """A short run of the same network, method and clients on local devices."""

  def __init__(self, federation: Federation, lanes_per_device: int):
    config, cohort = federation.config, federation.cohorts[0]
    num_lanes = lanes_per_device * min(
        jax.device_count(), max(1, len(cohort) // lanes_per_device))
    self._rounds = min(config.num_negatives, _MAX_FIRST) + 1
    batches = max(1, round(_TRIAL_ROWS * num_lanes / (
        len(cohort) * federation.local_epochs)))
    self._examples = batches * federation.batch_size
    num_rounds = self._rounds + 2 * _REPEATS + 2
    self.simulation = Simulation(dataclasses.replace(
        federation, lanes=num_lanes, evaluate_clients=False, client_tests=None,
        clients=clients_lib.shortened(
            federation.clients, _LONGER * self._examples),
        cohorts=[cohort] * num_rounds))
    self._cohort = cohort

  def rates(self) -> Rates:
    """Measures rounds of two lengths, and an evaluation."""
    simulation = self.simulation
    compile_seconds = simulation.compile()
    for _ in range(self._rounds):
      simulation.run_round()
    long_rows, long = self._measure()
    planner = simulation.planner
    planner.clients = [clients_lib.shortened(
        planner.clients[0], self._examples)]
    short_rows, short = self._measure()
    jobs = len(self._cohort) / simulation.num_devices
    if long_rows < 2 * short_rows:  # clients have no more examples
      per_row = min(long / long_rows, short / short_rows)
    else:
      per_row = max(0., (long - short) / (long_rows - short_rows))
    evaluations = [self._evaluation_seconds()]  # warms up
    if evaluations[0] < _LONG_EVALUATION:
      evaluations = [self._evaluation_seconds() for _ in range(_REPEATS)]
    client = simulation.client_bytes // simulation.federation.num_clients
    unit = 1024 if sys.platform != 'darwin' else 1
    return Rates(
        per_row, max(0., short - per_row * short_rows) / jobs,
        statistics.median(evaluations),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        - 4 * client * len(self._cohort), simulation.temporary_bytes(),
        compile_seconds)

  def _measure(self):
    simulation = self.simulation
    rows = int(simulation.planner.plan(simulation.rounds_done).num_rows.max())
    simulation.run_round()
    return rows, statistics.median(
        simulation.run_round().seconds for _ in range(_REPEATS))

  def _evaluation_seconds(self):
    start = time.perf_counter()
    self.simulation.evaluate()
    return time.perf_counter() - start

