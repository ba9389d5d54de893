"""Files of --sweep."""

import pytest

from moon_jax.cli.command_line import Given
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.report import table_file
from moon_jax.sweep import command, toml_file

EXAMPLE = """
title = "Methods"
flagfile = "../digits.flags"
mu = 2
seed = [0, 1]
num_rounds = 3

[[published]]
algorithm = "moon"
accuracy = 69.1

[[runs]]
algorithm = "fedavg"
metrics = ["f1,ece", ""]

[[runs]]
algorithm = "moon"
mu = [1, 5]
num_rounds = 4
budget.smoke = {mu = 1}
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
  return [tuple(getattr(config, name) for name in names)
          for config in named.sweep.configs]


def test_blocks_are_crossed_with_the_top_and_united(file):
  named = command.build(Config(), Given(), [], str(file))
  assert runs(named, 'algorithm', 'mu', 'metrics', 'num_rounds', 'seed') == [
      ('fedavg', 0., 'f1,ece', 3, 0), ('fedavg', 0., 'f1,ece', 3, 1),
      ('fedavg', 0., '', 3, 0), ('fedavg', 0., '', 3, 1),
      ('moon', 1., '', 4, 0), ('moon', 1., '', 4, 1),
      ('moon', 5., '', 4, 0), ('moon', 5., '', 4, 1)]
  assert set(runs(named, 'dataset', 'augment', 'learning_rate')) == {
      ('digits', False, .02)}
  assert (named.name, named.title) == ('methods', 'Methods')


def test_all_keys_are_read(file):
  content = toml_file.read(str(file))
  assert [*content.keys] == ['title', 'flagfile', 'published', 'runs']
  assert content.keys['published'] == [{'algorithm': 'moon', 'accuracy': 69.1}]
  assert content.block_keys == [{}, {'budget': {'smoke': {'mu': 1}}}]
  assert content.blocks[1]['mu'] == (1., 5.) and content.blocks[0]['mu'] == 2.


@pytest.mark.parametrize('text, message', [
    ('num_negative = 3', "got 'num_negative'; the nearest is 'num_negatives'"),
    ('flagfiles = "x"', "the nearest is 'flagfile'"),
    ('mu = "5"', "mu must be a float; got '5'"),
    ('mu = [[1]]', 'mu must be a float; got [1]'),
    ('seed = 2026-01-01', 'seed must be an int; got datetime.date'),
    ('workdir = "x"', 'give --workdir=DIR on the command line'),
    ('title = 3', 'title must be a string, got 3'),
    ('runs = []', 'runs must be one or more blocks [[runs]], got []'),
    ('[runs]\nmu = 1', "runs must be blocks [[runs]], got {'mu': 1}"),
    ('published = 1', 'published must be blocks [[published]], got 1'),
    ('notes = "x"', "notes must be a list, got 'x'"),
    ('[[runs]]\nbudget = 1', 'budget must be a table, got 1'),
    ('[[runs]]\nmoo = 1', "block 1 of [[runs]] must name a setting of a run"),
    ('mu = 1\nmu = 2', 'must be TOML, got: Cannot overwrite a value'),
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
  (tmp_path / 'a.flags').write_text('--grid=mu=1\n')
  (tmp_path / 'a.toml').write_text('flagfile = "a.flags"')
  with pytest.raises(
      UserError, match="a.toml: the flag file must .* no flag --grid"):
    toml_file.read(str(tmp_path / 'a.toml'))


def test_arguments_of_methods_are_settings_of_runs(tmp_path):
  """Lists are axes, as those of --grid; other values hold for all runs."""
  path = tmp_path / 'a.toml'
  path.write_text(
      'algorithm = "feddyn"\nseed = [0, 1]\n[[runs]]\nalpha = [0.01, 0.1]\n'
      '[[runs]]\nalpha = 0.5\n')
  named = command.build(Config(dataset='digits'), Given(), [], str(path))
  assert runs(named, 'algorithm_args', 'seed') == [
      (f'alpha={alpha}', seed) for alpha in (.01, .1, .5) for seed in (0, 1)]
  of_grid = command.build(
      Config(dataset='digits', algorithm='feddyn'), Given(['algorithm']),
      ['alpha=0.01,0.1', 'seed=0,1'])
  assert of_grid.sweep.configs == named.sweep.configs[:4]
  # Flags on the command line replace them.
  again = command.build(Config(dataset='digits'), Given(), ['alpha=1'],
                        str(path))
  assert runs(again, 'algorithm_args', 'seed') == [
      ('alpha=1', 0), ('alpha=1', 1)]


@pytest.mark.parametrize('text, message', [
    ('alpah = [0.1]', "got 'alpah'; the nearest is 'alpha'"),
    ('alpha = []', 'must have one value or more'),
    ('alpha = [0.1, 0.1]', "distinct values, got 'alpha=0.1' twice"),
    ('[[published]]\nalpha = 0.1\naccuracy = 3', 'algorithm_args = "alpha=')])
def test_invalid_arguments_of_methods(tmp_path, text, message):
  path = tmp_path / 'a.toml'
  path.write_text(f'algorithm = "feddyn"\n{text}\n')
  with pytest.raises(UserError, match=message):
    table_file.read(str(path))
