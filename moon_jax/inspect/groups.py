"""Groups runs that differ only in their seeds, and compares the groups."""

from collections.abc import Sequence
import math
import statistics
from typing import NamedTuple

from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.inspect.read import Run
from moon_jax.inspect.tables import results
from moon_jax.report import paired
from moon_jax.rundir.identity import FREE_FIELDS
from moon_jax.sweep import values

SEEDS = 'seed', 'partition_seed'
# Settings that change no model: files, speed, and what is recorded. The content
# of files counts instead, by its hash.
_IGNORED = {*SEEDS, *FREE_FIELDS, 'eval_every', 'eval_on', 'client_eval_every',
            'metrics', 'epoch_losses', 'keep_best', 'save_local_models'}
_NO_EFFECT = '–'


class Group(NamedTuple):
  """Runs with the same settings, except for their seeds.

  Attributes:
    settings: those in which groups differ, as text.
    runs: all runs with metrics.
    counted: the runs whose results count, one for each seed: those that have
      finished, or, if none has, those that have not. Never runs that diverged.
  """

  settings: dict[str, str]
  runs: list[Run]
  counted: list[Run]

  @property
  def label(self) -> str:
    return ' '.join(f'{name}={value}' for name, value in self.settings.items()
                    if value != _NO_EFFECT) or 'all runs'

  @property
  def is_finished(self) -> bool:
    return any(run.state.kind == 'finished' for run in self.counted)

  def accuracies(self, key: str) -> list[float]:
    """Returns `last`, `best` or `mean_of_last_10` of each counted run."""
    found = [results(run).get('test_accuracy') for run in self.counted]
    return [accuracy[key] for accuracy in found if accuracy]

  def curve(self) -> list[tuple[int, float, float]]:
    """Returns (round, mean, standard deviation) of the test accuracy.

    For rounds that all counted runs have evaluated.
    """
    series = [dict(run.series('test_accuracy')) for run in self.counted]
    rounds = set.intersection(*map(set, series)) if series else set()
    at = {r: [values_[r] for values_ in series] for r in sorted(rounds)}
    return [(r, statistics.fmean(found),
             statistics.stdev(found) if len(found) > 1 else 0.)
            for r, found in at.items()]


def group(runs: Sequence[Run]) -> list[Group]:
  """Returns the groups, in the order of their first runs."""
  names = differing(runs)
  groups: dict[tuple, Group] = {}
  for run in runs:
    settings = dict(zip(names, _shown(run, names)))
    groups.setdefault(tuple(settings.values()), Group(
        settings, [], [])).runs.append(run)
  for found in groups.values():
    finished = [run for run in found.runs if run.state.kind == 'finished']
    found.counted.extend(_one_per_seed(finished or [
        run for run in found.runs if run.state.kind != 'diverged']))
  return list(groups.values())


def by_settings(groups: Sequence[Group]) -> list[Group]:
  """Returns the groups sorted by their settings, numbers by their value.

  The names of directories end with hashes: their order means nothing.
  """
  def key(text):
    try:
      return 0, float(text), ''
    except ValueError:
      return 1, 0., text

  return sorted(groups, key=lambda found: [*map(key, found.settings.values())])


def seeds(run: Run) -> tuple[int, ...]:
  """Returns the seeds of a run."""
  return tuple(run.config[name] for name in SEEDS)


def _one_per_seed(runs):
  """Leaves out repeated seeds, whose results are no further evidence."""
  longest_first = sorted(runs, key=lambda run: -len(run.lines))
  kept = {seeds(run): run for run in reversed(longest_first)}.values()
  return [run for run in runs if any(run is other for other in kept)]


def differing(runs: Sequence[Run]) -> list[str]:
  """Returns the settings in which runs differ, besides seeds.

  A setting without effect, such as mu of fedavg, differs from no other value.
  """
  inputs = {f'content of {name}' for run in runs for name in run.inputs}
  names = [*(name for name in Config().to_dict() if name not in _IGNORED),
           *sorted(inputs)]
  table = [_shown(run, names) for run in runs]
  return [name for name, column in zip(names, zip(*table))
          if len(set(column) - {_NO_EFFECT}) > 1]


def _shown(run, names):
  """Returns the values of settings as text."""
  without_effect = _unused(run)
  contents = {f'content of {name}': value
              for name, value in run.inputs.items()}
  return [_NO_EFFECT if name in without_effect
          else values.show(run.config[name]) if name in run.config
          else str(contents.get(name, _NO_EFFECT)) for name in names]


def _unused(run):
  from moon_jax.algorithms import unused  # imports JAX

  fields = {name: value for name, value in run.config.items()
            if name in Config().to_dict()}
  try:
    return unused.unused(Config(**fields))
  except (UserError, KeyError, TypeError):
    return {}  # user-defined code is not here


def baseline(groups: Sequence[Group], name: str = '') -> Group:
  """Returns the group that others are compared with.

  Args:
    groups: all of them.
    name: part of the group's settings; by default fedavg, or the first group.

  Raises:
    UserError: if not exactly one group has `name`.
  """
  fedavg = [found for found in groups
            if found.settings.get('algorithm') == 'fedavg']
  if not name:
    return (fedavg or list(groups))[0]
  matching = [found for found in groups if name in found.label.split() or any(
      name == value for value in found.settings.values())]
  if len(matching) != 1:
    raise UserError(
        f'--baseline={name} must be a setting of one group, got '
        f'{len(matching)}; the groups are '
        + '; '.join(found.label for found in groups))
  return matching[0]


def target_round(run: Run, target: float | None) -> int | None:
  """Returns the first round whose test accuracy reaches a target, if any."""
  if target is None:
    return None
  return next((round_ for round_, value in run.series('test_accuracy')
               if value >= target), None)


def compare(new: Group, base: Group, key: str) -> paired.Comparison | None:
  """Compares groups over their common seeds, in percentage points.

  Args:
    new: the group whose difference is positive if it is better.
    base: the baseline.
    key: see `Group.accuracies`.

  Returns:
    None without common seeds.
  """
  tables = []
  for found in new, base:
    accuracies = {
        seeds(run): results(run)['test_accuracy'][key]
        for run in found.counted if 'test_accuracy' in results(run)}
    tables.append(accuracies)
  common = [seed for seed in tables[0] if seed in tables[1]]
  return paired.without_equal(paired.compare(*(
      [100 * table[seed] for seed in common]
      for table in tables))) if common else None


def is_comparable(new: Group, base: Group) -> bool:
  """Returns whether groups are evaluated on the same examples."""
  names = 'dataset', 'content of dataset', 'eval_examples'
  return all(new.settings.get(name) == base.settings.get(name)
             for name in names)


def mean_and_std(found: Sequence[float], digits: int = 2,
                 scale: float = 1.) -> str:
  """Formats a mean and, of two values or more, the standard deviation."""
  if not found:
    return '-'
  std = (f' ± {scale * statistics.stdev(found):.{digits}f}'
         if len(found) > 1 else '')
  return f'{scale * statistics.fmean(found):.{digits}f}{std}'


def interval(found: paired.Comparison | None) -> str:
  """Formats a difference and its 95% interval."""
  if found is None:
    return 'no common seed'
  text = f'{found.mean:+.2f}'
  if not math.isnan(found.low):
    text += f' ({found.low:+.2f} to {found.high:+.2f})'
  return text
