"""Prints the table of a directory of runs, or rewrites a document's tables.

python -m moon_jax.report.table DIRECTORY    prints the table of the runs there
python -m moon_jax.report.table DOCUMENT.md  rewrites the tables in a document

DIRECTORY holds one work directory per run. Runs that differ only in their seed
share a row. A table in a document is the text between the lines
<!-- table: DIRECTORY --> and <!-- end of table -->, where DIRECTORY is relative
to the document. <!-- accuracies: DIRECTORY --> leaves out the columns of speed,
for runs that shared a machine.
"""

import argparse
import pathlib
import re
import statistics
import sys

from moon_jax.cli import file_command
from moon_jax.errors import UserError
from moon_jax.report import groups
from moon_jax.results import page, stats

LAST = 5  # rounds whose mean is the accuracy of a row


def markdown(directory: pathlib.Path, has_speed: bool = True) -> str:
  """Returns a Markdown table with one row per arm, most accurate first.

  Args:
    directory: holds one work directory for each run.
    has_speed: whether the table has the columns of speed.

  Raises:
    UserError: if the directory has no finished runs, or a file is damaged.
  """
  runs = [run for run in groups.ended(directory)
          if run.state.kind == 'finished']
  if not runs:
    raise UserError(
        f'{directory} must hold directories of finished runs (each with a '
        'summary.json), got none; name the directory above the work '
        'directories')
  arms = groups.of_runs(runs)
  rows = []
  for arm in arms:
    found = list(arm.values(num_rounds=LAST).values())
    stds = list(arm.values('test_accuracy_std', LAST).values())
    speeds = (statistics.median(arm.summaries(name)) for name in (
        'seconds_per_round', 'examples_per_second')) if has_speed else ()
    rows.append((statistics.fmean(found), {
        'method': _label(arm, arms),
        f'test accuracy, mean of the last {LAST} rounds':
            stats.mean_and_std(found, 3, .01) + (
                f' (over clients ± {statistics.fmean(stds):.3f})'
                if len(stds) == len(found) else ''),
        'seeds': str(len(found)),
        **{name: f'{speed:,.{digits}f}' for (name, digits), speed in zip(
            (('seconds per round', 1), ('examples/s', 0)), speeds)}}))
  rows.sort(key=lambda row: -row[0])
  return page.table('', [row for _, row in rows])


def _label(arm, arms):
  """Returns the method, and the settings that differ from most arms'."""
  algorithm = next(iter(arm.runs.values())).config['algorithm']
  return ', '.join([groups.NAMES.get(algorithm, algorithm), *(
      f'{name} {value}' for name, value in arm.settings.items()
      if name not in ('algorithm', 'content of dataset') and value not in (
          groups.NO_VALUE, groups.usual(name, arms)))])


_TABLE_IN_DOCUMENT = re.compile(
    r'(<!-- (table|accuracies): (\S+) -->\n).*?(<!-- end of table -->)',
    re.DOTALL)


def with_tables(document: pathlib.Path) -> str:
  """Returns the text of a document with its tables generated again."""

  def table(match):
    begin, kind, directory, end = match.groups()
    text = markdown(document.parent / directory, has_speed=kind == 'table')
    return f'{begin}{text}\n{end}'

  return _TABLE_IN_DOCUMENT.sub(table, document.read_text(encoding='utf-8'))


def main(argv: list[str]) -> None:
  """Runs the command; exits with status 2 for invalid arguments or runs."""
  parser = argparse.ArgumentParser(
      prog='python -m moon_jax.report.table', description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('path', type=pathlib.Path, metavar='DIRECTORY|DOCUMENT',
                      help='directory of runs, or Markdown document')
  file_command.start(parser, _run, argv[1:])


def _run(arguments):
  path = arguments.path
  if path.is_dir():
    print(markdown(path))
  elif path.is_file():
    try:
      text = with_tables(path)
    except UnicodeDecodeError as error:
      raise UserError(f'{path} must be a Markdown document, got {error}'
                      ) from error
    path.write_text(text, encoding='utf-8')
  else:
    raise UserError(f'the path must be a directory or a document, got {path}'
                    ', which does not exist')


if __name__ == '__main__':
  main(sys.argv)
