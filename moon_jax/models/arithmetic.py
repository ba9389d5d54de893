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
except `highest` on tensor cores. CPUs have no such arithmetic: runs on CPUs
refuse it, and a saved model is evaluated there in float32.

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
  """Returns multiply_fn(precision, a, b), in float32 on CPUs.

  The gradient is a product of the same precision. `multiply_fn` passes the
  precision to XLA.
  """
  if precision == 'highest':
    return multiply_fn(precision, a, b)
  return platforms.by_platform(
      functools.partial(multiply_fn, 'highest'),
      functools.partial(multiply_fn, precision), a, b)
