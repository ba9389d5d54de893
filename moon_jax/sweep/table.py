"""The results of a sweep as a table: of Markdown, or aligned in a terminal."""

from collections.abc import Collection, Sequence
import dataclasses
from typing import Any

from moon_jax.config import Config, FACTS, PARTS
from moon_jax.results import page, stats
from moon_jax.rundir.identity import IDENTITY
from moon_jax.sweep import values
from moon_jax.sweep.grid import Sweep

# Runs that differ only in these settings are replicates, which share a row.
SEEDS = ('seed', 'partition_seed')
# Settings that are never columns unless they are axes.
_HIDDEN = {*SEEDS, *FACTS} - {*IDENTITY, 'init_from'} | {*SEEDS}

NO_VALUE = '–'  # of an argument that a function does not have

# For each configuration of a sweep the content of its summary.json; None if it
# is not finished; {'diverged': MESSAGE, 'rounds': ROUNDS} if it diverged.
Summaries = Sequence[dict[str, Any] | None]


def rows(sweep: Sweep, summaries: Summaries) -> list[list[str]]:
  """Returns the header, and a row of cells per combination of settings.

  Runs that differ only in their seeds share a row. Columns are the settings in
  which runs differ, a dash where a setting has no effect; n, the number of
  finished runs; their rounds; and the test accuracy after the last round and
  the best one, in percent, or the test loss of tasks without accuracy: mean ±
  sample standard deviation over n runs.
  """
  names = columns(sweep)
  found: dict[tuple[str, ...], list] = {}
  for config, summary in zip(sweep.configs, summaries, strict=True):
    found.setdefault(shown(config, names), []).append(summary)
  done = [run for run in summaries if run and 'diverged' not in run]
  is_loss = any('best_test_loss' in run for run in done)
  measure, unit = ('loss', '') if is_loss else ('accuracy', ' (%)')
  return [[*names, 'n', 'rounds', f'test {measure}{unit}',
           f'best test {measure}{unit}'],
          *([*settings, *_cells(runs, measure)]
            for settings, runs in found.items())]


def markdown(sweep: Sweep, summaries: Summaries) -> str:
  """Returns `rows` as Markdown, and below them the runs that diverged."""
  header, *others = rows(sweep, summaries)
  return '\n'.join([page.table('', [dict(zip(header, row)) for row in others]),
                    *diverged(sweep, summaries)])


def directories(sweep: Sweep, summaries: Summaries) -> str:
  """Returns a Markdown list of the runs and their work directories."""
  return '\n'.join(
      f'- {" ".join(settings)}: `{run["workdir"]}`'
      for run, settings in _named(sweep, summaries) if 'workdir' in run)


def columns(sweep: Sweep) -> list[str]:
  """Returns the settings in which rows of the table differ.

  The axes of the sweep come last, in their order. Other settings differ between
  the grids of a union.
  """
  axes = [name for name in sweep.axes if name not in SEEDS]
  others = settings_of(sweep.configs, {*_HIDDEN, *axes})
  rows = [shown(config, others) for config in sweep.configs]
  return [*differing(others, rows), *axes]


def settings_of(configs: Sequence[Config], hidden: Collection[str] = ()
                ) -> list[str]:
  """Returns the names of settings by which configurations can be told apart.

  If all have the same function of a kind, these are the arguments that one of
  them gives, as in algorithm.mu; otherwise the kind.
  """
  names = []
  for name in values.TYPES:
    if name in hidden:
      continue
    calls = [getattr(config, name) for config in configs
             ] if name in PARTS else []
    if len({call.name for call in calls}) == 1:
      given = dict.fromkeys(
          f'{name}.{key}' for call in calls for key, _ in call.arguments)
      names += [key for key in given if key not in hidden]
    else:
      names.append(name)
  return names


def differing(names: Sequence[str], rows: Sequence[Sequence[str]]
              ) -> list[str]:
  """Returns the settings in which rows differ, whose values are text.

  An argument that a function does not have differs from no other value.
  """
  return [name for name, column in zip(names, zip(*rows))
          if len({*column} - {NO_VALUE}) > 1]


def shown(config: Config, names: Sequence[str]) -> tuple[str, ...]:
  """Returns the values of settings as text, a dash for absent arguments.

  Calls are shown without arguments that are among the names themselves.
  """
  return tuple(_shown(config, name, names) for name in names)


def _shown(config, name, names):
  value = values.get(config, name)
  if name in PARTS:
    value = dataclasses.replace(value, arguments=tuple(
        (key, x) for key, x in value.arguments if f'{name}.{key}' not in names))
  kind, _, argument = name.partition('.')
  if argument and argument not in values.arguments(config, kind):
    return NO_VALUE
  return values.show(value)


def _cells(runs, measure):
  done = [run for run in runs if run and 'diverged' not in run]
  diverged = sum(map(bool, runs)) - len(done)
  return [stats.count_text(len(done), len(runs), diverged),
          stats.range_text(run['rounds'] for run in done),
          *(stats.metric_text(name, [run[name] for run in done if name in run])
            for name in (f'test_{measure}', f'best_test_{measure}'))]


def diverged(sweep: Sweep, summaries: Summaries) -> list[str]:
  """Returns the lines that name the runs that diverged."""
  lines = [
      f'- diverged after {run["rounds"]} rounds{", " * bool(settings)}'
      f'{" ".join(settings)}: {" ".join(run["diverged"].split())}'
      for run, settings in _named(sweep, summaries) if 'diverged' in run]
  return ['', *lines] if lines else []


def _named(sweep, summaries):
  """Yields the summary of each run that has ended, and its settings as text."""
  names = [*columns(sweep), *(n for n in SEEDS if n in sweep.axes)]
  for config, run in zip(sweep.configs, summaries):
    if run:
      yield run, [values.named(name, value) for name, value in zip(
          names, shown(config, names)) if value != NO_VALUE]
