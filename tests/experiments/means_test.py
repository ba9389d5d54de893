"""Methods of which another mean is evaluated train as without it."""

import jax
import numpy as np
import pytest

from experiments import feddyn_mean, fedexp_mean
import moon_jax as mj

CLIENTS = 4


def simulation(digits, algorithm, **settings):
  clients = mj.partition.dirichlet(
      digits.train_labels[:200], CLIENTS, beta=1, seed=0)
  rounds = mj.rounds.sampled(CLIENTS, cohort_size=2, num_rounds=4, seed=0)
  return mj.Simulation(mj.Federation(
      data=digits, clients=clients, model=mj.mlp(10), algorithm=algorithm,
      local_epochs=1, batch_size=16, learning_rate=.05, rounds=rounds,
      **settings))


def models(made):
  return [made.global_model(), *(made.global_model() for _ in made.rounds(4))]


def assert_close(found, expected):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(
      x, y, rtol=1e-5, atol=1e-6), found, expected)


@pytest.mark.parametrize('algorithms', [
    (mj.fedexp(.01), fedexp_mean.fedexp_mean(.01)),
    (mj.fedavg(), fedexp_mean.fedavg_mean())], ids=['fedexp', 'fedavg'])
def test_the_global_model_is_the_mean_of_the_last_two(digits, algorithms):
  last, mean = (models(simulation(digits, x)) for x in algorithms)
  for before, after, found in zip(last, last[1:], mean[1:]):
    assert_close(found, jax.tree.map(lambda x, y: (x + y) / 2, before, after))


def test_the_global_model_is_a_mean_of_clients_of_feddyn(digits):
  """By the models of the clients in a simulation of FedDyn itself."""
  plain = simulation(digits, mj.feddyn(CLIENTS, .02), keep_local_models=True)
  cohort, everyone = (simulation(digits, feddyn_mean.feddyn_mean(
      CLIENTS, .02, over)) for over in ('cohort', 'all'))
  newest = [plain.global_model()] * CLIENTS
  sizes = [len(client) for client in plain.federation.clients]
  for _ in range(4):
    for made in plain, cohort, everyone:
      made.run_round()
    trained = plain.local_models()
    for client, variables in trained.items():
      newest[client] = variables
    weights = [sizes[client] for client in trained]
    assert len(trained) == 2
    assert_close(cohort.global_model(), jax.tree.map(
        lambda *x: np.average(x, 0, weights), *trained.values()))
    assert_close(everyone.global_model(), jax.tree.map(
        lambda *x: np.mean(x, 0), *newest))
