"""The plan of a sweep as text: its programs, their runs, memory and time."""

from collections.abc import Sequence
import math

from moon_jax.algorithms import unused
from moon_jax.config import Config
from moon_jax.distributed import cpu_devices
from moon_jax.sweep import cost as cost_lib
from moon_jax.sweep import run as run_lib
from moon_jax.sweep import values
from moon_jax.sweep.cost import Cost
from moon_jax.sweep.grid import Sweep

_MAX_VALUES = 6  # of an axis that are listed
_LISTED = 3  # of a longer axis, besides the last one
_LEAST_LISTED = .001  # of the memory needed; smaller parts are not listed


def dry_run(sweep: Sweep, workdir: str = 'runs', max_runs: int = 0,
            part: tuple[int, int] = (0, 1)) -> str:
  """Returns the programs of a sweep and their estimated cost, as text.

  Measures the speed of one unfinished run of each program by short rounds
  (`moon_jax.sweep.cost`). Writes no file and takes no lock.

  Args:
    sweep: the runs.
    workdir: directory of the work directories of the runs.
    max_runs: see `moon_jax.sweep.run.run`.
    part: see `moon_jax.sweep.run.run`; the plan has the programs of all parts.

  Raises:
    UserError: if a run is impossible.
  """
  cpu_devices.share()
  units = run_lib.Units(sweep, workdir)
  planned = units.planned(max_runs, part[1])
  texts, costs, counts = [], [], []
  for index, program in enumerate(planned):
    rest = units.unfinished(program.runs)
    specs = dict(zip(program.runs, program.specs))
    found = cost_lib.estimate([specs[run] for run in rest]) if rest else None
    counts.append(len(rest))
    costs += [found] if found else []
    share = f', part {index % part[1]}/{part[1]}' if part[1] > 1 else ''
    configs = [units.runs[run].config for run in program.runs]
    texts.append('\n'.join([
        f'program {index + 1} of {len(planned)}{share}: '
        f'{_runs(len(program.runs))}, {len(program.runs) - len(rest)} of them '
        'ended',
        f'  {runs_text(configs, sweep.axes)}',
        *([f'  another program because of: {program.reason}']
          if program.reason else []),
        *([f'  split: {program.split}'] if program.split else []),
        *(_cost(found) if found else [])]))
  ended = [units.progress()] if units.ended else []
  return '\n'.join([*ended, *texts, *_total(sum(counts), costs)])


def runs_text(configs: Sequence[Config], axes: Sequence[str]) -> str:
  """Returns the values of the axes of some runs, such as "mu=1,5 seed=0,1".

  Axes without effect on all these runs are omitted, and long ones shortened.
  """
  without_effect = set.intersection(
      *(set(unused.unused(config)) for config in configs))
  names = [name for name in axes if name not in without_effect]
  columns = {name: list(dict.fromkeys(
      values.show(getattr(config, name)) for config in configs))
             for name in names}
  text = ' '.join(f'{name}={_listed(column)}'
                  for name, column in columns.items())
  count = math.prod(map(len, columns.values()))
  return (text or 'no axis has an effect') + (
      f' ({len(configs)} of {count} combinations)' * (count != len(configs)))


def _listed(column):
  if len(column) <= _MAX_VALUES:
    return ','.join(column)
  return f'{",".join(column[:_LISTED])},...,{column[-1]}'


def _runs(count):
  return f'{count} run' + 's' * (count != 1)


def _cost(cost: Cost):
  """Returns the lines about lanes, memory and time of a program."""
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
      f'  time: {_range(cost.total_seconds, cost.most_seconds)} ({parts})']


def _total(num_runs, costs):
  """Returns the lines about all programs."""
  if not costs:
    return ['total: all runs are finished']
  fullest = [max((cost.needs[i] for cost in costs), key=lambda need: need.size)
             for i in range(len(costs[0].needs))]
  memory = ', '.join(
      f'{need.size / 1e9:,.3f} of {need.have / 1e9:,.1f} GB of {need.where}'
      for need in fullest)
  return [
      f'total: {_runs(num_runs)} to train in {len(costs)} program'
      f'{"s" * (len(costs) > 1)}; memory at most {memory}; time, one program '
      'after another: '
      + _range(sum(cost.total_seconds for cost in costs),
               sum(cost.most_seconds for cost in costs)),
      'Not included: start of the command, files of the runs, evaluation of '
      'client models. Interrupted runs count with all their rounds.']


def _range(least, most):
  """Returns a duration, or two if they differ."""
  return duration(least) + f' to {duration(most)}' * (most > least)


def duration(seconds: float) -> str:
  """Returns seconds in a unit of a suitable size, such as "3.2 min"."""
  for unit, size in (('h', 3600), ('min', 60)):
    if seconds >= 2 * size:
      return f'{seconds / size:,.1f} {unit}'
  return f'{seconds:,.1f} s'
