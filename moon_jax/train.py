"""The training command: moon-jax train, or python -m moon_jax.train.

Trains one run, or several with --grid or a TOML file (docs/sweeps.md). Each
field of `moon_jax.config.Config` is a flag. docs/flags.md describes the flags,
and docs/workdir.md the exit statuses.
"""

from collections.abc import Sequence
import itertools

from absl import flags

from moon_jax.cli import command_line, help_page, recipes
from moon_jax.config import Config
from moon_jax.distributed import processes
from moon_jax.errors import require
from moon_jax.runs import targets
from moon_jax.view.text import metric

flags.DEFINE_string(  # `command_line` replaces it by --flagfile
    'recipe', '', 'Flag file of the package, by its name: '
    f'{", ".join(recipes.paths())}. --help recipe describes them.')
_GRID = flags.DEFINE_multi_string(
    'grid', [], 'Trains a run for each value of a flag: NAME=V1,V2,...; repeat '
    'it for all combinations of several flags.')
_DRY_RUN = flags.DEFINE_bool(
    'dry_run', False, 'Prints programs, lanes and memory, and trains nothing.')
_MEASURE = flags.DEFINE_bool(
    'measure', False, 'With --dry_run: also trains a few short rounds on this '
    'machine, and estimates the time.')
_TARGET = flags.DEFINE_string(
    'target', '', 'With --dry_run: GPU model for which one run is compiled, '
    f'which need not be available: {", ".join(targets.names())}.')
_DEVICES = flags.DEFINE_integer(
    'devices', 1, 'Number of GPUs of --target, all in one host.', lower_bound=1)
_MAX_RUNS = flags.DEFINE_integer(
    'max_runs', 0, 'Most runs that train at once; 0 trains as many as fit into '
    'the memory.', lower_bound=0)
_PART = flags.DEFINE_string(
    'part', '0/1', 'Part I of N of several runs, I/N with I from 0 to N - 1: '
    'the programs whose index modulo N is I.')
_TUNE = flags.DEFINE_string(
    'tune', '', 'Chooses among the values of --grid and --search by validation '
    'accuracy: halving(eta=3, rungs=4), random(trials=30), optuna(trials=50), '
    'or your own MODULE:FUNCTION (docs/sweeps.md).')
_SEARCH = flags.DEFINE_multi_string(
    'search', [], 'With --tune: a range of a flag, NAME=log(A,B), '
    'uniform(A,B), integer(A,B) or choice(V1,V2,...); repeat it for several '
    'flags.')
_TUNE_SEEDS = flags.DEFINE_integer(
    'tune_seeds', 3, 'With --tune: number of new seeds with which what was '
    'chosen trains again, to be tested.', lower_bound=0)
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
    'Trains and evaluates a federated model. --grid or a TOML file trains '
    'several, in as few programs as possible (docs/sweeps.md). The defaults '
    'are the CIFAR-10 setting of the MOON paper. Metrics, checkpoints and the '
    'final model of each run are written to a directory; the same command '
    'resumes interrupted runs and repeats no finished one. It uses all GPUs '
    'that JAX finds, otherwise all CPU cores; the environment variable '
    'JAX_PLATFORMS=cpu selects the CPU.',
    [('handwritten digits: no download, less than a minute',
      '--recipe=quickstart'),
     ('the same with FedProx, and two classes per client',
      '--recipe=quickstart --algorithm=fedprox --partition=shards'),
     ('MOON and FedAvg over three seeds',
      '--dataset=digits --model=mlp --batch_size=32 --num_rounds=10 '
      '--grid algorithm=moon,fedavg --grid seed=0,1,2'),
     ('the programs and the memory of several runs, without training',
      '--dataset=digits --model=mlp --batch_size=32 '
      '--grid algorithm.mu=0.1,1,5,10 --dry_run'),
     ('the CIFAR-10 experiment of the paper, downloaded into DIR',
      '--recipe=cifar10 --data_dir=DIR')],
    'Recipes, several runs, plans and several processes',
    placeholders={'coordinator_address': 'HOST:PORT', 'grid': 'NAME=V1,V2,...',
                  'recipe': 'NAME',
                  'search': 'NAME=RANGE', 'tune': 'CALL',
                  'target': 'GPU'},
    usage='[FILE.toml] [--recipe=NAME] [--FLAG=VALUE ...]')


def train(config: Config, named: frozenset[str], paths: Sequence[str]) -> None:
  """Trains the runs of a command line, or prints their plan.

  `named` are the flags on the command line, and `paths` the other arguments.
  """
  require(_DRY_RUN.value or not (_MEASURE.value or _TARGET.value), '',
          '--measure and --target need --dry_run', remedy='Give it, too')
  require(_TARGET.value or not _DEVICES.present, f'devices={_DEVICES.value}',
          'is the number of GPUs of --target', 'none',
          'Give --target, such as --target=h100, or remove it')
  require(not (_MEASURE.value and _TARGET.value), 'measure',
          'trains on this machine', f'--target={_TARGET.value}',
          'Remove one of them')
  is_several = bool(_GRID.value or paths or _TUNE.value or _SEARCH.value
                    or _TUNE_SEEDS.present)
  for flag in _COORDINATOR, _NUM_PROCESSES, _PROCESS_ID:
    require(flag.value == flag.default or not (
        is_several or _DRY_RUN.value), flag.name,
            'is for a single run that trains',
            'several runs' if is_several else '--dry_run',
            'Remove it' + '; to share runs, start N commands with --part=I/N' *
            bool(is_several and not _TUNE.value))
  if is_several:
    return _train_many(config, named, paths)
  for flag in _MAX_RUNS, _PART:
    require(not flag.present, flag.name, 'is for several runs', 'one',
            'Give --grid or a TOML file, or remove it')
  if _TARGET.value:
    return print(_on_target(config))
  if not _DRY_RUN.value:
    processes.join(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
  from moon_jax.runs.run import Runs

  runs = Runs([config])
  print(_plan(runs) if _DRY_RUN.value else result(runs.train()[0]))


def _train_many(config, named, paths):
  """Trains the runs of --grid and a file, and prints their table."""
  from moon_jax.cli import grids

  require(not _TARGET.value, 'target', 'compiles one run', 'several',
          'Remove --grid or the file')
  part, root = grids.part(_PART.value), grids.directory(config)
  of_line = config, named, _GRID.value, grids.path_of(paths)
  blocks = grids.blocks(*of_line)
  if tune := _TUNE.value or blocks.file.keys.get('tune', ''):
    return _tune(blocks, tune, root)
  keys = {*blocks.file.keys, *itertools.chain(*blocks.file.block_keys)}
  for flag in _SEARCH, _TUNE_SEEDS:
    require(not flag.present and flag.name not in keys, flag.name,
            'needs --tune, which chooses', 'none',
            "Give --tune='halving(eta=3, rungs=4)'")
  built = grids.build(*of_line)
  from moon_jax.results import sweep_table
  from moon_jax.runs.run import Runs  # once the flags are checked

  if merged := built.sweep.merged:
    print(f'{merged} combination(s) of settings equal other runs', flush=True)
  runs = Runs(built.sweep.configs, built.sweep.axes, root)
  if _DRY_RUN.value:
    return print(_plan(runs, part))
  sweep_table.finish(built, runs.train(
      max_runs=_MAX_RUNS.value, part=part), root)


def _tune(blocks, tune, root):
  """Tunes the runs of a command line, or prints the plan of the first."""
  from moon_jax.tuning import command  # once the flags are checked

  require(not _PART.present, 'part', 'is for runs that are known beforehand',
          'tune', 'Remove it')
  tuning = command.Tuning(
      blocks, tune, _SEARCH.value, _TUNE_SEEDS.value if _TUNE_SEEDS.present
      else blocks.file.keys.get('tune_seeds', _TUNE_SEEDS.value), root)
  if _DRY_RUN.value:
    return print(tuning.plan(_plan))
  tuning.run(_MAX_RUNS.value)


def _plan(runs, part=(0, 1), trained=1.):
  from moon_jax.runs import plan

  return plan.dry_run(runs, _MAX_RUNS.value, part, _MEASURE.value, trained)


def _on_target(config):
  """Returns the plan of a run on a GPU that need not be here."""
  target = targets.find(_TARGET.value)
  targets.check_installed()
  import jax

  jax.config.update('jax_platforms', 'cpu')  # do not initialize a GPU
  from moon_jax.runs.targets import plan

  return plan.plan(config, target, _DEVICES.value)


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
