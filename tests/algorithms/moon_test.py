"""Several numbers of negatives, k, in one program with a buffer of M slots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federation import assert_trees_close
from federation import copied
from federation import Federation
from moon_jax.algorithms import base
from moon_jax.algorithms import moon as moon_lib
from moon_jax.algorithms.moon import moon
from moon_jax.errors import UserError

# Client 1 trains in all rounds, so that rings of 1 and 2 slots are overwritten.
COHORTS = [(0, 1, 4, 5), (7, 2, 1, 3), (1, 5, 4, 0), (1, 2, 3, 4), (5, 1)]


def run(algorithm, **kwargs):
  """Returns the state after the rounds of `COHORTS`."""
  federated = Federation(algorithm, **kwargs)
  runs = tuple(range(len(kwargs.get('seeds', (0,)))))
  for cohort in COHORTS:
    federated.round(cohort, runs=runs)
  return federated.state


def first_slots(clients, k):
  """Returns the first k slots; all others must be zeros."""
  def first(w):
    assert not np.asarray(w[:, :, k:]).any()
    return w[:, :, :k]

  return clients._replace(models=jax.tree.map(first, clients.models))


# How accelerators project: all models at once or in turn, or, with more than
# four slots, one by one as on CPUs.
@pytest.mark.parametrize('k, num_slots, few_weights', [
    (1, 5, None), (2, 5, None), (1, 3, 10**6), (2, 3, 10**6), (2, 3, 0)])
def test_unused_slots_change_no_bit(
    k, num_slots, few_weights, request, monkeypatch):
  if few_weights is not None:
    request.getfixturevalue('accelerator')
    monkeypatch.setattr(moon_lib, '_FEW_WEIGHTS', few_weights)
  alone, among = run(moon(k)), run(moon(k, num_slots=num_slots))
  assert_trees_close(alone.variables, among.variables, atol=0)
  assert_trees_close(alone.clients, first_slots(among.clients, k), atol=0)
  assert jax.tree.leaves(among.clients.models)[0].shape[2] == num_slots


@pytest.mark.parametrize('num_slots, few_weights', [(5, None), (3, 10**6)])
def test_runs_share_a_buffer_and_nothing_else(
    num_slots, few_weights, request, monkeypatch):
  if few_weights is not None:
    request.getfixturevalue('accelerator')
    monkeypatch.setattr(moon_lib, '_FEW_WEIGHTS', few_weights)
  both = run(moon_lib.with_slots(moon(1), num_slots), seeds=(3, 4),
             num_lanes=3, hparams={'num_negatives': (1, 2)})
  for r, k in enumerate((1, 2)):
    alone = run(moon(k), seeds=(3 + r,))
    of_run = jax.tree.map(
        lambda x, r=r: x[r:r + 1], (both.variables, both.clients))
    assert_trees_close(of_run[0], alone.variables)
    assert_trees_close(first_slots(of_run[1], k), alone.clients)


@pytest.mark.usefixtures('optimized')
@pytest.mark.parametrize('k, atol', [(1, 1e-6), (2, 0)])
def test_unused_slots_in_optimized_programs(k, atol):
  """A single slot is compiled differently, which changes the rounding."""
  alone, among = run(moon(k)), run(moon(k, num_slots=5))
  assert_trees_close(alone.variables, among.variables, atol=atol)


def test_other_k_train_otherwise():
  """So that the tests above can fail."""
  one, two = run(moon(1)), run(moon(2))
  assert np.abs(one.variables['params']['w'] - two.variables['params']['w']
                ).max() > 1e-4


def test_algorithms_that_replace_hparams_use_all_slots():
  named = moon(2)
  unnamed = named._replace(hparams={'mu': .1, 'temperature': .5})
  federated = Federation(unnamed)
  assert 'num_negatives' not in federated.hparams
  for cohort in COHORTS:
    federated.round(cohort)
  expected = run(named)
  assert_trees_close(copied(federated.state)._replace(key=()),
                     expected._replace(key=()), atol=0)


@pytest.mark.parametrize('k', [1, 5, 2**20 - 1, 2**20])
def test_k_is_exact_as_a_float(k):
  variables = {'params': {'w': jnp.zeros(1)}}
  view = base.first_view(moon(), variables)
  view = view._replace(hparams={'num_negatives': jnp.float32(k)})
  assert int(moon_lib._num_negatives(view)) == k


def test_too_few_slots_raise():
  with pytest.raises(UserError, match='num_slots must be at least num_neg.*=3'):
    moon(3, num_slots=2)
