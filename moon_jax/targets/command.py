"""python -m moon_jax.plan --target=GPU: plans a run on a GPU without one.

Compiles the configured round ahead of time from the description of the GPU.
Reports memory, the number of lanes that fit, kernels, and an estimate of the
time. This needs the compiler that `jax[cuda12]` installs, but no GPU.
"""

from absl import flags

from moon_jax import targets
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.targets import deviceless

TARGET = flags.DEFINE_string(
    'target', '', 'GPU model to plan for; no GPU is needed. One of '
    f'{", ".join(targets.names())}, or the path of a GpuTargetConfigProto in '
    'text format. --devices sets their number (default 1).')

# Flags that apply only to plans measured on this machine.
_MEASUREMENT_FLAGS = 'seconds_per_row', 'seconds_per_job', 'gbit'


def target(num_processes: int) -> targets.Target:
  """Returns the GPU of --target, and keeps JAX from using one of this machine.

  Raises:
    UserError: if the flags, the description or the installation is invalid.
  """
  if num_processes != 1:
    raise UserError('--target plans for a single host; remove '
                    f'--processes={num_processes}')
  for name in _MEASUREMENT_FLAGS:
    if flags.FLAGS[name].present:
      raise UserError(f'--{name} applies to plans measured on this machine, '
                      'not to --target; remove it')
  found = targets.find(TARGET.value)
  deviceless.check_installed()
  import jax

  jax.config.update('jax_platforms', 'cpu')  # do not initialise a GPU
  return found


def main(config: Config, num_devices: int, num_processes: int) -> None:
  """Prints the plan for --target.

  Raises:
    UserError: if the flags, the description or the installation is invalid, or
      if the run does not fit. The message then names the lanes that fit.
  """
  found = target(num_processes)

  from moon_jax.targets import plan as plan_lib
  from moon_jax.targets import report

  plan = plan_lib.plan(config, found, num_devices or 1)
  print(report.show(config, plan), flush=True)
  if not plan.fits:
    raise UserError(report.memory_error(config, plan))
