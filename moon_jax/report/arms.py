"""Groups the runs of a table into arms: runs that differ in seeds only."""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any
from typing import NamedTuple

import numpy as np

from moon_jax.config import Config
from moon_jax.report import results as results_lib
from moon_jax.report import table as table_lib
from moon_jax.report import table_file
from moon_jax.report.published import Published
from moon_jax.report.results import Key
from moon_jax.report.results import Result
from moon_jax.report.table_file import Block
from moon_jax.report.table_file import Table
from moon_jax.sweep import table as sweep_table
from moon_jax.sweep import values

NO_VALUE = '–'  # of a setting without effect
_MAX_NAMED = 3  # settings whose defaults a label names


class Arm(NamedTuple):
  """The runs of one row of a table.

  Attributes:
    config: of the first run.
    shown: the settings in which rows differ, as text.
    seeds: of all runs; with --partition_seed, the pair of seeds.
    runs: the runs that have ended, by seed.
    published: the values published for these settings.
    baseline: settings of the arm to which this one is compared.
    axes: settings that vary within its block.
    named: the settings in its label.
  """

  config: Config
  shown: dict[str, str]
  seeds: tuple[tuple[int, int], ...]
  runs: dict[tuple[int, int], Result]
  published: tuple[Published, ...]
  baseline: dict[str, Any]
  axes: tuple[str, ...] = ()
  named: tuple[str, ...] = ()

  @property
  def finished(self) -> dict[tuple[int, int], Result]:
    """The runs that did not diverge, by seed."""
    return {seed: run for seed, run in self.runs.items() if not run.diverged}

  @property
  def label(self) -> str:
    """The method, and the settings `named`."""
    return ', '.join([self.shown['algorithm'], *(
        f'{name} {self.shown[name]}' for name in self.named)])

  def values(self, measure: str, num_rounds: int = 1
             ) -> dict[tuple[int, int], float]:
    """Returns the mean of a metric over the last evaluated rounds, by seed.

    Args:
      measure: the metric; test_accuracy is in percent.
      num_rounds: how many rounds; fewer if the run has fewer.
    """
    scale = 100 if measure == 'test_accuracy' else 1
    return {
        seed: scale * float(np.mean([
            line[measure] for line in run.metrics if measure in line
        ][-num_rounds:])) for seed, run in self.finished.items()}

  def curves(self, measure: str) -> np.ndarray:
    """Returns a metric by seed and round [S, T]; NaN where it was not measured.

    Runs that diverged are left out.
    """
    scale = 100 if measure == 'test_accuracy' else 1
    length = max((run.metrics[-1]['round'] for run in self.finished.values()),
                 default=0)
    curves_ST = np.full((len(self.finished), length), np.nan)
    for curve_T, run in zip(curves_ST, self.finished.values()):
      for line in run.metrics:
        curve_T[line['round'] - 1] = scale * line.get(measure, np.nan)
    return curves_ST


def make(table: Table, found: Mapping[Key, Result]) -> list[Arm]:
  """Returns the arms of a table, in the order of its file.

  Args:
    table: the table.
    found: runs that have ended, see `results.find`.
  """
  names = list(dict.fromkeys(
      ['algorithm', *sweep_table.columns(table.sweep)]))
  grouped: dict[Key, list[tuple[Config, Block]]] = {}
  for block in table.blocks:
    for config in block.sweep.configs:
      same = dataclasses.replace(config, seed=0, partition_seed=-1)
      grouped.setdefault(results_lib.key(same), []).append((config, block))
  arms = []
  for members in grouped.values():
    config, block = members[0]
    configs = {_seeds(member): member for member, _ in members}
    runs = {seed: found.get(results_lib.key(member))
            for seed, member in configs.items()}
    published = dict.fromkeys(
        position for member, of in members
        for position, value in enumerate(table.published)
        if table_file.is_for(value, member, of))
    arms.append(Arm(
        config, _shown(config, names), tuple(configs),
        {seed: run for seed, run in runs.items() if run},
        tuple(table.published[position] for position in published),
        block.baseline, block.sweep.axes))
  return [arm._replace(named=_named(arm, arms)) for arm in arms]


def _named(arm, arms):
  """Returns the settings that an arm's label needs.

  They are those in which arms of its method differ, without flags' defaults if
  there are many such settings; and those in which the method differs from most
  arms.
  """
  same = [other for other in arms
          if other.config.algorithm == arm.config.algorithm]
  varied = [name for name in arm.shown if name != 'algorithm' and len(
      {other.shown[name] for other in same} - {NO_VALUE}) > 1]

  def is_named(name, value):
    if name in varied:
      return len(varied) <= _MAX_NAMED or value != values.show(
          getattr(Config, name))
    return name != 'algorithm' and value != (_usual(name, arms) or value)

  return tuple(name for name, value in arm.shown.items()
               if value != NO_VALUE and is_named(name, value))


def _usual(name, arms):
  """Returns the value of most arms that read a setting, or ''."""
  counts = Counter(arm.shown[name] for arm in arms
                   if arm.shown[name] != NO_VALUE)
  value, count = counts.most_common(1)[0]
  return value if 2 * count > counts.total() else ''


def _seeds(config):
  return config.seed, config.partition_seed


def _shown(config, names):
  """Returns settings as text, with the method's name."""
  return dict(zip(names, sweep_table.shown(config, names))) | {
      'algorithm': table_lib.NAMES.get(config.algorithm, config.algorithm)}


def baseline_of(arm: Arm, arms: Sequence[Arm]) -> Arm | None:
  """Returns the arm to which `arm` is compared; None if it is one itself.

  The baseline has the settings `arm.baseline` and agrees with `arm` in the
  other settings that are shown and that both methods read.
  """
  if not arm.baseline or _has(arm, arm.baseline):
    return None
  for other in arms:
    if _has(other, arm.baseline) and all(
        arm.shown[name] == other.shown[name] or name in arm.baseline
        or NO_VALUE in (arm.shown[name], other.shown[name])
        for name in arm.shown):
      return other
  return None


def _has(arm, settings):
  return all(getattr(arm.config, name) == value
             for name, value in settings.items())


def chosen(arms: Sequence[Arm], best_of: Sequence[str]
           ) -> tuple[list[Arm], list[Arm]]:
  """Chooses the best arm of each group of arms that differ in some settings.

  The best has the highest mean test accuracy after the last round, as published
  values were chosen. The others of its group lose their published values, which
  are those of the best. A group with unfinished runs has no best.

  Args:
    arms: the arms.
    best_of: the settings.

  Returns:
    All arms, and the best ones among them.
  """
  groups: dict[tuple[str, ...], list[int]] = {}
  for i, arm in enumerate(arms):
    if set(best_of) & set(arm.axes):
      same = tuple(value for name, value in arm.shown.items()
                   if name not in best_of)
      groups.setdefault(same, []).append(i)
  arms, best = list(arms), []
  for group in groups.values():
    finished = [i for i in group if arms[i].finished]
    if len(group) == 1 or not finished or any(
        len(arms[i].runs) < len(arms[i].seeds) for i in group):
      continue
    top = max(finished, key=lambda i: float(
        np.mean(list(arms[i].values('test_accuracy').values()))))
    best.append(arms[top])
    for i in set(group) - {top}:
      arms[i] = arms[i]._replace(published=())
  return arms, best
