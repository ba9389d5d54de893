"""The layers that networks here are made of: Dense, convolutions, norms.

PyTorch's default initialisation, which the published numbers assume: kernels
and biases uniform in +-1/sqrt(fan_in) (He et al. with a = sqrt(5)), but for the
convolutions of residual networks.

Float32 means float32 on every backend: matrix products ask for the highest
precision, since GPUs would otherwise round their inputs to 10 bits (TF32).
"""

import math

from flax import linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from moon_jax.models import pooled_conv

CONVOLVED = 'convolved'  # what convolutions give, for rematerialisation
_PRECISION = jax.lax.Precision.HIGHEST
_TILE = 4  # output columns of a convolution that share one banded kernel
_MANY_CHANNELS = 16  # of the input, from which im2col is better than banded
_MOMENTUM = .1  # of running statistics, as PyTorch counts it
_EPSILON = 1e-5  # added to variances
_GROUPS = 32  # of channels that group normalisation normalises together


def wide_dtype(dtype) -> jnp.dtype:
  """The type in which sums over many numbers of `dtype` are kept."""
  return dtype if jnp.finfo(dtype).bits > 32 else jnp.dtype('float32')


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
  """A convolution, zero-padded, without a bias: [B, H, W, C] -> NHWC.

  It starts as a residual network's do, normal with variance
  2 / (k k num_features) (He et al., fan out).
  """

  num_features: int
  kernel_size: int
  dtype: str = 'float32'
  stride: int = 1
  padding: int = 0  # pixels on each side

  @nn.compact
  def __call__(self, x_BHWC):
    k, channels = self.kernel_size, x_BHWC.shape[-1]
    kernel = self.param(
        'kernel', nn.initializers.variance_scaling(2., 'fan_out', 'normal'),
        (k, k, channels, self.num_features))
    x_BHWC, kernel = _cast(self.dtype, x_BHWC, kernel)
    return checkpoint_name(
        conv(x_BHWC, kernel, self.stride, self.padding), CONVOLVED)


class PooledConv(nn.Module):
  """relu(max_pool(conv + bias)): [H, W, C, B] -> [H', W', num_features, B].

  See `pooled_conv` for its sizes, and why these are one layer.
  """

  num_features: int
  kernel_size: int
  dtype: str = 'float32'

  @nn.compact
  def __call__(self, x_HWCB):
    k, channels = self.kernel_size, x_HWCB.shape[2]
    init = uniform_fan_in(k * k * channels)
    kernel = self.param('kernel', init, (k, k, channels, self.num_features))
    bias = self.param('bias', init, (self.num_features,))
    x_HWCB, kernel, bias = _cast(self.dtype, x_HWCB, kernel, bias)
    y_HWCB = pooled_conv.conv_max_pool(x_HWCB, kernel)
    return nn.relu(y_HWCB + bias[None, None, :, None])


class BatchNorm(nn.Module):
  """Batch normalisation over the real examples: [B, H, W, C] -> the same.

  As PyTorch's: running statistics move by a tenth, the running variance with
  the unbiased variance of the batch. Statistics are float32 whatever the dtype.

  Ioffe and Szegedy, ICML 2015, https://arxiv.org/abs/1502.03167.
  """

  @nn.compact
  def __call__(self, x_BHWC, mask_B, train):
    num_features = x_BHWC.shape[-1]
    x = x_BHWC.astype(wide_dtype(x_BHWC.dtype))
    zeros, ones = nn.initializers.zeros, nn.initializers.ones
    scale = self.param('scale', ones, (num_features,))
    bias = self.param('bias', zeros, (num_features,))
    mean = self.variable(
        'batch_stats', 'mean', lambda: jnp.zeros(num_features))
    var = self.variable('batch_stats', 'var', lambda: jnp.ones(num_features))
    if not train:
      mean_C, var_C = mean.value, var.value
    else:
      mean_C, var_C, count = _moments(x, mask_B)
      unbiased_C = var_C * count / jnp.maximum(count - 1, 1)
      mean.value += _MOMENTUM * (mean_C - mean.value)
      var.value += _MOMENTUM * (unbiased_C - var.value)
    factor_C = scale * jax.lax.rsqrt(var_C + _EPSILON)
    of_channel = lambda x_C: x_C[None, None, None]
    y = (x - of_channel(mean_C)) * of_channel(factor_C) + of_channel(bias)
    return y.astype(x_BHWC.dtype)


def _moments(x_BHWC, mask_B):
  """Mean and biased variance of the real examples' pixels, and their number."""
  mask_BHWC = mask_B[:, None, None, None]
  _, h, w, _ = x_BHWC.shape
  count = jnp.maximum(jnp.sum(mask_B), 1) * h * w
  mean_C = jnp.sum(x_BHWC * mask_BHWC, (0, 1, 2)) / count
  centred = (x_BHWC - mean_C[None, None, None]) * mask_BHWC
  return mean_C, jnp.sum(centred**2, (0, 1, 2)) / count, count


class GroupNorm(nn.Module):
  """Group normalisation, of each example alone; Wu and He, ECCV 2018.

  It leaves no state to average, as Hsieh et al., ICML 2020,
  https://arxiv.org/abs/1910.00189, advise for unlike clients.
  """

  @nn.compact
  def __call__(self, x_BHWC, mask_B, train):
    del mask_B, train
    norm = nn.GroupNorm(num_groups=_GROUPS, epsilon=_EPSILON)
    x = x_BHWC.astype(wide_dtype(x_BHWC.dtype))
    return norm(x).astype(x_BHWC.dtype)


NORMS = {'batch': BatchNorm, 'group': GroupNorm}


def _cast(dtype, *arrays):
  return [a.astype(dtype) for a in arrays]


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1,
         padding: int = 0) -> jax.Array:
  """A zero-padded convolution as one matrix product; see `banded_conv` for why.

  Banded for few input channels, where copying windows is what costs; of more
  channels by im2col, and a 1x1 kernel without copying.

  Args:
    x: [B, H, W, C].
    kernel: [k, k, C, O].
    stride: pixels between windows.
    padding: zeros on each side.

  Returns:
    [B, (H + 2 padding - k) // stride + 1, ..., O].
  """
  size, _, channels, num_out = kernel.shape
  x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
  if stride == 1 and 1 < size and channels < _MANY_CHANNELS:
    return banded_conv(x, kernel)
  b, h, w, _ = x.shape
  out_h, out_w = (h - size) // stride + 1, (w - size) // stride + 1
  windows = jnp.concatenate(
      [x[:, i:i + (out_h - 1) * stride + 1:stride,
         j:j + (out_w - 1) * stride + 1:stride]
       for i in range(size) for j in range(size)], axis=-1)
  y = jnp.dot(windows.reshape(b * out_h * out_w, size * size * channels),
              kernel.reshape(size * size * channels, num_out),
              precision=_PRECISION)
  return y.reshape(b, out_h, out_w, num_out)


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
