"""The command that foretells: python -m moon_jax.plan --flagfile=FILE.

Says, before a run is queued, what it will take on a cluster of --devices over
--processes: lanes and how busy they are, memory, bytes moved and time a round.

Memory is counted from the shapes of what is kept and moved, and from XLA's own
account of the compiled round. Speed is measured here, on as many devices as
there are, by short rounds of the same clients:

    seconds of a round = a x rows of the longest lane + b x jobs of a device

with a and b from rounds of two lengths (a alone, of clients too small for two);
--seconds_per_row and --seconds_per_job take rates measured elsewhere. What a
network takes is its bytes by --gbit. A process's memory is that of this one,
which compiles and trains as a run does, and of what clients then keep, with the
copy of it that a checkpoint makes. Cores of a CPU share one copy of the data.
"""

import dataclasses
import math
import resource
import statistics
import sys
from typing import NamedTuple

from absl import flags
import numpy as np

from moon_jax.cli import command_line
from moon_jax.config import Config
from moon_jax.data import cohort as cohort_lib
from moon_jax.data import sources
from moon_jax.engine import schedule
from moon_jax.errors import UserError
from moon_jax.targets import command
from moon_jax.training import run

_DEVICES = flags.DEFINE_integer(
    'devices', 0, 'Devices of all processes; 0 takes those that are here. A '
    'core of a CPU is one.', lower_bound=0)
_PROCESSES = flags.DEFINE_integer(
    'processes', 1, 'Processes that share the run.', lower_bound=1)
_GBIT = flags.DEFINE_float(
    'gbit', 10., 'Gigabits a second of the network between processes.',
    lower_bound=1e-3)
_SECONDS_PER_ROW = flags.DEFINE_float(
    'seconds_per_row', 0., 'Of a step of all lanes of a device; 0 measures it '
    'here.', lower_bound=0.)
_SECONDS_PER_JOB = flags.DEFINE_float(
    'seconds_per_job', 0., 'To start and end a client on a device, where '
    '--seconds_per_row is given.', lower_bound=0.)

_TRIAL_ROWS = 24  # of each lane in the shorter rounds that measure; about
_LONGER = 4  # times as many rows the longer ones have
_REPEATS = 3
_LONG_EVALUATION = 10.  # seconds of an evaluation that is not repeated
_MAX_FIRST = 5  # rounds before measuring, in which clients fill what they keep
_ROUNDS = 20  # of which rows are counted


class Rates(NamedTuple):
  """How fast a device is, and what the process takes that measured it."""

  seconds_per_row: float
  seconds_per_job: float
  evaluation_seconds: float
  resident_bytes: int = 0  # of this process, its clients' state not counted
  temporary_bytes: int = 0  # of the compiled round, on a device


class Plan(NamedTuple):
  """What a run will take; of the longest device where they differ."""

  num_lanes: int
  num_devices: int
  utilisation: float  # of lanes, mean over rounds
  rows: float  # of the longest lane, mean over rounds
  jobs_per_device: float
  device_bytes: dict[str, int]
  process_bytes: int  # resident, on a CPU
  moved_bytes: dict[str, float]  # a round
  seconds: dict[str, float]  # a round


def plan(config: Config, num_devices: int = 0, num_processes: int = 1,
         gbit: float = 10., rates: Rates | None = None) -> Plan:
  """Foretells a run of `config`; see the module's docstring.

  Raises:
    UserError: where the run could not be.
  """
  import jax

  from moon_jax.distributed import devices
  from moon_jax.engine import lanes

  dataset = sources.load(config.dataset, config.data_dir)
  clients = run.split(config, dataset)
  cohorts = cohort_lib.make(config)
  cohort_size = max(map(len, cohorts))
  num_devices = num_devices or jax.device_count() * num_processes
  is_cpu = jax.default_backend() == 'cpu'
  num_lanes = lanes.choose(
      config.lanes, cohort_size, num_devices, num_processes, is_cpu)
  num_devices = sum(devices.shares(
      num_lanes, [max(1, num_devices // num_processes)] * num_processes))

  sizes = np.array([len(indices) for indices in clients])
  batch_size = min(config.batch_size, int(sizes.max()))
  steps = config.local_epochs * schedule.steps_per_epoch(sizes, batch_size)
  shape = schedule.shape(
      steps, cohort_size, num_lanes, batch_size, num_devices)
  counted = cohorts[:_ROUNDS]
  rows = [schedule.rows(steps[cohort], shape).max() for cohort in counted]
  total = [steps[cohort].sum() for cohort in counted]

  trial = _Trial(config, dataset, clients, cohorts[0], num_lanes // num_devices)
  rates = rates or trial.rates()
  simulation = trial.simulation
  client = simulation.client_bytes // config.num_clients
  model = 4 * simulation.num_parameters
  slots = shape.jobs_per_device
  jobs = statistics.fmean(map(len, counted)) / num_devices
  table = 4 * shape.num_rows * batch_size * num_lanes // num_devices
  owned = len({client for cohort in cohorts[:config.num_rounds]
               for client in cohort})
  between = num_processes > 1 and any(
      cohort != cohorts[0] for cohort in counted)
  moved = {
      'to and from each device': 2 * client * slots + table,
      'summed over devices': 3 * model * (num_devices > 1),
      'clients between processes':
          client * slots * num_devices * between,
  }
  network = (moved['summed over devices'] * (num_processes > 1)
             + moved['clients between processes'])
  return Plan(
      num_lanes, num_devices,
      float(np.mean(np.array(total) / (num_lanes * np.array(rows)))),
      float(np.mean(rows)), jobs,
      device_bytes={
          'data': simulation.data_bytes, 'model and server': 3 * model,
          'clients of a round': 2 * client * slots, 'table': table,
          'temporary': rates.temporary_bytes},
      process_bytes=rates.resident_bytes + client * (
          owned // num_processes + 3 * slots * num_devices // num_processes
          + config.num_clients * (config.checkpoint_every > 0)),
      moved_bytes=moved,
      seconds={
          'training': rates.seconds_per_row * float(np.mean(rows))
          + rates.seconds_per_job * jobs,
          'network': 2 * 8 * network / (gbit * 1e9),
          'evaluation': rates.evaluation_seconds / config.eval_every
          * simulation.num_devices / num_devices})


class _Trial:
  """A short run of the same network, method and clients on what is here."""

  def __init__(self, config, dataset, clients, cohort, lanes_of_device):
    import jax

    from moon_jax.simulation.simulation import Simulation

    num_lanes = lanes_of_device * min(
        jax.device_count(), max(1, len(cohort) // lanes_of_device))
    self._rounds = min(config.num_negatives, _MAX_FIRST) + 1
    batches = max(1, round(_TRIAL_ROWS * num_lanes / (
        len(cohort) * config.local_epochs)))
    self._examples = batches * config.batch_size
    num_rounds = self._rounds + 2 * _REPEATS + 2
    self.simulation = Simulation(
        dataclasses.replace(
            config, lanes=num_lanes, num_rounds=num_rounds, workdir='',
            cohorts_file='', client_eval_every=0),
        dataset, [indices[:_LONGER * self._examples] for indices in clients],
        [cohort] * num_rounds)
    self._cohort = cohort

  def rates(self) -> Rates:
    simulation = self.simulation
    simulation.compile()
    for _ in range(self._rounds):
      simulation.run_round()
    long_rows, long = self._measure()
    simulation.shorten(self._examples)
    short_rows, short = self._measure()
    jobs = len(self._cohort) / simulation.num_devices
    if long_rows < 2 * short_rows:  # clients are short: these are their rounds
      per_row = min(long / long_rows, short / short_rows)
    else:
      per_row = max(0., (long - short) / (long_rows - short_rows))
    evaluations = [simulation.evaluation_seconds()]  # of which the first warms
    if evaluations[0] < _LONG_EVALUATION:
      evaluations = [simulation.evaluation_seconds() for _ in range(_REPEATS)]
    client = simulation.client_bytes // simulation.config.num_clients
    unit = 1024 if sys.platform != 'darwin' else 1
    return Rates(
        per_row, max(0., short - per_row * short_rows) / jobs,
        statistics.median(evaluations),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        - 4 * client * len(self._cohort), simulation.temporary_bytes())

  def _measure(self):
    rows = int(self.simulation.plan(self.simulation.rounds_done).num_rows.max())
    self.simulation.run_round()
    return rows, statistics.median(
        self.simulation.run_round().seconds for _ in range(_REPEATS))


def show(config: Config, plan: Plan) -> str:
  """The plan in words."""
  def table(title, unit, parts, scale):
    lines = [f'{title}, {unit}']
    parts = {**parts, 'in all': sum(parts.values())}
    return '\n'.join(lines + [
        f'  {name:28}{value * scale:12,.3f}' for name, value in parts.items()])

  return '\n'.join([
      f'{plan.num_lanes} lanes on {plan.num_devices} devices, busy '
      f'{plan.utilisation:.3f} of the time; {plan.rows:,.0f} steps a lane',
      table('memory of a device', 'MB', plan.device_bytes, 1e-6),
      *([f'memory of a process on a CPU, whose cores share the data: '
         f'{plan.process_bytes / 1e6:,.0f} MB']
        if plan.device_bytes['temporary'] else
        ['temporary memory and evaluation were not measured']),
      table('moved a round', 'MB', plan.moved_bytes, 1e-6),
      table('a round', 's', plan.seconds, 1),
      f'{config.num_rounds} rounds: '
      f'{sum(plan.seconds.values()) * config.num_rounds / 60:,.1f} minutes'])


def main(config: Config) -> None:
  """Prints the plan."""
  if command.TARGET.value:
    return command.main(config, _DEVICES.value, _PROCESSES.value)
  for flag in (_SECONDS_PER_ROW, _SECONDS_PER_JOB, _GBIT):
    if not math.isfinite(flag.value):
      raise UserError(f'--{flag.name}={flag.value} is not a number of seconds '
                      'or gigabits')
  rates = Rates(_SECONDS_PER_ROW.value, _SECONDS_PER_JOB.value, 0.)
  print(show(config, plan(config, _DEVICES.value, _PROCESSES.value, _GBIT.value,
                          rates if rates.seconds_per_row else None)))


if __name__ == '__main__':
  command_line.define_config()
  for module in command_line, command:  # so that --help lists their flags
    flags.adopt_module_key_flags(module)
  command_line.start('moon_jax.plan', main)
