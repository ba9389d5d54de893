"""Reads finished runs, groups them and averages their accuracy over seeds."""

import json
import pathlib
import statistics

from moon_jax.algorithms import registry
from moon_jax.config import Config
from moon_jax.rundir.identity import FREE_FIELDS

LAST_ROUNDS = 5  # evaluated rounds at the end of a run whose mean is reported


def read_runs(directory: pathlib.Path) -> list[dict]:
  """Reads the finished runs in the subdirectories of a directory.

  Args:
    directory: holds one work directory for each run.

  Returns:
    For each run a dictionary of `config` and `summary`, as in their JSON
    files, and `metrics`, a list with one dictionary per round. Fields of
    `Config` that are missing in config.json, since an earlier version wrote
    it, have their defaults.

  Raises:
    ValueError: if there are none, or a file of a run is damaged.
  """
  runs = []
  for path in sorted(directory.glob('*/summary.json')):
    try:
      lines = (path.parent / 'metrics.jsonl').read_text().splitlines()
      runs.append({
          'config': Config().to_dict() | json.loads(
              (path.parent / 'config.json').read_text()),
          'metrics': [json.loads(line) for line in lines],
          'summary': json.loads(path.read_text()),
      })
    except (OSError, ValueError, TypeError) as error:
      raise ValueError(
          f'{path.parent} must hold the config.json, metrics.jsonl and '
          f'summary.json of a run, got {error!r}; restore them from a copy, or '
          'move the directory away') from error
  if not runs:
    raise ValueError(
        f'{directory} must hold directories of finished runs (each with a '
        'summary.json), got none; name the directory above the work '
        'directories')
  return runs


def config_key(config: dict, *excluded: str) -> str:
  """Returns a string that is equal for runs that differ only in their seed.

  Args:
    config: the configuration of a run.
    *excluded: further fields that the string does not depend on.
  """
  ignored = {'seed', *FREE_FIELDS, *excluded}
  return json.dumps({k: v for k, v in config.items() if k not in ignored})


def default_mu(config: dict) -> float:
  """Returns the value of --mu that the run's method uses without the flag."""
  return registry.default_mu(_method_fields(config))


def method_defaults(config: dict) -> dict[str, str]:
  """Returns the defaults of the flags that only some methods read."""
  defaults = Config().to_dict() | {'mu': default_mu(config)}
  return {name: str(defaults[name]) for name in registry.METHOD_FLAGS}


def is_ignored(name: str, config: dict) -> bool:
  """Returns whether the run's method ignores the flag `name`."""
  return name in registry.METHOD_FLAGS and name not in registry.method(
      _method_fields(config)).flags


def _method_fields(config):
  return Config(algorithm=config['algorithm'],
                contrastive=config['contrastive'],
                aggregation=config['aggregation'])


def mean_of_last(metrics: list[dict], num_rounds: int = LAST_ROUNDS) -> float:
  """Returns the mean test accuracy of the last evaluated rounds."""
  accuracies = [m['test_accuracy'] for m in metrics if 'test_accuracy' in m]
  return statistics.fmean(accuracies[-num_rounds:])


def mean_and_std(values: list[float]) -> str:
  """Formats the mean and, if there are two values or more, the sample standard
  deviation."""
  std = f' ± {statistics.stdev(values):.3f}' if len(values) > 1 else ''
  return f'{statistics.fmean(values):.3f}{std}'
