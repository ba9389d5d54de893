"""Tables of kept runs give back the directories from which they were made."""

import json
import math
import sys

import pandas as pd
import pytest

from experiments import keep, kept
from moon_jax.results import read
from support.docs_pages import ROOT

_LINES = [
    {'round': 1, 'test_accuracy': .1 + .2, 'seconds': 2., 'clients': [3, 1]},
    {'round': 2, 'loss': math.nan, 'seconds': 2}]
# Strings that are JSON too, the empty string and the empty object.
_CONFIG = {'seed': 1, 'rate': 1e-5, 'augment': True, 'model': 'mlp(size=8)',
           'word': 'true', 'number': '3.11', 'nothing': None, 'empty': '',
           'lines': 'a, "b"\nc\n', 'list': ['x', 1.5], 'inputs': {},
           'nested': {'model.path': '0e12', 'deep': {'a': 1.}}}


def write(directory, **files):
  directory.mkdir(parents=True)
  for name, content in files.items():
    (directory / f'{name}.json').write_text(json.dumps(content))
  (directory / 'metrics.jsonl').write_text(
      ''.join(json.dumps(line) + '\n' for line in _LINES))
  return directory


def files_of(directory):
  """Returns the lines of metrics and the objects of a run, as text."""
  return {path.name: [
      json.dumps(json.loads(text), sort_keys=True) for text in (
          path.read_text().splitlines() if path.suffix == '.jsonl'
          else [path.read_text()])] for path in directory.iterdir()}


def test_runs_are_equal_to_those_of_which_the_tables_were_made(tmp_path):
  made = {
      'b': write(tmp_path / 'b', config=_CONFIG, summary={'rounds': 2}),
      '0': write(tmp_path / '0', config={'seed': 2}, begun={'rounds': 1},
                 diverged={'error': 'round 3: inf\n'})}
  (tmp_path / '0' / 'metrics.jsonl').write_text('')
  kept.add(made, tmp_path / 'tables', {'b': '1234e56', '0': 'abc'})
  kept.unpack(tmp_path / 'tables', tmp_path / 'back')
  for name, directory in made.items():
    assert files_of(tmp_path / 'back' / name) == files_of(directory)


def test_runs_with_the_name_of_a_kept_one_replace_it(tmp_path):
  tables = tmp_path / 'tables'
  for seed in (1, 2):
    kept.add({'a': write(tmp_path / f'{seed}', config={'seed': seed})}, tables)
  kept.add({'b': write(tmp_path / 'b', config={'seed': 3})}, tables)
  before = [path.read_bytes() for path in sorted(tables.iterdir())]
  kept.unpack(tables, tmp_path / 'back')
  assert [json.loads((tmp_path / 'back' / name / 'config.json').read_text())
          for name in 'ab'] == [{'seed': 2}, {'seed': 3}]
  assert files_of(tmp_path / 'back' / 'a') == files_of(tmp_path / '2')
  kept.add({'b': tmp_path / 'back' / 'b'}, tables)  # changes nothing
  assert [path.read_bytes() for path in sorted(tables.iterdir())] == before


@pytest.mark.parametrize('line, config', [
    ({'round': 1, 'run': 2}, {}), ({'round': 1}, {'a/b': 1})])
def test_a_run_that_tables_cannot_give_back_is_not_added(
    line, config, tmp_path):
  tables = tmp_path / 'tables'
  kept.add({'a': write(tmp_path / 'a', config={})}, tables)
  before = [path.read_bytes() for path in sorted(tables.iterdir())]
  run = write(tmp_path / 'b', config=config)
  (run / 'metrics.jsonl').write_text(json.dumps(line) + '\n')
  with pytest.raises(ValueError, match='would not give back .*b;'):
    kept.add({'b': run}, tables)
  assert [path.read_bytes() for path in sorted(tables.iterdir())] == before


@pytest.mark.parametrize(
    'tables', sorted(ROOT.glob('experiments/results/*/runs.csv')),
    ids=lambda path: path.parent.name)
def test_kept_runs_can_be_read(tables):
  """By the reader of runs and by pandas."""
  name = tables.parent.name
  runs = kept.runs(name)
  kinds = {run.state.kind for key, run in runs.items() if '-trial' not in key}
  assert kinds <= {'finished', 'diverged'}  # a trial may stop earlier
  frame = pd.read_csv(tables).set_index('run')
  assert [*frame.index] == [*runs]
  rounds = pd.read_csv(tables.parent / 'rounds.csv.xz').groupby('run').size()
  assert rounds.to_dict() == {
      name: len(run.lines) for name, run in runs.items() if run.lines}
  assert all(read.is_run(kept.directory(name) / run) for run in runs)


def test_finished_runs_are_kept_without_paths(tmp_path, monkeypatch):
  for name, last in (('a', 'summary'), ('b', 'diverged'), ('c', 'cohorts')):
    write(tmp_path / 'runs' / name, config={
        'seed': 1, 'data_dir': '/home/me', 'workdir': '/home/me/run'},
          **{last: {'rounds': 2}})
  monkeypatch.setattr(sys, 'argv', [
      'keep', str(tmp_path / 'runs'), str(tmp_path / 'kept')])
  keep.main()
  kept.unpack(tmp_path / 'kept', tmp_path / 'back')
  assert {path.name: {*files_of(path)}
          for path in (tmp_path / 'back').iterdir()} == {
      'a': {'config.json', 'metrics.jsonl', 'summary.json'},
      'b': {'config.json', 'metrics.jsonl', 'diverged.json'}}
  assert files_of(tmp_path / 'back' / 'a')['config.json'] == [
      '{"data_dir": "DATA_DIR", "seed": 1}']


def test_measurements_are_kept_by_the_name_of_their_file(tmp_path):
  to = tmp_path / 'kept' / 'measurements.json'
  to.parent.mkdir()
  for name, text in (('b.json', '{"x": 1}'), ('a.jsonl', '{"y": 2}\n3\n'),
                     ('b.json', '{"x": 4}')):
    (tmp_path / name).write_text(text)
    keep.measurement(tmp_path / name, to)
  assert json.loads(to.read_text()) == {'a': [{'y': 2}, 3], 'b': {'x': 4}}


def test_results_hold_tables_and_figures_of_pages_only():
  """Pages and other figures can be made from the tables."""
  made = {path for path in kept.RESULTS.rglob('*') if path.is_file()}
  assert {path.suffix for path in made} <= {'.csv', '.xz', '.json', '.md',
                                            '.png'}
  pages = ''.join(path.read_text(encoding='utf-8') for path in (
      ROOT / 'README.md', *ROOT.glob('docs/**/*.md')))
  for path in made:
    if path.suffix == '.png' and path.name != 'fresh.png':
      assert f'{path.relative_to(ROOT).as_posix()})' in pages, path
