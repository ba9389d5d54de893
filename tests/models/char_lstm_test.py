"""The recurrent network compared with a plain loop over characters."""

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import models


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def lstm(x_BTF, p):
  """Returns the outputs of an LSTM with a forget gate, in float64."""
  c = h = np.zeros((len(x_BTF), 256))
  out = []
  for t in range(x_BTF.shape[1]):
    i, f, g, o = (
        x_BTF[:, t] @ p[f'i{gate}']['kernel'] + h @ p[f'h{gate}']['kernel']
        + p[f'h{gate}']['bias'] for gate in 'ifgo')
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    out.append(h)
  return np.stack(out, 1)


def test_equals_a_plain_loop():
  model = models.make('char_lstm', 7, 16, num_tokens=30)
  tokens = jax.random.randint(jax.random.key(0), (3, 12), 0, 30)
  variables = jax.jit(model.init)(jax.random.key(1), tokens)
  outputs, same = jax.jit(lambda variables: model.apply(
      variables, tokens, jnp.ones(3), train=True))(variables)
  assert same is not None and jax.tree.all(jax.tree.map(
      lambda a, b: (a == b).all(), same, variables))
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables['params'])
  x = p['embedding']['embedding'][np.asarray(tokens)]
  h = lstm(lstm(x, p['lstm1']), p['lstm2'])[:, -1]
  np.testing.assert_allclose(outputs.features, h, atol=1e-6)
  z = np.maximum(h @ p['proj1']['kernel'] + p['proj1']['bias'], 0)
  z = z @ p['proj2']['kernel'] + p['proj2']['bias']
  np.testing.assert_allclose(outputs.projection, z, atol=1e-6)
  np.testing.assert_allclose(
      outputs.logits, z @ p['out']['kernel'] + p['out']['bias'], atol=1e-6)


def test_has_the_published_number_of_parameters():
  model = models.make('char_lstm', 90, None, num_tokens=90)
  shapes = jax.eval_shape(
      model.init, jax.random.key(0), jnp.zeros((1, 80), jnp.int32))
  assert sum(x.size for x in jax.tree.leaves(shapes)) == 820_522
