"""moon-jax show TABLE."""

import json
import pathlib

import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.errors import UserError
from moon_jax.results import published
from moon_jax.runs import run as run_lib
from support import made_runs

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
"algorithm.mu" = 1
"""
BASE = Config(dataset='digits', model='mlp', num_rounds=2, local_epochs=1,
              learning_rate=.02).to_dict()


@pytest.fixture
def here(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  pathlib.Path('tables').mkdir()
  pathlib.Path('tables/a.toml').write_text(TEXT)
  return tmp_path


def report(*paths, words=(), **options):
  flags = dict(word.lstrip('-').split('=') for word in words)
  published.run(Config(**{name: type(getattr(Config, name))(value)
                        for name, value in flags.items()}),
              paths, flags, **options)


@pytest.mark.long
def test_missing_runs_are_trained_once(here, capsys, monkeypatch):
  report('tables/a.toml', train=True, out='pages')
  page = here / 'pages' / 'a-full.html'
  assert f'Methods: {page.relative_to(here)}' in capsys.readouterr().out
  text = page.with_suffix('.md').read_text()
  assert '| FedAvg |' in text and 'moon-jax show tables/a' in text
  assert page.read_text().startswith('<!DOCTYPE html>')
  assert (here / 'pages/a-full/test-accuracy.svg').exists()
  monkeypatch.setattr(run_lib, 'run_sweep', None)  # nothing is trained again
  report('tables/a.toml', train=True)
  assert 'FedAvg' in capsys.readouterr().out  # without --out it is printed


def test_runs_of_other_tables_are_reused(here, monkeypatch):
  monkeypatch.setattr(run_lib, 'run_sweep', None)
  for algorithm in 'fedavg', 'moon(mu=1)':
    made_runs.write(here / 'kept' / algorithm, [.1, .5], **BASE | {
        'algorithm': algorithm})
  report('tables', 'kept', train=True, out='pages')
  assert '| 50.0 |' in (here / 'pages/a-full.md').read_text()


def test_runs_are_reused_if_their_data_are_the_same(here, monkeypatch):
  rng = np.random.default_rng(0)
  x, y = rng.normal(size=(8, 3)), np.arange(8) % 2
  np.savez('mine.npz', x_train=x, y_train=y, x_test=x, y_test=y)
  data = {'dataset': 'npz', 'data_dir': 'mine.npz'}
  pathlib.Path('tables/a.toml').write_text(
      TEXT.replace('"digits"', '"npz"\ndata_dir = "mine.npz"'))
  content = sources.load_dataset(*data.values()).fingerprint()
  for name, inputs, accuracy in (
      ('other', {'dataset': '0'}, .3), ('same', {'dataset': content}, .7)):
    path = made_runs.write(
        here / 'kept' / name, [.1, accuracy],
        **BASE | data | {'algorithm': 'fedavg'}) / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | {
        'inputs': inputs}))
  report('tables', 'kept', out='pages')
  text = (here / 'pages/a-full.md').read_text()
  assert '| 70.0 |' in text and '| 30.0 |' not in text


def test_pages_can_be_made_without_training(here, monkeypatch):
  """A directory of tables has an index."""
  monkeypatch.setattr(run_lib, 'run_sweep', None)
  pathlib.Path('tables/b.toml').write_text(
      'budgets = "x.toml"' + TEXT.replace('Methods', 'Others'))
  pathlib.Path('tables/x.toml').write_text('[smoke]\nseed = 1\n')
  report('tables', out='pages',
         words=['--num_rounds=1', '--data_dir=/home/me'])
  index = (here / 'pages/index.md').read_text()
  assert '[Methods](a-full-' in index and '[Others](b-full-' in index
  assert 'FULL BUDGET, CHANGED: dataset digits; num_rounds 1; ' in index
  page, = (here / 'pages').glob('a-full-*.md')
  assert '0 of 2 runs have ended' in page.read_text()
  assert ('show tables --data_dir=DATA_DIR --num_rounds=1\n'
          in page.read_text())


@pytest.mark.parametrize('paths, given, message', [
    (['no.toml'], [], 'no.toml must be a file that can be read'),
    (['tables/a.toml', 'no'], [], 'no must be a directory that holds'),
    (['tables/a.toml'], ['flagfile'], 'flagfile cannot be given'),
])
def test_invalid_input_is_an_error(paths, given, message, here):
  with pytest.raises(UserError, match=message):
    published.run(Config(), paths, given)


@pytest.mark.parametrize('path, shown', [
    ('/abs/b.toml', 'b.toml'), ('x/b.toml', 'x/b.toml'),
    ('/x/experiments/tables/b.toml', 'experiments/tables/b.toml')])
def test_commands_name_no_directories_of_the_machine(path, shown):
  assert published._command([path], 'small', {}) == (
      f'moon-jax show {shown} --budget=small')


def test_tables_of_times_have_runs_that_trained_alone(here, monkeypatch):
  pathlib.Path('tables/a.toml').write_text(
      'headline = "time"\n' + TEXT.replace('mu" = 1', 'mu" = [1, 5]'))
  trained = []

  def train(sweep, workdir, max_runs=0):
    trained.append((len(sweep.configs), workdir, max_runs))
    made_runs.write_all(pathlib.Path(workdir), sweep.configs,
                        lambda config: [.1, .2])

  monkeypatch.setattr(run_lib, 'run_sweep', train)
  pathlib.Path('runs').mkdir()
  made_runs.write(here / 'runs' / 'moon', [.1, .2], **BASE | {
      'algorithm': 'moon(mu=1)'})
  for _ in range(2):
    report('tables/a.toml', train=True, out='pages')
  assert trained == [(3, 'runs/alone', 1)]
  text = (here / 'pages/a-full.md').read_text()
  assert 'Each run trained alone' in text and '| 2.00 |' in text


@pytest.mark.parametrize('out', ['x.pdf', 'x.HTML', 'pages/x.md'])
def test_a_page_cannot_be_the_directory_of_pages(here, out, monkeypatch):
  monkeypatch.setattr(run_lib, 'run_sweep', None)  # before anything is trained
  name = out.rpartition('.')[0]
  with pytest.raises(UserError, match=(
      f'out must be a directory.*got {out}. Write --out={name}$')):
    report('tables/a.toml', train=True, out=out)
  assert not (here / out).exists()
