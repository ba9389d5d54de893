"""Keeps the results of runs and of benchmarks (`experiments.kept`).

python -m experiments.keep RUNS experiments/results/EXPERIMENT
python -m experiments.keep OUT/NAME.json

The first adds the config.json, metrics.jsonl and summary.json of the runs in
RUNS that have ended to the tables of an experiment. The paths of the data and
of the run are left out. The second keeps the results of a benchmark by its
name; of a .jsonl file they are a list.
"""

import argparse
import json
import pathlib
import shutil
import tempfile

from experiments import kept

_ENDS = 'summary.json', 'diverged.json', 'diverged.txt'
_FILES = ('metrics.jsonl', *_ENDS, 'begun.json')


def copy(source: pathlib.Path, target: pathlib.Path) -> None:
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


def measurement(path: pathlib.Path, to: pathlib.Path) -> None:
  """Keeps the results of a benchmark under the name of their file."""
  text = path.read_text(encoding='utf-8')
  results = ([*map(json.loads, text.splitlines())] if path.suffix == '.jsonl'
             else json.loads(text))
  found = json.loads(to.read_text(encoding='utf-8')) if to.exists() else {}
  found[path.stem] = results
  to.write_text(json.dumps(dict(sorted(found.items())), indent=1) + '\n',
                encoding='utf-8')


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('runs', type=pathlib.Path,
                      help='directory of work directories, or a JSON file')
  parser.add_argument('to', type=pathlib.Path, nargs='?',
                      help='directory of the tables')
  args = parser.parse_args()
  if args.runs.is_file():
    measurement(args.runs, kept.MEASUREMENTS)
    return
  if not args.to:
    parser.error('TO is required for runs')
  with tempfile.TemporaryDirectory() as copies:
    made = {}
    for config in sorted(args.runs.glob('*/config.json')):
      run = config.parent
      if any((run / name).exists() for name in _ENDS):
        made[run.name] = pathlib.Path(copies) / run.name
        copy(run, made[run.name])
    kept.add(made, args.to)


if __name__ == '__main__':
  main()
