"""python -m moon_jax.report."""

import pathlib

import invented_runs
import pytest

from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.report import command
from moon_jax.report.command import Options
from moon_jax.sweep import run as run_lib

TEXT = """
title = "Methods"
dataset = "digits"
model = "mlp"
num_rounds = 2
local_epochs = 1
learning_rate = 0.02
baseline = {algorithm = "fedavg"}

[[runs]]
algorithm = "fedavg"

[[runs]]
algorithm = "moon"
mu = 1
"""
OPTIONS = Options('full', True, (), '', False)


@pytest.fixture
def here(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('tables').mkdir()
  pathlib.Path('tables/a.toml').write_text(TEXT)
  return tmp_path


def report(*paths, words=(), **changes):
  flags = dict(word.lstrip('-').split('=') for word in words)
  command.run(Config(**{name: type(getattr(Config, name))(value)
                        for name, value in flags.items()}),
              paths, [*paths, *words], OPTIONS._replace(**changes))


def test_missing_runs_are_trained_once(here, capsys, monkeypatch):
  report('tables/a.toml')
  page = here / 'runs' / 'reports' / 'a-full.html'
  assert f'Methods: {page.relative_to(here)}' in capsys.readouterr().out
  text = page.with_suffix('.md').read_text()
  assert '| FedAvg |' in text and 'python -m moon_jax.report tables/a' in text
  assert page.read_text().startswith('<!DOCTYPE html>')
  assert (here / 'runs/reports/a-full/test-accuracy.svg').exists()
  monkeypatch.setattr(run_lib, 'run', None)  # nothing is trained again
  report('tables/a.toml')
  report('runs')  # and the directory of the runs gives a page, too
  assert '| FedAvg |' in (here / 'runs/reports/runs.md').read_text()


def test_runs_of_other_tables_are_reused(here, monkeypatch):
  monkeypatch.setattr(run_lib, 'run', None)
  pathlib.Path('kept').mkdir()
  base = Config(dataset='digits', model='mlp', num_rounds=2, local_epochs=1,
                learning_rate=.02)
  for algorithm in 'fedavg', 'moon':
    invented_runs.write(here / 'kept', Config(**base.to_dict() | {
        'algorithm': algorithm, 'mu': 1}), [.1, .5])
  report('tables', runs=('kept',), out='pages')
  assert '| 50.0 |' in (here / 'pages/a-full.md').read_text()


def test_pages_can_be_made_without_training(here, monkeypatch):
  monkeypatch.setattr(run_lib, 'run', None)
  report('tables/a.toml', is_training=False)
  assert '0 of 2 runs have ended' in (
      here / 'runs/reports/a-full.md').read_text()


def test_a_directory_of_tables_has_an_index(here, monkeypatch):
  monkeypatch.setattr(run_lib, 'run', None)
  pathlib.Path('tables/b.toml').write_text(
      'budgets = "x.toml"' + TEXT.replace('Methods', 'Others'))
  pathlib.Path('tables/x.toml').write_text('[smoke]\nseed = 1\n')
  report('tables', is_training=False, words=['--num_rounds=1'])
  index = (here / 'runs/reports/index.md').read_text()
  assert '[Methods](a-full-' in index and '[Others](b-full-' in index
  assert 'FULL BUDGET, CHANGED: digits, 1 round of' in index.replace('**', '')


@pytest.mark.parametrize('paths, words, message', [
    ([], [], 'name one or more tables'),
    (['no.toml'], [], 'no.toml must be a file that can be read'),
    (['.'], [], 'must hold files of tables, or directories of runs'),
    (['tables/a.toml'], ['--flagfile=x'], '--flagfile cannot be given'),
])
def test_invalid_input_is_an_error(paths, words, message, here):
  with pytest.raises(UserError, match=message):
    command.run(Config(), paths, words, OPTIONS)


def test_commands_name_no_directories_of_the_machine():
  words = ['tables/a.toml', '--data_dir=/home/me', '--workdir', '/x',
           '--out=/y', '--runs=z', '--budget=small', '/abs/b.toml']
  assert command._without_places(words) == [
      'tables/a.toml', '--data_dir=DATA_DIR', '--budget=small', '/abs/b.toml']
  assert command._shown('/abs/b.toml') == 'b.toml'
  assert command._shown('/x/experiments/tables/b.toml') == (
      'experiments/tables/b.toml')


def test_tables_of_times_have_runs_that_trained_alone(here, monkeypatch):
  pathlib.Path('tables/a.toml').write_text(
      'headline = "time"\n' + TEXT.replace('mu = 1', 'mu = [1, 5]'))
  trained = []

  def train(sweep, workdir, max_runs=0):
    trained.append((len(sweep.configs), workdir, max_runs))
    for config in sweep.configs:
      invented_runs.write(pathlib.Path(workdir), config, [.1, .2])

  monkeypatch.setattr(run_lib, 'run', train)
  pathlib.Path('runs').mkdir()
  invented_runs.write(here / 'runs', Config(
      dataset='digits', model='mlp', num_rounds=2, local_epochs=1,
      learning_rate=.02, mu=1), [.1, .2])
  report('tables/a.toml')
  report('tables/a.toml')
  assert trained == [(3, 'runs/alone', 1)]
  text = (here / 'runs/reports/a-full.md').read_text()
  assert 'Each run trained alone' in text and '| 2.00 |' in text
