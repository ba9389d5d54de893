"""The layers of the networks: Dense, convolutions, normalization and the head.

Initialization follows PyTorch's defaults, which the published results used:
kernels and biases are uniform in +-1/sqrt(fan_in) (He et al. with a = sqrt(5)),
except in the convolutions of residual networks.

Layers take an `Arithmetic`. Its default is float32 on all backends, whereas
JAX's default on GPUs rounds inputs to TF32.
"""

from collections.abc import Sequence
import functools
import math

from flax import linen as nn
import jax
from jax.ad_checkpoint import checkpoint_name
import jax.numpy as jnp

from moon_jax.models import convolution, pooled_conv
from moon_jax.models.arithmetic import Arithmetic, FLOAT32
from moon_jax.models.base import Options, Outputs

CONVOLVED = 'convolved'  # checkpoint name of convolution outputs
_MOMENTUM = .1  # of running statistics, in PyTorch's convention
_EPSILON = 1e-5  # added to variances
_NUM_GROUPS = 32  # groups of channels in group normalization


def wide(x: jax.Array) -> jax.Array:
  """Returns numbers in the type of their sums, float32 or float64."""
  return x.astype(jnp.float32 if jnp.finfo(x.dtype).bits < 32 else x.dtype)


def uniform_fan_in(fan_in: int) -> nn.initializers.Initializer:
  """Returns the initializer that is uniform in +-1/sqrt(fan_in)."""
  bound = 1 / math.sqrt(fan_in)
  return lambda key, shape, dtype=jnp.float32: jax.random.uniform(
      key, shape, dtype, -bound, bound)


class Dense(nn.Module):
  """A fully connected layer: [B, F] -> [B, num_features]."""

  num_features: int
  arithmetic: Arithmetic = FLOAT32

  @nn.compact
  def __call__(self, x_BF):
    fan_in = x_BF.shape[-1]
    init = uniform_fan_in(fan_in)
    kernel = self.param('kernel', init, (fan_in, self.num_features))
    bias = self.param('bias', init, (self.num_features,))
    x_BF, kernel, bias = self.arithmetic.cast(x_BF, kernel, bias)
    return self.arithmetic.dot(x_BF, kernel) + bias[None]


class Conv(nn.Module):
  """A zero-padded convolution without bias: [B, H, W, C] -> NHWC.

  Kernels are initialized as in residual networks, normal with variance
  2 / (k k num_features) (He et al., fan out).
  """

  num_features: int
  kernel_size: int
  arithmetic: Arithmetic = FLOAT32
  stride: int = 1
  padding: int = 0  # pixels on each side

  @nn.compact
  def __call__(self, x_BHWC):
    k, channels = self.kernel_size, x_BHWC.shape[-1]
    kernel = self.param(
        'kernel', nn.initializers.variance_scaling(2., 'fan_out', 'normal'),
        (k, k, channels, self.num_features))
    x_BHWC, kernel = self.arithmetic.cast(x_BHWC, kernel)
    y_BHWC = convolution.conv(
        x_BHWC, kernel, self.stride, self.padding, self.arithmetic)
    return checkpoint_name(y_BHWC, CONVOLVED)


class PooledConv(nn.Module):
  """relu(max_pool(conv + bias)): [H, W, C, B] -> [H', W', num_features, B].

  `pooled_conv` documents the output size and why this is one layer.
  """

  num_features: int
  kernel_size: int
  arithmetic: Arithmetic = FLOAT32

  @nn.compact
  def __call__(self, x_HWCB):
    k, channels = self.kernel_size, x_HWCB.shape[2]
    init = uniform_fan_in(k * k * channels)
    kernel = self.param('kernel', init, (k, k, channels, self.num_features))
    bias = self.param('bias', init, (self.num_features,))
    x_HWCB, kernel, bias = self.arithmetic.cast(x_HWCB, kernel, bias)
    y_HWCB = pooled_conv.conv_max_pool(
        x_HWCB, kernel, self.arithmetic.precision)
    return nn.relu(y_HWCB + bias[None, None, :, None])


class BatchNorm(nn.Module):
  """Batch normalization over unmasked examples, [B, H, W, C].

  Running statistics are as in PyTorch: averages with momentum 0.1, and the
  running variance averages the unbiased variance of batches. Statistics are
  float32 for all dtypes up to float32.

  Ioffe and Szegedy, ICML 2015, https://arxiv.org/abs/1502.03167.
  """

  @nn.compact
  def __call__(self, x_BHWC, mask_B, train):
    num_features = x_BHWC.shape[-1]
    x = wide(x_BHWC)
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
    expand = lambda x_C: x_C[None, None, None]
    y = (x - expand(mean_C)) * expand(factor_C) + expand(bias)
    return y.astype(x_BHWC.dtype)


def _moments(x_BHWC, mask_B):
  """Returns mean, biased variance and number of unmasked pixels."""
  mask_BHWC = mask_B[:, None, None, None]
  _, h, w, _ = x_BHWC.shape
  count = jnp.maximum(jnp.sum(mask_B), 1) * h * w
  mean_C = jnp.sum(x_BHWC * mask_BHWC, (0, 1, 2)) / count
  centred = (x_BHWC - mean_C[None, None, None]) * mask_BHWC
  return mean_C, jnp.sum(centred**2, (0, 1, 2)) / count, count


class GroupNorm(nn.Module):
  """Group normalization, separate for each example; Wu and He, ECCV 2018.

  It has no state to average over clients. Hsieh et al., ICML 2020,
  https://arxiv.org/abs/1910.00189, recommend it for non-IID clients.
  """

  @nn.compact
  def __call__(self, x_BHWC, mask_B, train):
    norm = nn.GroupNorm(num_groups=_NUM_GROUPS, epsilon=_EPSILON)
    return norm(wide(x_BHWC)).astype(x_BHWC.dtype)


NORMS = {'batch': BatchNorm, 'group': GroupNorm}


def attention(query_BTHD: jax.Array, key_BTHD: jax.Array,
              value_BTHD: jax.Array, is_seen_BHTS: jax.Array | None = None
              ) -> jax.Array:
  """Returns softmax(q k / sqrt(D)) v of each head over the positions it sees.

  Products and the softmax are float32 in any dtype, [B, T, heads H, D].
  `is_seen_BHTS` may have axes of length 1; None sees all.
  """
  q, k, v = map(wide, (query_BTHD, key_BTHD, value_BTHD))
  dot = functools.partial(jnp.einsum, precision='highest')
  scores_BHTS = dot('bthd,bshd->bhts', q, k) / math.sqrt(q.shape[3])
  if is_seen_BHTS is not None:
    scores_BHTS = jnp.where(is_seen_BHTS, scores_BHTS, -jnp.inf)
  weights_BHTS = jax.nn.softmax(scores_BHTS)
  return dot('bhts,bshd->bthd', weights_BHTS, v).astype(query_BTHD.dtype)


def resized(images_BHWC: jax.Array, side: int) -> jax.Array:
  """Returns images resized by cubic interpolation; 0 leaves them."""
  num_examples, _, _, channels = images_BHWC.shape
  return jax.image.resize(images_BHWC, (num_examples, side, side, channels),
                          'cubic') if side else images_BHWC


def sequence_head(features_BTF: jax.Array, options: Options) -> Outputs:
  """Returns `head` of the last position, or of all for the task "tokens".

  Of all positions, h and z are means.
  """
  if options.task != 'tokens':
    return head(features_BTF[:, -1], options)
  outputs = head(features_BTF.reshape(-1, features_BTF.shape[-1]), options)
  h, z, logits = (
      x.reshape(*features_BTF.shape[:2], -1) for x in outputs[:3])
  return Outputs(jnp.mean(h, 1), jnp.mean(z, 1), logits)


def head(features_BF: jax.Array, options: Options,
         levels: Sequence[jax.Array] = ()) -> Outputs:
  """Returns h, z = proj2(relu(proj1(h))) and logits = out(z).

  The output layer takes the projection, as in the released code. Without a
  projection head z is h. Must be called in a module's compact method, which
  then owns the layers.
  """
  arithmetic, z_BF = options.arithmetic, features_BF
  if options.projection_dim is not None:
    num_features = features_BF.shape[-1]
    z_BF = nn.relu(Dense(num_features, arithmetic, name='proj1')(z_BF))
    z_BF = Dense(options.projection_dim, arithmetic, name='proj2')(z_BF)
  logits_BK = Dense(options.num_classes, arithmetic, name='out')(z_BF)
  return Outputs(wide(features_BF), wide(z_BF), wide(logits_BK),
                 tuple(map(wide, levels)))
