"""Control variates of SCAFFOLD that start at a random network."""

import jax
import numpy as np
import pytest

from experiments import scaffold_random
import moon_jax as mj

CLIENTS, RATE = 4, .02


def models(digits, algorithm, cohorts):
  """Returns the global parameters before the first and after each round."""
  clients = mj.partition.iid(200, CLIENTS, seed=0)
  made = mj.Simulation(mj.Federation(
      data=digits, clients=clients, model=mj.mlp(10), algorithm=algorithm,
      local_steps=1, batch_size=16, learning_rate=RATE,
      rounds=mj.rounds.listed(cohorts)))
  return [made.global_model()['params'], *(
      made.global_model()['params'] for _ in made.rounds(len(cohorts)))]


def both(digits, cohorts):
  return (models(digits, algorithm, cohorts) for algorithm in (
      mj.scaffold(CLIENTS, 'niid_bench'),
      scaffold_random.scaffold_random(CLIENTS)))


def assert_close(found, expected):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(
      x, y, rtol=1e-4, atol=1e-5), found, expected)


def test_the_start_cancels_if_all_clients_take_part(digits):
  for expected, found in zip(*both(digits, [range(CLIENTS)] * 3)):
    assert_close(found, expected)


@pytest.mark.parametrize('cohort, factor', [([1], 1 / 4), ([0], -3 / 4)],
                         ids=['new', 'trained'])
def test_it_moves_clients_while_3_of_4_have_not_trained(
    digits, cohort, factor):
  zeros, random = both(digits, [[0], cohort])
  network = scaffold_random.network(random[0])
  assert_close(random[1], zeros[1])
  assert_close(random[2], jax.tree.map(
      lambda w, x: w + RATE * factor * x, zeros[2], network))
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(
      np.sort(x.ravel()), np.sort(y.ravel())), network, random[0])
