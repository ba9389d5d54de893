"""FedJAX (https://github.com/google/fedjax), its FedAvg, data and model.

It has no MOON. Its last release needs `jax.tree_map`, which JAX no longer has;
the program defines it. A short last batch has a size of its own, for which the
local step compiles in the first round.
"""

import time

import fedjax
from fedjax.algorithms import fed_avg
import haiku as hk
import jax
import numpy as np
import optax
import side
import torch


def network(batch):
  """As `side.Network`."""
  x = batch['x']
  for i, channels in enumerate((6, 16), 1):
    x = hk.Conv2D(channels, 5, padding='VALID', name=f'conv{i}')(x)
    x = jax.nn.relu(hk.max_pool(x, 2, 2, 'VALID'))
  x = x.reshape(len(x), -1)
  for name, size in ('fc1', 120), ('fc2', 84), ('proj1', 84):
    x = jax.nn.relu(hk.Linear(size, name=name)(x))
  return hk.Linear(10, name='head')(hk.Linear(256, name='proj2')(x))


def train(task, data):
  jax.tree_map = jax.tree.map
  clients = fedjax.InMemoryFederatedData({
      client: {'x': x.numpy().transpose(0, 2, 3, 1).copy(), 'y': y.numpy()}
      for client, (x, y) in enumerate(data.train)})
  num_clients = clients.num_clients()
  data.train.clear()
  model = fedjax.create_model_from_haiku(
      hk.transform(network),
      {'x': np.zeros((1, 32, 32, 3), np.float32), 'y': np.zeros(1, np.int32)},
      lambda batch, logits: optax.softmax_cross_entropy_with_integer_labels(
          logits, batch['y']))
  algorithm = fed_avg.federated_averaging(
      fedjax.model_grad(model),
      fedjax.optimizers.create_optimizer_from_optax(optax.chain(
          optax.add_decayed_weights(task['weight_decay']),
          optax.sgd(task['learning_rate'], task['momentum']))),
      fedjax.optimizers.sgd(1.),
      fedjax.ShuffleRepeatBatchHParams(batch_size=task['batch_size']))
  sampler = fedjax.client_samplers.UniformGetClientSampler(
      clients, num_clients, seed=0)
  state, seconds = algorithm.init(_from_torch(side.Network())), []
  for _ in range(task['num_rounds']):
    start = time.perf_counter()
    state, _ = algorithm.apply(state, sampler.sample())
    jax.block_until_ready(state)
    seconds.append(time.perf_counter() - start)
  return {'round_seconds': seconds}, _to_torch(state.params)


def _from_torch(network):
  """Returns the parameters of a network of PyTorch."""
  array = lambda w: np.asarray(w.detach())
  return {name: {
      'w': array(layer.weight).transpose(
          (2, 3, 1, 0) if layer.weight.ndim == 4 else (1, 0)),
      'b': array(layer.bias)}
      for name, layer in [*network.base.named_children(),
                          ('head', network.head)]}


def _to_torch(params):
  """Returns the same network in PyTorch, for the evaluation."""
  made = side.Network()
  tensor = lambda w: torch.tensor(np.asarray(w))
  with torch.no_grad():
    for name, leaves in params.items():
      layer = made.head if name == 'head' else getattr(made.base, name)
      w = leaves['w']
      layer.weight.copy_(tensor(
          w.transpose(3, 2, 0, 1) if w.ndim == 4 else w.T))
      layer.bias.copy_(tensor(leaves['b']))
  return made


if __name__ == '__main__':
  side.main(train)
