"""The command `moon-jax show`: one run, several runs, or published tables.

docs/looking_at_runs.md describes it. Published tables are those of
`moon_jax.results.published`.
"""

import argparse
from collections.abc import Callable, Sequence
import functools
import pathlib
import re
import shlex
import shutil
import sys
import time
from typing import Any, NamedTuple

from moon_jax.cli import file_command
from moon_jax.data.io import files
from moon_jax.errors import UserError
from moon_jax.results import (
  clients,
  describe,
  page,
  read,
  rounds_frame,
  runs_frame,
  stats,
)
from moon_jax.results.page import Figure, Page
from moon_jax.results.read import Run

_SECONDS = 2.  # between two looks of --follow
_TABLES = pathlib.Path('experiments', 'tables')
_FORMATS = 'png', 'pdf', 'svg'
_MAX_INCHES = 50


def main() -> None:
  """Runs the command."""
  if any(_is_table(word) for word in sys.argv[1:] if not word.startswith('-')):
    from moon_jax.results import published

    return published.main()
  parser = argparse.ArgumentParser(
      prog='moon-jax show', description='Describes a run, finished or '
      'running; compares several; or shows published tables with results '
      'beside them.', epilog='Published tables: moon-jax show TABLE.toml '
      '--help', allow_abbrev=False)
  add = parser.add_argument
  add('runs', nargs='+', metavar='RUN', help='directory of a run, directory '
      'above several, pattern, or file of a published table')
  add('--metric', default='', help='metric of rounds that is compared, such as '
      'local_heldout_accuracy; by default the test accuracy, or for methods '
      "with models of clients the accuracy of these on held-out data; the loss "
      'if the task has no accuracy')
  add('--baseline', default='', metavar='SETTING', help='the runs that others '
      'are compared with, such as fedavg or mu=1; by default fedavg with the '
      'same other settings, or the first ones')
  add('--target', type=float, metavar='VALUE', help='value to reach in '
      'the column "rounds to": an accuracy such as 0.8 (80%%), or a loss; by '
      'default the last value of the baseline')
  add('--clients', action='store_true', help='shows the results of each client '
      'of a run, the lowest first')
  add('--follow', action='store_true', help='shows a run again after each '
      'round until it ends')
  add('--out', default='', metavar='DIR', help='writes a page, tables as CSV '
      'and figures')
  add('--format', default='png', metavar='png,pdf,svg', help='formats of the '
      'figures of --out, comma-separated')
  add('--size', default='', metavar='WIDTHxHEIGHT', help='inches of the '
      'figures of --out, such as 3.3x2.4 for a column of a paper')
  add('--label', action='append', default=[], metavar='ROW=TEXT', help='label '
      "of a row, such as 'moon(mu=1)=Ours'; repeat it for several")
  add('--x', default='round', help='what curves are drawn over: round, '
      'simulated_seconds, or bytes exchanged',
      choices=('round', 'simulated_seconds', 'bytes'))
  file_command.start(parser, _show)


def _is_table(word):
  try:
    path = files.user_path(word)
  except UserError:
    return False  # reported later
  return path.suffix == '.toml' or (any(path.glob('*.toml')) if path.exists()
                                    else (_TABLES / f'{word}.toml').exists())


class _View(NamedTuple):
  """What --out writes of runs."""

  runs: Sequence[Run]
  title: str
  sections: Sequence[str | Figure]
  name: str  # of the file of the figure
  # To a file, of a size in inches.
  draw: Callable[[pathlib.Path, tuple[float, float] | None], pathlib.Path]
  frame: Callable[[], Any]  # a row per run


def _show(arguments: argparse.Namespace) -> None:
  formats = arguments.format.split(',')
  if wrong := {*formats} - {*_FORMATS}:
    raise UserError('format', f'must be a list of {", ".join(_FORMATS)}',
                    ', '.join(sorted(wrong)))
  size = _size(arguments.size)
  if size and not arguments.out:
    raise UserError('size', 'needs --out=DIR, where the figures are written')
  out = page.directory(arguments.out) if arguments.out else None
  paths = read.find(arguments.runs)
  if len(paths) > 1 and (arguments.clients or arguments.follow):
    raise UserError('clients' if arguments.clients else 'follow',
                    'needs one run', f'{len(paths)} runs', 'Name one')
  if len(paths) == 1 and arguments.label:
    raise UserError('label', 'needs several runs', 'one run',
                    'Remove it, or name further runs')
  is_compared = len(paths) > 1 or not arguments.clients and (
      arguments.metric or arguments.target is not None)
  view = (_several(paths, arguments) if is_compared
          else _one(paths[0], arguments))
  if out:
    _write(out, view(), formats, size)


def _size(text):
  """Returns width and height in inches; None for the default of a figure."""
  if not text:
    return None
  match = re.fullmatch(r'(\d*\.?\d+)x(\d*\.?\d+)', text)
  size = tuple(map(float, match.groups())) if match else ()
  if not size or min(size) < 1 or max(size) > _MAX_INCHES:
    raise UserError('size', 'must be WIDTHxHEIGHT in inches, each from 1 to '
                    f'{_MAX_INCHES}, such as 3.3x2.4', text)
  return size


def _is_unicode():
  return 'utf' in (sys.stdout.encoding or '').lower()


def _print(text):
  print(text if _is_unicode() else text.replace('±', '+-').replace('–', '-'),
        flush=True)


def _one(path, arguments):
  """Prints a run, and returns a function that returns its view."""
  width, shown = shutil.get_terminal_size().columns, None
  while True:
    run = read.read(path)
    now = len(run.lines), run.state.kind
    if now != shown:
      shown = now
      if arguments.follow and sys.stdout.isatty():
        print('\x1b[H\x1b[2J\x1b[3J', end='')
      _print('\n'.join(clients.table(run, arguments.metric).text(width))
             if arguments.clients else describe.text(run, width, _is_unicode()))
    if not arguments.follow or run.state.kind != 'running':
      break
    time.sleep(_SECONDS)

  def view():
    from moon_jax.results import arms, figures, table_page

    return _View(
        [run], run.path.absolute().name, [
            *describe.sections(run), *table_page.curves(
                arms.of_runs([run]), _drawn([run], read.metric_of([run])))],
        'run',
        functools.partial(figures.draw, run), lambda: runs_frame([run]))

  return view


def _several(paths, arguments):
  """Prints a comparison, and returns a function that returns its view."""
  from moon_jax.results import compare  # imports pandas

  runs = _evaluated(paths, arguments.metric)
  metric = arguments.metric or read.metric_of(runs)
  compared = compare.of(
      _with_metric(runs, metric), metric, baseline=arguments.baseline,
      target=arguments.target, labels=arguments.label,
      is_sorted=not all(map(read.is_run, arguments.runs)))
  _print(compare.text(compared, shutil.get_terminal_size().columns))

  def view():
    from moon_jax.results import figures, table_page

    curves = compare.curves(compared, arguments.x)
    counts = {len(arm.runs) for arm, _ in curves}
    n = lambda arm: f' (n={len(arm.runs)})' * (len(counts) > 1)
    xlabel = arguments.x.replace('_', ' ') + (
        f' (means and ranges of {max(counts)} runs)'
        if counts != {1} and len(counts) == 1 else '')
    return _View(
        compared.runs, f'Runs of {" ".join(arguments.runs)}', [
            *compare.sections(compared),
            *table_page.curves(compared.arms, _drawn(runs, metric)),
            *table_page.commands(compared.arms, shlex.join([
                'moon-jax', 'show', *arguments.runs]), is_table=False)],
        metric.replace('_', '-'),
        lambda file, size: figures.save_curves([
            figures.Line(arm.label + n(arm), arm.config.algorithm.name, made)
            for arm, made in curves], stats.label(metric), file, xlabel, size),
        lambda: compare.frame(compared))

  return view


def _drawn(runs, metric):
  """Returns the metrics with a figure on a page."""
  names = dict.fromkeys([metric, 'test_accuracy', 'test_loss', 'train_loss'])
  return [name for name in names if any(run.values(name) for run in runs)]


def _write(out, view, formats, size):
  """Writes a page, tables and figures."""
  out.mkdir(parents=True, exist_ok=True)
  # First, as a size may be too small.
  drawn = [view.draw(out / f'{view.name}.{form}', size) for form in formats]
  written = [Page(view.title, '', view.sections).write(out, 'index')]
  tables = {'runs.csv': view.frame(), 'rounds.csv': rounds_frame(view.runs),
            'clients.csv': clients.frames(view.runs)}
  for name, made in tables.items():
    if len(made):
      made.to_csv(out / name, lineterminator='\r\n', errors='backslashreplace')
      written.append(out / name)
  print('\n'.join(map(str, written + drawn)), file=sys.stderr)


def _evaluated(paths, metric) -> list[Run]:
  """Returns runs with an evaluation, and reports the others."""
  runs = []
  for path in paths:
    try:
      run = read.read(path)
      if not run.measure() and not (metric and run.values(metric)):
        raise UserError('', f'{path} must have an evaluation',
                        f'none yet ({run.state.kind})')
      runs.append(run)
    except UserError as error:
      print(f'left out: {error}', file=sys.stderr)
  if not runs:
    raise UserError('', 'there must be a run with an evaluation', 'none',
                    'Wait for a first one, or name other directories')
  return runs


def _with_metric(runs: Sequence[Run], metric: str) -> list[Run]:
  """Returns the runs that have a metric, and reports the others."""
  chosen = [run for run in runs if run.values(metric)]
  if not chosen:
    names = sorted({name for run in runs for line in run.lines for name in line
                    if run.values(name)})
    raise UserError('metric', 'must be recorded by the runs, which have '
                    f'{", ".join(names)}', metric)
  for run in runs:
    if run not in chosen:
      print(f'left out: {run.path} has no {metric}, by which the other runs '
            'are compared', file=sys.stderr)
  return chosen
