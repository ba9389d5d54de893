"""Errors name the flag, its value and a remedy, for each limit."""

import dataclasses
import pathlib
import re
import tomllib

import pytest

from docs_pages import config_of
from moon_jax import config as config_lib
from moon_jax.algorithms import registry
from moon_jax.config import ALGORITHMS, Config, DATASETS
from moon_jax.data.sources import SOURCES
from moon_jax.errors import UserError
from moon_jax.models import MODELS
from moon_jax.optimizers import OPTIMIZERS
from moon_jax.simulation import checks


@pytest.mark.parametrize('field, value', [
    *((name, 0) for name in (
        'num_clients', 'shards_per_client', 'num_negatives', 'projection_dim',
        'num_rounds', 'local_epochs', 'batch_size', 'eval_every')),
    *((name, 0.) for name in (
        'participation', 'beta', 'temperature', 'learning_rate',
        'server_learning_rate', 'dp_delta')),
    *((name, 1.) for name in (
        'momentum', 'dropout_rate', 'client_test_fraction', 'dp_delta')),
    ('beta', float('inf')), ('participation', 1.5), ('mu', -2.),
    ('num_rounds', 10**9), ('mu', 1e300), ('temperature', 1e-45),
    ('dp_noise_multiplier', 1e20), ('dp_clip', 1e-25), ('dp_clip', -1.),
    ('seed', 2**32), ('partition_seed', 2**32), ('dataset', 'mine:'),
    ('algorithm', 'fedsgd'), ('algorithm', 'a b:c'), ('optimizer', 'lion'),
    ('workdir', '~no_such_user/x'), ('cohorts_file', '~no_such_user/x'),
])
def test_out_of_range(field, value):
  words = f'--{field}.*{re.escape(str(value))}'
  with pytest.raises(UserError, match=words) as error:
    checks.validate(Config(**{field: value}))
  assert str(error.value).count('\n') <= 1


@pytest.mark.parametrize('kind, value', [
    (int, -2), (float, -3.), (float, float('nan')), (str, '\u00df\u2603')])
def test_each_setting_has_limits(kind, value):
  for field in dataclasses.fields(Config):
    if field.type is kind and (kind is not str or field.metadata['choices']
                               or field.metadata['names']):
      with pytest.raises(UserError, match=f'--{field.name}'):
        checks.validate(Config(**{field.name: value}))


SETTINGS = tomllib.loads((pathlib.Path(__file__).parents[1] / (
    'invalid_input.toml')).read_text(encoding='utf-8'))['settings']


@pytest.mark.parametrize('flags', SETTINGS)
def test_settings_that_do_not_fit_together(flags):
  with pytest.raises(UserError) as error:
    checks.validate(config_of(flags))
  for word in SETTINGS[flags]:
    assert word in str(error.value)


def test_what_is_left_open_is_filled_in():
  assert checks.validate(Config()).mu == 5
  alone = checks.validate(Config(
      algorithm='centralized', participation=.2, num_clients=50))
  assert alone.num_clients == alone.cohort_size() == 1
  assert checks.validate(alone) == alone
  few = checks.validate(Config(
      algorithm='centralized', train_examples=9, label_noise=.2))
  assert few.num_clients == 1 and few.partition == 'iid'
  assert Config(seed=3, partition_seed=0).split_seed() == 0
  assert Config(seed=3).split_seed() == 3


@pytest.mark.parametrize('changes', [
    dict(dtype='bfloat16', convolution='native'), dict(precision='tf32x3'),
    dict(precision='tf32', convolution='native'), dict(precision='bfloat16')])
def test_arithmetic_that_there_is(changes):
  checks.validate(Config(model='resnet18', **changes))


def test_cohorts_are_rounded_down():
  for num_clients, participation, size in [
      (10, .29, 2), (10, .3, 3), (3, .5, 1), (100, .1, 10), (7, 1., 7),
      *[(n, float(f'{count / n:.12g}'), count) for n in (100, 3400)
        for count in range(1, 100)]]:
    config = Config(num_clients=num_clients, participation=participation)
    assert config.cohort_size() == size, (num_clients, participation)


@pytest.mark.parametrize('num_clients', [3, 999])
def test_remedy_for_a_cohort_of_none_works(num_clients):
  with pytest.raises(UserError) as error:
    checks.validate(Config(num_clients=num_clients, participation=1e-4))
  enough = float(re.search('to ([0-9.]+) or more', str(error.value))[1])
  checks.validate(Config(num_clients=num_clients, participation=enough))


def test_choices_are_what_there_is():
  choices = {f.name: f.metadata['choices'] for f in dataclasses.fields(Config)}
  assert set(choices['optimizer']) == set(OPTIMIZERS)
  assert set(config_lib.MODELS) == set(MODELS)
  assert set(DATASETS) == set(SOURCES)
  assert set(ALGORITHMS) == set(registry.METHODS)


def test_command_tells_what_is_not_default():
  config = Config(mu=1., augment=False, seed=3, data_dir='x', workdir='y')
  assert config.command() == (
      'python -m moon_jax.train --data_dir=DATA_DIR --mu=1.0 --noaugment '
      '--seed=3')
