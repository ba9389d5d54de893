"""The results of a sweep as a table: of Markdown, or aligned in a terminal."""

from collections.abc import Sequence
import dataclasses
import os
import pathlib
import shutil
from typing import Any
import uuid

from moon_jax.cli.grids import Named
from moon_jax.config import PARTS
from moon_jax.errors import DivergedError, UserError
from moon_jax.results import stats
from moon_jax.results.tables import Table
from moon_jax.runs import directory as directory_lib
from moon_jax.runs import values
from moon_jax.runs.grid import Sweep
from moon_jax.runs.values import columns, NO_VALUE, SEEDS, shown

# For each configuration of a sweep the content of its summary.json; None if it
# is not finished; {'diverged': MESSAGE, 'rounds': ROUNDS} if it diverged.
Summaries = Sequence[dict[str, Any] | None]


def finish(named: Named, summaries: Summaries, directory: str) -> None:
  """Prints the table of a sweep and writes it to DIRECTORY/sweeps/NAME.md.

  Raises a DivergedError at the end, if a run diverged.
  """
  text = markdown(named.sweep, summaries)
  title = ' '.join(named.title.split())
  parts = filter(None, [
      f'# {title}' if title else '', named.description.strip(), text,
      directories(named.sweep, summaries)])
  path = pathlib.Path(directory) / 'sweeps' / f'{named.name}.md'
  # Several processes that share a sweep may write the file at the same time.
  scratch = path.with_name(f'{path.name}.{uuid.uuid4().hex}')
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = '\n\n'.join(parts) + '\n'
    directory_lib.write_atomically(scratch, text.encode())
    os.replace(scratch, path)
  except OSError as error:
    raise UserError(f'workdir={directory}', 'must be writable',
                    f'{error.strerror or error} for {path}', 'The same command '
                    'writes it again and repeats no run') from error
  print('\n'.join([
      *table(named.sweep, summaries).text(shutil.get_terminal_size().columns),
      *diverged(named.sweep, summaries)]))
  print(f'table: {path}')
  count = sum('diverged' in (summary or {}) for summary in summaries)
  if count:
    raise DivergedError(f'{count} of {len(summaries)} runs diverged; the '
                        'table names them')


def table(sweep: Sweep, summaries: Summaries) -> Table:
  """Returns a row of cells per combination of settings.

  Runs that differ only in their seeds share a row. Columns are the settings in
  which runs differ, a dash where a setting has no effect; n, the number of
  finished runs; their rounds; and the test accuracy after the last round and
  the best one, in percent, or the test loss of tasks without accuracy: mean ±
  sample standard deviation over n runs.
  """
  names = columns(sweep.configs, sweep.axes)
  grouped: dict[tuple[str, ...], list] = {}
  for config, summary in zip(sweep.configs, summaries, strict=True):
    grouped.setdefault(_settings(config, sweep.configs, names), []).append(
        summary)
  done = [run for run in summaries if run and 'diverged' not in run]
  is_loss = any('best_test_loss' in run for run in done)
  measure, unit = ('loss', '') if is_loss else ('accuracy', ' (%)')
  header = [*names, 'n', 'rounds_done', f'test {measure}{unit}',
            f'best test {measure}{unit}']
  rows = [[*settings, *_cells(runs, measure)]
          for settings, runs in grouped.items()]
  return Table('', {name: [row[i] for row in rows]
                    for i, name in enumerate(header)},
               num_names=max(1, len(names)))


def _settings(config, configs, names):
  """Returns settings as text; calls with all arguments in which they differ."""
  def call(kind):
    given = getattr(config, kind)
    ours = values.arguments(config, kind)
    others = [values.arguments(other, kind) for other in configs
              if getattr(other, kind).name == given.name]
    keys = {*dict(given.arguments), *(key for key, value in ours.items() if any(
        other.get(key) != value for other in others))}
    return str(dataclasses.replace(given, arguments=tuple(
        (key, ours[key]) for key in ours
        if key in keys and f'{kind}.{key}' not in names)))

  return tuple(call(name) if name in PARTS else text
               for name, text in zip(names, shown(config, names)))


def markdown(sweep: Sweep, summaries: Summaries) -> str:
  """Returns `table` as Markdown, and below them the runs that diverged."""
  return '\n'.join([table(sweep, summaries).markdown(),
                    *diverged(sweep, summaries)])


def directories(sweep: Sweep, summaries: Summaries) -> str:
  """Returns a Markdown list of the runs and their work directories."""
  return '\n'.join(
      f'- {" ".join(settings)}: `{run["workdir"]}`'
      for run, settings in _named(sweep, summaries) if 'workdir' in run)


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
  names = [*columns(sweep.configs, sweep.axes),
           *(name for name in SEEDS if name in sweep.axes)]
  for config, run in zip(sweep.configs, summaries):
    if run:
      yield run, [values.named(name, value) for name, value in zip(
          names, shown(config, names)) if value != NO_VALUE]
