"""Clusters against released code, whose results `ifca_golden.py` stored."""

import pathlib

from flax import linen as nn
import jax
import numpy as np
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


def federation(sizes, **settings):
  images, labels = ifca_golden.images()
  clients = ifca_golden.clients(sizes)
  images = partition.turned(images, clients, 4)
  return mj.Federation(
      data=mj.Dataset('rotated', images, labels, images, labels,
                      class_names=tuple('0123456789'), mean=(0.,), std=(1.,)),
      clients=clients, model=mj.from_flax(Network()), algorithm=mj.fedavg(),
      topology=mj.topologies.ifca(ifca_golden.CLUSTERS), shuffle=False,
      optimizer='sgd(momentum=0, weight_decay=0)',
      learning_rate=ifca_golden.LEARNING_RATE,
      local_epochs=ifca_golden.EPOCHS, **settings)


def begun(made):
  """Returns a simulation whose models are those of the released code."""
  simulation = mj.Simulation(made)
  state = simulation.state_on_host()
  w1, b1, w2, b2 = (np.stack(x)[None] for x in zip(*ifca_golden.initial()))
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


@pytest.mark.parametrize('name', [
    'mnist', pytest.param('server', marks=pytest.mark.long)])
def test_ifca_equals_its_released_code(name):
  """The cluster of each client, also of turned images, and all models."""
  golden, (make, cohort) = np.load(GOLDEN), CASES[name]
  simulation = begun(make())
  for t in range(ifca_golden.ROUNDS):
    metrics = simulation.run_round().metrics
    chosen = {client: m for m, clients in enumerate(
        metrics['clients_of_models']) for client in clients}
    assert [chosen[client] for client in cohort(t)] == (
        golden[f'{name}_chosen'][t].tolist())
    params = simulation.global_model()['params']
    params['fc1']['kernel'] = params['fc1']['kernel'][:, golden['pixels']]
    for letters, layer, array in (
        ('W1', 'fc1', 'kernel'), ('b1', 'fc1', 'bias'),
        ('W2', 'out', 'kernel'), ('b2', 'out', 'bias')):
      np.testing.assert_allclose(
          params[layer][array], golden[f'{name}_{letters}'][t], atol=1e-6)
