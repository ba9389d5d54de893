"""The arithmetic of networks: dtype and precision of products.

Parameters are float32. `dtype` is the type of the layers' computations and
outputs. `precision` sets the arithmetic of matrix multiplications and
convolutions of float32 arrays, forward and backward:

  name       inputs are rounded to         relative error   multiplications
  highest    float32 (not rounded)         none             1
  tf32x3     the sum of two TF32 numbers   2^-22            3
  tf32       TF32, 10-bit mantissa         2^-11            1
  bfloat16   bfloat16, 7-bit mantissa      2^-8             1

Sums are accumulated in float32. NVIDIA GPUs since Ampere compute all precisions
except `highest` on tensor cores. CPUs emulate them: inputs are rounded to
nearest (a GPU may truncate) and multiplied in float32, which is slower than
`highest`.

The average over clients, the similarities of MOON's loss, optimizers and
normalization are always computed in float32.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax import platforms

# The `precision` arguments of JAX's functions, by the name of a precision.
DOT_PRECISIONS = {
    'highest': lax.Precision.HIGHEST,
    'tf32x3': lax.DotAlgorithmPreset.TF32_TF32_F32_X3,
    'tf32': lax.DotAlgorithmPreset.TF32_TF32_F32,
    'bfloat16': lax.DotAlgorithmPreset.BF16_BF16_F32,
}
CONVOLUTION_PRECISIONS = {  # convolutions accept no DotAlgorithmPreset
    'highest': lax.Precision.HIGHEST,
    'tf32': lax.Precision.DEFAULT,
}
PRECISIONS = tuple(DOT_PRECISIONS)
_MANTISSA_BITS = {'tf32x3': 10, 'tf32': 10, 'bfloat16': 7}
_EXPONENT_BITS = 8  # of float32, TF32 and bfloat16

# (precision, a, b) -> a product that is linear in a and in b.
MultiplyFn = Callable[[str, jax.Array, jax.Array], jax.Array]


class Arithmetic(NamedTuple):
  """The arithmetic of a network; see the module's docstring."""

  dtype: str = 'float32'
  precision: str = 'highest'  # one of PRECISIONS
  convolution: str = 'im2col'  # or "native"; see `convolution.conv`

  def cast(self, *arrays: jax.Array) -> list[jax.Array]:
    """Returns the arrays, cast to `dtype`."""
    return [a.astype(self.dtype) for a in arrays]

  def dot(self, a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns the matrix product [M, K] @ [K, N] -> [M, N]."""
    return product(_dot, self.precision, a, b)


FLOAT32 = Arithmetic()


def _dot(precision, a, b):
  return jnp.dot(a, b, precision=DOT_PRECISIONS[precision])


def product(multiply_fn: MultiplyFn, precision: str, a: jax.Array,
            b: jax.Array) -> jax.Array:
  """Returns multiply_fn(precision, a, b), emulated on CPUs.

  The gradient is a product of the same precision. `multiply_fn` is linear in
  both arrays, float32 unless the precision is `highest`, and passes the
  precision to XLA.
  """
  if precision == 'highest':
    return multiply_fn(precision, a, b)
  return _rounded(multiply_fn, precision, a, b)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rounded(multiply_fn, precision, a, b):
  return platforms.by_platform(
      functools.partial(_emulate, multiply_fn, precision),
      functools.partial(multiply_fn, precision), a, b)


def _backward(multiply_fn, precision, residuals, gradient):
  """Rounds the gradient too, which autodiff would not do on CPUs."""
  a, b = residuals
  like_a, like_b = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in residuals)

  def grad_a(precision, gradient, b):
    linear_fn = lambda a: multiply_fn(precision, a, b)
    return jax.linear_transpose(linear_fn, like_a)(gradient)[0]

  def grad_b(precision, a, gradient):
    linear_fn = lambda b: multiply_fn(precision, a, b)
    return jax.linear_transpose(linear_fn, like_b)(gradient)[0]

  return (_rounded(grad_a, precision, gradient, b),
          _rounded(grad_b, precision, a, gradient))


_rounded.defvjp(lambda *args: (_rounded(*args), args[2:]), _backward)


def _emulate(multiply_fn, precision, a, b):
  """Returns the float32 product of rounded inputs; sums small terms first."""
  multiply = functools.partial(multiply_fn, 'highest')
  a_high, a_low = _split(a, _MANTISSA_BITS[precision])
  b_high, b_low = _split(b, _MANTISSA_BITS[precision])
  if precision != 'tf32x3':
    return multiply(a_high, b_high)
  low = multiply(a_low, b_high) + multiply(a_high, b_low)
  # The low part of an infinite number is NaN and must not reach the product.
  return jnp.where(jnp.isnan(low), 0, low) + multiply(a_high, b_high)


def _split(x, mantissa_bits):
  """Returns `x` rounded to the given mantissa, and the rounded remainder."""
  round_fn = lambda x: lax.reduce_precision(x, _EXPONENT_BITS, mantissa_bits)
  high = round_fn(x)
  return high, round_fn(x - high)
