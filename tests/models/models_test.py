"""The networks as the rest of the package sees them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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


def test_bfloat16_computes_coarsely_and_returns_float32():
  fine, coarse = (models.make('simple_cnn', 10, 256, dtype)
                  for dtype in ('float32', 'bfloat16'))
  variables, images = init(coarse)
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(variables))
  a, _ = fine.apply(variables, images, jnp.ones(2), train=False)
  b, _ = coarse.apply(variables, images, jnp.ones(2), train=False)
  assert all(x.dtype == jnp.float32 for x in b)
  difference = np.abs(a.logits - b.logits).max()
  assert 0 < difference < .05 * np.abs(a.logits).max()


def test_too_small_images_are_refused():
  with pytest.raises(UserError, match='--model=simple_cnn.*16x16.*8x8'):
    init(models.make('simple_cnn', 10, 256), (1, 8, 8, 1))


def test_unknown_name_is_refused():
  with pytest.raises(UserError, match='--model must be one of simple_cnn'):
    models.make('vgg', 10, 256)
