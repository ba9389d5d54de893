"""The plan of a sweep: its programs, their runs, memory and time, as text.

Speed is that of short rounds of one run of a program, measured on the devices
of this machine (`moon_jax.simulation.forecast`). A round of the program takes

    seconds per row x rows of the fullest lane
    + seconds per job x jobs of the fullest device

The runs of an accelerator train on more lanes than a single run. Their rows
take between the measured time, if kernel launches bound it, and that time as
often as there are groups of lanes, if arithmetic or memory traffic does.
"""

from collections.abc import Sequence
import itertools
import math
import statistics
from typing import NamedTuple

import numpy as np

from moon_jax.algorithms import unused
from moon_jax.config import Config
from moon_jax.distributed import host
from moon_jax.engine.schedule import Place, Shape
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation import round_spec
from moon_jax.simulation.forecast import Rates, Trial
from moon_jax.simulation.memory import Need
from moon_jax.simulation.round_spec import RoundSpec
from moon_jax.sweep import run as run_lib
from moon_jax.sweep import values
from moon_jax.sweep.grid import Sweep

_ROUNDS = 20  # rounds over which rows and jobs are averaged
_MAX_VALUES = 6  # of an axis that are listed
_LISTED = 3  # of a longer axis, besides the last one
_LEAST_LISTED = .001  # of the memory needed; smaller parts are not listed


class Cost(NamedTuple):
  """The estimated cost of a program."""

  num_lanes: int  # on all devices together
  num_devices: int
  rounds: int  # of the run with the most
  rows: float  # of the fullest lane, in all rounds together
  jobs: float  # of the fullest device, in all rounds together
  needs: list[Need]  # memory, without temporaries
  temporary_bytes: int  # of a single run's compiled round, on a device
  seconds: dict[str, float]  # by part, if lanes cost no time
  groups: int  # of lanes that train at once on a device; training may take
  # as many times longer

  @property
  def total_seconds(self) -> float:
    """The least seconds of all parts."""
    return sum(self.seconds.values())

  @property
  def most_seconds(self) -> float:
    """The most seconds of all parts."""
    return self.total_seconds + (self.groups - 1) * self.seconds['training']


def dry_run(sweep: Sweep, workdir: str = 'runs', max_runs: int = 0,
            part: tuple[int, int] = (0, 1)) -> str:
  """Returns the programs of a sweep and their estimated cost, as text.

  Measures the speed of one unfinished run of each program by short rounds
  (see `estimate`). Writes no file and takes no lock. The arguments are those of
  `moon_jax.sweep.run.run`; the plan has the programs of all parts.
  """
  host.share_cores()
  units = run_lib.Units(sweep, workdir)
  planned = units.planned(max_runs, part[1])
  lines, costs, count = [units.progress()] if units.ended else [], [], 0
  for index, program in enumerate(planned):
    rest = units.unfinished(program.runs)
    count += len(rest)
    share = f', part {index % part[1]}/{part[1]}' if part[1] > 1 else ''
    configs = [units.runs[run].config for run in program.runs]
    lines += [
        f'program {index + 1} of {len(planned)}{share}: '
        f'{_runs(len(program.runs))}, {len(program.runs) - len(rest)} of them '
        'ended',
        f'  {runs_text(configs, sweep.axes)}',
        *[f'  another program because of: {program.reason}'
          ] * bool(program.reason),
        *[f'  split: {program.split}'] * bool(program.split)]
    if rest:
      costs.append(estimate(units.specs(rest)))
      lines += show(costs[-1])
  return '\n'.join([*lines, *_total(count, costs)])


def runs_text(configs: Sequence[Config], axes: Sequence[str]) -> str:
  """Returns the values of the axes of some runs, such as "mu=1,5 seed=0,1".

  Axes without effect on all these runs are omitted, and long ones shortened.
  """
  without_effect = set.intersection(
      *(set(unused.unused(config)) for config in configs))
  columns = {name: list(dict.fromkeys(
      values.show(getattr(config, name)) for config in configs))
             for name in axes if name not in without_effect}
  text = ' '.join(
      f'{name}=' + ','.join(column if len(column) <= _MAX_VALUES else
                            [*column[:_LISTED], '...', column[-1]])
      for name, column in columns.items())
  count = math.prod(map(len, columns.values()))
  return (text or 'no axis has an effect') + (
      f' ({len(configs)} of {count} combinations)' * (count != len(configs)))


def _runs(count):
  return f'{count} run' + 's' * (count != 1)


def show(cost: Cost) -> list[str]:
  """Returns the lines that describe the cost of a program."""
  lines = [
      f'  {cost.num_lanes} lanes on {cost.num_devices} devices; '
      f'{cost.rounds:,} rounds, {cost.rows / cost.rounds:,.0f} rows per round '
      'on the fullest lane']
  for need in cost.needs:
    lines.append(f'  memory of {need.where}: {need.size / 1e9:,.3f} of '
                 f'{need.have / 1e9:,.1f} GB')
    lines += [f'    {part.name:58}{part.size / 1e9:10,.3f}'
              for part in sorted(need.parts, key=lambda part: -part.size)
              if part.size > _LEAST_LISTED * need.size]
  parts = ', '.join(f'{name} {duration(seconds)}'
                    for name, seconds in cost.seconds.items())
  return [
      *lines,
      '    besides: temporaries of the compiled round of one run, on each '
      f'device {cost.temporary_bytes / 1e9:,.3f}',
      f'  time: {_range([cost])} ({parts})']


def _total(num_runs, costs):
  if not costs:
    return ['total: all runs are finished']
  fullest = [max(needs, key=lambda need: need.size)
             for needs in zip(*(cost.needs for cost in costs))]
  memory = ', '.join(
      f'{need.size / 1e9:,.3f} of {need.have / 1e9:,.1f} GB of {need.where}'
      for need in fullest)
  return [
      f'total: {_runs(num_runs)} to train in {len(costs)} program'
      f'{"s" * (len(costs) > 1)}; memory at most {memory}; time, one program '
      f'after another: {_range(costs)}',
      'Not included: start of the command, files of the runs, evaluation of '
      'client models. Interrupted runs count with all their rounds.']


def _range(costs):
  least = sum(cost.total_seconds for cost in costs)
  most = sum(cost.most_seconds for cost in costs)
  return duration(least) + f' to {duration(most)}' * (most > least)


def duration(seconds: float) -> str:
  """Returns seconds in a unit of a suitable size, such as "3.2 min"."""
  for unit, size in (('h', 3600), ('min', 60)):
    if seconds >= 2 * size:
      return f'{seconds / size:,.1f} {unit}'
  return f'{seconds:,.1f} s'


def estimate(specs: Sequence[RoundSpec], rates: Rates | None = None) -> Cost:
  """Returns the cost of training runs from their first rounds on.

  Args:
    specs: for each run the specification of its rounds alone.
    rates: the speed of a device; None measures it here.
  """
  joined, places = round_spec.together(specs)
  shape = joined.shape
  groups = _per_device(shape) // max(_per_device(spec.shape) for spec in specs)
  rates = rates or Trial(
      specs[0].federation, _per_device(specs[0].shape)).rates()
  rows, jobs = amounts(specs, places, shape)
  configs = [spec.federation.config for spec in specs]
  evaluations = sum(-(-config.num_rounds // config.eval_every)
                    for config in configs)
  return Cost(
      shape.num_lanes, shape.num_devices,
      max(config.num_rounds for config in configs), rows, jobs,
      memory_lib.needs(*specs), rates.temporary_bytes, {
          'training': rates.seconds_per_row * rows
          + rates.seconds_per_job * jobs,
          'evaluation': rates.evaluation_seconds * evaluations,
          'compilation': rates.compile_seconds}, groups)


def amounts(specs: Sequence[RoundSpec], places: Sequence[Place],
            shape: Shape) -> tuple[float, float]:
  """Returns the rows of the fullest lane and the jobs of the fullest device.

  They are sums over all rounds. Lanes are shorter once some runs have ended.

  Args:
    specs: for each run the specification of its rounds alone.
    places: for each run the place of its table in that of all runs.
    shape: of the table of all runs.
  """
  rounds_R = [spec.federation.config.num_rounds for spec in specs]
  rows_R = [round_spec.mean_rows(spec, _ROUNDS) for spec in specs]
  jobs_R = [_mean_jobs(spec) for spec in specs]
  rows = jobs = 0.
  for start, end in itertools.pairwise(sorted({0, *rounds_R})):
    rows_L, jobs_D = np.zeros(shape.num_lanes), np.zeros(shape.num_devices)
    for run, place in enumerate(places):
      if rounds_R[run] >= end:
        rows_L[place.lanes] += rows_R[run]
        jobs_D[np.unique(place.lanes // _per_device(shape))] += jobs_R[run]
    rows += (end - start) * float(rows_L.max())
    jobs += (end - start) * float(jobs_D.max())
  return rows, jobs


def _per_device(shape):
  return shape.num_lanes // shape.num_devices


def _mean_jobs(spec):
  """Returns the jobs of a device, averaged over the first rounds."""
  federation = spec.federation
  rounds = min(_ROUNDS, federation.num_rounds or _ROUNDS)
  return statistics.fmean(
      len(federation.trained(index)[0]) for index in range(rounds)
      ) / spec.shape.num_devices
