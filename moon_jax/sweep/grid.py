"""A sweep: a set of runs, such as all combinations of several settings."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import itertools
import math
from typing import Any

from moon_jax import errors
from moon_jax.algorithms import registry
from moon_jax.config import Config, flags_with, limits
from moon_jax.errors import UserError
from moon_jax.rundir import identity
from moon_jax.simulation import checks
from moon_jax.sweep import values as values_lib

_MAX_RUNS = 10_000  # of a grid; more are probably an error

# Paths whose content, not name, identifies a run. Two paths are two runs here.
_INPUTS = flags_with(is_input=True)


@dataclasses.dataclass(frozen=True)
class Sweep:
  """A set of runs.

  Attributes:
    configs: the configurations of the runs, valid and distinct, without
      workdir.
    axes: the names of the settings in which the runs differ, in the order of
      the columns of a table.
    merged: how many further combinations of values equal one of these runs,
      such as two values of mu with algorithm fedavg.

  Examples:
    >>> sweep = moon_jax.Sweep.grid(
    ...     moon_jax.Config(dataset='digits'), mu=[1, 5], seed=range(3))
    >>> len(sweep.configs)
    6
  """

  configs: tuple[Config, ...]
  axes: tuple[str, ...]
  merged: int = 0

  @classmethod
  def grid(cls, base: Config, /, **axes: Iterable[Any]) -> 'Sweep':
    """Returns all combinations of values; the last axis varies fastest.

    A setting that has no effect on a run keeps its value of `base`, and
    combinations that are then equal are one run: algorithms fedavg and moon
    with mu 1 and 5 are three runs.

    Args:
      base: the configuration of the other settings. Its workdir must be empty.
      **axes: the values of each axis. An axis is a field of `Config` except
        workdir, data_dir and on_nan, or an argument of a method.

    Raises:
      UserError: if an axis is invalid or has no effect on any run, or if a
        combination is not a valid configuration.
    """
    with errors.in_python():
      if not isinstance(base, Config):
        raise UserError(
            'a grid needs a moon_jax.Config and lists of values, such as '
            "Sweep.grid(moon_jax.Config(dataset='digits'), seed=range(3)); got "
            f'a {type(base).__name__}')
      grid, = each(base, [{
          name: values_lib.axis(name, values, 'Sweep.grid')
          for name, values in axes.items()}])
    return grid

  def __or__(self, other: 'Sweep') -> 'Sweep':
    """Returns the runs of both, in order; a run of both is one run."""
    if not isinstance(other, Sweep):
      return NotImplemented
    runs = {key(config): config for config in self.configs}
    for config in other.configs:
      runs.setdefault(key(config), config)
    common = len(self.configs) + len(other.configs) - len(runs)
    return Sweep(
        tuple(runs.values()), tuple(dict.fromkeys(self.axes + other.axes)),
        self.merged + other.merged + common)


def key(config: Config) -> tuple[str, ...]:
  """Returns a value that is equal for configurations of the same run."""
  if config.partition_seed == config.seed:  # as without it
    config = dataclasses.replace(config, partition_seed=-1)
  return identity.contents(config), *(
      getattr(config, name) for name in _INPUTS)


def each(base: Config, blocks: Sequence[Mapping[str, Any]]) -> list[Sweep]:
  """Returns several grids.

  Args:
    base: the configuration of settings that a block does not have.
    blocks: for each grid its settings by name. A tuple is an axis; another
      value is the same in all runs of the grid. Values have the type of their
      setting.

  Raises:
    UserError: if a run is invalid, or a setting of the blocks has no effect.
      Settings that `moon_jax.train` accepts without effect are accepted, unless
      they are axes.
  """
  if base.workdir:
    raise UserError(f'--workdir={base.workdir} is the directory of one run, '
                    'and each run of a sweep has its own; remove it')
  blocks = [_with_arguments(base, block) for block in blocks]
  grids = [_grid(base, block) for block in blocks]
  for name in dict.fromkeys(itertools.chain(*blocks)):
    reasons = []
    for block, grid in zip(blocks, grids):
      if name in block and block[name] != getattr(Config, name):
        find = (registry.unused if isinstance(block[name], tuple)
                else registry.refused)
        reasons += [find(config).get(name) for config in grid.configs]
    if reasons and all(reasons):
      raise UserError(f'--{name} has no effect on any run, with '
                      f'{", ".join(dict.fromkeys(filter(None, reasons)))}; '
                      'remove it')
  return grids


def _with_arguments(base, block):
  """Returns a block whose arguments of methods are in algorithm_args."""
  axes = [block[name] for name in block if values_lib.is_argument(name)]
  if not axes:
    return block
  given = block.get('algorithm_args', base.algorithm_args)
  if isinstance(given, tuple):
    axes.insert(0, given)
  elif given:
    axes.insert(0, (given,))
  is_axis = any(isinstance(x, tuple) for x in axes)
  combined = tuple(','.join(parts) for parts in itertools.product(*(
      x if isinstance(x, tuple) else (x,) for x in axes)))
  return {'algorithm_args' if values_lib.is_argument(name) else name: x
          for name, x in block.items()} | {
              'algorithm_args': combined if is_axis else combined[0]}


def _grid(base, block):
  """Returns the grid of one block; see `each`."""
  axes = {name: x for name, x in block.items() if isinstance(x, tuple)}
  fixed = {name: x for name, x in block.items() if name not in axes}
  if (count := math.prod(map(len, axes.values()))) > _MAX_RUNS:
    raise UserError(f'a grid must have at most {_MAX_RUNS:,} runs, got '
                    f'{count:,}; shorten the lists of {", ".join(axes)}')
  runs: dict[tuple[str, ...], Config] = {}
  for combination in itertools.product(*axes.values()):
    config = _configured(base, fixed, dict(zip(axes, combination)))
    runs.setdefault(key(config), config)
  return Sweep(tuple(runs.values()), tuple(axes), count - len(runs))


def _configured(base, fixed, varied):
  """Returns the valid configuration of one combination.

  An axis without effect on the run keeps the value of `base`. So do other
  settings that `moon_jax.train` would refuse for this run, unless their value
  is the default; those that it accepts stay, since they are part of the name of
  the run's directory.
  """
  config = dataclasses.replace(base, **fixed, **varied)
  try:
    limits.check(config)  # the types, before the values are read
    refused, ignored = registry.refused(config), registry.ignored(config)
    without_effect = [*(name for name in registry.unused(config)
                        if name in varied or name in ignored and name in fixed)]
    config = dataclasses.replace(config, **{
        name: getattr(base, name) for name in without_effect})
    if 'mu' not in {**fixed, **varied, **refused} and base.mu != -1 and (
        config.algorithm != base.algorithm):
      raise UserError(
          f'--mu={base.mu} is for --algorithm={base.algorithm}; give --mu for '
          f'--algorithm={config.algorithm} too, or --mu=-1 for the default of '
          'each algorithm')
    config = checks.validate(config)
    if 'temperature' in {**fixed, **varied}:
      registry.check_temperature(config)
    return config
  except UserError as error:
    run = ' '.join(f'{name}={values_lib.show(value)}'
                   for name, value in varied.items())
    raise UserError(f'--grid {run}: {error}' if run else str(error)) from error
