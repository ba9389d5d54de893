"""Estimates the cost of a run: python -m moon_jax.plan --flagfile=FILE.

Prints the number of lanes and their utilization, the memory, the bytes
transferred and the time per round on --devices of --processes.
`moon_jax.simulation.forecast` documents the estimates. With --target it plans
for a GPU that is not available (`moon_jax.targets.plan`).
"""

import math

from absl import flags

from moon_jax import targets
from moon_jax.cli import command_line, help_page
from moon_jax.config import Config
from moon_jax.errors import UserError

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
_TARGET = flags.DEFINE_string(
    'target', '', 'GPU model to plan for; no GPU is needed. One of '
    f'{", ".join(targets.names())}, or the path of a GpuTargetConfigProto in '
    'text format. --devices sets their number (default 1).')

_PAGE = help_page.Page(
    'Estimates the time, the memory and the network traffic of a run from a '
    'few steps on this machine, or for a GPU that is not available.',
    [('a run on this machine',
      '--dataset=digits --model=mlp --batch_size=32'),
     ("a run on a GPU that is not here (pip install 'moon_jax[cuda12]')",
      '--dataset=digits --model=mlp --batch_size=32 --target=h100')],
    'Plan', placeholders={'target': 'GPU'})


def plan(config: Config) -> None:
  """Prints the forecast, or the plan for --target.

  Raises:
    UserError: if a flag is invalid or the run is impossible.
  """
  measured = (_SECONDS_PER_ROW, _SECONDS_PER_JOB, _GBIT)
  if _TARGET.value:
    for flag, is_given in (*((flag, flag.present) for flag in measured),
                           (_PROCESSES, _PROCESSES.value != 1)):
      if is_given:
        raise UserError(f'--{flag.name} is not for --target, which plans for a '
                        'single host and measures no time; remove it')
    target = targets.find(_TARGET.value)
    targets.check_installed()
    import jax

    jax.config.update('jax_platforms', 'cpu')  # do not initialise a GPU
    from moon_jax.targets import plan as plan_lib

    return print(plan_lib.plan(config, target, _DEVICES.value or 1))
  for flag in measured:
    if not math.isfinite(flag.value):
      raise UserError(f'--{flag.name}={flag.value} must be a finite number of '
                      'seconds or gigabits')
  from moon_jax.simulation import forecast as forecast_lib  # imports JAX

  rates = forecast_lib.Rates(
      _SECONDS_PER_ROW.value, _SECONDS_PER_JOB.value, 0.)
  print(forecast_lib.show(config, forecast_lib.forecast(
      config, _DEVICES.value, _PROCESSES.value, _GBIT.value,
      rates if rates.seconds_per_row else None)))


def main() -> None:
  """Runs the command."""
  command_line.start('moon_jax.plan', plan, _PAGE)


if __name__ == '__main__':
  main()
