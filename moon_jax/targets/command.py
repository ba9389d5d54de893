"""python -m moon_jax.plan --target=GPU: plans for a GPU that is not available.

Compiles the configured round for that GPU, from its description, on a machine
without one, and reports memory, lanes that fit, kernels and an estimate of the
time. Needs the compiler of `jax[cuda12]`, and no GPU.
"""

import os
import sys

from absl import flags

from moon_jax import targets
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.targets import deviceless

TARGET = flags.DEFINE_string(
    'target', '', 'GPU model to plan for; no GPU is needed. One of '
    f'{", ".join(targets.names())}, or the path of a GpuTargetConfigProto in '
    'text format. --devices sets their number (default 1).')

_MEASURED = 'seconds_per_row', 'seconds_per_job', 'gbit'  # flags of the plan


def main(config: Config, num_devices: int, num_processes: int) -> None:
  """Prints the plan for --target.

  Raises:
    UserError: where the flags, the description or the installation will not
      do; or where the run does not fit, with the number of lanes that would.
  """
  if num_processes != 1:
    raise UserError('--target plans for a single host; remove '
                    f'--processes={num_processes}')
  for name in _MEASURED:
    if flags.FLAGS[name].present:
      raise UserError(f'--{name} is for plans of what is measured here; with '
                      '--target remove it')
  target = targets.find(TARGET.value)
  deviceless.check_installed()
  if 'jax' not in sys.modules:
    os.environ['JAX_PLATFORMS'] = 'cpu'  # this process needs no GPU

  from moon_jax.targets import plan as plan_lib
  from moon_jax.targets import report

  plan = plan_lib.plan(config, target, num_devices or 1)
  print(report.show(config, plan), flush=True)
  if not plan.fits:
    raise UserError(report.refusal(config, plan))
