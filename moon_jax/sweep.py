"""The sweep command: python -m moon_jax.sweep --grid NAME=V1,V2,... FLAGS.

Trains all combinations of settings, as few programs as possible, and prints a
table. docs/sweeps.md describes the command.
"""

from absl import flags

from moon_jax.cli import command_line, help_page
from moon_jax.config import Config

_GRID = flags.DEFINE_multi_string(
    'grid', [], 'Flag in which the runs differ and its values: '
    'NAME=V1,V2,...; repeat it for all combinations of several flags.')
_SWEEP = flags.DEFINE_string(
    'sweep', '', 'TOML file of a sweep (docs/sweeps.md); flags on the command '
    'line replace those of the file.')
_DRY_RUN = flags.DEFINE_bool(
    'dry_run', False, 'Prints the plan of the sweep and trains nothing.')
_MAX_RUNS = flags.DEFINE_integer(
    'max_runs', 0, 'Most runs that train at once; 0 trains as many as fit into '
    'the memory.', lower_bound=0)
_PART = flags.DEFINE_string(
    'part', '0/1', 'Part I of N of the sweep, I/N with I from 0 to N - 1: the '
    'programs whose index modulo N is I.')


_PAGE = help_page.Page(
    'Trains all combinations of settings, as few programs as possible, and '
    'prints a table of their accuracies. Each run has the numbers and the '
    'directory of a single run; finished runs are not repeated.',
    [('MOON and FedAvg over three seeds',
      '--dataset=digits --model=mlp --batch_size=32 --num_rounds=10 '
      '--grid algorithm=moon,fedavg --grid seed=0,1,2'),
     ('the plan of a sweep, without training',
      '--dataset=digits --model=mlp --batch_size=32 '
      '--grid algorithm.mu=0.1,1,5,10 --dry_run')],
    'Sweep', placeholders={'grid': 'NAME=V1,V2,...', 'sweep': 'FILE'})


def sweep(config: Config, named: frozenset[str]) -> None:
  """Trains the runs of the command line and prints their table."""
  from moon_jax.cli import grids

  part, workdir = grids.part(_PART.value), grids.directory(config)
  built = grids.build(config, named, _GRID.value, _SWEEP.value)
  from moon_jax.results import sweep_table
  from moon_jax.runs import plan  # once the flags are checked
  from moon_jax.runs.run import run_sweep

  if merged := built.sweep.merged:
    print(f'{merged} combination(s) of settings equal other runs', flush=True)
  if _DRY_RUN.value:
    return print(plan.dry_run(built.sweep, workdir, _MAX_RUNS.value, part))
  sweep_table.finish(built, run_sweep(
      built.sweep, workdir, _MAX_RUNS.value, part), workdir)


def main() -> None:
  """Runs the command."""
  command_line.start('moon_jax.sweep', sweep, _PAGE, is_one_run=False)


if __name__ == '__main__':
  main()
