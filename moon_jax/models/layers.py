"""The layers that networks here are made of: Conv, Dense, pooling.

PyTorch's default initialisation, which the published numbers assume: kernels
and biases uniform in +-1/sqrt(fan_in) (He et al. with a = sqrt(5)).

Float32 means float32 on every backend: matrix products ask for the highest
precision, since GPUs would otherwise round their inputs to 10 bits (TF32).
"""

import math

from flax import linen as nn
import jax
import jax.numpy as jnp

_PRECISION = jax.lax.Precision.HIGHEST
_TILE = 4  # output columns of a convolution that share one banded kernel


def uniform_fan_in(fan_in: int) -> nn.initializers.Initializer:
  """Uniform in +-1/sqrt(fan_in)."""
  bound = 1 / math.sqrt(fan_in)
  return lambda key, shape, dtype=jnp.float32: jax.random.uniform(
      key, shape, dtype, -bound, bound)


class Dense(nn.Module):
  """A fully connected layer: [B, F] -> [B, num_features]."""

  num_features: int
  dtype: str = 'float32'

  @nn.compact
  def __call__(self, x_BF):
    fan_in = x_BF.shape[-1]
    init = uniform_fan_in(fan_in)
    kernel = self.param('kernel', init, (fan_in, self.num_features))
    bias = self.param('bias', init, (self.num_features,))
    x_BF, kernel, bias = _cast(self.dtype, x_BF, kernel, bias)
    return jnp.dot(x_BF, kernel, precision=_PRECISION) + bias[None]


class Conv(nn.Module):
  """A convolution with stride 1 and no padding: [B, H, W, C] -> NHWC."""

  num_features: int
  kernel_size: int
  dtype: str = 'float32'

  @nn.compact
  def __call__(self, x_BHWC):
    k, channels = self.kernel_size, x_BHWC.shape[-1]
    init = uniform_fan_in(k * k * channels)
    kernel = self.param('kernel', init, (k, k, channels, self.num_features))
    bias = self.param('bias', init, (self.num_features,))
    x_BHWC, kernel, bias = _cast(self.dtype, x_BHWC, kernel, bias)
    return banded_conv(x_BHWC, kernel) + bias[None, None, None]


def _cast(dtype, *arrays):
  return [a.astype(dtype) for a in arrays]


def banded_conv(x: jax.Array, kernel: jax.Array,
                tile: int | None = None) -> jax.Array:
  """A VALID convolution with stride 1 as one matrix product.

  Under `vmap` over kernels it is a batched matrix product, where
  `lax.conv_general_dilated` becomes a grouped convolution, which is slow.

  A window of `kh` rows and `tile + kw - 1` columns is copied as runs of
  contiguous numbers; the kernel, spread to a banded matrix, gives `tile`
  output columns of it at once. More arithmetic than im2col, much less memory.

  Args:
    x: [B, H, W, C].
    kernel: [kh, kw, C, O].
    tile: output columns a product gives; None chooses. Changes speed only.

  Returns:
    [B, H - kh + 1, W - kw + 1, O].

  Raises:
    ValueError: where the kernel is larger than the images.
  """
  b, h, w, c = x.shape
  kh, kw, _, num_out = kernel.shape
  out_h, out_w = h - kh + 1, w - kw + 1
  if min(out_h, out_w) < 1:
    raise ValueError(f'a {kh}x{kw} kernel needs images of that size or more; '
                     f'got {h}x{w}')
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
  y = jnp.dot(windows.reshape(b * out_h * num_tiles, kh * width * c),
              band.reshape(kh * width * c, tile * num_out),
              precision=_PRECISION)
  return y.reshape(b, out_h, num_tiles * tile, num_out)[:, :, :out_w]


def _choose_tile(out_w: int) -> int:
  """4, 5 or 3 columns where they divide the width, else 4; see BUILD_NOTES."""
  divisors = [t for t in (_TILE, 5, 3) if out_w % t == 0]
  return divisors[0] if divisors else min(_TILE, out_w)


def max_pool_2x2(x_BHWC: jax.Array) -> jax.Array:
  """The maximum of each 2x2 block; an odd last row or column is left out.

  As three elementwise maxima: the gradient of `reduce_window` is slow.
  """
  b, h, w, c = x_BHWC.shape
  x = x_BHWC[:, :h // 2 * 2, :w // 2 * 2].reshape(b, h // 2, 2, w // 2, 2, c)
  return jnp.maximum(jnp.maximum(x[:, :, 0, :, 0], x[:, :, 0, :, 1]),
                     jnp.maximum(x[:, :, 1, :, 0], x[:, :, 1, :, 1]))
