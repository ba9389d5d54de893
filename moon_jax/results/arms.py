"""Arms: runs that differ only in their seeds.

`of_runs` makes them from runs that were read, `of_table` from the plan of a
published table.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math
import pathlib
import re
import statistics
from typing import Any, TYPE_CHECKING

from moon_jax.config import Config, FACTS, flags_with, methods, PARTS, parts
from moon_jax.errors import UserError
from moon_jax.results import paired, read, stats, table_file
from moon_jax.results.paired import Comparison
from moon_jax.results.read import Run
from moon_jax.results.table_file import Block, Published, Table
from moon_jax.runs import identity, values
from moon_jax.runs.grid import Sweep
from moon_jax.runs.values import NO_VALUE, SEEDS
from moon_jax.simulation.metric_functions import is_better_lower

if TYPE_CHECKING:
  import pandas as pd

Key = tuple[str, ...]
Seeds = tuple[int, ...]

_MAX_NAMED = 3  # settings whose defaults a label names
_NUMBER = re.compile(r'((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)')
_RECORDED = {*flags_with(role='recorded')}
# Settings in which runs of an arm may differ. The content of files counts, by
# its hash.
_IGNORED = {*SEEDS, *FACTS} - {*flags_with(role='result'),
                               *flags_with(role='stop')} | {*SEEDS}


@dataclasses.dataclass(frozen=True)
class Arm:
  """Runs that differ only in their seeds."""

  settings: dict[str, str]  # those in which arms differ, as text
  config: Config  # of the first run
  runs: dict[Seeds, Run]  # that count, one for each seed; never diverged
  others: list[Run]  # that do not count: diverged, unfinished or repeated
  title: str = ''  # of the method, with arguments in which its calls differ
  named: tuple[str, ...] = ()  # settings in its label

  @property
  def label(self) -> str:
    """The method, and the settings `named`."""
    return self.label_without(())

  def label_without(self, names: Sequence[str]) -> str:
    """Returns the label without some settings."""
    return ', '.join([self.title, *(
        values.named(name if name.startswith('content') else
                     name.rpartition('.')[2], self.settings[name], ' ')
        for name in self.named if name not in names)])

  @property
  def is_finished(self) -> bool:
    """Whether the runs that count have finished."""
    return any(run.state.kind == 'finished' for run in self.runs.values())

  @property
  def members(self) -> list[Run]:
    """All runs, those that count first."""
    return [*self.runs.values(), *self.others]

  def values(self, measure: str = 'test_accuracy', num_rounds: int = 1
             ) -> dict[Seeds, float]:
    """Returns the mean of a metric over the last evaluated rounds, by seed.

    Accuracies and their spreads are in percent. Seeds of which a value is not
    finite are left out.
    """
    means = {seed: stats.scale(measure) * stats.mean_of_last(series, num_rounds)
             for seed, run in self.runs.items()
             if (series := run.values(measure))}
    return {seed: mean for seed, mean in means.items() if not math.isnan(mean)}

  def curves(self, measure: str = 'test_accuracy') -> 'pd.DataFrame':
    """Returns a metric by round and run; NaN where it was not measured.

    Accuracies are in percent. There must be a run.
    """
    rounds = read.rounds_frame(self.runs.values()).reindex(columns=[measure])
    return stats.scale(measure) * rounds[measure].unstack('run')

  def summaries(self, name: str) -> list[float]:
    """Returns a number of summary.json, of the runs that have it.

    A number that was not finite is NaN.
    """
    return [math.nan if run.summary[name] is None else run.summary[name]
            for run in self.runs.values() if name in run.summary]


@dataclasses.dataclass(frozen=True)
class TableArm(Arm):
  """One row of a table."""

  seeds: tuple[Seeds, ...] = ()  # of all runs, ended or not
  published: tuple[Published, ...] = ()  # for these settings
  # Of the first run, with its axes and its baseline.
  block: Block = Block(Sweep((), ()), {}, {})
  is_best: bool = False  # whether it was chosen among settings; see `chosen`

  @property
  def published_accuracy(self) -> Published | None:
    """The published accuracy; None if there is none, or several."""
    accuracies = [value for value in self.published
                  if value.measure == 'accuracy']
    return accuracies[0] if len(accuracies) == 1 else None


def order(arm: Arm) -> list[list[tuple[int, float, str]]]:
  """Returns a key that sorts arms by their settings, numbers by value.

  Also numbers within a text, such as "moon(mu=10)".
  """
  def key_of(part):
    try:
      return 0, float(part), ''
    except ValueError:
      return 1, 0., part

  return [[key_of(part) for part in _NUMBER.split(text) if part]
          for text in map(str, arm.settings.values())]


def compare(new: Arm, base: Arm, num_rounds: int = 1,
            measure: str = 'test_accuracy') -> Comparison:
  """Compares `Arm.values` over common seeds; accuracies in points.

  If several seeds have each of several splits, the mean over a split is one
  pair: their differences are not independent. `paired.shown` may leave out
  tests. Only accuracies have a margin of equivalence, which is in points.
  """
  ours, theirs = (arm.values(measure, num_rounds) for arm in (new, base))
  seeds = [seed for seed in ours if seed in theirs]
  is_one_split = len({split for _, split in seeds}) == 1
  block_of = lambda seed: seed if is_one_split else seed[1]
  blocks = [[seed for seed in seeds if block_of(seed) == block]
            for block in dict.fromkeys(map(block_of, seeds))]
  pairs = paired.compare(*(
      [statistics.fmean(values[seed] for seed in block) for block in blocks]
      for values in (ours, theirs)))
  if 'accuracy' not in measure:
    return paired.shown(pairs, math.inf)._replace(equivalence_p=math.nan)
  return paired.shown(pairs)


def measure_of(arms: Iterable[Arm]) -> str:
  """Returns the metric of test data by which the arms of a table are compared.

  It is the test accuracy, or the test loss if the runs have no accuracy.
  """
  found = {run.measure() for arm in arms for run in arm.runs.values()}
  return ('test_loss' if 'test_loss' in found and 'test_accuracy' not in found
          else 'test_accuracy')


# ------------------------------------------------------- arms of runs, as read


def of_runs(runs: Sequence[Run]) -> list[Arm]:
  """Returns the arms of runs, in the order of their first runs.

  The runs that count are those that have finished or, if none has, those that
  have not and did not diverge.
  """
  names = differing(runs)
  grouped: dict[tuple[str, ...], list[Run]] = {}
  for run in runs:
    grouped.setdefault(_shown(run, names), []).append(run)
  arms = []
  for shown, members in grouped.items():
    finished = [run for run in members if run.state.kind == 'finished']
    counted: dict[Seeds, Run] = {}
    # A repeated seed is no further evidence; its longest run counts.
    for run in finished or [
        run for run in members if run.state.kind != 'diverged']:
      seeds = _seeds(run.config)
      if seeds not in counted or len(run.lines) > len(counted[seeds].lines):
        counted[seeds] = run
    arms.append(Arm(dict(zip(names, shown)), members[0].config, counted, [
        run for run in members if run not in counted.values()]))
  return with_labels(arms)


def differing(runs: Sequence[Run]) -> list[str]:
  """Returns the settings in which runs differ, besides seeds."""
  inputs = {f'content of {name}' for run in runs for name in run.inputs}
  names = [*values.distinguishing(
      [run.config for run in runs], _IGNORED), 'client_eval', *sorted(inputs)]
  return values.differing(names, [_shown(run, names) for run in runs])


def _shown(run, names):
  """Returns the values of settings, and hashes of input files, as text."""
  contents = {f'content of {name}': value for name, value in run.inputs.items()}
  # Own code differs from what has no content by its name, too; files do not.
  absent = {name: '' if '.' in name or 'init_from' in name else NO_VALUE
            for name in names if name.startswith('content of ')}
  # Without clients that were left out, runs are those of on_nan=stop.
  left_out = any(line.get('clients_left_out') for line in run.lines)
  shown = absent | contents | {
      'client_eval': _heldout(run.config),
      'on_nan': run.config.on_nan if left_out else Config.on_nan}
  return tuple(
      values.show(shown[name]) if name in shown
      else values.shown(run.config, [name])[0] for name in names)


def _heldout(config):
  """Returns whose evaluation decides which held-out examples clients have.

  Half of them are validation examples if all clients are evaluated and there
  are validation examples (`Federation.validates_clients`).
  """
  if not (config.validation_fraction and config.client_test_fraction
          and config.client_eval_every):
    return NO_VALUE
  return 'cohort' if config.client_eval == 'cohort' else 'all'


def _seeds(config):
  return config.seed, config.split_seed()


# ----------------------------------------------------------- arms of a table


def key(config: Config, inputs: Mapping[str, str]) -> Key:
  """Returns a value that is equal for configurations that give equal results.

  `inputs` are hashes of its input files by setting, whose paths do not count.
  """
  return (identity.contents(config), config.on_nan,
          *map(str, sorted(inputs.items())))


def keys(configs: Iterable[Config]) -> list[Key]:
  """Returns the keys of configurations; each data set is read once."""
  from moon_jax.runs import prepare

  call = prepare.once()
  return [key(config, prepare.inputs_of(config, call)) for config in configs]


def ended(directory: pathlib.Path) -> list[Run]:
  """Returns the runs in a directory that have finished or diverged."""
  if not directory.is_dir():
    raise UserError('', f'{directory} must be a directory that holds '
                    'directories of runs', 'none')
  runs = (read.read(path.parent)
          for path in sorted(directory.glob('*/config.json')))
  return [run for run in runs if run.state.kind in ('finished', 'diverged')]


def find(directories: Iterable[pathlib.Path]) -> dict[Key, Run]:
  """Returns the runs in directories that have ended, by `key`.

  If two directories hold the same run, the first counts. A run that finished
  with --on_nan=stop counts as that of skip_client too: no client was skipped.
  Runs of the user's own code that is gone are in no table.
  """
  runs: dict[Key, Run] = {}
  for directory in directories:
    for run in filter(lambda run: has_code(run.config), ended(directory)):
      runs.setdefault(key(config_of(run), run.inputs), run)
  for run in [*runs.values()]:
    if run.state.kind == 'finished':
      runs.setdefault(key(dataclasses.replace(
          config_of(run), on_nan='skip_client'), run.inputs), run)
  return runs


def has_code(config: Config) -> bool:
  """Returns whether the user's own functions can be loaded."""
  try:
    for kind in PARTS:
      if (part := getattr(config, kind)).is_own:
        parts.function_of(kind, part)
  except UserError:
    return False
  return True


def config_of(run: Run) -> Config:
  """Returns the valid configuration of a run, as it is if its code is gone."""
  if not has_code(run.config):
    return dataclasses.replace(run.config, workdir='')
  from moon_jax.simulation import checks  # imports JAX

  try:
    return checks.validate(dataclasses.replace(run.config, workdir=''))
  except (AttributeError, TypeError, UserError) as error:
    raise UserError(
        '', f'{run.path}/config.json must be a configuration that this version '
        'accepts', error, 'Move the directory away, or restore the file from a '
        'copy') from error


def of_table(table: Table, ended_runs: Mapping[Key, Run]) -> list[TableArm]:
  """Returns the arms of a table in its order, with the runs of `find`."""
  names = list(dict.fromkeys(
      ['algorithm', *values.columns(table.sweep.configs, table.sweep.axes)]))
  grouped: dict[tuple[str, ...], list[tuple[Config, Block]]] = {}
  for block in table.blocks:
    for config in block.sweep.configs:
      grouped.setdefault(values.shown(config, names), []).append(
          (config, block))
  # `keys` reads input files, which need not be here if no run has ended.
  configs = [config for members in grouped.values() for config, _ in members]
  ended = iter([*map(ended_runs.get, keys(configs))] if ended_runs else
               [None] * len(configs))
  arms = []
  for shown, members in grouped.items():
    config, block = members[0]
    planned = {_seeds(member): next(ended) for member, _ in members}
    runs = {seed: run for seed, run in planned.items()
            if run and run.state.kind != 'diverged'}
    arms.append(TableArm(
        dict(zip(names, shown)), config, runs,
        [run for seed, run in planned.items() if run and seed not in runs],
        seeds=tuple(planned), published=tuple(
            value for value in table.published if any(
                table_file.is_for(value, *member) for member in members)),
        block=block))
  return with_labels(arms)


def with_labels(arms: Sequence[Any]) -> list[Any]:
  """Returns arms with their titles and the settings that their labels need."""
  titled = [dataclasses.replace(arm, title=_title(arm, arms)) for arm in arms]
  return [dataclasses.replace(arm, named=_named(arm, titled))
          for arm in titled]


def _title(arm, arms):
  """Returns the title of a method, and arguments in which its calls differ."""
  name = arm.config.algorithm.name
  ours = values.arguments(arm.config, 'algorithm')
  others = [values.arguments(other.config, 'algorithm') for other in arms
            if other.config.algorithm.name == name]
  return ', '.join([methods.title(name), *(
      f'{argument} {values.show(value)}' for argument, value in ours.items()
      if f'algorithm.{argument}' not in arm.settings
      and any(other.get(argument) != value for other in others))])


def _named(arm, arms):
  """Returns the settings that an arm's label needs.

  They are those in which arms of its method differ, without flags' defaults if
  there are many such settings; and those in which the method differs from most
  arms.
  """
  same = [other for other in arms
          if other.config.algorithm.name == arm.config.algorithm.name]
  varied = [name for name in arm.settings if name != 'algorithm' and len(
      {other.settings[name] for other in same} - {NO_VALUE}) > 1]

  def is_named(name, value):
    if name in varied:
      return len(varied) <= _MAX_NAMED or value != values.show(
          _default(arm.config, name))
    return name != 'algorithm' and usual(name, arms) not in (value, None)

  return tuple(name for name, value in arm.settings.items()
               if value != NO_VALUE and is_named(name, value))


def _default(config, name):
  """Returns the default of a setting or an argument; '' of other names."""
  if not values.is_argument(name):
    return getattr(Config, name, '')
  if not has_code(config):
    return ''
  kind, _, argument = name.partition('.')
  return parts.schema(kind, getattr(config, kind).name)[argument].default


def usual(name: str, arms: Sequence[Arm]) -> str | None:
  """Returns the value of most arms that read a setting; None without one."""
  counts = Counter(arm.settings[name] for arm in arms
                   if arm.settings[name] != NO_VALUE)
  value, count = counts.most_common(1)[0]
  return value if 2 * count > counts.total() else None


def baseline_of(arm: Arm, arms: Sequence[Any], wanted: Mapping[str, Any]
                ) -> Any | None:
  """Returns the arm to which `arm` is compared; None if it is one itself.

  The baseline has the settings `wanted` and agrees with `arm` in the other
  settings that are shown and that both methods read; input files that settings
  of the baseline name may differ, and what is recorded.
  """
  free = {*wanted, *(f'content of {name}' for name in wanted), *_RECORDED, *(
      f'{kind}.{name}' for kind in PARTS if kind in wanted
      for name, _ in parts.parse(kind, wanted[kind]).arguments)}
  is_baseline = lambda other: all(
      values.is_value(other.config, name, value)
      for name, value in wanted.items())
  if not wanted or is_baseline(arm):
    return None
  return next((other for other in arms if is_baseline(other) and all(
      value == other.settings[name] or name in free
      or NO_VALUE in (value, other.settings[name])
      for name, value in arm.settings.items())), None)


def chosen(arms: Sequence[TableArm], best_of: Sequence[str]) -> list[TableArm]:
  """Marks the best arm among arms that differ only in the settings `best_of`.

  The best has the highest mean test accuracy after the last round, as published
  values were chosen, or the lowest test loss. The others lose their published
  values, which are those of the best. Arms with unfinished runs have no best.
  """
  measure = measure_of(arms)
  best = min if is_better_lower(measure) else max
  others = lambda arm: [value for name, value in arm.settings.items()
                        if name not in best_of]

  def marked(arm):
    group = [other for other in arms if others(other) == others(arm)
             and set(best_of) & set(other.block.sweep.axes)]
    finished = [other for other in group if other.values(measure)]
    if len(group) < 2 or arm not in group or not finished or any(
        len(other.members) < len(other.seeds) for other in group):
      return arm
    top = best(finished, key=lambda other: statistics.fmean(
        other.values(measure).values()))
    return dataclasses.replace(
        arm, is_best=arm is top, published=arm.published * (arm is top))

  return [*map(marked, arms)]
