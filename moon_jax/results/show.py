"""The report command: moon-jax report TABLE... [FLAGS].

Trains the runs of tables that are missing, and writes a page for each table:
our results beside the published ones (docs/looking_at_runs.md).
"""

from absl import flags

from moon_jax.cli import command_line, help_page
from moon_jax.config import Config

_FLAGS = [
    flags.DEFINE_enum(
        'budget', 'full', ('smoke', 'small', 'full'),
        'The size of the runs: full is the published one; small takes a night '
        'on a CPU; smoke takes minutes and shows only that the table can be '
        'made.'),
    flags.DEFINE_bool(
        'train', True, 'Trains runs that are missing; with --notrain the pages '
        'have those that have finished.'),
    flags.DEFINE_list(
        'runs', [], 'Further directories with finished runs, comma-separated. '
        'Runs are reused whatever table or command they were for.'),
    flags.DEFINE_string(
        'out', '', 'Directory of the pages; by default reports in --workdir, '
        'or in the directory of runs that is shown.'),
    flags.DEFINE_bool(
        'dry_run', False,
        'Prints the plan of the missing runs and trains nothing.')]


_PAGE = help_page.Page(
    'Trains the runs of tables that are missing, and writes a page for each '
    'table: our results beside the published ones. TABLE is a TOML file, a '
    'directory of such files, or a directory of runs '
    '(docs/looking_at_runs.md). Flags of a run replace settings of the tables.',
    [('in a clone of the repository: all its tables, on handwritten digits',
      'experiments/tables --budget=smoke'),
     ('the runs that are missing, and their cost, without training',
      'experiments/tables --budget=smoke --dry_run')],
    'Report', placeholders={'runs': 'DIR,...', 'out': 'DIR'},
    usage='TABLE... [--FLAG=VALUE ...]')


def main() -> None:
  """Runs the command."""
  paths: list[str] = []

  def report(config: Config, named: frozenset[str]) -> None:
    from moon_jax.results import report as command

    command.run(config, paths, named,
                **{flag.name: flag.value for flag in _FLAGS})

  command_line.start('moon_jax.report', report, _PAGE, is_one_run=False,
                     arguments=paths)

