"""Convolutions compared with JAX's."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.models import convolution
from moon_jax.models.arithmetic import Arithmetic

random = np.random.RandomState(0)


def normal(*shape):
  return jnp.asarray(random.standard_normal(shape), jnp.float32)


def native_conv(x, kernel):
  return lax.conv_general_dilated(
      x, kernel, (1, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
      precision='highest')


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
  actual, actual_vjp = jax.vjp(
      lambda x, w: convolution.banded_conv(x, w, tile), x, w)
  np.testing.assert_allclose(actual, expected, atol=1e-4, rtol=1e-5)
  cotangent = normal(*expected.shape)
  for a, b in zip(actual_vjp(cotangent), expected_vjp(cotangent)):
    np.testing.assert_allclose(a, b, atol=1e-3, rtol=1e-4)


def test_banded_conv_with_a_kernel_per_client():
  x, w = normal(4, 2, 10, 10, 3), normal(4, 5, 5, 3, 6)
  np.testing.assert_allclose(
      jax.vmap(convolution.banded_conv)(x, w),
      jnp.stack([native_conv(a, b) for a, b in zip(x, w)]), atol=1e-4)


@pytest.mark.parametrize('name', ['im2col', 'native'])
def test_conv_with_stride_and_padding_equals_lax(name):
  arithmetic = Arithmetic(convolution=name)
  for size, stride, channels in ((3, 1, 3), (3, 1, 32), (3, 2, 32), (1, 2, 32),
                                 (1, 1, 5), (5, 3, 4)):
    x, kernel = normal(2, 9, 8, channels), normal(size, size, channels, 6)
    padding = size // 2
    expected = jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), [(padding, padding)] * 2,
        dimension_numbers=('NHWC', 'HWIO', 'NHWC'), precision='highest')
    np.testing.assert_allclose(
        convolution.conv(x, kernel, stride, padding, arithmetic), expected,
        atol=1e-4)


@pytest.mark.parametrize('precision', ['highest', 'tf32'])
def test_im2col_equals_native(precision):
  """Compares values and gradients, with a kernel per client."""
  x, kernel = normal(3, 2, 8, 8, 20), normal(3, 3, 3, 20, 4)

  def value_and_grads(name):
    conv = jax.vmap(lambda x, kernel: convolution.conv(
        x, kernel, 2, 1, Arithmetic('float32', precision, name)))
    y, vjp = jax.vjp(conv, x, kernel)
    return y, *vjp(y)

  for native, im2col in zip(
      value_and_grads('native'), value_and_grads('im2col')):
    scale = float(jnp.abs(im2col).max())
    # Different orders of summation give different float32 gradients, which may
    # round to different TF32 numbers: an error of 2^-11 in one of many terms.
    np.testing.assert_allclose(
        native, im2col, atol=(1e-6 if precision == 'highest' else 2e-4) * scale)
