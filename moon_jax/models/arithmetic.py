"""The arithmetic of networks: dtype, and the precision of products.

Parameters are float32. `dtype` is the type in which layers compute and return
their outputs. `precision` sets the arithmetic of matrix multiplications and
convolutions of float32 arrays, forward and backward:

  name       inputs are rounded to         relative error   multiplications
  highest    float32, so not at all        none             1
  tf32x3     a sum of two TF32 numbers     2^-22            3
  tf32       TF32, 10 bits of fraction     2^-11            1
  bfloat16   bfloat16, 7 bits of fraction  2^-8             1

Accumulation is float32. NVIDIA GPUs from Ampere on compute all but `highest` on
tensor cores. CPUs emulate them: inputs are rounded to nearest (a GPU may
truncate) and multiplied in float32, which is slower than `highest`.

The average over clients, the similarities of MOON's loss, optimizers and
normalisation are always computed in float32.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax import platforms

# What XLA is asked for, by the name of a precision.
OF_DOTS = {
    'highest': lax.Precision.HIGHEST,
    'tf32x3': lax.DotAlgorithmPreset.TF32_TF32_F32_X3,
    'tf32': lax.DotAlgorithmPreset.TF32_TF32_F32,
    'bfloat16': lax.DotAlgorithmPreset.BF16_BF16_F32,
}
OF_CONVOLUTIONS = {  # for which XLA has no algorithms to choose from
    'highest': lax.Precision.HIGHEST,
    'tf32': lax.Precision.DEFAULT,
}
PRECISIONS = tuple(OF_DOTS)
CONVOLUTIONS = 'im2col', 'native'
_FRACTION_BITS = {'tf32x3': 10, 'tf32': 10, 'bfloat16': 7}
_EXPONENT_BITS = 8  # of float32, TF32 and bfloat16 alike

# (precision, a, b) -> a product that is linear in a and in b.
Multiply = Callable[[str, jax.Array, jax.Array], jax.Array]


class Arithmetic(NamedTuple):
  """How a network computes; see the module's docstring."""

  dtype: str = 'float32'
  precision: str = 'highest'  # a name of PRECISIONS
  convolution: str = 'im2col'  # a name of CONVOLUTIONS; see `convolution.conv`

  def cast(self, *arrays: jax.Array) -> list[jax.Array]:
    """Returns the arrays in the type in which layers compute."""
    return [a.astype(self.dtype) for a in arrays]

  def dot(self, a: jax.Array, b: jax.Array) -> jax.Array:
    """Returns the matrix product [M, K] @ [K, N] -> [M, N]."""
    return product(_dot, self.precision, a, b)


FLOAT32 = Arithmetic()


def _dot(precision, a, b):
  return jnp.dot(a, b, precision=OF_DOTS[precision])


def product(multiply: Multiply, precision: str, a: jax.Array,
            b: jax.Array) -> jax.Array:
  """Returns multiply(precision, a, b), emulated on CPUs; differentiable.

  Args:
    multiply: a function of one of `PRECISIONS` and two arrays, linear in each
      of them, that asks XLA for that precision.
    precision: a name of `PRECISIONS`.
    a: float32 array, or of any type at `highest`.
    b: the same.
  """
  if precision == 'highest':
    return multiply(precision, a, b)
  return _rounded(multiply, precision, a, b)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rounded(multiply, precision, a, b):
  return platforms.by_platform(
      functools.partial(_emulate, multiply, precision),
      functools.partial(multiply, precision), a, b)


def _forward(multiply, precision, a, b):
  return _rounded(multiply, precision, a, b), (a, b)


def _backward(multiply, precision, residuals, gradient):
  """Rounds the gradient too: autodiff would leave it as it is on CPUs."""
  a, b = residuals
  like_a, like_b = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in residuals)

  def to_a(precision, gradient, b):
    of_a = lambda a: multiply(precision, a, b)
    return jax.linear_transpose(of_a, like_a)(gradient)[0]

  def to_b(precision, a, gradient):
    of_b = lambda b: multiply(precision, a, b)
    return jax.linear_transpose(of_b, like_b)(gradient)[0]

  return (_rounded(to_a, precision, gradient, b),
          _rounded(to_b, precision, a, gradient))


_rounded.defvjp(_forward, _backward)


def _emulate(multiply, precision, a, b):
  """The product of rounded numbers, with small terms summed first."""
  multiply = functools.partial(multiply, 'highest')
  a_high, a_low = _split(a, _FRACTION_BITS[precision])
  b_high, b_low = _split(b, _FRACTION_BITS[precision])
  if precision != 'tf32x3':
    return multiply(a_high, b_high)
  low = multiply(a_low, b_high) + multiply(a_high, b_low)
  # What an infinite number leaves is NaN, which says nothing of the product.
  return jnp.where(jnp.isnan(low), 0, low) + multiply(a_high, b_high)


def _split(x, bits):
  """`x` with so many bits of fraction, and what that leaves, with as many."""
  cut = lambda x: lax.reduce_precision(x, _EXPONENT_BITS, bits)
  high = cut(x)
  return high, cut(x - high)
