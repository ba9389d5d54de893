"""Prints the table of a directory of runs, or rewrites a document's tables.

python -m moon_jax.report.table DIRECTORY    prints the table of the runs there
python -m moon_jax.report.table DOCUMENT.md  rewrites the tables in a document

DIRECTORY holds one work directory per run. Runs that differ only in their seed
share a row. A table in a document is the text between the lines
<!-- table: DIRECTORY --> and <!-- end of table -->, where DIRECTORY is relative
to the document. <!-- accuracies: DIRECTORY --> leaves out the columns of speed,
for runs that shared a machine.
"""

import argparse
from collections import Counter
import os
import pathlib
import re
import signal
import statistics
import sys

from moon_jax.report import runs as runs_lib
from moon_jax.rundir.identity import FREE_FIELDS

NAMES = {'fedavg': 'FedAvg', 'fedprox': 'FedProx', 'scaffold': 'SCAFFOLD',
         'fednova': 'FedNova', 'solo': 'SOLO', 'moon': 'MOON',
         'centralized': 'all data in one place'}

# A row averages over seeds; hashes of inputs and free fields are not flags that
# change results.
_OMITTED = {'seed', 'inputs', *FREE_FIELDS}
# --algorithm=centralized implies the values of these fields.
_SET_BY_CENTRALIZED = {'num_clients', 'participation', 'partition'}


def method_name(config: dict) -> str:
  """Returns the method's name in the literature, with its hyperparameters."""
  name = NAMES.get(config['algorithm'], config['algorithm'])
  if config['algorithm'] == 'fedprox':
    name += f' (mu {config["mu"]:g})'
  if config['algorithm'] == 'moon' and config['contrastive'] == 'l2':
    name = f'l2 instead of MOON (mu {config["mu"]:g})'
  elif config['algorithm'] == 'moon':
    name += f' (mu {config["mu"]:g}, k {config["num_negatives"]})'
  if config['proximal_mu']:
    name += f' + FedProx (mu {config["proximal_mu"]:g})'
  if config['aggregation'] != 'average':
    name += f' + {NAMES[config["aggregation"]]}'
  if config['server_momentum']:
    name += f' + FedAvgM (beta {config["server_momentum"]:g})'
  if config['server_optimizer'] != 'sgd':
    name += f' + Fed{config["server_optimizer"].capitalize()}'
  return name


# Li, He and Song, CVPR 2021, table 1: CIFAR-10, 10 clients, Dirichlet 0.5.
_PUBLISHED = {'moon': '0.691 ± 0.004', 'fedavg': '0.663 ± 0.005',
              'fedprox': '0.669 ± 0.002', 'scaffold': '0.666 ± 0.002',
              'solo': '0.463 ± 0.051'}
_PUBLISHED_SETTING = {
    'dataset': 'cifar10', 'partition': 'dirichlet', 'beta': 0.5,
    'num_clients': 10, 'participation': 1.0, 'contrastive': 'model',
    'server_momentum': 0.0, 'server_optimizer': 'sgd', 'proximal_mu': 0.0,
    'aggregation': 'average'}


def published(config: dict) -> str:
  """Returns the accuracy in MOON's paper for the run's setting, or ''."""
  is_same = all(config[name] == value
                for name, value in _PUBLISHED_SETTING.items())
  return _PUBLISHED.get(config['algorithm'], '') if is_same else ''


def markdown(directory: pathlib.Path, has_speed: bool = True) -> str:
  """Returns a Markdown table with one row per method, most accurate first.

  Args:
    directory: holds one work directory for each run.
    has_speed: whether the table has the columns of speed.

  Raises:
    ValueError: if the directory has no finished runs, or a file is damaged.
  """
  methods = {}
  for run in runs_lib.read_runs(directory):
    methods.setdefault(runs_lib.config_key(run['config']), []).append(run)
  configs = [run['config'] for runs in methods.values() for run in runs]
  has_published = any(map(published, configs))
  columns = ['method', 'test accuracy, mean of the last '
             f'{runs_lib.LAST_ROUNDS} rounds', 'seeds',
             *(['published, 100 rounds of 10 epochs'] if has_published else []),
             *(['seconds a round', 'examples/s'] if has_speed else []), 'flags']
  rows = [columns, ['---'] * len(columns)]
  most_common = _most_common_values(configs)
  methods = [([runs_lib.mean_of_last(run['metrics']) for run in runs], runs)
             for runs in methods.values()]
  for accuracies, runs in sorted(
      methods, key=lambda method: -statistics.fmean(method[0])):
    config = runs[0]['config']
    row = [method_name(config),
           runs_lib.mean_and_std(accuracies) + _std_over_clients(runs),
           str(len(runs)), *([published(config)] if has_published else [])]
    if has_speed:
      row += [f'{_median(runs, "seconds_per_round"):.1f}',
              f'{_median(runs, "examples_per_second"):,.0f}']
    rows.append([*row, f'`{_flags(config, most_common)}`'])
  return '\n'.join(f'| {" | ".join(row)} |' for row in rows)


def _median(runs, name):
  return statistics.median(run['summary'][name] for run in runs)


def _std_over_clients(runs):
  """Formats the standard deviation over clients that have separate models."""
  num_rounds = runs_lib.LAST_ROUNDS
  stds = [[m['test_accuracy_std'] for m in run['metrics']
           if 'test_accuracy_std' in m][-num_rounds:] for run in runs]
  if not all(stds):
    return ''
  mean = statistics.fmean(map(statistics.fmean, stds))
  return f' (over clients ± {mean:.3f})'


def _most_common_values(configs):
  """Returns the most common value of each field, as a string.

  Runs whose method ignores a flag do not count for it.
  """
  values = {field: Counter(str(config.get(field)) for config in configs
                           if not runs_lib.is_ignored(field, config))
            for field in configs[0]}
  return {field: counts.most_common(1)[0][0] if counts else ''
          for field, counts in values.items()}


def _flags(config, most_common):
  """Returns --algorithm and the flags that differ from the most common ones.

  Flags that only some algorithms read are left out if the value is both the
  most common one and the default, or if the algorithm ignores them: the flags
  are then right with a flag file for all runs, and without one.
  """
  algorithm = config['algorithm']
  defaults = runs_lib.method_defaults(config)
  reference = most_common | {
      name: default if default == most_common[name] else None
      for name, default in defaults.items()}
  omitted = _OMITTED | {'algorithm'}
  if algorithm == 'centralized':
    omitted |= _SET_BY_CENTRALIZED
  flags = [f'--{name}={value}' for name, value in config.items()
           if name not in omitted and str(value) != reference.get(name)
           and not runs_lib.is_ignored(name, config)]
  return ' '.join([f'--algorithm={algorithm}', *flags])


_TABLE_IN_DOCUMENT = re.compile(
    r'(<!-- (table|accuracies): (\S+) -->\n)(.*?)'
    r'(<!-- end of table -->)', re.DOTALL)


def with_tables(document: pathlib.Path) -> str:
  """Returns the text of a document with its tables generated again."""

  def table(match):
    begin, kind, directory, _, end = match.groups()
    text = markdown(document.parent / directory, has_speed=kind == 'table')
    return f'{begin}{text}\n{end}'

  return _TABLE_IN_DOCUMENT.sub(table, document.read_text(encoding='utf-8'))


def main(argv: list[str]) -> None:
  """Runs the command; exits with status 2 for invalid arguments or runs."""
  try:
    try:
      _run(argv[1:])
    finally:
      sys.stdout.flush()
  except BrokenPipeError:  # the reader has ended, such as `head -1`
    os._exit(128 + signal.SIGPIPE)


def _run(args):
  parser = argparse.ArgumentParser(
      prog='python -m moon_jax.report.table', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('path', type=pathlib.Path, metavar='DIRECTORY|DOCUMENT',
                      help='directory of runs, or Markdown document')
  path = parser.parse_args(args).path
  try:
    if path.is_dir():
      print(markdown(path))
    elif path.is_file():
      path.write_text(with_tables(path), encoding='utf-8')
    else:
      raise ValueError(f'the path must be a directory or a document, got {path}'
                       ', which does not exist')
  except BrokenPipeError:
    raise
  except (OSError, ValueError) as error:
    parser.error(str(error))


if __name__ == '__main__':
  main(sys.argv)
