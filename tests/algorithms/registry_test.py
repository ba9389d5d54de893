"""What is known of the built-in methods, and settings without effect."""

import dataclasses
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax import optimizers
from moon_jax.algorithms import registry
from moon_jax.config import Config
from moon_jax.config.flags import READ_MU, READ_NUM_ROUNDS
from moon_jax.data import attackers, split

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
  assert {*registry.ignored(Config(**changes))} == {*expected}


def test_methods_that_read_the_number_of_rounds():
  """A finished run of fewer rounds is not the beginning of theirs."""
  assert set(READ_NUM_ROUNDS) == {
      name for name, method in registry.METHODS.items()
      if "hparams['num_rounds']" in inspect.getsource(
          inspect.getmodule(method.factory))}


@pytest.mark.parametrize('flags, keeps, sends_only, needs', [
    (dict(aggregation='fednova'), True, False, {'optimizer': 'sgd'}),
    (dict(algorithm='fedavg'), False, True, {}),
    (dict(algorithm='fedavg', aggregation='scaffold'), True, False,
     {'num_clients': 10, 'optimizer': 'sgd', 'momentum': 0}),
    (dict(algorithm='scaffold', scaffold_form='niid_bench'), True, False,
     {'num_clients': 10, 'optimizer': 'sgd'})])
def test_properties_of_methods_with_their_aggregation(
    flags, keeps, sends_only, needs):
  config = Config(**flags)
  found = registry.method(config)
  assert (found.keeps_client_state, found.sends_only_model) == (
      keeps, sends_only)
  assert registry.combined(config).needs == needs


@pytest.mark.parametrize('changes, mu', [
    (dict(algorithm='moon'), 5.),
    (dict(algorithm='moon', contrastive='l2'), 5.),
    (dict(algorithm='fedprox'), .01),
    (dict(algorithm='fedavg'), 0.), (dict(algorithm='solo'), 0.),
    (dict(algorithm='mine:make'), -1.)])  # its own
def test_default_mu(changes, mu):
  assert registry.default_mu(Config(**changes)) == mu


def test_hyperparameters_are_those_of_the_configuration():
  hparams = registry.make(
      Config(algorithm='fedavg', mu=.3, temperature=.2)).hparams
  assert (hparams['mu'], hparams['temperature']) == (.3, .2)


# Settings that are said to have no effect have none.

BASE = Config(dataset='digits', num_clients=3)
OTHER = {'beta': 5., 'shards_per_client': 3}


@pytest.mark.parametrize(
    'partition', ['iid', 'dirichlet', 'shards', 'quantity'])
def test_partitions_read_their_settings_only(partition):
  labels = np.random.default_rng(0).integers(0, 3, 300).astype(np.int32)
  data = mj.Dataset('x', np.zeros((300, 2), np.float32), labels,
                    np.zeros((3, 2), np.float32), labels[:3], ('a', 'b', 'c'))
  config = dataclasses.replace(BASE, partition=partition)
  before = split.make(config, data).clients
  for name in ('beta', 'shards_per_client'):
    after = split.make(
        dataclasses.replace(config, **{name: OTHER[name]}), data).clients
    is_equal = all(map(np.array_equal, before, after))
    assert is_equal == (name in registry.unused(config))


@pytest.mark.parametrize('flags, is_unused', [
    (dict(num_negatives=2), True), (dict(num_negatives=3), False),
    (dict(num_negatives=3, contrastive='l2'), True)])
def test_order_of_the_pool_counts_from_three_negatives_on(flags, is_unused):
  config = dataclasses.replace(BASE, **flags)
  assert ('negatives_pool' in registry.unused(config)) == is_unused


def test_flags_of_networks_are_unused_by_others():
  config = dataclasses.replace(BASE, model='mine:Net')
  changed = dataclasses.replace(config, norm='group', dtype='bfloat16')
  assert {*registry.ignored(changed)} == {'norm', 'dtype'} <= {
      *registry.refused(config)}
  assert 'dtype' not in registry.unused(BASE)


@pytest.mark.parametrize('optimizer', optimizers.OPTIMIZERS)
def test_only_sgd_reads_the_momentum(optimizer):
  def moved(momentum):
    hparams = {name: jnp.float32(.1) for name in (
        'learning_rate', 'weight_decay')} | {'momentum': jnp.float32(momentum)}
    tx = optimizers.make(optimizer, hparams)
    params, state = jnp.ones(2), tx.init(jnp.ones(2))
    for _ in range(2):
      updates, state = tx.update(jnp.ones(2), state, params)
      params = params + updates
    return params

  config = dataclasses.replace(BASE, optimizer=optimizer)
  with jax.numpy_dtype_promotion('standard'):  # of optax's adam
    is_equal = bool(jnp.array_equal(moved(.1), moved(.9)))
  assert is_equal == ('momentum' in registry.unused(config))


def test_methods_that_read_mu_are_known_without_jax():
  assert set(READ_MU) == {name for name, method in registry.METHODS.items()
                          if 'mu' in method.flags}


def numbers_and_words():
  """Yields the arguments of methods that are no flags: method, name, default.
  """
  for name, method in registry.METHODS.items():
    for argument, parameter in method.arguments.items():
      if not isinstance(parameter.default, bool) and argument != 'head':
        yield name, argument, parameter.default


# Negative numbers with a meaning: a shift of weights, and a cosine.
NEGATIVE = {('feddisco', 'b'), ('fedrcl', 'threshold')}


@pytest.mark.parametrize('name, argument, usual', [*numbers_and_words()])
def test_arguments_of_methods_out_of_range_are_refused(name, argument, usual):
  """With the argument, what it must be, the value, and a usual one."""
  factory = registry.METHODS[name].factory
  needed = {'num_clients': 4} if (
      'num_clients' in inspect.signature(factory).parameters) else {}
  text = inspect.getdoc(factory)
  wrong = ['nonsense'] if isinstance(usual, str) else [
      float('nan'), *([] if (name, argument) in NEGATIVE else [-1.])]
  if re.search(rf'\b{argument}: [^:]*\b0 to 1\b', text):
    wrong.append(1.5)
  if re.search(rf'\b{argument}: [^:]*(above 0|positive)', text):
    wrong.append(0.)
  factory(**needed, **{argument: usual})
  for value in wrong:
    with pytest.raises(mj.UserError, match=rf'{argument} must be .*; got '):
      factory(**needed, **{argument: value})


def test_the_range_of_fedspeed_is_checked():
  with pytest.raises(mj.UserError, match='alpha must be from 0 to 1; got 1.5'):
    mj.fedspeed(4, alpha=1.5)


@pytest.mark.parametrize('count, fraction, hostile', [
    (10, .25, 3), (10, .35, 4), (15, .2, 3), (10, .1, 1), (30, .1, 3)])
def test_the_server_assumes_the_hostile_clients_that_there_are(
    count, fraction, hostile):
  config = Config(
      algorithm='fedavg', num_clients=count, attackers=fraction,
      attack='sign_flip', aggregation='trimmed_mean')
  assert len(attackers.configured(config)) == hostile
  least = registry.rule_of(config, count).min_received  # 2 f + 1
  assert least == 2 * hostile + 1
