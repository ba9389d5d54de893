"""Tables hold the runs' results, and documents hold the current tables."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

import made_runs
from moon_jax.config import Config
from moon_jax.report import table

ROOT = pathlib.Path(__file__).parents[2]


def write_run(path, accuracies, more=None, **changes):
  made_runs.write(path, accuracies, more=more, **{
      **Config().to_dict(), 'beta': .4, **changes})


def test_rows(tmp_path):
  """Rows are sorted by accuracy and give the flags that differ."""
  write_run(tmp_path / 'a', [.9, .9, None, .1, .2, .3, .4, .5],
            algorithm='fedavg')
  write_run(tmp_path / 'b', [.5] * 8, algorithm='fedavg', seed=1)
  write_run(tmp_path / 'c', [.25] * 5, algorithm='moon')
  write_run(tmp_path / 'd', [.7] * 5, algorithm='centralized')
  write_run(tmp_path / 'e', [.2] * 5, {'test_accuracy_std': .04},
            algorithm='solo')
  header, _, *rows = table.markdown(tmp_path).splitlines()
  assert rows == [
      '| all data in one place | 0.700 | 1 | 2.0 | 1,000 |',
      '| FedAvg | 0.400 ± 0.141 | 2 | 2.5 | 1,000 |',
      '| MOON | 0.250 | 1 | 2.0 | 1,000 |',
      '| SOLO | 0.200 (over clients ± 0.040) | 1 | 2.0 | 1,000 |']
  assert header.endswith(' | seeds | seconds per round | examples/s |')
  without = table.markdown(tmp_path, has_speed=False).splitlines()
  assert without[3] == '| FedAvg | 0.400 ± 0.141 | 2 |'


def test_rows_name_the_settings_that_few_have(tmp_path):
  write_run(tmp_path / 'a', [.7], algorithm='fedavg')
  write_run(tmp_path / 'b', [.6], algorithm='moon', mu=5.)
  write_run(tmp_path / 'c', [.5], algorithm='moon', mu=1., server_momentum=.7)
  labels = [row.split(' | ')[0] for row in table.markdown(
      tmp_path).splitlines()[2:]]
  assert labels == ['| FedAvg', '| MOON, mu 5',
                    '| MOON, mu 1, server_momentum 0.7']


def test_tables_in_a_document_are_rewritten(tmp_path):
  (tmp_path / 'runs').mkdir()
  write_run(tmp_path / 'runs' / 'a', [.5])
  document = tmp_path / 'page.md'
  document.write_text(
      'a\n<!-- table: runs -->\nold\n<!-- end of table -->\nb\n')
  with pytest.raises(SystemExit) as status:
    table.main(['', str(document)])
  assert not status.value.code
  text = document.read_text()
  assert text.startswith('a\n<!-- table: runs -->\n| method')
  assert text.endswith('|\n<!-- end of table -->\nb\n') and 'old' not in text


def test_tables_in_the_documentation_match_the_saved_runs():
  document = ROOT / 'experiments' / 'results' / 'README.md'
  assert '<!-- end of table -->' in document.read_text(encoding='utf-8')
  assert table.with_tables(document) == document.read_text(encoding='utf-8')


@pytest.mark.parametrize('args, words', [
    ([], 'DIRECTORY|DOCUMENT'),
    (['a', 'b'], 'unrecognized arguments: b'),
    (['{tmp}/missing'], 'missing, which does not exist'),
    (['{tmp}/empty'], 'empty must hold directories of finished runs'),
    (['{tmp}/damaged'], "damaged/a/config.json must be a readable JSON object"),
    (['{tmp}/page.md'], 'nowhere must be a directory that holds directories'),
    (['{tmp}/binary.md'], "can't decode byte"),
])
def test_invalid_arguments_are_errors_without_a_traceback(
    args, words, tmp_path, capsys):
  (tmp_path / 'empty').mkdir()
  (tmp_path / 'damaged').mkdir()
  write_run(tmp_path / 'damaged' / 'a', [.5])
  (tmp_path / 'damaged' / 'a' / 'config.json').write_text('[')
  page = '<!-- table: nowhere -->\n<!-- end of table -->\n'
  (tmp_path / 'page.md').write_text(page)
  (tmp_path / 'binary.md').write_bytes(b'\xff')
  with pytest.raises(SystemExit) as error:
    table.main(['', *(arg.format(tmp=tmp_path) for arg in args)])
  out, errors = capsys.readouterr()
  assert (error.value.code, out) == (2, '') and words in errors
  assert (tmp_path / 'page.md').read_text() == page


def test_a_closed_pipe_ends_the_command_silently():
  """As `| head -1` does once it has its line."""
  reader, writer = os.pipe()
  os.close(reader)
  process = subprocess.Popen(
      [sys.executable, '-m', 'moon_jax.report.table',
       'experiments/results/quickstart'], cwd=ROOT, text=True, stdout=writer,
      stderr=subprocess.PIPE)
  os.close(writer)
  _, errors = process.communicate(timeout=60)
  assert (process.returncode, errors) == (128 + signal.SIGPIPE, '')
