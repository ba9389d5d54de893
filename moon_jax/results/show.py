"""The command `moon-jax show`: one run, several runs, or published tables.

docs/looking_at_runs.md describes it.
"""

import argparse
from collections.abc import Callable, Sequence
import pathlib
import re
import shlex
import shutil
import sys
import tempfile
import time
from typing import Any, NamedTuple, TYPE_CHECKING

from moon_jax.cli import command_line, file_command
from moon_jax.config import Config
from moon_jax.errors import setting, UserError
from moon_jax.results import (
  clients,
  describe,
  pack,
  page,
  read,
  stats,
  trials,
)
from moon_jax.results.page import Figure, Page
from moon_jax.results.read import Run
from moon_jax.view.status import is_number

if TYPE_CHECKING:
  from moon_jax.results.figures import Picture

_ASCII = str.maketrans({'±': '+-', '–': '-', '…': '...'})
_SECONDS = 2.  # between two looks of --follow
_FORMATS = 'png', 'pdf', 'svg'
_MAX_INCHES = 50


# Flags of runs, and of published tables.
_OF_RUNS = ('metric', 'baseline', 'target', 'clients', 'follow', 'format',
            'size', 'label', 'x', 'pack')
_OF_TABLES = 'budget', 'train', 'dry_run', 'settings'


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
      prog='moon-jax show', description='Describes a run, finished or '
      'running; compares several; or shows published tables with results '
      'beside them.', allow_abbrev=False)
  parser.add_argument(
      'runs', nargs='+', metavar='RUN', help='directory of a run, directory '
      'above several, pattern, file of --pack, or published table: a TOML '
      'file, a directory of such files, or the name of one in '
      'experiments/tables')
  parser.add_argument('--out', default='', metavar='DIR', help='writes a page, '
                      'tables as CSV and figures')
  parser.add_argument('--pack', default='', metavar='FILE.zip', help='writes '
                      'the same and the settings and metrics of the runs as '
                      'one file, which show reads as a RUN')
  add = parser.add_argument_group('runs').add_argument
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
  add('--format', default='', metavar='png,pdf,svg', help='formats of the '
      'figures of --out, comma-separated; by default png')
  add('--size', default='', metavar='WIDTHxHEIGHT', help='inches of the '
      'figures of --out, such as 3.3x2.4 for a column of a paper')
  add('--label', action='append', default=[], metavar='ROW=TEXT', help='label '
      "of a row, such as 'moon(mu=1)=Ours'; repeat it for several")
  add('--x', default='', help='what curves are drawn over: round (default), '
      'simulated_seconds, or bytes exchanged',
      choices=('round', 'simulated_seconds', 'bytes'))
  add = parser.add_argument_group(
      'published tables', 'Flags of moon-jax train, such as --data_dir=DIR or '
      '--num_rounds=10, replace settings of the tables. Example, in a clone of '
      'the repository: moon-jax show experiments/tables --budget=smoke '
      '--train --out=pages').add_argument
  add('--budget', default='', choices=read.BUDGETS, help='size of the runs: '
      'full (default) is the published one; small takes a night on a CPU; '
      'smoke takes minutes and shows only that the table can be made')
  add('--train', action='store_true', help='trains runs that are missing '
      'first')
  add('--dry_run', action='store_true', help='prints the plan of the missing '
      'runs and trains nothing')
  file_command.start(parser, _show, has_settings=True)


class _View(NamedTuple):
  """What --out writes of runs."""

  runs: Sequence[Run]
  title: str
  sections: Sequence[str | Figure]
  pictures: Sequence['Picture']  # with files
  frame: Callable[[], Any]  # a row per run


def _show(arguments: argparse.Namespace) -> None:
  is_table = any(map(read.tables, arguments.runs))
  _check_kind(arguments, is_table)
  if is_table:
    return _show_tables(arguments)
  formats, size = _formats(arguments.format), _size(arguments.size)
  _check_out(arguments)
  out = page.directory(arguments.out) if arguments.out else None
  packed = pack.target(arguments.pack) if arguments.pack else None
  paths, tunings = trials.find(arguments.runs)
  is_compared = len(paths) > 1 or not arguments.clients and bool(
      tunings or arguments.metric or arguments.target is not None)
  if paths:
    _check_view(arguments, len(paths), is_compared)
  for made in tunings:
    _print('\n'.join([*made.report, f'its trials are in {made.path}, not below',
                      '']))
  view = (_several(paths, arguments, tunings) if paths and is_compared else
          _one(paths[0], arguments) if paths else _only(tunings, arguments))
  if not (out or packed):
    return
  made, written = view(), []
  if out:
    written = _write(out, made, formats, size)
  if packed:
    with tempfile.TemporaryDirectory() as pages:
      _write(pathlib.Path(pages), made, formats, size)
      pack.write(packed, [run.path for run in made.runs],
                 pathlib.Path(pages))
    written.append(packed)
  print('\n'.join(map(str, written)), file=sys.stderr)


def _check_kind(arguments, is_table):
  """Refuses flags of runs for tables, and of tables for runs."""
  for name in _OF_RUNS if is_table else _OF_TABLES:
    if value := getattr(arguments, name):
      if name == 'settings':
        command_line.settings_of(value)  # it may be a typing error
        name = value[0].lstrip('-').partition('=')[0]
      raise UserError(name, 'is for runs' if is_table else
                      'is for published tables', 'a table' if is_table else
                      'runs', 'Remove it')


def _check_out(arguments):
  """Refuses flags of figures that are written nowhere."""
  for name in 'format', 'size', 'x':
    if (value := getattr(arguments, name)) and not (
        arguments.out or arguments.pack):
      raise UserError(name, 'needs --out=DIR, where the figures are written',
                      value, 'Add it, or remove this flag')


def _check_view(arguments, num_runs, is_compared):
  """Refuses flags that have no effect on what is shown of these runs."""
  if num_runs > 1 and (arguments.clients or arguments.follow):
    raise UserError('clients' if arguments.clients else 'follow',
                    'needs one run', f'{num_runs} runs', 'Name one')
  for name in ('metric', 'target') if arguments.follow and is_compared else ():
    if _is_given(arguments, name):
      raise UserError('follow', 'shows the description of a run, and not the '
                      'tables of --metric and --target',
                      setting(name, getattr(arguments, name)),
                      'Remove one of the two')
  if arguments.follow and is_compared:
    raise UserError('follow', 'needs one run', 'a tuning',
                    'Name the work directory of the run')
  for name in ('baseline', 'label') if num_runs == 1 else ():
    if _is_given(arguments, name):
      raise UserError(name, 'needs several runs', 'one run',
                      'Remove it, or name further runs')
  for name in ('target', 'x') if not is_compared else ():
    if _is_given(arguments, name):
      raise UserError(
          name, 'needs runs that are compared', *(
              ('--clients', 'Remove one of the two' if (
                  name == 'target' or arguments.metric) else 'Remove it')
              if arguments.clients else
              ('one run', 'Remove it, or name further runs')))


def _is_given(arguments, name):
  value = getattr(arguments, name)
  return value is not False and value not in (None, '', [])


def _formats(text):
  """Returns the formats of figures, PNG by default."""
  formats = (text or _FORMATS[0]).split(',')
  if wrong := {*formats} - {*_FORMATS}:
    raise UserError('format', f'must be a list of {", ".join(_FORMATS)}',
                    ', '.join(sorted(wrong)))
  return formats


def _show_tables(arguments):
  config = Config(**command_line.settings_of(arguments.settings))
  named = command_line.named_in(arguments.settings)
  with command_line.training('moon-jax show'):
    from moon_jax.results import published  # imports JAX

    published.run(
        config, arguments.runs, named, budget=arguments.budget or 'full',
        train=arguments.train, out=arguments.out, dry_run=arguments.dry_run)


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
  print(text if _is_unicode() else text.translate(_ASCII), flush=True)


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
    from moon_jax.results import arms, figures, pictures, table_page

    more = pictures.run_pictures(run)
    more += _sorted_clients([(arm, arm.title) for arm in arms.of_runs([run])],
                            next(iter(run.means_over_clients()), ''))
    return _View(
        [run], run.path.absolute().name, [
            *describe.sections(run), *table_page.curves(
                arms.of_runs([run]), _drawn([run], read.metric_of([run]))),
            *table_page.pictures(more)],
        [figures.run_picture(run), *more], lambda: read.runs_frame([run]))

  return view


def _only(tunings, arguments):
  """Returns a function that returns the view of tunings without results."""
  for name in ('pack', 'metric', 'baseline', 'target', 'label', 'x', 'clients',
               'follow'):
    if _is_given(arguments, name):
      raise UserError(name, 'needs runs besides the trials of a tuning', 'none')
  return lambda: _View([], _title(arguments), trials.sections(tunings), [],
                       lambda: read.rounds_frame([]))


def _title(arguments):
  return f'Runs of {" ".join(arguments.runs)}'


def _several(paths, arguments, tunings):
  """Prints a comparison, and returns a function that returns its view."""
  from moon_jax.results import compare  # imports pandas

  runs = _evaluated(paths, arguments.metric)
  metric = arguments.metric or read.metric_of(runs)
  compared = compare.of(
      _with_metric(runs, metric), metric, baseline=arguments.baseline,
      target=arguments.target, labels=arguments.label,
      is_sorted=not all(map(read.is_run, arguments.runs)))
  compared = compare.with_trials(compared, tunings)
  _print(compare.text(compared, shutil.get_terminal_size().columns))

  def view():
    from moon_jax.results import figures, table_page

    x = arguments.x or 'round'
    curves = compare.curves(compared, x)
    counts = {len(arm.runs) for arm, _ in curves}
    n = lambda arm: f' (n={len(arm.runs)})' * (len(counts) > 1)
    of_runs = [f'means and ranges of {max(counts)} runs'] * (
        counts != {1} and len(counts) == 1)
    until = ['each curve ends with its shortest run'] * any(
        figures.is_cut(made) for _, made in curves)
    notes = ',\n'.join(of_runs + until)
    xlabel = x.replace('_', ' ') + f' ({notes})' * bool(notes)
    over = _sorted_clients([(arm, arm.label + n(arm)) for arm, _ in curves],
                           compare.metric_over_clients(compared))
    return _View(
        compared.runs, _title(arguments), [
            *trials.sections(tunings), *compare.sections(compared),
            *table_page.curves(compared.arms, _drawn(runs, metric)),
            *table_page.pictures(over),
            *table_page.commands(compared.arms, shlex.join([
                'moon-jax', 'show', *sys.argv[1:]]), is_table=False)],
        [figures.curves_picture(figures.file_name(metric), [
            figures.Line(arm.label + n(arm), arm.config.algorithm.name, made)
            for arm, made in curves], stats.label(metric), xlabel), *over],
        lambda: compare.frame(compared))

  return view


def _sorted_clients(arms, metric):
  """Returns the picture of a metric of clients, if they have it, in a list."""
  from moon_jax.results import figures

  lines = [figures.Line(label, arm.config.algorithm.name, values)
           for arm, label in arms if (values := clients.sorted_values(
               [*arm.runs.values()], metric)) is not None]
  counts = {label: clients.counts([*arm.runs.values()], metric)
            for arm, label in arms}
  missing = '; '.join(f'{label}: {total - known} of {total}'
                      for label, (known, total) in counts.items()
                      if known < total)
  return [figures.curves_picture(
      'sorted-clients', lines, stats.label(metric), 'clients, the lowest first',
      'Each client after its last evaluation, sorted' + (
          '; the mean and the range over runs of each rank' * any(
              len(arm.runs) > 1 for arm, _ in arms)) + '.' + (
                  f' Clients without a value, left out: {missing}.'
                  * bool(missing)))] if lines else []


def _drawn(runs, metric):
  """Returns the metrics with a figure on a page."""
  names = dict.fromkeys([metric, 'test_accuracy', 'test_loss', 'train_loss'])
  return [name for name in names if any(
      map(is_number, [x for run in runs for x in run.values(name)]))]


def _write(out, view, formats, size):
  """Writes a page, tables and figures, and returns their paths."""
  from moon_jax.results import figures

  out.mkdir(parents=True, exist_ok=True)
  # First, as a size may be too small.
  drawn = [figures.save(picture, out, ending, size)
           for picture in view.pictures for ending in formats]
  written = [Page(view.title, '', view.sections).write(out, 'index')]
  tables = {
      'runs.csv': view.frame(), 'rounds.csv': read.rounds_frame(view.runs),
      'clients.csv': clients.frames(view.runs)} if view.runs else {}
  for name, made in tables.items():
    if len(made):
      made.to_csv(out / name, lineterminator='\r\n', errors='backslashreplace')
      written.append(out / name)
  return written + drawn


def _evaluated(paths, metric) -> list[Run]:
  """Returns runs that diverged or have an evaluation; reports the others."""
  runs = []
  for path in paths:
    try:
      run = read.read(path)
      if not _has_values(run, metric) and run.state.kind != 'diverged':
        raise UserError('', f'{path} must have an evaluation',
                        f'none yet ({run.state.kind})')
      runs.append(run)
    except UserError as error:
      print(f'left out: {error}', file=sys.stderr)
  if not any(_has_values(run, metric) for run in runs):
    raise UserError('', 'there must be a run with an evaluation', 'none',
                    'Wait for a first one, or name other directories')
  return runs


def _has_values(run, metric):
  return bool(run.measure() or metric and run.values(metric))


def _with_metric(runs: Sequence[Run], metric: str) -> list[Run]:
  """Returns runs that diverged or have a metric; reports the others."""
  chosen = [run for run in runs
            if run.values(metric) or run.state.kind == 'diverged']
  if not any(run.values(metric) for run in chosen):
    names = sorted({name for run in runs for line in run.lines for name in line
                    if run.values(name)})
    raise UserError('metric', 'must be recorded by the runs, which have '
                    f'{", ".join(names)}', metric)
  for run in runs:
    if run not in chosen:
      print(f'left out: {run.path} has no {metric}, by which the other runs '
            'are compared', file=sys.stderr)
  return chosen
