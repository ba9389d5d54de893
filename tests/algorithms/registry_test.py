"""Tests what is known of the built-in methods."""

import inspect

import pytest

from moon_jax.algorithms import registry, unused
from moon_jax.config import Config

OF_MOON = dict(mu=.3, contrastive='l2', temperature=.1, num_negatives=2,
               first_negative='random', negatives_pool='released')
COMBINING = dict(proximal_mu=.1, aggregation='fednova')
CHANGED = OF_MOON | COMBINING | dict(scaffold_form='niid_bench')
NOT_OF_L2 = ['temperature', 'num_negatives', 'first_negative', 'negatives_pool']


@pytest.mark.parametrize('changes, expected', [
    (dict(algorithm='solo', **CHANGED), list(registry.METHOD_FLAGS)),
    (dict(algorithm='centralized', **CHANGED), list(registry.METHOD_FLAGS)),
    (dict(algorithm='fedavg', **CHANGED), [*OF_MOON, 'scaffold_form']),
    (dict(algorithm='fedprox', **CHANGED),
     ['contrastive', *NOT_OF_L2, 'proximal_mu', 'scaffold_form']),
    (dict(algorithm='scaffold', **CHANGED), [*OF_MOON, 'aggregation']),
    (dict(algorithm='fednova', **CHANGED),
     [*OF_MOON, 'aggregation', 'scaffold_form']),
    (dict(algorithm='moon', **CHANGED), [*NOT_OF_L2, 'scaffold_form']),
    (dict(algorithm='moon', **CHANGED | {'contrastive': 'model'}),
     ['scaffold_form']),
    (dict(algorithm='moon', **CHANGED | {
        'contrastive': 'model', 'aggregation': 'scaffold'}), []),
    (dict(algorithm='mine:make', **CHANGED), list(COMBINING)),
    (dict(algorithm='fedavg', temperature=.1), ['temperature']),
    (dict(algorithm='fedavg', num_negatives=2), ['num_negatives']),
    (dict(algorithm='fedavg'), []),
    (dict(algorithm='fedavg', mu=0.), []),  # replaces --mu=-1
    (dict(algorithm='scaffold', mu=5.), ['mu']),
])
def test_ignored_flags(changes, expected):
  assert {*unused.ignored(Config(**changes))} == {*expected}


def test_flags_of_moon():
  assert {*CHANGED} == {*registry.METHOD_FLAGS}
  assert set(registry.METHODS['moon'].flags) == {*OF_MOON, *COMBINING}


@pytest.mark.parametrize('flags, keeps, sends_only, optimizers, is_plain', [
    (dict(), True, True, 3, False),
    (dict(aggregation='fednova'), True, False, 1, False),
    (dict(aggregation='scaffold'), True, False, 1, True),
    (dict(aggregation='scaffold', scaffold_form='niid_bench'),
     True, False, 1, False),
    (dict(algorithm='fedavg'), False, True, 3, False),
    (dict(algorithm='fedavg', aggregation='fednova'), False, False, 1, False),
    (dict(algorithm='fedavg', aggregation='scaffold'), True, False, 1, True),
    (dict(algorithm='scaffold'), True, False, 1, True),
    (dict(algorithm='scaffold', scaffold_form='niid_bench'),
     True, False, 1, False)])
def test_properties_of_methods_with_their_aggregation(
    flags, keeps, sends_only, optimizers, is_plain):
  found = registry.method(Config(**flags))
  assert (found.keeps_client_state, found.sends_only_model,
          len(found.optimizers), found.needs_plain_sgd) == (
              keeps, sends_only, optimizers, is_plain)


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
