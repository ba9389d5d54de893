"""Settings that are said to have no effect have none."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax import optimizers
from moon_jax.algorithms import unused
from moon_jax.data import split

BASE = mj.Config(dataset='digits', num_clients=3)
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
    assert is_equal == (name in unused.unused(config))


@pytest.mark.parametrize('flags, is_unused', [
    (dict(num_negatives=2), True), (dict(num_negatives=3), False),
    (dict(num_negatives=3, contrastive='l2'), True)])
def test_order_of_the_pool_counts_from_three_negatives_on(flags, is_unused):
  config = dataclasses.replace(BASE, **flags)
  assert ('negatives_pool' in unused.unused(config)) == is_unused


def test_flags_of_networks_are_unused_by_others():
  config = dataclasses.replace(BASE, model='mine:Net')
  changed = dataclasses.replace(config, norm='group', dtype='bfloat16')
  assert {*unused.ignored(changed)} == {'norm', 'dtype'} <= {
      *unused.refused(config)}
  assert 'dtype' not in unused.unused(BASE)


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
  assert is_equal == ('momentum' in unused.unused(config))
