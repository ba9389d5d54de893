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
from moon_jax.report.results import Key
from moon_jax.report.results import Result
from moon_jax.report.table_file import Block
from moon_jax.report.table_file import Published
from moon_jax.report.table_file import Table
from moon_jax.sweep import table as sweep_table
from moon_jax.sweep import values

NO_VALUE = '–'  # of a setting without effect
NAMES = {'fedavg': 'FedAvg', 'fedprox': 'FedProx', 'scaffold': 'SCAFFOLD',
         'fednova': 'FedNova', 'solo': 'SOLO', 'moon': 'MOON',
         'centralized': 'all data in one place'}


class Arm(NamedTuple):
  """The runs of one row of a table.

  Attributes:
    config: of the first run.
    shown: the settings in which rows differ, as text.
    seeds: of all runs; with --partition_seed, the pair of seeds.
    runs: the runs that have ended, by seed.
    published: the values published for these settings.
    baseline: settings of the arm to which this one is compared.
    named: the settings in its label.
  """

  config: Config
  shown: dict[str, str]
  seeds: tuple[tuple[int, int], ...]
  runs: dict[tuple[int, int], Result]
  published: tuple[Published, ...]
  baseline: dict[str, Any]
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
        if _is_for(value, member, of))
    arms.append(Arm(
        config, _shown(config, names), tuple(configs),
        {seed: run for seed, run in runs.items() if run},
        tuple(table.published[position] for position in published),
        block.baseline))
  return [arm._replace(named=_named(arm, arms)) for arm in arms]


def _named(arm, arms):
  """Returns the settings that an arm's label needs.

  They are those with another value than most arms of the method, or than most
  arms of all methods. Two arms of a method differ in one of them.
  """
  same = [other for other in arms
          if other.config.algorithm == arm.config.algorithm]
  return tuple(
      name for name, value in arm.shown.items()
      if name != 'algorithm' and value != NO_VALUE
      and (value != _usual(name, same)
           or value != (_usual(name, arms) or value)))


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
      'algorithm': NAMES.get(config.algorithm, config.algorithm)}


def _is_for(published, config, block):
  """Returns whether a published value is for a run of a block.

  A setting that the budget replaces is compared in the full budget, unless runs
  differ in it at this budget too.
  """
  for name, value in published.settings.items():
    ours = getattr(config, name)
    if name in block.replaced and name not in block.sweep.axes:
      full = block.replaced[name]
      if full is None:
        full = getattr(Config, name)
      if value != full and not (isinstance(full, tuple) and value in full):
        return False
    elif value != ours:
      return False
  return True


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


def chosen(arms: Sequence[Arm], best_of: Sequence[str]) -> list[Arm]:
  """Returns the best arm of each group that differs only in some settings.

  The best has the highest mean test accuracy after the last round, as published
  values were chosen. An arm's `published` is that of the whole group.

  Args:
    arms: the arms.
    best_of: the settings.
  """
  groups: dict[tuple[str, ...], list[Arm]] = {}
  for arm in arms:
    same = tuple(value for name, value in arm.shown.items()
                 if name not in best_of)
    groups.setdefault(same, []).append(arm)
  best = []
  for group in groups.values():
    finished = [arm for arm in group if arm.finished]
    top = max(finished, default=group[0], key=lambda arm: float(
        np.mean(list(arm.values('test_accuracy').values()))))
    best.append(top)
  return best


def settings_text(settings: Mapping[str, Any]) -> str:
  """Returns settings as text, such as "algorithm=fedavg, beta=0.5"."""
  return ', '.join(f'{name}={values.show(value)}'
                   for name, value in settings.items())
