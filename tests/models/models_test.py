"""The public interface of networks."""

import jax
import jax.numpy as jnp
import optax
import pytest

from moon_jax import losses
from moon_jax import models
from moon_jax.errors import UserError


def init(model, shape=(2, 32, 32, 3)):
  images = jax.random.normal(jax.random.key(1), shape)
  return model.init(jax.random.key(0), images), images


@pytest.mark.parametrize('projection_dim, z_dim, num_parameters', [
    (256, 256, 92_626),  # the published network
    (None, 84, 92_626 - (84 * 84 + 84) - (84 * 256 + 256) - 172 * 10),
])
def test_simple_cnn(projection_dim, z_dim, num_parameters):
  model = models.make('simple_cnn', 10, projection_dim)
  variables, images = init(model)
  assert sum(x.size for x in jax.tree.leaves(variables)) == num_parameters
  outputs, after = model.apply(variables, images, jnp.ones(2), train=True)
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
    variables = model.init(jax.random.key(1), inputs)

    def loss_fn(params):
      outputs, _ = model.apply(
          {**variables, 'params': params}, inputs, jnp.ones(8), train=True)
      ce_B = losses.cross_entropy_B(outputs.logits, jnp.arange(8))
      return ce_B.mean(), outputs
    return jax.grad(loss_fn, has_aux=True)(variables['params'])[::-1]

  fine, coarse = map(outputs_and_grads, ('float32', 'bfloat16'))
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(coarse))
  for a, b in zip(fine, coarse):  # outputs, gradients
    error = optax.tree.norm(optax.tree.sub(a, b)) / optax.tree.norm(a)
    assert 0 < error < tolerance


def test_too_small_images_raise():
  with pytest.raises(UserError, match='--model=simple_cnn.*16x16.*8x8'):
    init(models.make('simple_cnn', 10, 256), (1, 8, 8, 1))


def test_unknown_name_raises():
  with pytest.raises(UserError, match='--model must be one of simple_cnn'):
    models.make('vgg', 10, 256)
