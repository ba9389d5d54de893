"""Copies the results of finished runs, without checkpoints and directories.

python -m experiments.keep RUNS TO

Copies config.json, metrics.jsonl and summary.json of the runs in RUNS that have
ended. The paths of the data and of the run are left out of config.json.
"""

import argparse
import json
import pathlib
import shutil

_ENDS = 'summary.json', 'diverged.json', 'diverged.txt'
_FILES = ('metrics.jsonl', *_ENDS, 'begun.json')  # begun: on another device


def keep(source: pathlib.Path, target: pathlib.Path) -> None:
  """Copies the results of one run to the directory `target`."""
  target.mkdir(parents=True, exist_ok=True)
  (target / 'config.json').write_text(config_without_paths(source))
  for name in _FILES:
    if (source / name).exists():
      shutil.copy(source / name, target)


def config_without_paths(source: pathlib.Path) -> str:
  """Returns the config.json of a run without this machine's paths."""
  config = json.loads((source / 'config.json').read_text())
  config['data_dir'] = 'DATA_DIR' if config.get('data_dir') else ''
  config.pop('workdir', None)
  return json.dumps(config, indent=1) + '\n'


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('runs', type=pathlib.Path,
                      help='directory of work directories')
  parser.add_argument('to', type=pathlib.Path)
  args = parser.parse_args()
  for config in sorted(args.runs.glob('*/config.json')):
    if any((config.parent / name).exists() for name in _ENDS):
      keep(config.parent, args.to / config.parent.name)


if __name__ == '__main__':
  main()
