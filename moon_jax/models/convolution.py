"""Convolutions as matrix products, of residual networks and of your own.

Under `vmap` over kernels XLA's convolution becomes a grouped convolution, which
is slow on CPUs, but a matrix product becomes a batched matrix product. So the
default, `im2col`, computes a convolution as a matrix product, in one of two
ways:

  im2col   copies each window into a row of a matrix; a 1x1 kernel needs no
           copies
  banded   for few input channels, where copying windows dominates: computes
           several output columns at once from a wider window and a banded
           kernel matrix

`native` is XLA's convolution, for GPUs, where cuDNN computes it.

`moon_jax.models.on_cpus` puts these products into your own networks. On all
platforms their layers can name them:

    x = nn.Conv(32, (3, 3), conv_general_dilated=mj.conv_general_dilated)(x)
    x = mj.max_pool(x, (2, 2), (2, 2))
"""

from collections.abc import Callable, Sequence
import functools
import itertools
import math
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.models import arithmetic as arithmetic_lib
from moon_jax.models.arithmetic import Arithmetic, FLOAT32

_IMAGES = ('NHWC', 'HWIO', 'NHWC')
_TILES = 4, 5, 3  # output columns of a banded kernel, the preferred first
_MAX_SLICES = 16  # elements of a window of maximum pooling
_MIN_CHANNELS_FOR_IM2COL = 16  # with fewer input channels banded is faster


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1, padding: int = 0,
         arithmetic: Arithmetic = FLOAT32) -> jax.Array:
  """Returns a zero-padded convolution of [B, H, W, C] with [k, k, C, O].

  The result is [B, (H + 2 padding - k) // stride + 1, ..., O].
  """
  if arithmetic.convolution == 'native':
    native = lambda precision, x, kernel: lax.conv_general_dilated(
        x, kernel, (stride, stride), [(padding, padding)] * 2,
        dimension_numbers=_IMAGES,
        precision=arithmetic_lib.CONVOLUTION_PRECISIONS[precision])
    return arithmetic_lib.product(native, arithmetic.precision, x, kernel)
  size, _, channels, _ = kernel.shape
  x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
  if stride == 1 and 1 < size and channels < _MIN_CHANNELS_FOR_IM2COL:
    return banded_conv(x, kernel, arithmetic)
  return im2col(x, kernel, (stride, stride), arithmetic.dot)


def im2col(x: jax.Array, kernel: jax.Array, strides: Sequence[int],
           dot_fn: Callable) -> jax.Array:
  """Returns a VALID convolution of [B, H, W, C] with [kh, kw, C, O].

  It is one product of copied windows. `dot_fn` multiplies matrices.
  """
  (b, h, w, _), (kh, kw, channels, num_out) = x.shape, kernel.shape
  out_h, out_w = (h - kh) // strides[0] + 1, (w - kw) // strides[1] + 1
  windows = jnp.concatenate(
      [x[:, i:i + (out_h - 1) * strides[0] + 1:strides[0],
         j:j + (out_w - 1) * strides[1] + 1:strides[1]]
       for i in range(kh) for j in range(kw)], axis=-1)
  y = dot_fn(windows.reshape(b * out_h * out_w, kh * kw * channels),
             kernel.reshape(kh * kw * channels, num_out))
  return y.reshape(b, out_h, out_w, num_out)


def banded_conv(x: jax.Array, kernel: jax.Array,
                arithmetic: Arithmetic = FLOAT32) -> jax.Array:
  """Returns a VALID convolution with stride 1, computed as one matrix product.

  Each window of `kh` rows and `tile + kw - 1` columns is copied as contiguous
  runs. Its product with a banded matrix of the kernel gives `tile` output
  columns. This takes more arithmetic than im2col but much less memory. Images
  are [B, H, W, C] and the kernel is [kh, kw, C, O].
  """
  b, h, w, c = x.shape
  kh, kw, _, num_out = kernel.shape
  out_h, out_w = h - kh + 1, w - kw + 1
  tile = next((t for t in _TILES if out_w % t == 0), min(_TILES[0], out_w))
  num_tiles = -(-out_w // tile)
  width = tile + kw - 1
  x = jnp.pad(x, ((0, 0), (0, 0), (0, num_tiles * tile - out_w), (0, 0)))

  def rows_of_tile(j):
    columns = x[:, :, j * tile:j * tile + width]
    return jnp.concatenate(
        [columns[:, i:i + out_h].reshape(b, out_h, width * c)
         for i in range(kh)], axis=-1)

  windows = jnp.stack([rows_of_tile(j) for j in range(num_tiles)], axis=2)
  band = jnp.stack(
      [jnp.pad(kernel, ((0, 0), (s, tile - 1 - s), (0, 0), (0, 0)))
       for s in range(tile)], axis=3)
  y = arithmetic.dot(windows.reshape(b * out_h * num_tiles, kh * width * c),
                     band.reshape(kh * width * c, tile * num_out))
  return y.reshape(b, out_h, num_tiles * tile, num_out)[:, :, :out_w]


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
    lhs_dilation: passed on, as are the next four arguments.
    rhs_dilation: passed on.
    dimension_numbers: passed on.
    feature_group_count: passed on.
    batch_group_count: passed on.
    precision: of the product; None computes float32 products exactly on all
      backends, as the networks of moon_jax do.
    preferred_element_type: type of the result [B, H', W', O].

  Examples:
    >>> layer = nn.Conv(
    ...     32, (3, 3), conv_general_dilated=moon_jax.conv_general_dilated)

  See also: `moon_jax.max_pool`.
  """
  precision = lax.Precision.HIGHEST if precision is None else precision
  axes = lambda numbers: lax.conv_dimension_numbers(
      lhs.shape, rhs.shape, numbers)
  if not (lhs.ndim == 4 and axes(dimension_numbers) == axes(_IMAGES)
          and {*(lhs_dilation or ()), *(rhs_dilation or ())} <= {1}
          and feature_group_count == batch_group_count == 1):
    return lax.conv_general_dilated(
        lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation,
        dimension_numbers, feature_group_count, batch_group_count, precision,
        preferred_element_type)
  if isinstance(padding, str):
    padding = lax.padtype_to_pads(
        lhs.shape[1:3], rhs.shape[:2], window_strides, padding)
  return im2col(
      lax.pad(lhs, jnp.zeros((), lhs.dtype),  # padding may be negative
              [(0, 0, 0), *((*ends, 0) for ends in padding), (0, 0, 0)]),
      rhs, window_strides,
      lambda a, b: jnp.dot(a, b, precision=precision,
                           preferred_element_type=preferred_element_type))


def max_pool(inputs: jax.Array, window_shape: Sequence[int],
             strides: Sequence[int] | None = None,
             padding: str | Sequence[tuple[int, int]] = 'VALID') -> jax.Array:
  """Returns the maximum over windows; `flax.linen.max_pool`, fast on CPUs.

  As in Flax, the first of several maximal inputs of a window gets its gradient.

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
  others = (1,) * (inputs.ndim - len(window_shape) - 1)
  whole = lambda sizes: (*others, *sizes, 1)
  shape = whole(window_shape)
  strides = whole(strides or [1] * len(window_shape))
  if isinstance(padding, str):
    padding = lax.padtype_to_pads(inputs.shape, shape, strides, padding)
  else:
    padding = [(0, 0)] * len(others) + [*padding, (0, 0)]
  return window_max(inputs, shape, strides, padding)


def window_max(x: jax.Array, shape: Sequence[int], strides: Sequence[int],
               padding: Sequence[tuple[int, int]],
               x_dilation: Sequence[int] | None = None,
               dilation: Sequence[int] | None = None) -> jax.Array:
  """Returns the maximum over windows of all axes of a floating-point array.

  The operation of `jax.lax.reduce_window` with `jax.lax.max`, as elementwise
  maxima of slices. Of equal values in a window the first one gets the gradient.
  Large windows, whose slices would take long to compile, stay that operation.

  Args:
    x: the array.
    shape: elements of a window along each axis.
    strides: elements between windows.
    padding: elements before and after each axis, which are no maximum.
    x_dilation: distance of elements within the padded array; None is 1.
    dilation: distance of elements within a window; None is 1.
  """
  ones = (1,) * x.ndim
  if math.prod(shape) > _MAX_SLICES:
    return lax.reduce_window(x, -jnp.inf, lax.max, shape, strides, padding,
                             x_dilation, dilation)
  x = lax.pad(x, jnp.array(-jnp.inf, x.dtype), [
      (*ends, distance - 1)
      for ends, distance in zip(padding, x_dilation or ones)])
  dilation = dilation or ones
  last = [size - 1 - (k - 1) * d
          for size, k, d in zip(x.shape, shape, dilation)]

  def window_element(offset):
    start = [i * d for i, d in zip(offset, dilation)]
    return lax.slice(x, start, [a + b + 1 for a, b in zip(start, last)],
                     strides)

  # NaN is a maximum, as in XLA.
  return functools.reduce(
      lambda a, b: jnp.where((b > a) | (b != b), b, a),
      map(window_element, itertools.product(*map(range, shape))))
