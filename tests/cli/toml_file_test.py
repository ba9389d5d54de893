"""TOML files of runs."""

import re

import pytest

from moon_jax.cli import grids, toml_file
from moon_jax.config import Config, PARTS
from moon_jax.errors import UserError
from moon_jax.results import table_file
from moon_jax.runs import values

EXAMPLE = """
title = "Methods"
flagfile = "../digits.flags"
seed = [0, 1]
num_rounds = 3

[[published]]
algorithm = "moon"
accuracy = 69.1

[[runs]]
algorithm = "fedavg"
metrics = ["f1,ece", ""]

[[runs]]
algorithm = ["moon(num_negatives=2)", "fedprox"]
"algorithm.mu" = [1, 5]
num_rounds = 4
budget.smoke = {"algorithm.mu" = 1}
"""


@pytest.fixture
def file(tmp_path):
  (tmp_path / 'digits.flags').write_text(
      '# comment\n--dataset=digits\n--noaugment\n--learning_rate=0.02\n')
  (tmp_path / 'tables').mkdir()
  path = tmp_path / 'tables' / 'methods.toml'
  path.write_text(EXAMPLE)
  return path


def runs(named, *names):
  return [tuple(str(value) if name in PARTS else value for name in names
                for value in [values.get(config, name)])
          for config in named.sweep.configs]


def test_blocks_are_crossed_with_the_top_and_united(file):
  named = grids.build(Config(), (), [], str(file))
  assert runs(named, 'algorithm', 'metrics', 'num_rounds', 'seed') == [
      ('fedavg', 'f1,ece', 3, 0), ('fedavg', 'f1,ece', 3, 1),
      ('fedavg', '', 3, 0), ('fedavg', '', 3, 1),
      *[(call, '', 4, seed) for call in (
          'moon(num_negatives=2, mu=1)', 'moon(num_negatives=2)',
          'fedprox(mu=1)', 'fedprox(mu=5)') for seed in (0, 1)]]
  assert set(runs(named, 'dataset', 'augment', 'learning_rate')) == {
      ('digits', False, .02)}
  assert (named.name, named.title) == ('methods', 'Methods')


def test_all_keys_are_read(file):
  content = toml_file.read(str(file))
  assert [*content.keys] == ['title', 'flagfile', 'published', 'runs']
  assert content.keys['published'] == [{'algorithm': 'moon', 'accuracy': 69.1}]
  assert content.block_keys == [{}, {'budget': {'smoke': {'algorithm.mu': 1}}}]
  assert content.blocks[1]['algorithm.mu'] == (1, 5)
  assert content.blocks[0]['num_rounds'] == 3


@pytest.mark.parametrize('text, message', [
    ('num_round = 3', "got 'num_round'; the nearest is 'num_rounds'"),
    ('mu = 3', "got 'mu'; the nearest is 'algorithm.mu'"),
    ('algorithm = "moon"\nalgorithm.mu = 3',
     'quote the key of its argument: "algorithm.mu" = 5'),
    ('seed.mu = 3', 'seed must be an integer'),
    ('flagfiles = "x"', "the nearest is 'flagfile'"),
    ('learning_rate = "5"', "learning_rate must be a finite number; got '5'"),
    ('learning_rate = [[1]]', 'learning_rate must be a finite number; got [1]'),
    ('"algorithm.mu" = [1, 1]', 'distinct values; got 1 twice'),
    ('"algorithm.mu" = []', 'must have one value or more'),
    ('"algoritm.mu" = 1', "a setting of a run; got 'algoritm.mu'"),
    ('algorithm = "fedavg("', 'must be a name or a call'),
    ('augment = ["true"]', "augment must be True or False; got 'true'"),
    ('seed = 2026-01-01', 'seed must be an integer; got datetime.date'),
    ('workdir = "x"', 'Give --workdir=DIR on the command line'),
    ('title = 3', 'title must be a string; got 3'),
    ('runs = []', 'runs must be one or more blocks [[runs]]; got []'),
    ('[runs]\nseed = 1', "runs must be blocks [[runs]]; got {'seed': 1}"),
    ('published = 1', 'published must be blocks [[published]]; got 1'),
    ('notes = "x"', "notes must be a list; got 'x'"),
    ('[[runs]]\nbudget = 1', 'budget must be a table; got 1'),
    ('[[runs]]\nmoo = 1', "block 1 of [[runs]] must name a setting of a run"),
    ('seed = 1\nseed = 2', 'must be TOML; got Cannot overwrite a value'),
    ('flagfile = "no.flags"', 'no.flags'),
])
def test_invalid_files_are_errors(text, message, tmp_path):
  path = tmp_path / 'a.toml'
  path.write_text(text)
  with pytest.raises(UserError) as error:
    toml_file.read(str(path))
  assert message in str(error.value) and str(path) in str(error.value)
  assert '\n' not in str(error.value).rstrip('\n')


def test_files_that_cannot_be_read(tmp_path):
  (tmp_path / 'bytes.toml').write_bytes(b'\xff')
  with pytest.raises(UserError, match='must be TOML'):
    toml_file.read(str(tmp_path / 'bytes.toml'))
  (tmp_path / 'a.flags').write_text('--grid=algorithm.mu=1\n')
  (tmp_path / 'a.toml').write_text('flagfile = "a.flags"')
  with pytest.raises(
      UserError, match="a.toml: the flag file must .* no flag --grid"):
    toml_file.read(str(tmp_path / 'a.toml'))


def test_arguments_of_parts_are_settings_of_runs(tmp_path):
  """Lists are axes, as those of --grid; other values hold for all runs."""
  path = tmp_path / 'a.toml'
  path.write_text("""
algorithm = "feddyn"
seed = [0, 1]
[[runs]]
"algorithm.alpha" = [0.02, 0.1]
[[runs]]
"algorithm.alpha" = 0.5
""")
  named = grids.build(Config(dataset='digits'), (), [], str(path))
  assert runs(named, 'algorithm', 'seed') == [
      (f'feddyn(alpha={alpha})', seed)
      for alpha in (.02, .1, .5) for seed in (0, 1)]
  of_grid = grids.build(
      Config(dataset='digits', algorithm='feddyn'), {'algorithm'},
      ['algorithm.alpha=0.02,0.1', 'seed=0,1'])
  assert of_grid.sweep.configs == named.sweep.configs[:4]
  # Flags on the command line replace them.
  again = grids.build(Config(dataset='digits'), (), ['algorithm.alpha=1'],
                        str(path))
  assert runs(again, 'algorithm', 'seed') == [
      ('feddyn(alpha=1)', 0), ('feddyn(alpha=1)', 1)]


@pytest.mark.parametrize('text', [
    'algorithm.mu = [1, 5]\nmodel.projection_dim = 32',
    '[algorithm]\nmu = [1, 5]\n[model]\nprojection_dim = 32'])
def test_arguments_need_no_quotes(text, tmp_path):
  path = tmp_path / 'a.toml'
  path.write_text(text)
  named = grids.build(Config(dataset='digits'), (), [], str(path))
  assert runs(named, 'algorithm', 'model') == [
      (f'moon(mu={mu})' if mu != 5 else 'moon', 'simple_cnn(projection_dim=32)')
      for mu in (1, 5)]


@pytest.mark.usefixtures('of_command')
def test_a_run_that_is_invalid_is_one_of_the_file(tmp_path):
  path = tmp_path / 'a.toml'
  path.write_text('dataset = "digits"\n"algorithm.mu" = [1, -3]\n')
  message = re.escape(
      f'{path}, run algorithm.mu=-3: --algorithm.mu must be at least 0; got -3')
  for read in table_file.read, lambda path: grids.build(Config(), (), [], path):
    with pytest.raises(UserError, match=f'^{message}'):
      read(str(path))


def test_an_argument_that_no_function_has(tmp_path):
  path = tmp_path / 'a.toml'
  path.write_text('algorithm = "feddyn"\n"algorithm.alpah" = [0.1]\n')
  with pytest.raises(UserError, match=(
      'feddyn has the arguments alpha, .*; got alpah=0.1. Did you mean alpha')):
    table_file.read(str(path))


def test_a_published_value_of_an_argument_has_runs(tmp_path):
  path = tmp_path / 'a.toml'
  path.write_text('algorithm = "feddyn"\n[[published]]\naccuracy = 3\n'
                  '"algorithm.alpha" = 0.1\n')
  with pytest.raises(UserError, match=(
      r'must have settings of a run; got algorithm\.alpha=0.1. Correct')):
    table_file.read(str(path))
