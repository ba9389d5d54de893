"""Kept runs, two tables per experiment, and kept measurements.

python -m experiments.kept EXPERIMENT TO   writes the directories of its runs

A directory of experiments/results has the runs of an experiment:

- runs.csv has one row per run. The columns are named after the files of a run:
  `config/seed` is the setting `seed` of config.json, `summary/versions/jax` an
  entry of the object `versions` of summary.json; `commit` is that of the code,
  if it is known. An empty cell is absent; a cell is JSON, or a string that is
  not JSON.
- rounds.csv.xz has one row per run and round, with all metrics of
  metrics.jsonl.

`pandas.read_csv` reads both. measurements.json has the results of benchmarks by
name. `experiments.keep` adds runs and measurements.
"""

import argparse
from collections.abc import Mapping
import csv
import functools
import io
import json
import lzma
import pathlib
import shutil
import tempfile
from typing import Any

from moon_jax.results import read as read_lib

RESULTS = pathlib.Path(__file__).parent / 'results'
MEASUREMENTS = RESULTS / 'measurements.json'
FILES = 'config', 'summary', 'diverged', 'begun'  # begun: on another device
_TEXTS = 'run', 'commit'  # columns that are not JSON


def unpack(tables: pathlib.Path, to: pathlib.Path) -> None:
  """Writes the directory of each run of an experiment to `to`."""
  metrics: dict[str, list[str]] = {}
  for row in _read(tables / 'rounds.csv.xz'):
    metrics.setdefault(row.pop('run'), []).append(json.dumps(row) + '\n')
  for row in _read(tables / 'runs.csv'):
    workdir = to / row.pop('run')
    row.pop('commit', None)
    workdir.mkdir(parents=True, exist_ok=True)
    (workdir / 'metrics.jsonl').write_text(
        ''.join(metrics.get(workdir.name, ())), encoding='utf-8')
    for name, content in _nested(row).items():
      (workdir / f'{name}.json').write_text(
          json.dumps(content, indent=1) + '\n', encoding='utf-8')


def add(workdirs: Mapping[str, pathlib.Path], tables: pathlib.Path,
        commits: Mapping[str, str] | None = None) -> None:
  """Adds the directories of runs, by name, to the tables of an experiment.

  Runs that the tables have already are replaced.

  Args:
    workdirs: directories of runs without paths of this machine.
    tables: directory of the tables.
    commits: those of the code, by name of the run, if they are known.

  Raises:
    ValueError: if the tables would not give back a run. They do not change.
  """
  runs, rounds = [], []
  if (tables / 'runs.csv').exists():
    runs, rounds = ([row for row in _read(tables / name)
                     if row['run'] not in workdirs]
                    for name in ('runs.csv', 'rounds.csv.xz'))
  for name, workdir in workdirs.items():
    row: dict[str, Any] = {'run': name}
    if commits:
      row['commit'] = commits[name]
    objects, lines = _content(workdir)
    row |= _flat(objects, '')
    if (path := workdir / 'diverged.txt').exists():
      row['diverged/error'] = path.read_text(encoding='utf-8').strip()
    runs.append(row)
    rounds += [{'run': name} | line | {'run': name} for line in lines]
  with tempfile.TemporaryDirectory() as scratch:
    made, back = pathlib.Path(scratch, 'tables'), pathlib.Path(scratch, 'back')
    made.mkdir()
    _write(runs, made / 'runs.csv')
    _write(rounds, made / 'rounds.csv.xz')
    unpack(made, back)
    for name, workdir in workdirs.items():
      objects, lines = _content(back / name)
      if not (workdir / 'diverged.json').exists():
        objects.pop('diverged', None)  # of diverged.txt
      if json.dumps((objects, lines), sort_keys=True) != json.dumps(
          _content(workdir), sort_keys=True):
        raise ValueError(f'the tables in {tables} would not give back '
                         f'{workdir}; rename metrics called "run" and names '
                         'that contain a slash')
    shutil.copytree(made, tables, dirs_exist_ok=True)


def _content(workdir):
  """Returns the objects of a run by file, and its lines of metrics."""
  objects = {name: json.loads(path.read_text(encoding='utf-8'))
             for name in FILES if (path := workdir / f'{name}.json').exists()}
  text = (workdir / 'metrics.jsonl').read_text(encoding='utf-8')
  return objects, [*map(json.loads, text.splitlines())]


@functools.cache
def directory(experiment: str) -> pathlib.Path:
  """Returns a directory of this process with the runs of an experiment."""
  made = pathlib.Path(_temporary().name) / experiment
  unpack(RESULTS / experiment, made)
  return made


@functools.cache
def runs(experiment: str) -> dict[str, read_lib.Run]:
  """Returns the runs of an experiment by name."""
  return {path.name: read_lib.read(path)
          for path in sorted(directory(experiment).iterdir())}


@functools.cache
def measurements() -> dict[str, Any]:
  """Returns the results of benchmarks by name."""
  return json.loads(MEASUREMENTS.read_text(encoding='utf-8'))


@functools.cache
def _temporary():
  """Returns a directory that is removed when the process ends."""
  return tempfile.TemporaryDirectory(prefix='kept_runs_')


def _read(path):
  """Returns the rows of a table, without absent cells."""
  text = (lzma.decompress(path.read_bytes()).decode() if path.suffix == '.xz'
          else path.read_text(encoding='utf-8'))
  return [{name: cell if name in _TEXTS else _value(cell)
           for name, cell in row.items() if cell}
          for row in csv.DictReader(io.StringIO(text, newline=''))]


def _write(rows, path):
  """Writes rows in the order of runs."""
  text = io.StringIO(newline='')
  writer = csv.DictWriter(
      text, [*dict.fromkeys(name for row in rows for name in row)],
      lineterminator='\n')
  writer.writeheader()
  # Stable: the rounds of a run stay in their order.
  for row in sorted(rows, key=lambda row: row['run']):
    writer.writerow({name: value if name in _TEXTS else _cell(value)
                     for name, value in row.items()})
  data = text.getvalue().encode()
  path.write_bytes(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
                   if path.suffix == '.xz' else data)


def _cell(value: Any) -> str:
  is_text = isinstance(value, str) and value and _value(value) is value
  return value if is_text else json.dumps(value)


def _value(cell: str) -> Any:
  try:
    return json.loads(cell)
  except ValueError:
    return cell


def _flat(content, prefix):
  """Returns nested objects as one, with paths as names."""
  flat = {}
  for name, value in content.items():
    if isinstance(value, dict) and value:
      flat |= _flat(value, f'{prefix}{name}/')
    else:
      flat[f'{prefix}{name}'] = value
  return flat


def _nested(row):
  """Returns the objects that `_flat` made one."""
  nested: dict[str, Any] = {}
  for path, value in row.items():
    *names, last = path.split('/')
    functools.reduce(lambda inner, name: inner.setdefault(name, {}), names,
                     nested)[last] = value
  return nested


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('experiment', choices=sorted(
      path.parent.name for path in RESULTS.glob('*/runs.csv')))
  parser.add_argument('to', type=pathlib.Path)
  args = parser.parse_args()
  unpack(RESULTS / args.experiment, args.to)


if __name__ == '__main__':
  main()
