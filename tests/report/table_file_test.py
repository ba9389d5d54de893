"""Files of tables."""

import pathlib

import pytest

from moon_jax.errors import UserError
from moon_jax.report import table_file
from moon_jax.report.table_file import Published

ROOT = pathlib.Path(__file__).parents[2]
TEXT = """
title = "Two methods"
source = "A paper, table 1"
budgets = "budgets.toml"
baseline = {algorithm = "fedavg"}
panels = ["beta"]
best_of = ["mu"]
notes = ["A fact."]
num_rounds = 100
local_epochs = 10
beta = [0.1, 0.5]
seed = [0, 1, 2]

[budget.smoke]
learning_rate = 0.02

[[runs]]
algorithm = "fedavg"

[[runs]]
algorithm = "moon"
mu = [1, 5]

[[runs]]
algorithm = "solo"
num_rounds = 1
local_epochs = 300
budget.smoke = {num_rounds = 1, local_epochs = 6}
baseline = {algorithm = "moon", mu = 1}

[[published]]
algorithm = "moon"
accuracy = 69.1
std = 0.4
n = 3
"""
BUDGETS = """
[smoke]
dataset = "digits"
model = "mlp"
num_rounds = 4
local_epochs = 1
beta = 0.5
seed = [0, 1]

[small]
num_rounds = 10
"""


@pytest.fixture
def file(tmp_path):
  (tmp_path / 'budgets.toml').write_text(BUDGETS)
  path = tmp_path / 'methods.toml'
  path.write_text(TEXT)
  return path


def settings(table, *names):
  return [{tuple(getattr(config, name) for name in names)
           for config in block.sweep.configs} for block in table.blocks]


def test_the_full_budget_is_the_file(file):
  table = table_file.read(str(file))
  assert settings(table, 'num_rounds', 'local_epochs', 'dataset') == [
      {(100, 10, 'cifar10')}, {(100, 10, 'cifar10')}, {(1, 300, 'cifar10')}]
  assert [len(block.sweep.configs) for block in table.blocks] == [6, 12, 6]
  assert len(table.sweep.configs) == 24 and not table.changed
  assert table.blocks[1].baseline == {'algorithm': 'fedavg'}
  assert table.blocks[2].baseline == {'algorithm': 'moon', 'mu': 1.}
  published, = table.published
  assert published == Published(
      {'algorithm': 'moon'}, 'accuracy', 69.1, .4, 3, '')


def test_budgets_replace_settings_the_nearest_first(file):
  table = table_file.read(str(file), 'smoke')
  assert settings(
      table, 'num_rounds', 'local_epochs', 'dataset', 'learning_rate', 'beta'
  ) == [{(4, 1, 'digits', .02, .5)}, {(4, 1, 'digits', .02, .5)},
        {(1, 6, 'digits', .02, .5)}]
  assert [len(block.sweep.configs) for block in table.blocks] == [2, 4, 2]
  assert table.blocks[0].replaced['beta'] == (.1, .5)
  assert table.blocks[0].replaced['dataset'] == 'cifar10'
  small = table_file.read(str(file), 'small')
  assert settings(small, 'num_rounds', 'local_epochs')[0] == {(10, 10)}


def test_the_command_line_replaces_all(file):
  table = table_file.read(str(file), 'smoke', {'num_rounds': 2,
                                               'data_dir': 'd'})
  assert settings(table, 'num_rounds') == [{(2,)}] * 3 and table.changed
  assert not table_file.read(str(file), 'smoke', {'data_dir': 'd'}).changed


def test_a_published_value_without_arm_is_an_error(file):
  file.write_text(TEXT.replace('algorithm = "moon"\naccuracy',
                               'algorithm = "moon"\nmu = 7\naccuracy'))
  with pytest.raises(UserError, match='block 1 of ..published.. must have '
                     'settings of a run, got algorithm=moon, mu=7; correct'):
    table_file.read(str(file))
  table_file.read(str(file), 'small')


def test_a_table_without_a_budget_cannot_have_it(file):
  file.write_text('dataset = "digits"\n')
  with pytest.raises(UserError, match='has no settings of --budget=smoke; giv'):
    table_file.read(str(file), 'smoke', {'num_rounds': 1})
  table_file.read(str(file))


@pytest.mark.parametrize('text, message', [
    ('headline = "x"', "headline must be accuracy or rounds or time, got 'x'"),
    ('panels = ["x"]', "panels must be a list of names, got 'x'"),
    ('notes = [1]', 'notes must be a list of sentences, got 1'),
    ('baseline = {x = 1}', "baseline must name a setting of a run, got 'x'"),
    ('[budget.big]\nseed = 1', 'tables smoke or small, got big'),
    ('[budget.smoke]\nx = 1', "budget smoke must name a setting of a run"),
    ('[[published]]\nalgorithm = "moon"', 'must have one of accuracy, rounds'),
    ('[[published]]\naccuracy = 1\nrounds = 1', "got ['accuracy', 'rounds']"),
    ('[[published]]\naccuracy = "x"', "accuracy must be a number, got 'x'"),
    ('[[published]]\naccuracy = 1\nx = 1', 'must name a setting of a run'),
    ('budgets = "no.toml"', 'no.toml must be a file that can be read'),
])
def test_invalid_files_are_errors(text, message, tmp_path):
  path = tmp_path / 'a.toml'
  path.write_text(f'dataset = "digits"\nmodel = "mlp"\n{text}\n')
  with pytest.raises(UserError) as error:
    table_file.read(str(path), 'smoke' if 'budget' in text else 'full')
  assert message in str(error.value)
  assert str(tmp_path) in str(error.value)
