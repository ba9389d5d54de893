"""The layers against JAX's own convolution, and PyTorch's rule for weights."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.models import layers

random = np.random.RandomState(0)


def normal(*shape):
  return jnp.asarray(random.standard_normal(shape), jnp.float32)


def native_conv(x, kernel):
  return lax.conv_general_dilated(
      x, kernel, (1, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))


@pytest.mark.parametrize('shape, kernel, tile', [
    ((2, 32, 32, 3), (5, 5, 3, 6), None),
    ((2, 14, 14, 6), (5, 5, 6, 16), None),
    ((2, 9, 11, 2), (3, 5, 2, 4), None),  # 7 columns: padded tiles
    ((2, 9, 11, 2), (3, 5, 2, 4), 2),
    ((1, 5, 5, 1), (5, 5, 1, 1), None),
    ((3, 6, 17, 4), (1, 1, 4, 2), 3),
])
def test_banded_conv_is_convolution(shape, kernel, tile):
  x, w = normal(*shape), normal(*kernel)
  expected, expected_vjp = jax.vjp(native_conv, x, w)
  found, found_vjp = jax.vjp(
      lambda x, w: layers.banded_conv(x, w, tile), x, w)
  np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-5)
  cotangent = normal(*expected.shape)
  for a, b in zip(found_vjp(cotangent), expected_vjp(cotangent)):
    np.testing.assert_allclose(a, b, atol=1e-3, rtol=1e-4)


def test_banded_conv_with_a_kernel_per_client():
  x, w = normal(4, 2, 10, 10, 3), normal(4, 5, 5, 3, 6)
  np.testing.assert_allclose(
      jax.vmap(layers.banded_conv)(x, w),
      jnp.stack([native_conv(a, b) for a, b in zip(x, w)]), atol=1e-4)


@pytest.mark.parametrize('size', [8, 9])
def test_max_pool(size):
  x = normal(2, size, size, 3)
  expected = lax.reduce_window(
      x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID')
  np.testing.assert_array_equal(layers.max_pool_2x2(x), expected)


@pytest.mark.parametrize('layer, shape, fan_in', [
    (layers.Dense(4000), (1, 50), 50),
    (layers.Conv(300, 5), (1, 8, 8, 3), 75),
])
def test_weights_are_uniform_in_one_over_sqrt_fan_in(layer, shape, fan_in):
  params = layer.init(jax.random.key(0), jnp.zeros(shape))['params']
  bound = fan_in ** -.5
  for weights in (params['kernel'], params['bias']):
    assert jnp.abs(weights).max() <= bound
    assert jnp.abs(weights).max() > .98 * bound
    # A uniform variable in +-a has the standard deviation a / sqrt(3).
    np.testing.assert_allclose(weights.std(), bound / 3 ** .5, rtol=.1)
