"""Formats the plan of a sweep on a GPU for people to read."""

from collections.abc import Sequence

from moon_jax.sweep import plan as plan_lib
from moon_jax.sweep.target_plan import SweepPlan
from moon_jax.sweep.target_plan import Together
from moon_jax.targets import estimate as estimate_lib
from moon_jax.targets import fit as fit_lib

MEMORY_ERROR = (
    'a run of this sweep does not fit into the memory of the GPU even alone. '
    'Plan it without --grid and --sweep to see which lanes fit, or choose a '
    'GPU with more memory')

_WIDTH = 44  # of the first column


def show(plan: SweepPlan, axes: Sequence[str]) -> str:
  """Returns the plan as text.

  Args:
    plan: the plan.
    axes: the names of the settings in which the runs of the sweep differ.
  """
  config, runs = plan.configs[0], [plan.alone, plan.program]
  return '\n'.join([
      f'{plan.target.name}: {len(plan.configs)} runs, --algorithm='
      f'{config.algorithm} --model={config.model}: '
      + plan_lib.runs_text(plan.configs, axes),
      _row('', 'one run', f'{plan.program.num_runs} runs'),
      *_kernels(runs), *_memory(plan, runs), *_time(runs),
      _fit(plan), *_speedup(plan)])


def _row(name, *cells):
  return f'{name:{_WIDTH}}' + ''.join(f'{cell:>14}' for cell in cells)


def _kernels(runs: Sequence[Together]):
  def row(name, fn, form=',.0f'):
    return _row(name, *(format(fn(run), form) for run in runs))

  def kind(*names):
    return lambda run: sum(run.counts.of_row()[name] for name in names)

  return [
      row('lanes', lambda run: run.num_lanes),
      row('GPUs', lambda run: run.num_devices),
      row('rows per round, of the longest lane',
          lambda run: run.estimate.rows / run.rounds),
      row('kernels launched per row', lambda run: run.counts.launches()),
      row('  of them copies', kind('copies')),
      row('inner loops and conditionals per row',
          kind('inner loops', 'conditionals')),
      row('collectives of the whole program',
          lambda run: sum(run.counts.collectives.values())),
      row('GB read and written per row',
          lambda run: run.estimate.row_bytes / 1e9, ',.3f'),
      row('GFLOP of matrix products per row',
          lambda run: sum(run.estimate.row_flops.values()) / 1e9, ',.2f'),
      row('seconds to compile here', lambda run: run.compiled.seconds)]


def _memory(plan, runs):
  def row(name, sizes):
    return _row(name, *(f'{size / 1e9:,.3f}' for size in sizes))

  usable = fit_lib.usable(plan.target.memory_bytes)
  names = dict.fromkeys(name for run in runs for name in run.parts)
  return ['memory of each GPU, GB',
          *(row(f'  {name}', [run.parts.get(name, 0) for run in runs])
            for name in names),
          row('  total', [run.need for run in runs]),
          row('  usable', [usable] * len(runs))]


def _time(runs):
  def row(name, fn):
    return _row(name, *(
        f'{1e6 * fn(run.estimate) / run.estimate.rows:,.0f}' for run in runs))

  return [
      row('estimated microseconds of a row', lambda e: e.seconds),
      row('  launch overhead only', lambda e: e.launch_seconds),
      row('  matrix products only', lambda e: e.product_seconds),
      row('  memory traffic only', lambda e: e.memory_seconds)]


def _fit(plan):
  count, most = len(plan.configs), plan.fit.num_lanes
  if not most:
    return 'It does not fit: not even one run.'
  if most >= count:
    return f'It fits: {count} runs in one program.'
  how = '' if plan.fit.is_compiled else ' (linear fit, not compiled)'
  return (f'It does not fit: at most {most} runs{how}. So {len(plan.splits)} '
          f'programs of {" and ".join(map(str, dict.fromkeys(plan.splits)))} '
          'runs')


def _speedup(plan):
  e = plan.program.estimate
  bounds = {'launch overhead': e.launch_seconds,
            'matrix products': e.product_seconds,
            'memory traffic': e.memory_seconds}
  return [
      'speed-up over the same runs one after another, without start-up and '
      'compilation',
      f'  {plan.launch_speedup:.1f} if launch overhead were the only cost',
      f'  {plan.speedup:.1f} by the estimate: '
      f'{plan_lib.duration(plan.seconds)} instead of '
      f'{plan_lib.duration(plan.alone_seconds)}; the rows of '
      f'{plan.program.num_runs} runs are bound by '
      f'{max(bounds, key=lambda name: bounds[name])}',
      f'  Assumed: {estimate_lib.LAUNCH_SECONDS * 1e6:g} microseconds of '
      f'launch overhead, {estimate_lib.EFFICIENCY:.0%} of the peaks. Not '
      'validated on a GPU (docs/target.md).']
