"""Estimates the cost of a run: python -m moon_jax.plan --flagfile=FILE.

Prints the number of lanes and their utilization, the memory, the bytes
transferred and the time per round on --devices of --processes.
`moon_jax.simulation.forecast` documents the estimates. With --target it plans
for a GPU that is not available (`moon_jax.targets.command`), and with --grid or
--sweep for the runs of a sweep on it (`moon_jax.sweep.target_plan`).
"""

import math
import sys

from absl import flags

from moon_jax.cli import command_line
from moon_jax.cli import help_page
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.sweep import axis_flags
from moon_jax.targets import command

_DEVICES = flags.DEFINE_integer(
    'devices', 0, 'Devices of all processes; 0 uses those of this machine. A '
    'CPU core is one device.', lower_bound=0)
_PROCESSES = flags.DEFINE_integer(
    'processes', 1, 'Processes that share the run.', lower_bound=1)
_GBIT = flags.DEFINE_float(
    'gbit', 10., 'Network bandwidth between processes, in gigabits per second.',
    lower_bound=1e-3)
_SECONDS_PER_ROW = flags.DEFINE_float(
    'seconds_per_row', 0., 'Seconds for one step of all lanes of a device; 0 '
    'measures it here.', lower_bound=0.)
_SECONDS_PER_JOB = flags.DEFINE_float(
    'seconds_per_job', 0., 'Seconds to start and end a client on a device, if '
    '--seconds_per_row is given.', lower_bound=0.)


_PAGE = help_page.Page(
    'Estimates the time, the memory and the network traffic of a run from a '
    'few steps on this machine, or for a GPU that is not available.',
    [('a run on this machine',
      '--dataset=digits --model=mlp --batch_size=32'),
     ("a run on a GPU that is not here (pip install 'moon_jax[cuda12]')",
      '--dataset=digits --model=mlp --batch_size=32 --target=h100')],
    'Plan', placeholders={
        'grid': 'NAME=V1,V2,...', 'sweep': 'FILE', 'target': 'GPU'})


def plan(config: Config) -> None:
  """Prints the forecast.

  Raises:
    UserError: if a flag is invalid or the run is impossible.
  """
  if _is_sweep():
    return _plan_sweep(config)
  if command.TARGET.value:
    return command.main(config, _DEVICES.value, _PROCESSES.value)
  for flag in (_SECONDS_PER_ROW, _SECONDS_PER_JOB, _GBIT):
    if not math.isfinite(flag.value):
      raise UserError(f'--{flag.name}={flag.value} must be a finite number of '
                      'seconds or gigabits')
  from moon_jax.simulation import forecast as forecast_lib  # imports JAX

  rates = forecast_lib.Rates(
      _SECONDS_PER_ROW.value, _SECONDS_PER_JOB.value, 0.)
  print(forecast_lib.show(config, forecast_lib.forecast(
      config, _DEVICES.value, _PROCESSES.value, _GBIT.value,
      rates if rates.seconds_per_row else None)))


def _is_sweep():
  return bool(axis_flags.GRID.value or axis_flags.SWEEP.value)


def _plan_sweep(config):
  """Prints the plan of each program of a sweep for --target."""
  if not command.TARGET.value:
    raise UserError('--grid and --sweep need --target here; python -m '
                    'moon_jax.sweep --dry_run plans a sweep on this machine')
  target = command.target(_PROCESSES.value)
  from moon_jax.sweep import command as sweep_command
  from moon_jax.sweep import target_plan
  from moon_jax.sweep import target_report

  sweep = sweep_command.build(config, sys.argv[1:], axis_flags.GRID.value,
                              axis_flags.SWEEP.value).sweep
  num_devices = _DEVICES.value or 1
  groups = target_plan.groups(sweep.configs, num_devices)
  print(f'{len(sweep.configs)} runs, which could share {len(groups)} '
        'program(s) if memory allowed', flush=True)
  plans = []
  for specs in groups:
    plans.append(target_plan.plan(specs, target, num_devices))
    print(target_report.show(plans[-1], sweep.axes), flush=True)
  if not all(plan.fits for plan in plans):
    raise UserError(target_report.MEMORY_ERROR)


def main() -> None:
  """Runs the command."""
  command_line.define_config()
  # For --helpshort.
  for module in command_line, command, axis_flags:
    flags.adopt_module_key_flags(module)
  command_line.start('moon_jax.plan', plan, lambda: not _is_sweep(),
                     page=_PAGE)


if __name__ == '__main__':
  main()
