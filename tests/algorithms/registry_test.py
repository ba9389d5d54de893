"""Tests what is known of the built-in methods."""

import inspect

import pytest

from moon_jax.algorithms import registry
from moon_jax.config import Config

CHANGED = dict(mu=.3, contrastive='l2', temperature=.1, num_negatives=2)


@pytest.mark.parametrize('changes, expected', [
    (dict(algorithm='fedavg', **CHANGED), list(registry.METHOD_FLAGS)),
    (dict(algorithm='fedprox', **CHANGED),
     ['contrastive', 'temperature', 'num_negatives']),
    (dict(algorithm='moon', **CHANGED), ['temperature', 'num_negatives']),
    (dict(algorithm='moon', **CHANGED | {'contrastive': 'model'}), []),
    (dict(algorithm='mine:make', **CHANGED), []),
    (dict(algorithm='fedavg', temperature=.1), ['temperature']),
    (dict(algorithm='fedavg', num_negatives=2), ['num_negatives']),
    (dict(algorithm='fedavg'), []),
    (dict(algorithm='fedavg', mu=0.), []),  # replaces --mu=-1
    (dict(algorithm='scaffold', mu=5.), ['mu']),
])
def test_ignored_flags(changes, expected):
  assert registry.ignored_flags(Config(**changes)) == expected


def test_method_flags_are_those_of_moon():
  assert set(CHANGED) == set(registry.METHOD_FLAGS)
  assert set(registry.METHODS['moon'].flags) == set(CHANGED)


@pytest.mark.parametrize('changes, mu', [
    (dict(algorithm='moon'), 5.),
    (dict(algorithm='moon', contrastive='l2'), 5.),
    (dict(algorithm='fedprox'), .01),
    (dict(algorithm='fedavg'), 0.), (dict(algorithm='solo'), 0.),
    (dict(algorithm='mine:make'), 0.)])
def test_default_mu(changes, mu):
  assert registry.default_mu(Config(**changes)) == mu


@pytest.mark.parametrize('name', registry.METHODS)
def test_arguments_are_flags_that_the_factory_takes(name):
  method = registry.METHODS[name]
  parameters = inspect.signature(method.factory).parameters
  assert set(method.arguments) <= set(parameters) & set(vars(Config()))


@pytest.mark.parametrize('name', registry.METHODS)
def test_hyperparameters_are_those_of_the_configuration(name):
  config = Config(algorithm=name, mu=.3, temperature=.2)
  hparams = registry.make(config).hparams
  assert (hparams['mu'], hparams['temperature']) == (.3, .2)
