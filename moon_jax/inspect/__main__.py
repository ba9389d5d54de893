"""Describes a run: python -m moon_jax.inspect RUN.

RUN is the directory of a run, finished or still running. The output has at most
80 columns. docs/looking_at_runs.md describes it.
"""

import argparse
import json
import pathlib
import sys
import time

from moon_jax.cli import file_command
from moon_jax.inspect import read
from moon_jax.inspect import tables
from moon_jax.inspect.read import Run

_SECONDS = 2.  # between two looks of --follow


def main() -> None:
  """Runs the command."""
  parser = argparse.ArgumentParser(
      prog='moon-jax inspect', description='Describes a run: its settings, '
      'state, rounds, times and clients.')
  parser.add_argument('run', type=pathlib.Path, metavar='RUN',
                      help='directory of a run, finished or running')
  parser.add_argument('--plot', type=pathlib.Path, metavar='FILE.png',
                      help='draws accuracies, losses, drift and clients')
  parser.add_argument('--json', action='store_true',
                      help='prints the same as JSON, with all rounds')
  parser.add_argument('--follow', action='store_true',
                      help='prints again after each round until the run ends')
  file_command.start(parser, _inspect)


def _inspect(arguments: argparse.Namespace) -> None:
  path = arguments.run.expanduser()
  run = read.read(path)
  _print(run, arguments.json)
  while arguments.follow and run.state.kind == 'running':
    time.sleep(_SECONDS)
    new = read.read(path)
    if (len(new.lines), new.state.kind) != (len(run.lines), run.state.kind):
      if sys.stdout.isatty():
        print('\x1b[H\x1b[2J\x1b[3J', end='')
      _print(new, arguments.json)
    run = new
  if arguments.plot:
    from moon_jax.inspect import plots  # matplotlib takes a second

    plots.draw(run, arguments.plot)
    print(f'plot: {arguments.plot}', file=sys.stderr)


def _print(run, is_json):
  if is_json:
    print(json.dumps(to_json(run), indent=1))
  else:
    is_unicode = 'utf' in (sys.stdout.encoding or '').lower()
    print(tables.text(run, is_unicode), flush=True)


def to_json(run: Run) -> dict[str, object]:
  """Returns what the text shows, and all rounds, as JSON."""
  arrays = {'client_sizes': run.client_sizes,
            'times_sampled': run.times_sampled}
  return {
      'path': str(run.path), 'state': run.state._asdict(),
      'config': run.config, 'inputs': run.inputs,
      'results': tables.results(run), 'summary': run.summary,
      **{name: None if array is None else array.tolist()
         for name, array in arrays.items()},
      'rounds': run.lines}


if __name__ == '__main__':
  main()
