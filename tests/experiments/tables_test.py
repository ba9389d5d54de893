"""The content of the table files; table_file_test.py reads them."""

import functools
import pathlib
import re
import tomllib

import pytest

from moon_jax.cli import grids
from moon_jax.config import Config
from moon_jax.config.methods import METHODS
from moon_jax.results import arms as arms_lib
from moon_jax.results import table_file
from moon_jax.runs import values
from moon_jax.tuning import command

TABLES = pathlib.Path(__file__).parents[2] / 'experiments' / 'tables'
# Published numbers, counted in the publications' tables.
COUNTS = dict(
    accuracy=15, rounds=10, epochs=15, clients=22, heterogeneity=11,
    loss_term=9, projection_head=20, mu=15, fedavgm=12, time=12, negatives=4,
    flower=12, second_reproduction=12, data=0, differences=0, projections=0,
    temperature=0, methods=0, pfllib=15,
    pfedme=4)
RANGES = {'accuracy': (1, 100), 'global': (1, 100), 'personal': (1, 100),
          'rounds': (1, 100), 'seconds': (100, 20_000)}
HEADLINES = {'seconds': 'time', 'global': 'accuracy', 'personal': 'accuracy'}
DATASETS = {'methods': 'digits', 'pfllib': 'cifar100',
            'pfedme': 'experiments.pfedme_mnist:load'}  # of small budgets


@functools.cache
def read(name, budget='full'):
  return table_file.read(str(TABLES / f'{name}.toml'), budget)


def test_each_table_has_a_file():
  assert {path.stem for path in TABLES.glob('*.toml')} == {*COUNTS, 'budgets'}


def test_the_table_of_methods_names_those_that_it_lacks():
  table = read('methods')
  shown = {config.algorithm.name for config in table.sweep.configs}
  left_out, = (note for note in table.notes if 'left out' in note)
  found = {name for name, method in METHODS.items() if re.search(
      rf'(^|[^\w-]){method.title}([^\w-]|$)', left_out)} - {'moon', 'fedavg'}
  assert found == METHODS.keys() - shown
  for text in table.title, table.description:
    assert text.startswith(f'{len(shown)} ')


@pytest.mark.long
def test_budgets():
  budgets = tomllib.loads((TABLES / 'budgets.toml').read_text())
  assert budgets['small'] == dict(
      dataset='cifar10', model='simple_cnn', num_rounds=10, local_epochs=1,
      seed=[0, 1, 2])
  for name in COUNTS:
    tables = [read(name, budget) for budget in budgets]
    assert all(arms_lib.of_table(table, {}) for table in tables)
    smoke, small = (table.sweep.configs for table in tables)
    assert len(smoke) <= 90 and {run.dataset for run in smoke} == {'digits'}
    assert {run.dataset for run in small} == {DATASETS.get(name, 'cifar10')}


@pytest.mark.parametrize('name', COUNTS)
def test_each_published_number_belongs_to_one_arm(name):
  text = (TABLES / f'{name}.toml').read_text(encoding='utf-8')
  assert f'# moon-jax show experiments/tables/{name}.toml' in text
  table, seen = read(name), set()
  assert table.title and table.description and table.source
  assert arms_lib.of_table(table, {})
  free = {'seed', *table.best_of}
  assert len(table.published) == COUNTS[name]
  for published in table.published:
    low, high = RANGES[published.measure]
    assert low <= published.value <= high
    assert table.headline == HEADLINES.get(
        published.measure, published.measure)
    assert published.n == (None if published.std is None else 3)
    assert published.std is None or .03 <= published.std <= 6
    names = [name for name in values.TYPES if name not in free]
    found = {(published.measure, *values.shown(
        config, [*names, *free])[:len(names)])
             for block in table.blocks for config in block.sweep.configs
             if table_file.is_for(published, config, block)}
    assert len(found) == 1, (published, len(found))
    assert not found & seen, published  # one number of a kind for an arm
    seen |= found


def test_the_tuned_comparison_has_one_budget_for_all_methods():
  blocks = grids.blocks(
      Config(), (), [], str(TABLES.parent / 'tuned_comparison.toml'))
  arms = command.Tuning(
      blocks, blocks.file.keys['tune'], [], 3, 'runs').arms
  assert len({arm.name for arm in arms}) == len(arms) == 34
  assert [*map(str, {str(arm.tuner.forecast()): 0 for arm in arms})] == [
      '{8: 9, 24: 3, 72: 1}']
  rates = [[trial.settings['learning_rate'] for trial in arm.tuner.ask()]
           for arm in arms]
  assert rates == [[
      0.06512, 0.06624, 0.09575, 0.004469, 0.008247, 0.003309, 0.01835, 0.01956,
      0.02844]] * 34
  assert {arm.config.algorithm.name for arm in arms
          if arm.part == 'validation_personal'} == {
              'fedavg_ft', 'fedper', 'fedrep', 'ditto', 'fedbabu', 'apfl'}
