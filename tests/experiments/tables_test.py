"""The table files: their keys, their settings and their published numbers."""

import itertools
import pathlib
import tomllib

import pytest

from moon_jax.cli import command_line
from moon_jax.config import Config
from moon_jax.sweep import values

ROOT = pathlib.Path(__file__).parents[2]
TABLES = ROOT / 'experiments' / 'tables'
NAMES = (
    'accuracy', 'clients', 'data', 'differences', 'epochs', 'fedavgm', 'flower',
    'heterogeneity', 'loss_term', 'mu', 'negatives', 'projection_head',
    'projections', 'rounds', 'second_reproduction', 'temperature', 'time')

KEYS = {'title': str, 'description': str, 'source': str, 'flagfile': str,
        'budgets': str, 'headline': str, 'baseline': dict, 'panels': list,
        'best_of': list, 'notes': list, 'quotes': list, 'pages': list,
        'loss_divisor': int, 'published': list, 'runs': list, 'budget': dict}
HEADLINES = {'accuracy': 'accuracy', 'rounds': 'rounds', 'time': 'seconds'}
OF_PUBLISHED = {'accuracy': (1, 100), 'rounds': (1, 100),
                'seconds': (100, 20_000), 'std': (.05, 6), 'n': (3, 3)}
TEXTS = ('source', 'note')
BUDGETS = ('smoke', 'small')


def read(name):
  return tomllib.loads((TABLES / f'{name}.toml').read_text(encoding='utf-8'))


def settings(table, *others):
  """Returns the settings of a table of TOML: what is no other key."""
  return {name: value for name, value in table.items()
          if name not in KEYS and name not in others}


def check(found, where, axes=True):
  """Checks the names and the types of settings."""
  for name, value in found.items():
    assert hasattr(Config, name), (where, name)
    for x in value if axes and isinstance(value, list) else [value]:
      values.convert(name, x, where)


def block_at(table, block, budget):
  """Returns the settings of a block, with those of the file, at a budget."""
  common = read('budgets')[budget] if budget else {}
  return settings(table) | settings(block) | common | (
      table.get('budget', {}).get(budget, {})) | (
          block.get('budget', {}).get(budget, {}))


def arms(table, budget=''):
  """Returns the settings of all runs, by their names."""
  flags = command_line.settings_of_file(TABLES / table['flagfile'], 'flagfile')
  runs = []
  for block in table['runs']:
    found = block_at(table, block, budget)
    lists = {name: value if isinstance(value, list) else [value]
             for name, value in found.items()}
    runs += [Config().to_dict() | flags | dict(zip(lists, combination))
             for combination in itertools.product(*lists.values())]
  return runs


def test_each_table_has_a_file():
  assert sorted(path.stem for path in TABLES.glob('*.toml')) == sorted(
      [*NAMES, 'budgets'])


@pytest.mark.parametrize('name', NAMES)
def test_keys_and_settings(name):
  text = (TABLES / f'{name}.toml').read_text(encoding='utf-8')
  assert f'# python -m moon_jax.report experiments/tables/{name}.toml' in text
  table = read(name)
  for key in 'title', 'description', 'source', 'flagfile', 'budgets':
    assert table[key] and '\n' not in table[key], key
  for key, kind in KEYS.items():
    assert isinstance(table.get(key, kind()), kind), key
  assert table.get('headline', 'accuracy') in HEADLINES
  check(settings(table), name)
  check(table.get('baseline', {}), name, axes=False)
  for setting in table.get('panels', []) + table.get('best_of', []):
    assert hasattr(Config, setting), setting
  assert all(isinstance(note, str) and '  ' not in note
             for note in table.get('notes', []))
  for i, block in enumerate(table['runs']):
    where = f'{name}, block {i}'
    assert not set(KEYS) - {'baseline', 'budget'} & set(block), where
    check(settings(block), where)
    check(block.get('baseline', {}), where, axes=False)
    for budgets in table.get('budget', {}), block.get('budget', {}):
      assert set(budgets) <= set(BUDGETS)
      for budget, found in budgets.items():
        check(found, f'{where}, budget {budget}')


def test_budgets():
  budgets = read('budgets')
  assert tuple(budgets) == BUDGETS
  for name, found in budgets.items():
    check(found, name)
  assert budgets['small'] == dict(
      dataset='cifar10', model='simple_cnn', num_rounds=10, local_epochs=1,
      seed=[0, 1, 2])
  for name in NAMES:
    runs = arms(read(name), 'smoke')
    assert len(runs) <= 80 and {run['dataset'] for run in runs} == {'digits'}
    assert {run['dataset'] for run in arms(read(name), 'small')} == {'cifar10'}


@pytest.mark.parametrize('name', NAMES)
def test_each_published_number_belongs_to_one_arm(name):
  table = read(name)
  free = {'seed', *table.get('best_of', [])}
  runs = arms(table)
  seen = set()
  for row in table.get('published', []):
    selected = settings(row, *OF_PUBLISHED, *TEXTS)
    check(selected, name, axes=False)
    values_of = {key: row[key] for key in OF_PUBLISHED if key in row}
    for key, value in values_of.items():
      low, high = OF_PUBLISHED[key]
      assert low <= value <= high, row
    assert HEADLINES[table['headline']] in row
    assert ('std' in row) == ('n' in row)
    found = {tuple((key, value) for key, value in sorted(run.items())
                   if key not in free)
             for run in runs
             if all(run[key] == value for key, value in selected.items())}
    assert len(found) == 1, (row, len(found))
    assert not found & seen, row  # one published number for an arm
    seen |= found


def test_the_published_numbers_are_complete():
  """Counted in the publications' tables."""
  counts = {name: len(rows) for name in NAMES
            if (rows := read(name).get('published'))}
  assert counts == dict(
      accuracy=15, rounds=10, epochs=15, clients=22, heterogeneity=11,
      loss_term=9, projection_head=20, mu=15, fedavgm=12, time=12, negatives=4,
      flower=12, second_reproduction=12)
