"""Precisions of products, compared with rounding by NumPy and ml_dtypes."""

import functools
import re

import jax
from jax import lax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from moon_jax import models
from moon_jax.models import arithmetic
from moon_jax.models.arithmetic import Arithmetic

ROUNDED = ['tf32x3', 'tf32', 'bfloat16']


def normal(seed, *shape):
  return np.random.RandomState(seed).standard_normal(shape).astype(np.float32)


def to_tf32(x):
  """Rounds to the nearest number with a 10-bit mantissa, ties to even."""
  bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
  bits = bits + 0xFFF + (bits >> 13 & 1) & ~np.uint32(0x1FFF)
  return bits.view(np.float32)


def to_bfloat16(x):
  return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float32)


def multiply(precision, a, b):
  """Returns the product of rounded factors in float64."""
  a, b = np.asarray(a), np.asarray(b)
  round_fn = {'tf32': to_tf32, 'bfloat16': to_bfloat16}.get(precision)
  if round_fn:
    return round_fn(a).astype(np.float64) @ round_fn(b)
  a_high, b_high = to_tf32(a), to_tf32(b)
  a_low, b_low = to_tf32(a - a_high), to_tf32(b - b_high)
  return sum(x.astype(np.float64) @ y for x, y in (
      (a_low, b_high), (a_high, b_low), (a_high, b_high)))


@pytest.mark.parametrize('precision', ROUNDED)
def test_products_and_gradients_round_their_factors(precision):
  a, b, g = normal(0, 30, 70), normal(1, 70, 20), normal(2, 30, 20)
  dot = Arithmetic(precision=precision).dot
  y, vjp = jax.vjp(dot, a, b)
  grad_a, grad_b = vjp(jnp.asarray(g))
  for actual, expected in ((y, multiply(precision, a, b)),
                           (grad_a, multiply(precision, g, b.T)),
                           (grad_b, multiply(precision, a.T, g))):
    # Sums of tens of terms in float32 have errors of about 1e-6. Different
    # rounding of factors would give errors of more than 1e-4.
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.parametrize('precision', arithmetic.PRECISIONS)
def test_infinity_stays_infinite(precision):
  a = jnp.array([[jnp.inf], [-jnp.inf], [3e38], [jnp.nan]])
  y = Arithmetic(precision=precision).dot(a, jnp.full((1, 1), 1.1))[:, 0]
  np.testing.assert_array_equal(jnp.isinf(y)[:2], True)
  assert y[0] > 0 > y[1] and jnp.isnan(y[3])


@pytest.mark.parametrize('precision', ROUNDED)
def test_second_derivatives_leak_no_tracers_and_vmap_changes_nothing(precision):
  a, b = normal(0, 3, 8, 16), normal(1, 3, 16, 4)
  dot = Arithmetic(precision=precision).dot
  loss = lambda a: jnp.sum(dot(a, b[0]) ** 3)
  with jax.checking_leaks():
    grads = jax.jit(jax.grad(lambda a: jnp.sum(jax.grad(loss)(a) ** 2)))(a[0])
  assert jnp.abs(grads).max() > 0
  np.testing.assert_allclose(
      jax.vmap(dot)(a, b), jnp.stack([dot(x, y) for x, y in zip(a, b)]),
      atol=1e-6)


@functools.cache
def products(name, precision, convolution):
  """Returns the StableHLO products of a network's gradient on a GPU."""
  model = models.make(name, 10, 16, precision=precision,
                      convolution=convolution)
  images = jnp.zeros((2, 16, 16, 3))
  variables = jax.eval_shape(model.init, jax.random.key(0), images)

  def loss(params, variables, images):
    outputs, _ = model.apply(
        {**variables, 'params': params}, images, jnp.ones(2), True)
    return outputs.logits.sum() + outputs.projection.sum()

  text = jax.jit(jax.grad(loss)).trace(
      variables['params'], variables, images).lower(
          lowering_platforms=('cuda',)).as_text()
  return [line for line in text.splitlines()
          if re.search(r'stablehlo\.(dot_general|convolution)', line)]


# Products with the one-hot offsets of `pooled_conv`.
ONE_HOT = re.compile(r'tensor<[0-9]+x25xf32>|x25xf32>')


TYPES = {'tf32': ('tf32', '1'), 'tf32x3': ('tf32', '3'),
         'bfloat16': ('bf16', '1')}


@pytest.mark.parametrize('name, precision', [
    ('mlp', 'tf32'), ('resnet18', 'tf32x3'),
    *[('simple_cnn', precision) for precision in TYPES]])
def test_every_product_on_a_gpu_has_the_precision(name, precision):
  """Except products with one-hot matrices, which only move numbers."""
  lines = [line for line in products(name, precision, 'im2col')
           if not ONE_HOT.search(line)]
  assert len(lines) == len([
      line for line in products(name, 'highest', 'im2col')
      if not ONE_HOT.search(line)]) >= 10
  for line in lines:
    match = re.search(r'lhs_precision_type = (\w+), .*accumulation_type = (\w+)'
                      r', .*num_primitive_operations = (\d)', line)
    kind, count = TYPES[precision]
    assert match and match.groups() == (kind, 'f32', count), line


@pytest.mark.parametrize('precision, xla_precision', [
    ('highest', 'HIGHEST'), ('tf32', 'DEFAULT')])
def test_native_convolutions_on_a_gpu(precision, xla_precision):
  lines = [line for line in products('resnet18', precision, 'native')
           if 'convolution' in line]
  assert len(lines) >= 3 * 20 - 1  # images have no gradient
  config = f'precision_config = [#stablehlo<precision {xla_precision}>'
  for line in lines:
    assert config in line, line


def test_highest_is_the_plain_product():
  """So its results are bit-identical to jnp.dot."""
  a, b = normal(0, 30, 70), normal(1, 70, 20)
  text = lambda f: jax.jit(f).lower(a, b).as_text()
  plain = lambda a, b: jnp.dot(a, b, precision=lax.Precision.HIGHEST)
  actual, expected = text(Arithmetic().dot), text(plain)
  assert actual.replace('jit_dot', '') == expected.replace('jit__lambda', '')
