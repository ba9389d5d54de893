"""Groups of clients with other networks, as docs/many_models.md composes them.
"""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import moon_jax as mj
from support.docs_pages import execute, programs, section

SIZES, LEARNING_RATE, EPOCHS = [(7, 12), (9,)], .1, 2


class Small(nn.Module):
  """Another network than the MLP of the package, with z of 4 features."""

  @nn.compact
  def __call__(self, x):
    z = nn.Dense(4, name='z')(nn.tanh(nn.Dense(6)(x)))
    return mj.Outputs(projection=z, logits=nn.Dense(4, name='out')(z))


@functools.partial(jax.jit, static_argnums=0)
def gradient(model, params, x, y, prototypes, is_known):
  def loss(params):
    outputs, _ = model.apply({'params': params}, x, jnp.ones(len(x)), True)
    total = -jnp.mean(jax.nn.log_softmax(outputs.logits)[np.arange(len(y)), y])
    for k in range(4):
      is_in = jnp.float32(y == k)
      mean = jnp.sum(is_in[:, None] * outputs.projection, 0) / jnp.maximum(
          jnp.sum(is_in), 1)
      square = jnp.sum((mean - prototypes[k])**2)
      is_apart = is_known[k] & jnp.any(y == k) & (square > 1e-10)
      total += jnp.where(is_apart, jnp.sqrt(jnp.where(is_apart, square, 1)), 0)
    return total

  return jax.grad(loss)(params)


def plain_round(model, clients, x, y, prototypes, is_known):
  """Trains the clients of a group in a loop; returns models, labels and z."""
  models, found = [], []
  for params, at in clients:
    for _ in range(EPOCHS):  # of one batch with all examples
      grads = gradient(model, params, x[at], y[at], prototypes, is_known)
      params = jax.tree.map(lambda w, g: w - LEARNING_RATE * g, params, grads)
    z = model.apply({'params': params}, x[at], np.ones(len(at)), False)[
        0].projection
    found += zip(y[at].tolist(), np.asarray(z))
    models.append(params)
  return models, found


def test_two_groups_are_a_plain_loop():
  """The functions of the page; one class is in one group, one in none."""
  text = programs(section('many_models', 'Clients with different networks'))[0]
  page = execute(text.partition("\ndata = mj.load")[0], 'many_models.md')
  random = np.random.default_rng(0)
  total = sum(map(sum, SIZES))
  x = random.normal(size=(total + 4, 5)).astype(np.float32)
  y = np.arange(total + 4, dtype=np.int32) % 2
  y[:3] = 2  # of the first client only
  data = mj.Dataset('features', x[:total], y[:total], x[total:], y[total:],
                    (*'abcd',))
  ends = np.cumsum([n for sizes in SIZES for n in sizes])[:-1]
  clients = np.split(np.arange(total), ends)
  models = mj.mlp(4, 4), mj.from_flax(Small())
  groups = [(models[0], clients[:2], None), (models[1], clients[2:], None)]
  simulations = page['simulations_of'](
      data, groups, algorithm=mj.fedproto(), local_epochs=EPOCHS,
      batch_size=total,
      learning_rate=LEARNING_RATE, optimizer='sgd(momentum=0)')
  plain = [[jax.tree.map(lambda w, c=c: np.array(w[0, c]), simulation.
                         state_on_host().clients['params'])
            for c in range(len(own))]
           for simulation, (_, own, _) in zip(simulations, groups)]
  prototypes, is_known = np.zeros((4, 4), np.float32), np.zeros(4, bool)
  counts = page['class_counts'](data, groups)
  for _ in range(3):
    for simulation in simulations:
      simulation.run_round()
    page['exchange'](simulations, counts)
    examples = []
    for i, (model, own, _) in enumerate(groups):
      plain[i], found = plain_round(
          model, [*zip(plain[i], own)], x, y, prototypes, is_known)
      examples += found
    for k in {label for label, _ in examples}:
      prototypes[k] = np.mean([z for label, z in examples if label == k], 0)
      is_known[k] = True
  close = functools.partial(np.testing.assert_allclose, atol=1e-5)
  for simulation, params in zip(simulations, plain):
    state = simulation.state_on_host()
    for client, expected in enumerate(params):
      jax.tree.map(lambda w, e, client=client: close(w[0, client], e),
                   state.clients['params'], expected)
    close(state.server.mean_KF[0], prototypes)
    assert state.server.is_known_K[0].tolist() == [True, True, True, False]
