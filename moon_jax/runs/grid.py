"""A sweep: a set of runs, such as all combinations of several settings."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import itertools
import math
from typing import Any

from moon_jax.config import Config
from moon_jax.errors import setting, UserError, within
from moon_jax.runs import identity
from moon_jax.runs import values as values_lib
from moon_jax.simulation import checks

_MAX_RUNS = 10_000  # of a grid; more are probably an error


@dataclasses.dataclass(frozen=True)
class Sweep:
  """A set of runs.

  Attributes:
    configs: the configurations of the runs, valid and distinct, without
      workdir.
    axes: the names of the settings in which the runs differ, in the order of
      the columns of a table.
    merged: how many further combinations of values equal one of these runs,
      such as moon and moon(mu=5).

  Examples:
    >>> sweep = moon_jax.Sweep.grid(
    ...     moon_jax.Config(dataset='digits'), seed=range(3),
    ...     **{'algorithm.mu': [1, 5]})
    >>> len(sweep.configs)
    6
  """

  configs: tuple[Config, ...]
  axes: tuple[str, ...]
  merged: int = 0

  @classmethod
  def grid(cls, base: Config, /, **axes: Iterable[Any]) -> 'Sweep':
    """Returns all combinations of values; the last axis varies fastest.

    Args:
      base: the configuration of the other settings. Its workdir must be empty.
      **axes: the values of each axis. An axis is a field of `Config` except
        workdir, data_dir and on_nan, or an argument of a part such as
        **{'algorithm.mu': [1, 5]}. Calls are values too: algorithm=['fedavg',
        'moon(mu=1)', 'moon(mu=5)'].

    Raises:
      UserError: if an axis is invalid, or if a combination is not a valid
        configuration.
    """
    if not isinstance(base, Config):
      raise UserError(
          '', 'a grid needs a moon_jax.Config and lists of values',
          f'a {type(base).__name__}', 'Write for example Sweep.grid('
          "moon_jax.Config(dataset='digits'), seed=range(3))")
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
  """Returns a value that is equal for configurations of the same run.

  Files count by their paths.
  """
  return identity.contents(config), config.init_from, *(
      f'{name}={path}' for name, path in config.files().items())


def each(base: Config, blocks: Sequence[Mapping[str, Any]], where: str = ''
         ) -> list[Sweep]:
  """Returns several grids.

  Args:
    base: the configuration of settings that a block does not have.
    blocks: for each grid its settings by name. A tuple is an axis; another
      value is the same in all runs of the grid. Values have the type of their
      setting.
    where: begins messages about a run, before its values; '' for --grid.

  Raises:
    UserError: if a run is invalid.
  """
  if base.workdir:
    raise UserError(f'workdir={base.workdir}', 'is the directory of one run, '
                    'and each run of a sweep has its own', '', 'Remove it')
  return [_grid(base, block, where) for block in blocks]


def _grid(base, block, where):
  """Returns the grid of one block; see `each`."""
  axes = {name: x for name, x in block.items() if isinstance(x, tuple)}
  fixed = {name: x for name, x in block.items() if name not in axes}
  if (count := math.prod(map(len, axes.values()))) > _MAX_RUNS:
    raise UserError('', f'a grid must have at most {_MAX_RUNS:,} runs',
                    f'{count:,}', f'Shorten the lists of {", ".join(axes)}')
  runs: dict[tuple[str, ...], Config] = {}
  for combination in itertools.product(*axes.values()):
    config = _configured(
        base, fixed, dict(zip(axes, combination)), where)
    runs.setdefault(key(config), config)
  return Sweep(tuple(runs.values()), tuple(axes), count - len(runs))


def _configured(base, fixed, varied, where):
  """Returns the valid configuration of one combination."""
  run = ' '.join(f'{name}={values_lib.show(value)}'
                 for name, value in varied.items())
  with within(f'{where or setting("grid")} {run}' if run else ''):
    return checks.validate(values_lib.replace(base, {**fixed, **varied}))
