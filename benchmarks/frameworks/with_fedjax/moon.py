"""MOON (Li et al., CVPR 2021); the client state is its previous model."""

from typing import Any

import datasets
import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax

MU, TEMPERATURE = 5.0, 0.5
optimizer = fedjax.optimizers.create_optimizer_from_optax(optax.chain(
    optax.add_decayed_weights(1e-5), optax.sgd(0.01, momentum=0.9)))


@fedjax.dataclass
class State:
  params: Any
  previous: dict


def forward(batch, is_train=True):
  features = hk.Sequential([
      hk.Conv2D(6, 5, padding='VALID'), jax.nn.relu,
      hk.MaxPool(2, 2, 'VALID'),
      hk.Conv2D(16, 5, padding='VALID'), jax.nn.relu,
      hk.MaxPool(2, 2, 'VALID'), hk.Flatten(),
      hk.nets.MLP([120, 84], activate_final=True)])
  z = hk.nets.MLP([84, 256])(features(batch['x']))
  logits = hk.Linear(10)(z)
  return (z, logits) if is_train else logits


def loss(params, frozen, batch):
  z, logits = model.apply_for_train(params, batch)
  similarities = jnp.stack([
      optax.cosine_similarity(
          z, model.apply_for_train(other, batch)[0], epsilon=1e-8)
      for other in frozen], 1)
  entropy = fedjax.metrics.unreduced_cross_entropy_loss
  zeros = jnp.zeros_like(batch['y'])
  return jnp.mean(entropy(batch['y'], logits)
                  + MU * entropy(zeros, similarities / TEMPERATURE))


def client_init(start, previous):
  return {'params': start, 'frozen': (start, previous),
          'opt_state': optimizer.init(start)}


def client_step(client, batch):
  grads = jax.grad(loss)(client['params'], client['frozen'], batch)
  opt_state, params = optimizer.apply(
      grads, client['opt_state'], client['params'])
  return client | {'params': params, 'opt_state': opt_state}


def client_final(start, client):
  return client['params']


def apply(state, sampled):
  hparams = fedjax.ShuffleRepeatBatchHParams(
      batch_size=64, num_epochs=10, seed=0)
  inputs = [(i, examples.shuffle_repeat_batch(hparams),
             state.previous.get(i, state.params))
            for i, examples, _ in sampled]
  previous = dict(state.previous)
  train = fedjax.for_each_client(client_init, client_step, client_final)
  previous.update(train(state.params, inputs))
  params = fedjax.tree_util.tree_mean(
      (previous[i], len(examples)) for i, examples, _ in sampled)
  return State(params, previous), {}


def load(split):
  columns = datasets.load_dataset(
      'uoft-cs/cifar10', split=split).with_format('numpy')[:]
  return (columns['img'] / np.float32(255) - 0.47) / 0.25, columns['label']


x, y = load('train')
rng = np.random.default_rng(0)
client = np.zeros_like(y)
for label in range(10):
  shares = rng.dirichlet(np.full(10, 0.5))
  client[y == label] = rng.choice(10, (y == label).sum(), p=shares)
clients = {i: {'x': x[client == i], 'y': y[client == i]} for i in range(10)}
test = fedjax.ClientDataset(dict(zip('xy', load('test'))))
model = fedjax.create_model_from_haiku(
    hk.transform(forward), {'x': x[:1]}, None,
    {'accuracy': fedjax.metrics.Accuracy()}, eval_kwargs={'is_train': False})
state = State(model.init(jax.random.PRNGKey(0)), {})
sampler = fedjax.client_samplers.UniformGetClientSampler(
    fedjax.InMemoryFederatedData(clients), num_clients=10, seed=0)
for _ in range(100):
  state, _ = apply(state, sampler.sample())
  print(fedjax.evaluate_model(model, state.params, test.batch(batch_size=512)))
