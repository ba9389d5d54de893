"""Every limit of a configuration is told with flag, value and remedy."""

import dataclasses

import pytest

from moon_jax import config as config_lib
from moon_jax.algorithms import ALGORITHMS
from moon_jax.config import Config
from moon_jax.data.sources import SOURCES
from moon_jax.errors import UserError
from moon_jax.models import MODELS
from moon_jax.optimizers import OPTIMIZERS


@pytest.mark.parametrize('field, value', [
    ('dataset', 'mnist'), ('partition', 'shards'), ('algorithm', 'fedsgd'),
    ('optimizer', 'lion'), ('dtype', 'float16'), ('model', 'vgg'),
    ('num_clients', 0), ('participation', 1.5), ('participation', 0.),
    ('beta', 0.), ('beta', float('nan')), ('beta', float('inf')),
    ('mu', -1.), ('temperature', 0.), ('num_negatives', 0),
    ('projection_dim', 0), ('num_rounds', 0), ('local_epochs', 0),
    ('batch_size', 0), ('learning_rate', 0.), ('momentum', 1.),
    ('weight_decay', -1.), ('seed', -1), ('seed', 2**32),
    ('partition_seed', -2), ('partition_seed', 2**32), ('eval_every', 0),
    ('checkpoint_every', -1), ('lanes', -1),
])
def test_out_of_range(field, value):
  with pytest.raises(UserError, match=f'--{field}.*{value}') as error:
    config_lib.validate(Config(**{field: value}))
  assert str(error.value).count('\n') <= 1


def test_cohort_of_none():
  with pytest.raises(UserError, match='samples no client.*0.1 or more'):
    config_lib.validate(Config(num_clients=10, participation=.05))


def test_defaults_are_valid_and_told():
  config_lib.validate(Config())
  assert all(field.metadata['help'] for field in dataclasses.fields(Config))


def test_choices_are_what_there_is():
  choices = {f.name: f.metadata['choices'] for f in dataclasses.fields(Config)}
  for field, table in (('dataset', SOURCES), ('algorithm', ALGORITHMS),
                       ('model', MODELS), ('optimizer', OPTIMIZERS)):
    assert set(choices[field]) == set(table)


def test_command_tells_what_is_not_default():
  config = Config(mu=1., augment=False, seed=3, data_dir='x', workdir='y')
  assert config.command() == (
      'python -m moon_jax.train --mu=1.0 --noaugment --seed=3')


def test_fingerprint_follows_what_changes_results():
  base = Config().fingerprint()
  assert Config(mu=1.).fingerprint() != base
  assert Config(lanes=3, workdir='x', data_dir='y').fingerprint() == base
