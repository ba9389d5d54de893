"""Tables say what the runs say, and documents hold the tables of today."""

import json
import pathlib

import pytest

from moon_jax.config import Config
from moon_jax.config import validate
from moon_jax.report import table

ROOT = pathlib.Path(__file__).parents[2]


def write_run(path, seed, accuracies, algorithm='fedavg'):
  path.mkdir()
  config = validate(Config(algorithm=algorithm, seed=seed)).to_dict()
  (path / 'config.json').write_text(json.dumps(config))
  (path / 'metrics.jsonl').write_text(''.join(
      json.dumps({'round': i + 1} | ({} if a is None else {
          'test_accuracy': a})) + '\n' for i, a in enumerate(accuracies)))
  (path / 'summary.json').write_text(json.dumps(
      {'seconds_per_round': 2. + seed, 'examples_per_second': 1000.}))


def test_rows(tmp_path):
  write_run(tmp_path / 'a', 0, [.9, .9, None, .1, .2, .3, .4, .5])
  write_run(tmp_path / 'b', 1, [.3] * 8)
  write_run(tmp_path / 'c', 0, [.25] * 5, 'moon')
  rows = table.markdown(tmp_path).splitlines()[2:]
  assert rows == [
      '| FedAvg | 0.300 ± 0.000 | 2 | 2.5 | 1,000 | `--algorithm=fedavg` |',
      '| MOON (mu 5, k 1) | 0.250 | 1 | 2.0 | 1,000 | '
      '`--algorithm=moon --mu=5` |']


def test_document_is_rewritten(tmp_path):
  (tmp_path / 'runs').mkdir()
  write_run(tmp_path / 'runs' / 'a', 0, [.5])
  document = tmp_path / 'page.md'
  document.write_text(
      'a\n<!-- table: runs -->\nold\n<!-- end of table -->\nb\n')
  table.main(['', str(document)])
  text = document.read_text()
  assert text.startswith('a\n<!-- table: runs -->\n| method')
  assert text.endswith('|\n<!-- end of table -->\nb\n') and 'old' not in text


@pytest.mark.parametrize('name', ['README.md', 'experiments/results/README.md'])
def test_tables_of_documents_are_of_the_kept_runs(name):
  document = ROOT / name
  assert '<!-- table:' in document.read_text(encoding='utf-8')
  assert table.with_tables(document) == document.read_text(encoding='utf-8')
