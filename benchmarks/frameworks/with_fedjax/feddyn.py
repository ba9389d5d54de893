"""FedDyn (Acar et al., ICLR 2021); the client state is g_i."""

from typing import Any

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

ALPHA = 0.1
optimizer = fedjax.optimizers.sgd(0.05, momentum=0.9)


@fedjax.dataclass
class State:
  params: Any
  h: Any
  g: dict


def loss(params, start, g, batch):
  losses = model.train_loss(batch, model.apply_for_train(params, batch))
  dynamic = jax.tree.map(
      lambda w, w_t, g: jnp.sum(ALPHA / 2 * (w - w_t)**2 - g * w),
      params, start, g)
  return jnp.mean(losses) + jax.tree.reduce(jnp.add, dynamic)


def client_init(start, g):
  return {'params': start, 'start': start, 'g': g,
          'opt_state': optimizer.init(start)}


def client_step(client, batch):
  grads = jax.grad(loss)(client['params'], client['start'], client['g'], batch)
  opt_state, params = optimizer.apply(
      grads, client['opt_state'], client['params'])
  return client | {'params': params, 'opt_state': opt_state}


def client_final(start, client):
  moved = jax.tree.map(jnp.subtract, client['params'], start)
  return moved, jax.tree.map(lambda g, d: g - ALPHA * d, client['g'], moved)


def init(params):
  return State(params, fedjax.tree_util.tree_zeros_like(params), {})


def apply(state, sampled):
  zeros = total = fedjax.tree_util.tree_zeros_like(state.params)
  hparams = fedjax.ShuffleRepeatBatchHParams(
      batch_size=32, num_epochs=5, seed=0)
  inputs = [(i, examples.shuffle_repeat_batch(hparams), state.g.get(i, zeros))
            for i, examples, _ in sampled]
  g = dict(state.g)
  train = fedjax.for_each_client(client_init, client_step, client_final)
  for i, (moved, g_i) in train(state.params, inputs):
    g[i] = g_i
    total = fedjax.tree_util.tree_add(total, moved)
  h = jax.tree.map(
      lambda h, d: h - ALPHA * d / len(clients), state.h, total)
  params = jax.tree.map(
      lambda w, d, h: w + d / len(sampled) - h / ALPHA, state.params, total, h)
  return State(params, h, g), {}


data = np.load('mine.npz')
clients = {
    i: {'x': data['x_train'][data['client_train'] == i],
        'y': data['y_train'][data['client_train'] == i]} for i in range(10)}
test = fedjax.ClientDataset({'x': data['x_test'], 'y': data['y_test']})
model = fedjax.create_model_from_haiku(
    hk.transform(lambda batch: hk.nets.MLP([200, 10])(batch['x'])),
    {'x': data['x_test'][:1]},
    lambda batch, outputs: fedjax.metrics.unreduced_cross_entropy_loss(
        batch['y'], outputs),
    {'accuracy': fedjax.metrics.Accuracy()})
algorithm = fedjax.FederatedAlgorithm(init, apply)
state = algorithm.init(model.init(jax.random.PRNGKey(0)))
sampler = fedjax.client_samplers.UniformGetClientSampler(
    fedjax.InMemoryFederatedData(clients), num_clients=10, seed=0)
for _ in range(3):
  state, _ = algorithm.apply(state, sampler.sample())
  print(fedjax.evaluate_model(model, state.params, test.batch(batch_size=512)))
