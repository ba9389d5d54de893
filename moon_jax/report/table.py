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
import json
import os
import pathlib
import re
import signal
import statistics
import sys

from moon_jax.algorithms import registry
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.report import groups
from moon_jax.report.groups import NAMES
from moon_jax.results import stats
from moon_jax.results.read import Run
from moon_jax.rundir.identity import FREE_FIELDS

LAST = 5  # rounds whose mean is the accuracy of a row
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
    UserError: if the directory has no finished runs, or a file is damaged.
  """
  runs = [run for run in groups.ended(directory)
          if run.state.kind == 'finished']
  if not runs:
    raise UserError(
        f'{directory} must hold directories of finished runs (each with a '
        'summary.json), got none; name the directory above the work '
        'directories')
  methods: dict[str, list[Run]] = {}
  for run in runs:
    methods.setdefault(json.dumps(
        {name: value for name, value in run.config.items()
         if name not in _OMITTED} | run.inputs), []).append(run)
  has_published = any(published(run.config) for run in runs)
  columns = ['method', f'test accuracy, mean of the last {LAST} rounds',
             'seeds',
             *(['published, 100 rounds of 10 epochs'] if has_published else []),
             *(['seconds a round', 'examples/s'] if has_speed else []), 'flags']
  most_common = _most_common_values([run.config for run in runs])
  rows = [(_means(members, 'test_accuracy'), members)
          for members in methods.values()]
  lines = [columns, ['---'] * len(columns)]
  for means, members in sorted(rows, key=lambda row: -statistics.fmean(row[0])):
    config = members[0].config
    over_clients = _means(members, 'test_accuracy_std')
    line = [method_name(config), stats.mean_and_std(means, 3) + (
        f' (over clients ± {statistics.fmean(over_clients):.3f})'
        if len(over_clients) == len(members) else ''),
            str(len(members)), *([published(config)] if has_published else [])]
    if has_speed:
      line += [f'{_median(members, "seconds_per_round"):.1f}',
               f'{_median(members, "examples_per_second"):,.0f}']
    lines.append([*line, f'`{_flags(config, most_common)}`'])
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def _means(runs, name):
  """Returns a metric's means over the last rounds, of runs that have it."""
  return [stats.mean_of_last(values, LAST) for run in runs
          if (values := run.values(name))]


def _median(runs, name):
  return statistics.median(run.summary[name] for run in runs)


def _most_common_values(configs):
  """Returns the most common value of each field, as a string.

  Runs whose method ignores a flag do not count for it.
  """
  values = {field: Counter(str(config.get(field)) for config in configs
                           if not _is_ignored(field, config))
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
  defaults = method_defaults(config)
  reference = most_common | {
      name: default if default == most_common[name] else None
      for name, default in defaults.items()}
  omitted = _OMITTED | {'algorithm'}
  if algorithm == 'centralized':
    omitted |= _SET_BY_CENTRALIZED
  flags = [f'--{name}={value}' for name, value in config.items()
           if name not in omitted and str(value) != reference.get(name)
           and not _is_ignored(name, config)]
  return ' '.join([f'--algorithm={algorithm}', *flags])


def default_mu(config: dict) -> float:
  """Returns the value of --mu that the run's method uses without the flag."""
  return registry.default_mu(_method_fields(config))


def method_defaults(config: dict) -> dict[str, str]:
  """Returns the defaults of the flags that only some methods read."""
  defaults = Config().to_dict() | {'mu': default_mu(config)}
  return {name: str(defaults[name]) for name in registry.METHOD_FLAGS}


def _is_ignored(name, config):
  return name in registry.METHOD_FLAGS and name not in registry.method(
      _method_fields(config)).flags


def _method_fields(config):
  return Config(algorithm=config['algorithm'],
                contrastive=config['contrastive'],
                aggregation=config['aggregation'])


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
  except (OSError, UserError, ValueError) as error:
    parser.error(str(error))


if __name__ == '__main__':
  main(sys.argv)
