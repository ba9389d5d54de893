"""Groups of clients with other networks, as docs/many_models.md composes them.
"""

import functools

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from support.docs_pages import execute, programs, section

SIZES, LEARNING_RATE, EPOCHS = [(7, 12), (9,)], .1, 2


class Small(nn.Module):
  """Another network than the MLP of the package, with z of 4 features."""

  @nn.compact
  def __call__(self, x):
    z = nn.Dense(4, name='z')(nn.tanh(nn.Dense(6)(x)))
    return mj.Outputs(projection=z, logits=nn.Dense(4, name='out')(z))


def distance(outputs, y, prototypes, is_known):
  """The term of FedProto: distances of the means of a batch to prototypes."""
  total = 0.
  for k in range(4):
    is_in = jnp.float32(y == k)
    mean = jnp.sum(is_in[:, None] * outputs.projection, 0) / jnp.maximum(
        jnp.sum(is_in), 1)
    square = jnp.sum((mean - prototypes[k])**2)
    is_apart = is_known[k] & jnp.any(y == k) & (square > 1e-10)
    total += jnp.where(is_apart, jnp.sqrt(jnp.where(is_apart, square, 1)), 0)
  return total


def distillation(outputs, y, logits, is_known):
  """The term of FD: cross-entropies with the mean logits of the class."""
  log_p = jax.nn.log_softmax(outputs.logits)
  return .5 * sum(
      jnp.where((y == k) & is_known[k], -log_p @ jax.nn.softmax(logits[k]), 0)
      .sum() for k in range(4)) / len(y)


@functools.partial(jax.jit, static_argnums=(0, 1))
def gradient(term, model, params, x, y, means, is_known):
  def loss(params):
    outputs, _ = model.apply({'params': params}, x, jnp.ones(len(x)), True)
    return term(outputs, y, means, is_known) - jnp.mean(
        jax.nn.log_softmax(outputs.logits)[np.arange(len(y)), y])

  return jax.grad(loss)(params)


def plain_round(term, model, clients, x, y, means, is_known):
  """Trains the clients of a group in a loop.

  Returns models, and the labels and what is exchanged of all examples.
  """
  models, found = [], []
  for params, at in clients:
    for _ in range(EPOCHS):  # of one batch with all examples
      grads = gradient(term, model, params, x[at], y[at], means, is_known)
      params = jax.tree.map(lambda w, g: w - LEARNING_RATE * g, params, grads)
    outputs, _ = model.apply({'params': params}, x[at], np.ones(len(at)), False)
    found += zip(y[at].tolist(), np.asarray(
        outputs.projection if term is distance else outputs.logits))
    models.append(params)
  return models, found


@pytest.mark.long
@pytest.mark.parametrize('term', [distance, distillation])
def test_two_groups_are_a_plain_loop(term):
  """The functions of the page; one class is in one group, one in none."""
  page = {}
  for text, end in zip(
      programs(section('many_models', 'Clients with different networks')),
      ('\ndata = mj.load', '\nsimulations = ')):
    execute(text.partition(end)[0], 'many_models.md', page)
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
      data, groups, local_epochs=EPOCHS, batch_size=total,
      algorithm=mj.fedproto() if term is distance else page['distillation'](4),
      learning_rate=LEARNING_RATE, optimizer='sgd(momentum=0)')
  plain = [[jax.tree.map(lambda w, c=c: np.array(w[0, c]), simulation.
                         state_on_host().clients['params'])
            for c in range(len(own))]
           for simulation, (_, own, _) in zip(simulations, groups)]
  means, is_known = np.zeros((4, 4), np.float32), np.zeros(4, bool)
  counts = page['class_counts'](data, groups)
  for _ in range(3):
    for simulation in simulations:
      simulation.run_round()
    page['exchange'](simulations, counts)
    examples = []
    for i, (model, own, _) in enumerate(groups):
      plain[i], found = plain_round(
          term, model, [*zip(plain[i], own)], x, y, means, is_known)
      examples += found
    for k in {label for label, _ in examples}:
      means[k] = np.mean([z for label, z in examples if label == k], 0)
      is_known[k] = True
  close = functools.partial(np.testing.assert_allclose, atol=1e-5)
  for simulation, params in zip(simulations, plain):
    state = simulation.state_on_host()
    for client, expected in enumerate(params):
      jax.tree.map(lambda w, e, client=client: close(w[0, client], e),
                   state.clients['params'], expected)
    close(state.server.mean_KF[0], means)
    assert state.server.is_known_K[0].tolist() == [True, True, True, False]
