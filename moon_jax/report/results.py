"""Finds the finished runs of configurations, whatever table they were for."""

from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import json
import pathlib
from typing import Any
from typing import NamedTuple

from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.sweep import grid
from moon_jax.training import prepare

Key = tuple[str, ...]


class Result(NamedTuple):
  """A run that has ended.

  Attributes:
    workdir: its directory.
    metrics: the lines of metrics.jsonl.
    summary: the content of summary.json; {} if the run diverged.
    diverged: the reason if it diverged, or ''.
  """

  workdir: pathlib.Path
  metrics: list[dict[str, Any]]
  summary: dict[str, Any]
  diverged: str = ''


def key(config: Config, inputs: Mapping[str, str] | None = None) -> Key:
  """Returns a value that is equal for configurations that give equal results.

  Settings without effect on the run do not count, unlike in the name of its
  directory.

  Args:
    config: the configuration.
    inputs: hashes of its input files by flag; None reads the files.

  Raises:
    UserError: if an input file is missing or invalid.
  """
  if inputs is None:
    inputs = prepare.inputs_of(config)
  return (*grid.key(normalized(config)), config.on_nan,
          *map(str, sorted(inputs.items())))


def normalized(config: Config) -> Config:
  """Returns a configuration where settings without effect have defaults."""
  from moon_jax.algorithms import unused  # imports JAX

  return dataclasses.replace(config, **{
      name: getattr(Config, name) for name in unused.unused(config)})


def find(directories: Iterable[pathlib.Path]) -> dict[Key, Result]:
  """Returns the runs that have ended, by the key of their configuration.

  Args:
    directories: each holds one work directory per run. If two hold the same
      run, the first counts.

  Raises:
    UserError: if a directory is missing, or a file of a run is damaged.
  """
  results: dict[Key, Result] = {}
  for directory in directories:
    if not directory.is_dir():
      raise UserError(f'{directory} must be a directory that holds directories '
                      'of runs, got none; --workdir and --runs name them')
    for path in sorted(directory.glob('*/config.json')):
      if found := read(path.parent):
        inputs = _read(path, json.loads).get('inputs') or {}
        results.setdefault(key(config_of(path.parent), inputs), found)
  return results


def config_of(workdir: pathlib.Path) -> Config:
  """Returns the configuration of a run, by any version of the program.

  Raises:
    UserError: if config.json is damaged.
  """
  from moon_jax.simulation import checks  # imports JAX

  known = {field.name for field in dataclasses.fields(Config)}
  content = _read(workdir / 'config.json', json.loads)
  try:
    config = Config(**{name: value for name, value in content.items()
                       if name in known and name != 'workdir'})
    return checks.validate(config)
  except (AttributeError, TypeError, UserError) as error:
    raise UserError(f'{workdir}/config.json must be the configuration of a run,'
                    f' got: {error}; restore it from a copy, or move the '
                    'directory away') from error


def read(workdir: pathlib.Path) -> Result | None:
  """Returns the run in a work directory, or None if it has not ended.

  Raises:
    UserError: if one of its files is damaged.
  """
  if (workdir / 'summary.json').exists():
    return Result(workdir, _metrics(workdir),
                  _read(workdir / 'summary.json', json.loads))
  if (workdir / 'diverged.json').exists():
    found = _read(workdir / 'diverged.json', json.loads)
    return Result(workdir, _metrics(workdir), {},
                  str(found.get('error', found)))
  if (workdir / 'diverged.txt').exists():  # written by experiments.full.run
    return Result(workdir, _metrics(workdir), {},
                  _read(workdir / 'diverged.txt', str).strip())
  return None


def _metrics(workdir):
  return _read(workdir / 'metrics.jsonl', lambda text: [
      json.loads(line) for line in text.splitlines()])


def _read(path, parse_fn):
  try:
    return parse_fn(path.read_text(encoding='utf-8'))
  except (OSError, ValueError) as error:
    raise UserError(f'{path} must be a file of a run, got {error!r}; restore it'
                    ' from a copy, or move its directory away') from error
