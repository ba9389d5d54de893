"""Estimates the cost of a run: python -m moon_jax.plan --flagfile=FILE.

Prints the number of lanes and their utilization, the memory and the time on
this machine, from a few short rounds. With --target it plans for a GPU that is
not available (`moon_jax.runs.targets.plan`).
"""

import statistics

from absl import flags

from moon_jax.cli import command_line, help_page
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.runs import targets

_TARGET = flags.DEFINE_string(
    'target', '', 'GPU model to plan for, which need not be available: '
    f'{", ".join(targets.names())}.')
_DEVICES = flags.DEFINE_integer(
    'devices', 1, 'Number of GPUs of --target, all in one host.', lower_bound=1)

_PAGE = help_page.Page(
    'Estimates the time and the memory of a run from a few steps on this '
    'machine, or its memory on a GPU that is not available.',
    [('a run on this machine',
      '--dataset=digits --model=mlp --batch_size=32'),
     ("a run on a GPU that is not here (pip install 'moon_jax[cuda12]')",
      '--dataset=digits --model=mlp --batch_size=32 --target=h100')],
    'Plan', placeholders={'target': 'GPU'})


def plan(config: Config) -> None:
  """Prints the estimates, or the plan for --target.

  Raises:
    UserError: if a flag is invalid or the run is impossible.
  """
  if not _TARGET.value:
    if _DEVICES.present:
      raise UserError(f'--devices={_DEVICES.value} is the number of GPUs of '
                      '--target; give --target, such as --target=h100, or '
                      'remove it')
    print(measured(config))
    return
  target = targets.find(_TARGET.value)
  targets.check_installed()
  import jax

  jax.config.update('jax_platforms', 'cpu')  # do not initialize a GPU
  from moon_jax.runs.targets import plan as plan_lib

  print(plan_lib.plan(config, target, _DEVICES.value))


def measured(config: Config) -> str:
  """Returns the estimated cost of a run, measured by a few short rounds."""
  # These modules import JAX.
  from moon_jax.runs import plan as plan_lib
  from moon_jax.simulation import build, memory, round_spec

  spec = round_spec.alone(
      build.federation(config), num_checkpoints=config.num_checkpoints())
  shape = spec.shape
  rates = plan_lib.measure(spec, config)
  cost = plan_lib.estimate([spec], [config], rates)
  steps = statistics.fmean(
      float(spec.steps_C[cohort.clients].sum())
      for cohort in spec.federation.first_cohorts(plan_lib.ROUNDS))
  utilization = steps / (shape.num_lanes * cost.rows / cost.rounds)
  state, copy, *_ = (part.size for part in memory.on_host(spec))
  num_jobs = shape.jobs_per_device * shape.num_devices
  process = (rates.resident_bytes + state + copy
             + 3 * spec.client_bytes * num_jobs)
  return '\n'.join([
      *plan_lib.show(cost), f'  utilization of the lanes: {utilization:.3f}',
      f'  memory of a process that runs it here: {process / 1e9:,.3f} GB'])


def main() -> None:
  """Runs the command."""
  command_line.start('moon_jax.plan', plan, _PAGE)


if __name__ == '__main__':
  main()
