"""The pool of MOON's previous models, against a list in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federation import assert_trees_close, Federation, linear_model, moon, solo
from moon_jax.algorithms import moon as moon_lib
from moon_jax.engine import state as state_lib
from moon_jax.errors import UserError


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


@pytest.mark.parametrize('first', [[], [100.]], ids=['empty', 'one'])
@pytest.mark.parametrize('form', REFERENCES)
def test_pool_of_eight_rounds(form, first):
  add = jax.jit(moon_lib.POOLS[form])
  for k in range(1, 6):
    memory = (moon_lib.pool_of_one if first else moon_lib.empty_pool)(
        k, {'w': jnp.full((2, 3), 100.)})
    pool = list(first)
    for t in range(8):
      memory = add(memory, {'w': jnp.full((2, 3), t + 1.)})
      pool = REFERENCES[form](pool, k, t + 1.)
      found = np.asarray(memory.models['w'])
      assert (found == found[:, :1, :1]).all()
      held = found[:, 0, 0]
      assert sorted(held[:len(pool)]) == sorted(pool)
      assert not held[len(pool):].any()
      assert int(memory.num_models) == len(first) + t + 1


def losses_of(algorithm, num_rounds=6):
  """Returns the contrastive losses of client 1 in each of its steps."""
  federated = Federation(algorithm)
  found = []
  for _ in range(num_rounds):
    table, metrics = federated.round((1, 2))
    at = int(np.flatnonzero(table.jobs.client == 1)[0])
    found.append(metrics.extra_TL['contrastive_loss'][table.job_TL == at])
  return np.array(found)


@pytest.mark.parametrize('k', [2, 3])
def test_pools_differ_from_three_models_on(k):
  """They differ from the second model on that a full pool takes."""
  newest, released = (
      losses_of(moon(k, mu=.1, negatives_pool=pool)) for pool in REFERENCES)
  same = k + 1 if k > 2 else 6
  np.testing.assert_allclose(newest[:same], released[:same], atol=1e-6)
  assert (np.abs(newest[same:] - released[same:]) > 1e-5).all()


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


@pytest.mark.parametrize('choice', ['first_negative', 'negatives_pool'])
def test_other_choices_are_refused(choice):
  with pytest.raises(UserError, match=f"{choice} must be one of .*; got 'x'"):
    moon(1, **{choice: 'x'})
