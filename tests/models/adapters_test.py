"""Networks of which a part trains: their state, and what is drawn for them.

tests/tasks_test.py compares their outputs and gradients with merged weights.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from support import networks


@pytest.mark.parametrize('partial', [
    lambda *args, **kwargs: mj.lora(*args, rank=2, **kwargs), mj.freeze])
def test_batch_statistics_are_those_of_the_whole_network(partial):
  """Adapters begin with 0, so the first step has the same activations."""
  whole = mj.from_flax(networks.Linen())
  x, mask_B = jax.random.normal(jax.random.key(0), (6, 4)), jnp.ones(6)
  variables = jax.jit(whole.init)(jax.random.key(1), x)
  model = partial(whole, where='dense', variables=variables)
  key = jax.random.key(2)
  before = jax.jit(model.init)(jax.random.key(3), x)
  (_, found), (_, expected) = (
      jax.jit(functools.partial(network.apply, train=True))(
          given, x, mask_B, key=key)
      for network, given in ((model, before), (whole, variables)))
  jax.tree.map(np.testing.assert_array_equal, found['batch_stats'],
               expected['batch_stats'])
  moved = jax.tree.map(lambda old, new: bool(jnp.any(old != new)),
                       before['batch_stats'], found['batch_stats'])
  assert all(jax.tree.leaves(moved))
  assert found['params'].keys() == before['params'].keys()
  _, same = jax.jit(functools.partial(model.apply, train=False))(
      found, x, mask_B)
  jax.tree.map(np.testing.assert_array_equal, same['batch_stats'],
               found['batch_stats'])


def test_no_two_arrays_of_a_network_are_drawn_alike():
  """Layers of equal sizes, and their adapters."""
  plain = mj.transformer(7, width=8, num_layers=2, num_heads=2)
  tokens = jnp.zeros((1, 5), jnp.int32)
  for model in plain, mj.lora(plain, 2):
    drawn = [np.asarray(x).ravel() for x in jax.tree.leaves(
        jax.jit(model.init)(jax.random.key(0), tokens)['params'])]
    drawn = [x for x in drawn if x.std()]  # not zeros or ones
    assert len(drawn) > 8
    for a, b in itertools.combinations(drawn, 2):
      assert not np.array_equal(a[:8], b[:8])
