"""Convolution with pooling, compared with JAX's separate operations."""

import itertools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.models import pooled_conv

random = np.random.RandomState(0)
SHAPES = {
    'first layer': ((32, 32, 3, 4), (5, 5, 3, 6)),
    'second layer': ((14, 14, 6, 4), (5, 5, 6, 16)),
    'an odd row and column are ignored': ((10, 11, 2, 3), (5, 5, 2, 4)),
    'even kernels': ((16, 17, 5, 2), (4, 4, 5, 3)),
    'kernels of one pixel': ((5, 4, 3, 2), (1, 1, 3, 3)),
    'one window': ((6, 7, 1, 2), (5, 5, 1, 1)),
}


def normal(*shape):
  return jnp.asarray(random.standard_normal(shape), jnp.float32)


def conv_then_pool(x_HWCB, kernel):
  y = lax.conv_general_dilated(
      x_HWCB.transpose(3, 0, 1, 2), kernel, (1, 1), 'VALID',
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'), precision='highest')
  y = lax.reduce_window(
      y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID')
  return y.transpose(1, 2, 3, 0)


@pytest.mark.parametrize('x, kernel', SHAPES.values(), ids=SHAPES)
def test_equals_convolution_then_pooling(x, kernel):
  x, kernel = normal(*x), normal(*kernel)
  cotangent = normal(*jax.eval_shape(conv_then_pool, x, kernel).shape)

  @jax.jit
  def both(x, kernel):
    results = []
    for function in pooled_conv.conv_max_pool, conv_then_pool:
      y, vjp = jax.vjp(function, x, kernel)
      results.append((y, vjp(cotangent)))
    return results

  jax.tree.map(lambda a, b: np.testing.assert_allclose(
      a, b, atol=1e-4, rtol=1e-5), *both(x, kernel))


@pytest.mark.parametrize('name', ['second layer', 'even kernels'])
def test_accelerators_give_the_same_result(name, accelerator):
  test_equals_convolution_then_pooling(*SHAPES[name])


def test_a_kernel_per_client():
  x, kernel = normal(4, 10, 10, 3, 2), normal(4, 5, 5, 3, 6)

  def loss(conv_fn):
    return lambda kernel: jnp.sum(jax.vmap(conv_fn)(x, kernel) ** 2)

  gradient = jax.jit(jax.grad(loss(pooled_conv.conv_max_pool)))(kernel)
  grad_alone = jax.jit(jax.grad(
      lambda w, x: jnp.sum(conv_then_pool(x, w) ** 2)))
  alone = jnp.stack([grad_alone(w, x) for x, w in zip(x, kernel)])
  np.testing.assert_allclose(gradient, alone, rtol=1e-4, atol=1e-3)


def test_the_first_of_equal_outputs_gets_the_gradient():
  """As in PyTorch's max_pool2d, whereas jnp.maximum splits the gradient."""
  kernel = jnp.ones((1, 1, 1, 1))
  grad_fn = jax.jit(jax.grad(
      lambda x: pooled_conv.conv_max_pool(x, kernel).sum()))
  for values in itertools.product((0., 1.), repeat=4):
    image = np.array(values, np.float32).reshape(2, 2)
    expected = np.zeros(4)
    expected[np.argmax(image)] = 1
    np.testing.assert_array_equal(
        grad_fn(jnp.asarray(image)[..., None, None])[..., 0, 0],
        expected.reshape(2, 2))


def test_too_small_images_raise():
  with pytest.raises(
      ValueError, match='at least 6x6 pixels for a 5x5 kernel.*got 5x9'):
    pooled_conv.conv_max_pool(normal(5, 9, 3, 1), normal(5, 5, 3, 6))
