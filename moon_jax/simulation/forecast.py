"""Estimates the lanes, memory, bytes transferred and time per round of a run.

Memory is computed from the shapes of what is stored and moved, and from XLA's
analysis of the compiled round. Speed is measured on the devices that are
available, by short rounds of the same clients:

    seconds of a round = a x rows of the longest lane + b x jobs of a device

with a and b from rounds of two lengths (a alone, if clients are too small for
two). Network time is bytes divided by bandwidth. The memory of a process is
that of the measuring process, which compiles and trains as a run does, plus the
state of clients and its copy for a checkpoint.
"""

import dataclasses
import resource
import statistics
import sys
import time
from typing import NamedTuple

import jax

from moon_jax.config import Config
from moon_jax.data import clients as clients_lib
from moon_jax.simulation import build, round_spec
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.simulation import Simulation

_TRIAL_ROWS = 24  # of each lane in the shorter rounds that measure; about
_LONGER = 4  # ratio of the rows of longer to shorter rounds
_REPEATS = 3
_LONG_EVALUATION = 10.  # seconds, from which an evaluation is not repeated
_MAX_FIRST = 5  # rounds before measuring, in which client state fills
_ROUNDS = 20  # rounds whose rows are averaged


class Rates(NamedTuple):
  """Speed of a device, and memory of the process that measured it."""

  seconds_per_row: float
  seconds_per_job: float
  evaluation_seconds: float
  resident_bytes: int = 0  # of this process, without the state of its clients
  temporary_bytes: int = 0  # of the compiled round, on a device
  compile_seconds: float = 0.


class Forecast(NamedTuple):
  """The estimated cost of a run; the maximum over devices if they differ."""

  num_lanes: int
  num_devices: int
  utilisation: float  # busy fraction of lanes, mean over rounds
  rows: float  # of the longest lane, mean over rounds
  jobs_per_device: float
  device_bytes: dict[str, int]
  process_bytes: int  # resident, on a CPU
  moved_bytes: dict[str, float]  # per round
  seconds: dict[str, float]  # per round


def forecast(config: Config, num_devices: int = 0, num_processes: int = 1,
             gbit: float = 10., rates: Rates | None = None) -> Forecast:
  """Estimates the cost of a run of `config`.

  Args:
    config: the configuration.
    num_devices: devices of all processes; 0 uses those of this machine.
    num_processes: processes of the run.
    gbit: bandwidth between processes, in gigabits per second.
    rates: speed of a device; None measures it here.

  Raises:
    UserError: if the run is impossible.
  """
  federation = build.federation(config)
  num_lanes, num_devices = round_spec.choose_lanes(
      federation, num_devices or jax.device_count() * num_processes,
      num_processes, jax.default_backend() == 'cpu')
  spec = round_spec.make(federation, num_lanes, num_devices)
  slots = spec.shape.jobs_per_device
  rows = round_spec.mean_rows(spec, _ROUNDS)
  counted = federation.cohorts[:_ROUNDS]
  steps = statistics.fmean(
      float(spec.steps_C[cohort].sum()) for cohort in counted)

  trial = Trial(federation, num_lanes // num_devices)
  rates = rates or trial.rates()
  simulation = trial.simulation
  client, model = spec.client_bytes, 4 * simulation.num_parameters
  _, clients, table, _ = (part.size for part in memory_lib.on_device(spec))
  state, copy, *_ = (part.size for part in memory_lib.on_host(spec))
  jobs = statistics.fmean(map(len, counted)) / num_devices
  is_exchanged = num_processes > 1 and any(
      cohort != federation.cohorts[0] for cohort in counted)
  moved = {
      'to and from each device': clients + table,
      'summed over devices': 3 * model * (num_devices > 1),
      'clients between processes':
          client * slots * num_devices * is_exchanged,
  }
  network = (moved['summed over devices'] * (num_processes > 1)
             + moved['clients between processes'])
  return Forecast(
      num_lanes, num_devices,
      steps / (num_lanes * rows), rows, jobs,
      device_bytes={
          'data': simulation.data_bytes, 'model and server': 3 * model,
          'clients of a round': clients, 'table': table,
          'temporary': rates.temporary_bytes},
      process_bytes=rates.resident_bytes + state // num_processes + copy
      + client * (3 * slots * num_devices // num_processes),
      moved_bytes=moved,
      seconds={
          'training': rates.seconds_per_row * rows
          + rates.seconds_per_job * jobs,
          'network': 2 * 8 * network / (gbit * 1e9),
          'evaluation': rates.evaluation_seconds / config.eval_every
          * simulation.num_devices / num_devices})


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


def show(config: Config, forecast: Forecast) -> str:
  """Returns the forecast as text."""
  def table(title, unit, parts, scale):
    lines = [f'{title}, {unit}']
    parts = {**parts, 'total': sum(parts.values())}
    return '\n'.join(lines + [
        f'  {name:28}{value * scale:12,.3f}' for name, value in parts.items()])

  minutes = sum(forecast.seconds.values()) * config.num_rounds / 60
  return '\n'.join([
      f'{forecast.num_lanes} lanes on {forecast.num_devices} devices, '
      f'utilization {forecast.utilisation:.3f}; {forecast.rows:,.0f} steps '
      'per lane and round',
      table('memory per device', 'MB', forecast.device_bytes, 1e-6),
      *([f'memory per process on a CPU, whose cores share the data: '
         f'{forecast.process_bytes / 1e6:,.0f} MB']
        if forecast.device_bytes['temporary'] else
        ['temporary memory and evaluation were not measured']),
      table('transferred per round', 'MB', forecast.moved_bytes, 1e-6),
      table('time per round', 's', forecast.seconds, 1),
      f'{config.num_rounds} rounds: {minutes:,.1f} minutes'])
