"""Compares runs: a metric by arm, times, and differences from a baseline.

docs/looking_at_runs.md describes the tables.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
import math
import statistics
from typing import NamedTuple

import numpy as np
import pandas as pd

from moon_jax.errors import UserError
from moon_jax.results import arms as arms_lib
from moon_jax.results import clients, paired, read, stats, tables
from moon_jax.results.arms import Arm
from moon_jax.results.read import Run
from moon_jax.results.tables import Table
from moon_jax.results.trials import Tuning
from moon_jax.runs import values
from moon_jax.runs.values import SEEDS
from moon_jax.view.text import duration, fixed, metric

# Metrics that are columns beside the one that is compared.
_ALSO = ('test_accuracy', 'validation_accuracy', *stats.OF_CLIENTS,
         'global_heldout_accuracy', 'new_heldout_accuracy',
         'new_adapted_heldout_accuracy', 'epsilon')
# Settings that decide which examples arms are evaluated on.
_EXAMPLES = 'dataset', 'content of dataset', 'eval_examples'


class Compared(NamedTuple):
  """Runs that are compared in a metric."""

  runs: list[Run]
  arms: list[Arm]
  metric: str
  baselines: list[Arm | None]  # of each arm; None of one that has none
  targets: list[float | None]  # of each arm
  trials: Sequence[str] = ()  # notes on those with the settings of an arm


def of(runs: Sequence[Run], metric: str, *, baseline: str = '',
       target: float | None = None, is_sorted: bool = True,
       labels: Sequence[str] = ()) -> Compared:
  """Returns what is compared.

  Args:
    runs: with the metric.
    metric: a metric of rounds.
    baseline: a setting of the arm that others are compared with; '' for FedAvg
      with the same other settings, or the first arm if none or all of them are
      FedAvg.
    target: the value of "rounds to"; None for the mean last value of the
      baseline.
    is_sorted: whether arms are sorted by their settings.
    labels: "ROW=TEXT" for arms that get another label; see `renamed`.

  Raises:
    UserError: if the target is impossible, or no single arm has the setting.
  """
  is_accuracy = 'accuracy' in metric
  if target is not None and not (
      math.isfinite(target) and (target > 0 or not (
          is_accuracy or 'loss' in metric)) and (
              target <= 1 or not is_accuracy)):
    raise UserError('target', 'must be a fraction above 0, at most 1, or a '
                    'loss above 0', f'{target:g}',
                    f'Write --target={target / 100:g} for {target:g}%' * (
                        1 < target <= 100))
  arms = arms_lib.of_runs(runs)
  if is_sorted:
    # The names of directories end with hashes: their order means nothing.
    arms.sort(key=arms_lib.order)
  arms = renamed(arms, labels)
  bases = baselines(arms, baseline)
  alone = _without_baseline(arms, bases)

  def last(arm):
    values = [value for run in arm.runs.values()
              if not math.isnan(value := run.last(metric))]
    # Exact: fmean may be above equal numbers.
    return statistics.mean(values) if values else None

  return Compared(
      list(runs), arms, metric, bases,
      [target or (None if arm in alone else last(base or arm))
       for arm, base in zip(arms, bases)])


def with_trials(compared: Compared, tunings: Sequence[Tuning]) -> Compared:
  """Adds notes on finished trials that are seeds of an arm, but no results."""
  found = {path: tuning for tuning in tunings for path in tuning.trials()
           if (path / 'summary.json').exists()}
  runs: list[Run] = []
  for path in sorted(found):
    with contextlib.suppress(UserError):  # files that are damaged
      runs.append(read.read(path))
  labels = {run.path: arm.label for arm in compared.arms for run in arm.members}
  return compared._replace(trials=[
      f'{label}, not counted: {run.path.name}: a trial, with the seed '
      f'{run.config.seed}, of the tuning in {found[run.path].path.parent}'
      for arm in arms_lib.of_runs([*compared.runs, *runs])
      for label in [labels[run.path] for run in arm.members
                    if run.path in labels][:1]
      for run in arm.members if run.path not in labels])


def renamed(arms: Sequence[Arm], labels: Sequence[str]) -> list[Arm]:
  """Returns arms with other labels.

  Args:
    arms: in their order.
    labels: "ROW=TEXT": the label, the method as it was called, such as
      moon(mu=1), or a setting of one arm, and its new label. Both may contain
      "=".

  Raises:
    UserError: if a text is no label of one arm, or two arms get the same one.
  """
  texts: dict[int, str] = {}
  for label in labels:
    # The longest beginning that names arms: moon(mu=1)=MOON has two "=".
    ends = [i for i, character in enumerate(label) if character == '=']
    matching, end = next(
        ((matches, i) for i in reversed(ends)
         if (matches := _named(arms, label[:i].strip()))), ([], 0))
    new = label[end + 1:].strip()
    if len(matching) != 1 or not new:
      raise UserError(
          'label', 'must be ROW=TEXT for one row, such as '
          f"'{arms[0].label}=Ours'", label,
          (f'{len(matching)} rows have it' if new else 'The text is empty')
          + f'; the rows are {"; ".join(arm.label for arm in arms)}')
    texts[arms.index(matching[0])] = new
  made = [dataclasses.replace(arm, title=texts[i], named=()) if i in texts
          else arm for i, arm in enumerate(arms)]
  shown = [arm.label for arm in made]
  if texts and (repeated := {name for name in shown if shown.count(name) > 1}):
    raise UserError('label', 'must give each row a label of its own',
                    ', '.join(sorted(repeated)))
  return made


def _named(arms, name):
  """Returns the arms with a label, a method as it was called, or a setting."""
  def has(arm):
    return name == arm.label or name in (
        str(arm.config.algorithm), *arm.settings.values(),
        *(f'{setting.rpartition(".")[2]}={value}'
          for setting, value in arm.settings.items()),
        *(f'{setting}={value}' for setting, value in arm.settings.items()))

  try:
    calls = [arm for arm in arms if '(' in name and values.is_value(
        arm.config, 'algorithm', name)]
  except UserError:  # no call
    calls = []
  return calls or [arm for arm in arms if has(arm)]


def baselines(arms: Sequence[Arm], name: str = '') -> list[Arm | None]:
  """Returns the baseline of each arm, None if it has none; see `of`."""
  if name:
    matching = _named(arms, name)
    if len(matching) != 1:
      raise UserError(
          'baseline', 'must be a setting of one row', name,
          f'{len(matching)} rows have it; the rows are '
          + '; '.join(arm.label for arm in arms))
    return [None if arm is matching[0] else matching[0] for arm in arms]
  if 0 < sum(map(_is_fedavg, arms)) < len(arms):
    return [arms_lib.baseline_of(arm, arms, {'algorithm': 'fedavg'})
            for arm in arms]
  return [None if arm is arms[0] else arms[0] for arm in arms]


def _is_fedavg(arm):
  return arm.config.algorithm.name == 'fedavg'


def _without_baseline(arms, bases):
  """Returns the arms of other methods for which there is no FedAvg."""
  return [arm for arm, base in zip(arms, bases) if not (
      base or _is_fedavg(arm) or any(arm is other for other in bases))
          ] if any(map(_is_fedavg, arms)) else []


def _other_examples(arm, base, metric):
  """Returns the settings by which a metric is of other examples."""
  return [name for name in (
      *_EXAMPLES, *['client_eval'] * ('heldout' in metric))
          if arm.settings.get(name) != base.settings.get(name)]


def text(compared: Compared, width: int = 80) -> str:
  """Returns the tables for a terminal of `width` columns."""
  return tables.terminal([
      introduction(compared), results(compared), over_clients(compared),
      times(compared), differences(compared), notes(compared)], width)


def sections(compared: Compared) -> list[str]:
  """Returns the parts of a page."""
  return [*introduction(compared), *tables.sections({
      'Results': results(compared), 'Clients': over_clients(compared),
      'Differences': differences(compared),
      'Rounds and times': times(compared)}),
          '\n'.join(f'- {note}' for note in notes(compared))]


def label(arm: Arm) -> str:
  """Returns the label, with a star if no run has finished."""
  return arm.label + '*' * (not arm.is_finished)


def introduction(compared: Compared) -> list[str]:
  """Returns lines about what the runs have in common."""
  runs, names = compared.runs, list(compared.arms[0].settings)
  shown = [name for name in names if not name.startswith('content of ')]
  same = [values.shown(runs[0].config, [name, *shown])[0]
          for name in ('dataset', 'algorithm', 'model')
          if name not in names]
  what = f' of {", ".join(same)}' * bool(same)
  differ = (f'they differ in {", ".join(names)}' if names
            else 'they differ at most in their seeds')
  lines = [f'{len(runs)} run{"s" * (len(runs) > 1)}{what}; '
           + (differ if len(runs) > 1 else str(runs[0].path))]
  if 'dataset' in names:
    datasets = sorted({run.config.dataset for run in runs})
    lines += ['', f'The runs have different data sets ({", ".join(datasets)}): '
              'their results cannot be compared.']
  return lines


def results(compared: Compared) -> Table:
  """Returns the metric of each arm, and other accuracies after the last round.
  """
  name, arms = compared.metric, compared.arms
  frame = read.runs_frame(compared.runs, name)
  rows = [frame.loc[[str(run.path) for run in arm.runs.values()]]
          for arm in arms]
  columns = {
      '': [label(arm) for arm in arms],
      'n': [f'{len(arm.runs)}' + f'/{len(arm.members)}' * bool(arm.others)
            for arm in arms],
      'rounds': [stats.range_text(runs['rounds_done'], '..') or '-'
                 for runs in rows]}
  values = {header: (name, [runs[key].tolist() for runs in rows])
            for header, key in (('last', 'last'), ('best', 'best'),
                                ('mean of last 10', 'mean_of_last_10'))}
  values |= {stats.words(other): (other, [
      [run.last(other) for run in arm.runs.values() if run.values(other)]
      for arm in arms]) for other in _ALSO if other != name}
  columns |= {header: [stats.metric_text(of, x, '-') for x in by_arm]
              for header, (of, by_arm) in values.items()}
  notes = [
      *stats.note_of_last(
          run.values(name) for arm in arms for run in arm.runs.values()),
      *stats.note_of_missing(
          x for _, by_arm in values.values() for of_arm in by_arm
          for x in of_arm)]
  if others := [arm.label for arm in arms if len({
      _last_rounds(run, name) for run in arm.runs.values()}) > 1]:
    notes.append('mean of last 10: not the same rounds in all runs of '
                 + '; '.join(others))
  if not all(arm.is_finished for arm in arms):
    notes.append('* no run has finished: results so far')
  personal = sorted({arm.title for arm in arms for run in arm.members
                     if run.is_personal})
  if personal and name == 'test_accuracy':
    notes.append(
        f'{", ".join(personal)}: clients or clusters have models of their own, '
        'and the test accuracy is not theirs. --client_test_fraction and '
        '--client_eval_every record theirs')
  return Table(stats.title(name), columns, tuple(notes))


def metric_over_clients(compared: Compared) -> str | None:
  """Returns the metric whose distribution over clients is shown, if any.

  It is the one that is compared, or else the first one that all runs that count
  have.
  """
  runs = [run for arm in compared.arms for run in arm.runs.values()]
  common = [name for name in (runs[0].means_over_clients() if runs else ())
            if all(name in run.means_over_clients() for run in runs)]
  return compared.metric if compared.metric in common else next(
      iter(common), None)


def over_clients(compared: Compared) -> Table | None:
  """Returns the spread over clients, and the worst ones, of each arm."""
  name = metric_over_clients(compared)
  return clients.over_clients(
      f'over clients: {stats.label(name)} after the last evaluation',
      [(label(arm), name, arm.runs.values()) for arm in compared.arms]
      ) if name else None


def times(compared: Compared) -> Table:
  """Returns rounds to a target, times and bytes; medians over runs."""
  columns: dict[str, list[str]] = {
      '': [], 'to target': [], 'simulated': [], 's/round': [], 'time': [],
      'MB/round': [], 'between servers': []}
  for arm, target in zip(compared.arms, compared.targets):
    runs = [*arm.runs.values()]
    reached = [_reached(run, target, compared.metric)
               for run in runs] if target else []
    simulated = [_simulated(run, reach) for run, reach in zip(runs, reached)]
    median = lambda name: statistics.median(run.times()[name] for run in runs)
    size = lambda name, arm=arm: f'{statistics.median(sizes) / 1e6:.3g}' if (
        sizes := arm.summaries(name)) else '-'
    for header, text in {
        '': label(arm), 'to target': stats.rounds_text(reached, '-'),
        'simulated': stats.rounds_text(
            simulated if any(run.values('simulated_seconds') for run in runs)
            else [], '-', duration),
        's/round': f'{median("seconds_per_round"):.2f}' if runs else '-',
        'time': duration(median('seconds_of_rounds')) if runs else '-',
        'MB/round': size('bytes_per_round'),
        'between servers': size('bytes_between_servers')
    }.items():
      columns[header].append(text)
  if {*columns['between servers']} == {'-'}:
    del columns['between servers']
  targets = {target for target in compared.targets if target}
  goal = '' if not targets else (
      f'rounds to {metric(compared.metric, *targets)} '
      f'{stats.words(compared.metric)}; ' if len(targets) == 1 else
      f'rounds to the last {stats.words(compared.metric)} of the baseline; ')
  return Table(f'{goal}times of a round and of all rounds (medians)', columns, (
      'to target: how many runs reach it is in parentheses; runs that do not '
      'are later than these',) * any(
          ' of ' in cell for cell in columns['to target']))


def differences(compared: Compared) -> Table | None:
  """Returns paired differences from the baselines; None without any."""
  name = compared.metric
  unit = ' in points' * ('accuracy' in name)
  pairs = [(arm, base, *(_compare(arm, base, num_rounds, name)
                         for num_rounds in (1, stats.LAST)))
           for arm, base in zip(compared.arms, compared.baselines)
           if base and not _other_examples(arm, base, name)]
  if not pairs:
    return None
  adjusted = paired.holm([last.p_value for _, _, last, _ in pairs])

  bases = {id(base): base for _, base, _, _ in pairs}
  columns = {
      '': [label(arm) for arm, *_ in pairs],
      'from': [label(base) * (len(bases) > 1) for _, base, _, _ in pairs],
      'pairs': [str(len(last.differences)) for _, _, last, _ in pairs],
      'last': [_difference_text(arm, base, last, name)
               for arm, base, last, _ in pairs],
      'mean of last 10': [
          _difference_text(arm, base, mean, name)
          if not mean.differences or len({
              _last_rounds(run, name) for one in (arm, base)
              for run in one.runs.values()}) == 1
          else 'not the same rounds' for arm, base, _, mean in pairs],
      "p, Holm": [stats.p_text(p) for p in adjusted]}
  whom = 'the baseline' if len(bases) > 1 else label(pairs[0][1])
  return Table(f'difference from {whom}{unit}, over common seeds (95% '
               'interval)', columns)


def _compare(arm, base, num_rounds, metric):
  """Returns `arms.compare`, tested only if the runs have their last rounds."""
  pairs = arms_lib.compare(arm, base, num_rounds, metric)
  return pairs if _are_finished(arm, base) else paired.untested(pairs)


def _are_finished(arm, base):
  return arm.is_finished and base.is_finished


def _difference_text(arm, base, pairs, metric):
  """Formats a difference and its interval, or why there is none."""
  if not pairs.differences:
    return (stats.NOT_FINITE if arm.runs.keys() & base.runs.keys() else
            'no common seed')
  digits = stats.digits_of_difference(metric, pairs.mean, pairs.std)
  interval = (
      'not finished' if not _are_finished(arm, base) else
      paired.interval_text(pairs, digits) or paired.verdict(pairs, 0.))
  return f'{fixed(pairs.mean, digits, "+")} ({interval})'


def _last_rounds(run, metric):
  """Returns the rounds of the last ten values, counted from the last one."""
  rounds = [round_ for round_, _ in run.series(metric)[-stats.LAST:]]
  return tuple(rounds[-1] - round_ for round_ in rounds)


def notes(compared: Compared) -> list[str]:
  """Returns lines about rows that are not compared, if there are some.

  A line follows for each run that has not finished or does not count.
  """
  lines = [*_uncompared(compared), *compared.trials]
  for arm in compared.arms:
    for i, run in enumerate(arm.members):
      counts, kind = i < len(arm.runs), run.state.kind
      if kind != 'finished' or not counts:
        reason = (f'{kind}, with the seed {run.config.seed} of another run'
                  if kind == 'finished' else
                  f'{kind} {" ".join(run.state.text.split())}')
        lines.append(f'{arm.label}{", not counted" * (not counts)}: '
                     f'{run.path.name}: {reason}')
  return lines


def _uncompared(compared):
  """Returns a line for each reason why rows are not compared."""
  alone = _without_baseline(compared.arms, compared.baselines)
  fedavg = [arm for arm in compared.arms if _is_fedavg(arm)]
  free, other = [], []  # whether a row is evaluated on examples of a baseline
  for arm, base in zip(compared.arms, compared.baselines):
    differ = [_other_examples(arm, one, compared.metric) for one in (
        [base] if base else fedavg if arm in alone else [])]
    if differ and all(differ):
      named = ', '.join(values.named(name, arm.settings[name])
                        for name in differ[0])
      other.append(f'{arm.label} ({named})')
    elif arm in alone:
      free.append(arm.label)
  reasons = {
      'no FedAvg has the same other settings (--baseline=SETTING chooses a '
      'row)': free,
      'the baseline was evaluated on other examples (give the runs the same '
      'settings)': other}
  return [f'not compared, since {reason}: {"; ".join(rows)}'
          for reason, rows in reasons.items() if rows]


def frame(compared: Compared) -> pd.DataFrame:
  """Returns one row per run: settings that differ, results and times."""
  made = read.runs_frame(compared.runs, compared.metric)
  rows = {}
  for arm, target in zip(compared.arms, compared.targets):
    for run in arm.members:
      reached = _reached(run, target, compared.metric)
      others = {name: run.last(name) for name in dict.fromkeys([*_ALSO, *(
          metric + ending for metric in run.means_over_clients()
          for ending in clients.OVER_CLIENTS.values())])
                if run.values(name) and name != compared.metric}
      rows[str(run.path)] = arm.settings | {
          'arm': arm.label, 'metric': compared.metric} | {
              name: made.loc[str(run.path), name] for name in (
                  *SEEDS, 'state', 'rounds_done', 'last', 'best',
                  'best_round', 'mean_of_last_10')} | others | {
              'target': target, 'rounds_to_target': reached,
              'simulated_seconds_to_target': _simulated(run, reached)} | {
              name: made.loc[str(run.path), name] for name in (
                  'seconds_per_round', 'seconds_of_rounds')} | {
              name: run.summary.get(name)
              for name in ('bytes_per_round', 'bytes_between_servers')}
  return pd.DataFrame([rows[name] for name in made.index], made.index).astype(
      {'rounds_to_target': 'Int64'}).dropna(axis='columns', how='all')


def _reached(run, target, metric) -> int | None:
  return run.rounds_to(target, measure=metric) if target else None


def _simulated(run, reached) -> float:
  """Returns the simulated time of a round; NaN without one."""
  return dict(run.series('simulated_seconds')).get(reached, math.nan)


def curves(compared: Compared, x: str = 'round'
           ) -> list[tuple[Arm, pd.DataFrame]]:
  """Returns the metric of each arm by round, or over another number `x`."""
  return [(arm, _over(arm, x, compared.metric))
          for arm in compared.arms if arm.runs]


def _over(arm, name, metric):
  """Returns curves over the mean of another number in the same rounds."""
  made = arm.curves(metric)
  if name == 'round':
    return made
  if name == 'bytes':
    places = made.index * (
        statistics.fmean(arm.summaries('bytes_per_round') or [math.nan])
        + statistics.fmean(arm.summaries('bytes_between_servers') or [0]))
  else:
    places = arm.curves(name).mean(axis=1).reindex(made.index)
  if np.isnan(places).any():
    raise UserError(
        'x', f'must be known of all runs; {arm.label} lacks it', name,
        'Runs with --clock have simulated_seconds, and finished runs bytes. '
        'Remove --x')
  return made.set_axis(places)
