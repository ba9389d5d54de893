"""Fast functions for user-defined Flax modules.

In a loop, and a round is one, XLA for CPUs computes `lax.conv_general_dilated`
without its fast library; the gradient of `nn.max_pool` is slow, too. The
functions here compute the same values:

    x = nn.Conv(32, (3, 3), conv_general_dilated=mj.conv_general_dilated)(x)
    x = mj.max_pool(x, (2, 2), (2, 2))

For the network of experiments/cross_device_cnn.py, a local step on 10 images
takes 267 ms of one CPU core with Flax's functions, 22 ms with
`conv_general_dilated`, and 15 ms with both.
"""

from collections.abc import Sequence
from typing import Any

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.models import convolution

_IMAGES = ('NHWC', 'HWIO', 'NHWC')


def conv_general_dilated(
    lhs: jax.Array, rhs: jax.Array, window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None, dimension_numbers: Any = None,
    feature_group_count: int = 1, batch_group_count: int = 1,
    precision: Any = None, preferred_element_type: Any = None) -> jax.Array:
  """Computes a convolution of images as one matrix product.

  An argument for `flax.linen.Conv(conv_general_dilated=...)`, with the
  signature of `jax.lax.conv_general_dilated`. Dilated, grouped and
  one- or three-dimensional convolutions are passed to that function.

  Args:
    lhs: images [B, H, W, C].
    rhs: a kernel [k, k', C, O].
    window_strides: pixels between windows, two numbers.
    padding: "VALID", "SAME", or the pixels before and after each dimension.
    lhs_dilation: passed on.
    rhs_dilation: passed on.
    dimension_numbers: passed on, unless they are those above.
    feature_group_count: passed on.
    batch_group_count: passed on.
    precision: of the product; None computes float32 products exactly on all
      backends, as the networks of moon_jax do.
    preferred_element_type: type of the result.

  Returns:
    [B, H', W', O].

  Examples:
    >>> layer = nn.Conv(
    ...     32, (3, 3), conv_general_dilated=moon_jax.conv_general_dilated)

  See also: `moon_jax.max_pool`.
  """
  precision = lax.Precision.HIGHEST if precision is None else precision
  if not (lhs.ndim == 4 and _are_images(lhs, rhs, dimension_numbers)
          and {*(lhs_dilation or ()), *(rhs_dilation or ())} <= {1}
          and feature_group_count == batch_group_count == 1):
    return lax.conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation,
        dimension_numbers, feature_group_count, batch_group_count, precision,
        preferred_element_type)
  if isinstance(padding, str):
    padding = lax.padtype_to_pads(
        lhs.shape[1:3], rhs.shape[:2], window_strides, padding)
  return convolution.im2col(
      jnp.pad(lhs, ((0, 0), *map(tuple, padding), (0, 0))), rhs, window_strides,
      lambda a, b: jnp.dot(a, b, precision=precision,
                           preferred_element_type=preferred_element_type))


def _are_images(lhs, rhs, dimension_numbers):
  """Returns whether the axes are those of `conv_general_dilated`."""
  axes = lambda numbers: lax.conv_dimension_numbers(
      lhs.shape, rhs.shape, numbers)
  return axes(dimension_numbers) == axes(_IMAGES)


def max_pool(inputs: jax.Array, window_shape: Sequence[int],
             strides: Sequence[int] | None = None,
             padding: str | Sequence[tuple[int, int]] = 'VALID') -> jax.Array:
  """Returns the maximum over windows; a fast `flax.linen.max_pool`.

  It is fast for windows that do not overlap, with padding "VALID". Other
  arguments are passed to Flax's function. If several inputs of a window are
  maximal they share its gradient; Flax gives it to the first of them.

  Args:
    inputs: images [..., H, W, C].
    window_shape: height and width of a window, in pixels.
    strides: pixels between windows; None is 1, as in Flax.
    padding: "VALID", "SAME", or the pixels before and after each dimension.

  Returns:
    [..., H', W', C].

  Examples:
    >>> x = moon_jax.max_pool(x, (2, 2), (2, 2))

  See also: `moon_jax.conv_general_dilated`.
  """
  if strides is None or padding != 'VALID' or len(window_shape) != 2 or (
      tuple(strides) != tuple(window_shape)):
    return nn.max_pool(inputs, tuple(window_shape), strides, padding)
  (height, width), (*batch, h, w, c) = window_shape, inputs.shape
  num_rows, num_columns = h // height, w // width
  x = inputs[..., :num_rows * height, :num_columns * width, :]
  return x.reshape(
      *batch, num_rows, height, num_columns, width, c).max((-4, -2))
