"""Convolutions of residual networks, with a choice of implementation.

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
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools

import jax
from jax import lax
import jax.numpy as jnp

from moon_jax.models import arithmetic as arithmetic_lib
from moon_jax.models.arithmetic import Arithmetic
from moon_jax.models.arithmetic import FLOAT32

_TILE = 4  # default number of output columns of a banded kernel
_MIN_CHANNELS_FOR_IM2COL = 16  # with fewer input channels banded is faster


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1, padding: int = 0,
         arithmetic: Arithmetic = FLOAT32) -> jax.Array:
  """Returns a zero-padded convolution.

  Args:
    x: [B, H, W, C].
    kernel: [k, k, C, O].
    stride: pixels between windows.
    padding: pixels of zeros on each side.
    arithmetic: the precision and the implementation.

  Returns:
    [B, (H + 2 padding - k) // stride + 1, ..., O].
  """
  if arithmetic.convolution == 'native':
    return arithmetic_lib.product(
        functools.partial(_native, stride, padding), arithmetic.precision,
        x, kernel)
  size, _, channels, _ = kernel.shape
  x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
  if stride == 1 and 1 < size and channels < _MIN_CHANNELS_FOR_IM2COL:
    return banded_conv(x, kernel, arithmetic=arithmetic)
  return im2col(x, kernel, (stride, stride), arithmetic.dot)


def im2col(x: jax.Array, kernel: jax.Array, strides: Sequence[int],
           dot_fn: Callable) -> jax.Array:
  """Returns a VALID convolution, computed as one product of copied windows.

  Args:
    x: [B, H, W, C].
    kernel: [kh, kw, C, O].
    strides: rows and columns between windows.
    dot_fn: multiplies matrices.

  Returns:
    [B, (H - kh) // strides[0] + 1, (W - kw) // strides[1] + 1, O].
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


def _native(stride, padding, precision, x, kernel):
  return lax.conv_general_dilated(
      x, kernel, (stride, stride), [(padding, padding)] * 2,
      dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
      precision=arithmetic_lib.CONVOLUTION_PRECISIONS[precision])


def banded_conv(x: jax.Array, kernel: jax.Array, tile: int | None = None,
                arithmetic: Arithmetic = FLOAT32) -> jax.Array:
  """Returns a VALID convolution with stride 1, computed as one matrix product.

  Each window of `kh` rows and `tile + kw - 1` columns is copied as contiguous
  runs. Its product with a banded matrix of the kernel gives `tile` output
  columns. This takes more arithmetic than im2col but much less memory.

  Args:
    x: [B, H, W, C].
    kernel: [kh, kw, C, O].
    tile: output columns per window; None chooses. It affects only speed.
    arithmetic: the precision.

  Returns:
    [B, H - kh + 1, W - kw + 1, O].

  Raises:
    ValueError: if the kernel is larger than the images.
  """
  b, h, w, c = x.shape
  kh, kw, _, num_out = kernel.shape
  out_h, out_w = h - kh + 1, w - kw + 1
  if min(out_h, out_w) < 1:
    raise ValueError(f'images must be at least as large as the {kh}x{kw} '
                     f'kernel, got {h}x{w}')
  tile = tile or _choose_tile(out_w)
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


def _choose_tile(out_w: int) -> int:
  """Returns 4, 5 or 3 if it divides the width, else 4."""
  divisors = [t for t in (_TILE, 5, 3) if out_w % t == 0]
  return divisors[0] if divisors else min(_TILE, out_w)
