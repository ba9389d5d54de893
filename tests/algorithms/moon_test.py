"""The pool of MOON's previous models, against a list in plain Python."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.engine import state as state_lib
from support.federation import assert_trees_close, linear_model, moon, solo


def append_newest(pool, k, model):
  return [*pool, model][-k:]


def append_released(pool, k, model):
  """As the released code does."""
  pool = list(pool)
  if len(pool) < k:
    return [*pool, model]
  for i in range(k - 2, -1, -1):
    pool[i] = pool[i + 1]
  pool[k - 1] = model
  return pool


REFERENCES = {'newest': append_newest, 'released': append_released}


@pytest.mark.parametrize('first_negative', ['none', 'random'])
@pytest.mark.parametrize('form', REFERENCES)
def test_pool_of_eight_rounds(form, first_negative):
  for k in range(1, 6):
    algorithm = moon(k, pool=form, first_negative=first_negative)
    add = jax.jit(lambda memory, w, a=algorithm: a.finish(
        {'w': w}, types.SimpleNamespace(client=memory))[0])
    memory = algorithm.init_client({'w': jnp.full((2, 3), 100.)})
    pool = first = [100.] if first_negative == 'random' else []
    for t in range(8):
      memory = add(memory, jnp.full((2, 3), t + 1.))
      pool = REFERENCES[form](pool, k, t + 1.)
      found = np.asarray(memory.models['w'])
      assert (found == found[:, :1, :1]).all()
      held = found[:, 0, 0]
      assert sorted(held[:len(pool)]) == sorted(pool)
      assert not held[len(pool):].any()
      assert int(memory.num_models) == len(first) + t + 1


def state(algorithm, num_clients=4, seed=0, variables=None):
  return state_lib.init([seed], linear_model(), algorithm, num_clients,
                        jnp.zeros((1, 2, 2, 1)), variables)


def test_random_first_negatives_are_those_that_solo_draws():
  """By seed and client alone; also if the global model is given."""
  drawn = state(solo()).clients
  given = {'params': {'w': jnp.ones((4, 3)), 'b': jnp.zeros(3)}}
  algorithm = moon(2, first_negative='random')
  for memory in (state(algorithm).clients, state(algorithm, 6).clients,
                 state(algorithm, variables=given).clients):
    assert (memory.num_models == 1).all()
    first = jax.tree.map(lambda x: x[:, :4, 0], memory.models)
    assert_trees_close(first, drawn, atol=0)
    assert not memory.models['params']['w'][:, :, 1:].any()
  w = state(algorithm).clients.models['params']['w'][0, :, 0]
  other = state(algorithm, seed=1).clients.models['params']['w'][0, :, 0]
  assert len(np.unique(np.round([*w, *other], 4), axis=0)) == 8
