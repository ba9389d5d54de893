"""The public interface of networks; the recurrent one against a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import losses, models
from moon_jax.errors import UserError


def test_char_lstm_has_the_published_number_of_parameters():
  model = models.make('char_lstm', 90, None, num_tokens=90)
  shapes = jax.eval_shape(
      model.init, jax.random.key(0), jnp.zeros((1, 80), jnp.int32))
  assert sum(x.size for x in jax.tree.leaves(shapes)) == 820_522


@pytest.mark.parametrize('projection_dim, z_dim, num_parameters', [
    (256, 256, 92_626),  # the published network
    (None, 84, 92_626 - (84 * 84 + 84) - (84 * 256 + 256) - 172 * 10),
])
def test_simple_cnn(projection_dim, z_dim, num_parameters):
  model = models.make('simple_cnn', 10, projection_dim)
  images = jnp.zeros((2, 32, 32, 3))
  variables = jax.eval_shape(model.init, jax.random.key(0), images)
  assert sum(x.size for x in jax.tree.leaves(variables)) == num_parameters
  outputs, after = jax.eval_shape(lambda variables: model.apply(
      variables, images, jnp.ones(2), train=True), variables)
  assert outputs.features.shape == (2, 84)
  assert outputs.projection.shape == (2, z_dim)
  assert outputs.logits.shape == (2, 10)
  assert jax.tree.structure(after) == jax.tree.structure(variables)


# ResNet-18 amplifies rounding errors, even of float32, about 50 times.
@pytest.mark.parametrize('name, inputs, tolerance', [
    pytest.param(
        'simple_cnn', jax.random.normal(jax.random.key(0), (8, 32, 32, 3)), .1,
        marks=pytest.mark.slow),
    ('mlp', jax.random.normal(jax.random.key(0), (8, 30)), .1),
    pytest.param(
        'char_lstm', jax.random.randint(jax.random.key(0), (8, 12), 0, 30), .03,
        marks=pytest.mark.slow),
    pytest.param(
        'resnet18', jax.random.normal(jax.random.key(0), (8, 16, 16, 3)), .5,
        marks=pytest.mark.slow)])
def test_bfloat16_is_near_float32_and_returns_float32(
    name, inputs, tolerance):
  def outputs_and_grads(dtype):
    model = models.make(name, 10, 256, dtype, num_tokens=30)
    variables = jax.jit(model.init)(jax.random.key(1), inputs)

    def loss_fn(params):
      outputs, _ = model.apply(
          {**variables, 'params': params}, inputs, jnp.ones(8), train=True)
      ce_B = losses.cross_entropy_B(outputs.logits, jnp.arange(8))
      return ce_B.mean(), outputs
    return jax.jit(jax.grad(loss_fn, has_aux=True))(variables['params'])[::-1]

  fine, coarse = map(outputs_and_grads, ('float32', 'bfloat16'))
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(coarse))
  for a, b in zip(fine, coarse):  # outputs, gradients
    a, b = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
            for tree in (a, b))
    assert 0 < np.linalg.norm(a - b) < tolerance * np.linalg.norm(a)


@pytest.mark.parametrize('name, inputs, words', [
    ('simple_cnn', jnp.zeros((1, 8, 8, 1)), 'images of at least 16x16 pixels'),
    ('char_lstm', jnp.zeros((1, 8, 8, 3)), 'tokens'),
    ('char_lstm', jnp.zeros((2, 5)), 'tokens'),
    ('mlp', jnp.zeros((2, 5), jnp.int32), 'features or images'),
    ('simple_cnn', jnp.zeros((2, 5), jnp.int32), 'images of at least 16x16'),
    ('resnet18', jnp.zeros((2, 5), jnp.int32), 'images of at least 8x8')])
def test_other_inputs_raise(name, inputs, words):
  model = models.make(name, 7, 16, num_tokens=30)
  shape = 'x'.join(map(str, inputs.shape[1:]))
  with pytest.raises(UserError, match=(
      f'^model must take inputs of {inputs.dtype} and shape {shape}; got '
      f'{name}, which takes {words}.*model=mlp features, model=char_lstm')):
    model.init(jax.random.key(0), inputs)


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


def test_char_lstm_equals_a_plain_loop():
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
