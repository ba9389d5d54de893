"""A federation of three clients with random features, for fast tests."""

import numpy as np

from moon_jax import models
from moon_jax.data.dataset import Dataset
from moon_jax.methods.fedavg import fedavg
from moon_jax.simulation.federation import Federation

SIZES = (3, 10, 6)  # training examples of each client
_NUM_TEST = 5


def make(**changes) -> Federation:
  """Returns a federation; `changes` are arguments of `Federation`."""
  rng = np.random.default_rng(0)
  num_train = sum(SIZES)
  inputs = rng.normal(size=(num_train + _NUM_TEST, 4)).astype(np.float32)
  labels = rng.integers(2, size=len(inputs)).astype(np.int32)
  data = Dataset(
      'tiny', inputs[:num_train], labels[:num_train], inputs[num_train:],
      labels[num_train:], class_names=('a', 'b'))
  clients = np.split(np.arange(num_train), np.cumsum(SIZES)[:-1])
  return Federation(**{
      'data': data, 'clients': clients, 'algorithm': fedavg(),
      'model': models.make('mlp', data.num_classes, None), **changes})
