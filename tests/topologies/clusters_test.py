"""Clusters against released code, whose results `ifca_golden.py` stored."""

import pathlib

from flax import linen as nn
import jax
import numpy as np
import optax
import pytest
from topologies import ifca_golden

import moon_jax as mj
from moon_jax.data import partition

GOLDEN = pathlib.Path(__file__).parent / 'ifca_golden.npz'


class Network(nn.Module):

  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.Dense(ifca_golden.HIDDEN, name='fc1')(
        x.reshape(len(x), -1)))
    return nn.Dense(ifca_golden.CLASSES, name='out')(x)


IFCA = mj.topologies.ifca(ifca_golden.CLUSTERS)
FEDAVG = mj.fedavg()


def federation(sizes, topology=IFCA, algorithm=FEDAVG, **settings):
  images, labels = ifca_golden.images()
  clients = ifca_golden.clients(sizes)
  images = partition.turned(images, clients, 4)
  return mj.Federation(
      data=mj.Dataset('rotated', images, labels, images, labels,
                      class_names=tuple('0123456789'), mean=(0.,), std=(1.,)),
      clients=clients, model=mj.from_flax(Network()), algorithm=algorithm,
      topology=topology, shuffle=False,
      optimizer='sgd(momentum=0, weight_decay=0)',
      learning_rate=ifca_golden.LEARNING_RATE,
      local_epochs=ifca_golden.EPOCHS, **settings)


def begun(made, models):
  """Returns a simulation that begins with weights [M, ...]."""
  simulation = mj.Simulation(made)
  state = simulation.state_on_host()
  w1, b1, w2, b2 = (np.stack(x)[None] for x in zip(*models))
  simulation.restore(state._replace(variables={'params': {
      'fc1': {'kernel': w1, 'bias': b1}, 'out': {'kernel': w2, 'bias': b2}}}))
  return simulation


CASES = {
    # Full batches and equal weights; and cohorts, weighted by their examples.
    'mnist': (lambda: federation(
        (ifca_golden.EXAMPLES,) * ifca_golden.CLIENTS,
        batch_size=ifca_golden.EXAMPLES),
              lambda t: range(ifca_golden.CLIENTS)),
    'server': (lambda: federation(
        ifca_golden.SIZES, batch_size=ifca_golden.BATCH,
        rounds=mj.rounds.listed([
            ifca_golden.cohort(t) for t in range(ifca_golden.ROUNDS)])),
               ifca_golden.cohort)}


@pytest.mark.long
@pytest.mark.parametrize('name', ['mnist', 'server'])
def test_ifca_equals_its_released_code(name):
  """The cluster of each client, also of turned images, and all models."""
  golden, (make, cohort) = np.load(GOLDEN), CASES[name]
  simulation = begun(make(), ifca_golden.initial())
  for t in range(ifca_golden.ROUNDS):
    metrics = simulation.run_round().metrics
    chosen = {client: m for m, clients in enumerate(
        metrics['clients_of_models']) for client in clients}
    assert [chosen[client] for client in cohort(t)] == (
        golden[f'{name}_chosen'][t].tolist())
    w1, *others = weights(simulation)
    for letters, w in zip(
        ('W1', 'b1', 'W2', 'b2'), (w1[:, golden['pixels']], *others)):
      np.testing.assert_allclose(w, golden[f'{name}_{letters}'][t], atol=1e-6)


def test_the_start_of_k_means_chooses_the_clients_that_fedjax_chooses():
  made = federation(
      ifca_golden.SIZES, mj.topologies.ifca(
          ifca_golden.CLUSTERS, start='kmeans'), batch_size=ifca_golden.BATCH,
      algorithm=mj.with_server_optimizer(
          FEDAVG, optax.sgd(1., momentum=.9)))
  simulation = begun(made, ifca_golden.initial()[:1] * ifca_golden.CLUSTERS)
  for _ in range(ifca_golden.CLUSTERS):
    metrics = simulation.run_round().metrics
    assert metrics['clients_of_models'] == [[]] * (
        ifca_golden.CLUSTERS - 1) + [[*range(ifca_golden.CLIENTS)]]
  w1, *others = weights(simulation)
  trained = ifca_golden.local_models()
  chosen = [int(np.argmin([np.abs(w - model[0]).max() for model in trained]))
            for w in w1]
  assert chosen == np.load(GOLDEN)['kmeans_clients'][chosen[0]].tolist()
  for i, w_M in enumerate((w1, *others)):
    np.testing.assert_allclose(
        w_M, [trained[client][i] for client in chosen], atol=1e-6)
  momentum = jax.tree.leaves(simulation.state_on_host().server)
  assert momentum and not any(map(np.any, momentum))
  simulation.run_round()  # clients train the clusters of lowest loss
  assert sum(map(bool, simulation.run_round().metrics[
      'clients_of_models'])) == len({*chosen})


def test_the_start_of_k_means_takes_a_received_model_if_losses_are_nan():
  topology = mj.topologies.ifca(2, start='kmeans')
  models = {'params': np.float32([[1.], [2.]])}
  mixed = jax.jit(topology.mix)(mj.topologies.Mixing(
      models, models, np.float32([0, 1]), np.int32(1), np.int32(1),
      jax.random.key(0), mj.topologies.Updates(
          np.float32([[5.], [7.]]), np.arange(2), np.ones(2, np.int32),
          np.float32([.5, .5]), np.array([False, True]),
          np.full((2, 2), np.nan, np.float32))))
  np.testing.assert_array_equal(mixed.models['params'], [[1.], [9.]])


def test_an_update_of_zeros_is_as_far_from_all_others():
  """Of 0, 1 and -1 the halves have cosines 0 at most: below gamma no split."""
  models = {'params': np.zeros((2, 1), np.float32)}
  clusters = {}
  for gamma in (.6, .8):  # sqrt(1 / 2) is between them
    topology = mj.topologies.cfl(
        3, clusters=2, eps1=1e9, eps2=0, gamma=gamma)
    mixed = jax.jit(topology.mix)(mj.topologies.Mixing(
        models, models, np.float32([1, 0]), topology.init(), np.int32(1),
        jax.random.key(0), mj.topologies.Updates(
            {'params': np.float32([[0.], [1.], [-1.]])}, np.arange(3),
            np.zeros(3, np.int32), np.full(3, 1 / 3, np.float32),
            np.ones(3, bool), ())))
    clusters[gamma] = int(mixed.state[1])
  assert clusters == {.6: 2, .8: 1}


def weights(simulation):
  """Returns W1, b1, W2 and b2 of the models."""
  params = simulation.global_model()['params']
  return [np.asarray(params[layer][array]) for layer in ('fc1', 'out')
          for array in ('kernel', 'bias')]
