"""The command that trains: python -m moon_jax.train --flagfile=FILE.

Every field of `moon_jax.config.Config` is a flag; `moon_jax.cli.command_line`
lists the exit statuses.
"""

from absl import flags

from moon_jax.cli import command_line
from moon_jax.config import Config
from moon_jax.distributed import processes

_COORDINATOR = flags.DEFINE_string(
    'coordinator_address', '', 'HOST:PORT of the first of several processes '
    'that share a run; not needed where the cluster tells it to JAX (Slurm, '
    'Open MPI, TPU pods).')
_NUM_PROCESSES = flags.DEFINE_integer(
    'num_processes', 0, 'Processes that share a run; 0 takes what the cluster '
    'says, and 1 runs this one alone whatever it says.')
_PROCESS_ID = flags.DEFINE_integer(
    'process_id', -1, 'Which of the processes this one is, from 0; -1 takes '
    'what the cluster says.')


def train(config: Config) -> None:
  """Runs, and prints the outcome."""
  processes.join(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
  from moon_jax.training import (
    run,  # with scikit-learn or pooch, as the data needs
  )

  summary = run.run(config)
  of = (f' on {summary["test_examples"]:,} test examples'
        if 'test_examples' in summary else '')
  print(f'test accuracy {summary["test_accuracy"]:.4f}{of} after '
        f'{summary["rounds"]} rounds (best {summary["best_test_accuracy"]:.4f} '
        f'after {summary["best_round"]}), '
        f'{summary["seconds_per_round"]:.2f} s a round')


if __name__ == '__main__':
  command_line.define_config()
  flags.adopt_module_key_flags(command_line)  # so that --help lists them
  command_line.start('moon_jax.train', train)
