"""The training command: python -m moon_jax.train --flagfile=FILE.

Each field of `moon_jax.config.Config` is a flag. docs/flags.md describes the
flags, and docs/failures.md the exit statuses.
"""

from absl import flags

from moon_jax.cli import command_line, help_page
from moon_jax.config import Config
from moon_jax.distributed import processes
from moon_jax.view.text import metric

_COORDINATOR = flags.DEFINE_string(
    'coordinator_address', '', 'Address of the first of several processes that '
    'share a run; not needed on clusters that JAX detects (Slurm, Open '
    'MPI, TPU pods).')
_NUM_PROCESSES = flags.DEFINE_integer(
    'num_processes', 0, 'Number of processes that share a run; 0 uses the '
    "cluster's number, and 1 runs a single process on any cluster.")
_PROCESS_ID = flags.DEFINE_integer(
    'process_id', -1, 'Index of this process, from 0; -1 uses the index that '
    'the cluster assigned.')


_PAGE = help_page.Page(
    'Trains and evaluates one federated model. The defaults are the CIFAR-10 '
    'setting of the MOON paper. Metrics, checkpoints and the final model are '
    'written to a directory; the same command resumes an interrupted run. It '
    'uses all GPUs that JAX finds, otherwise all CPU cores; the environment '
    'variable JAX_PLATFORMS=cpu selects the CPU.',
    [('handwritten digits: no download, less than a minute',
      '--dataset=digits --model=mlp --batch_size=32 --num_rounds=10'),
     ('the same with FedProx, and two classes per client',
      '--dataset=digits --model=mlp --batch_size=32 --num_rounds=10 '
      '--algorithm=fedprox --partition=shards'),
     ('in a clone of the repository: the CIFAR-10 experiment of the paper, '
      'downloaded into DIR',
      '--flagfile=experiments/cifar10.flags --data_dir=DIR')],
    'Several processes', is_topic_first=False,
    placeholders={'coordinator_address': 'HOST:PORT'})


def train(config: Config) -> None:
  """Trains and evaluates a model, and prints the final accuracy."""
  processes.join(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
  from moon_jax.runs.run import Runs  # imports scikit-learn, a second

  print(result(Runs([config]).train()[0]))


def result(summary: dict) -> str:
  """Returns the line that a run prints at its end."""
  on_examples = (f' on {summary["test_examples"]:,} test examples'
                 if 'test_examples' in summary else '')
  name = 'test_accuracy' if 'test_accuracy' in summary else 'test_loss'
  return (f'{name.replace("_", " ")} {metric(name, summary[name])}{on_examples}'
          f' after {summary["rounds"]} rounds (best '
          f'{metric(name, summary[f"best_{name}"])} in round '
          f'{summary["best_round"]}), '
          f'{summary["seconds_per_round"]:.2f} s per round')


def main() -> None:
  """Runs the command."""
  command_line.start('moon_jax.train', train, _PAGE)


if __name__ == '__main__':
  main()
