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
  rows = table.markdown(tmp_path).splitlines()[2:]
  assert rows == [
      '| all data in one place | 0.700 | 1 | 2.0 | 1,000 | '
      '`--algorithm=centralized` |',
      '| FedAvg | 0.400 ± 0.141 | 2 | 2.5 | 1,000 | `--algorithm=fedavg` |',
      '| MOON (mu 5, k 1) | 0.250 | 1 | 2.0 | 1,000 | `--algorithm=moon` |',
      '| SOLO | 0.200 (over clients ± 0.040) | 1 | 2.0 | 1,000 | '
      '`--algorithm=solo` |']
  without = table.markdown(tmp_path, has_speed=False).splitlines()
  assert without[3] == '| FedAvg | 0.400 ± 0.141 | 2 | `--algorithm=fedavg` |'
  assert len({line.count('|') for line in without}) == 1


@pytest.mark.parametrize('changes, name, flags', [
    (dict(algorithm='fedprox', mu=.1), 'FedProx (mu 0.1)', ''),
    (dict(algorithm='moon', mu=5., contrastive='l2'),
     'l2 instead of MOON (mu 5)', ''),
    (dict(algorithm='moon', mu=5., num_negatives=3, server_momentum=.7),
     'MOON (mu 5, k 3) + FedAvgM (beta 0.7)', ' --server_momentum=0.7'),
    (dict(algorithm='fedavg', server_optimizer='adam'),
     'FedAvg + FedAdam', ' --server_optimizer=adam'),
    (dict(algorithm='fedavg', dropout_rate=.5), 'FedAvg',
     ' --dropout_rate=0.5'),
])
def test_names_and_flags(changes, name, flags, tmp_path):
  """A flag that only one method reads differs from no other value."""
  write_run(tmp_path / 'a', [.5], algorithm='fedavg')
  write_run(tmp_path / 'b', [.5], algorithm='fednova')
  write_run(tmp_path / 'c', [.4], **changes)
  row = table.markdown(tmp_path).splitlines()[-1]
  assert row.startswith(f'| {name} |')
  assert row.endswith(f'| `--algorithm={changes["algorithm"]}{flags}` |')


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
