"""The CIFAR-10 network of pfl-research's cross-device benchmark.

Two 3x3 convolutions without padding, of 32 and 64 channels, a 2x2 maximum,
dropout 0.25, a dense layer of 128, dropout 0.5 and the output layer: 1,626,442
parameters for 32x32x3 images. Kernels are Glorot uniform. Layers and rates are
those of `simple_cnn` in benchmarks/model/pytorch/cnn.py of
https://github.com/apple/pfl-research (commit c9d1f32), and so are the biases,
whose initial values are those of PyTorch.
"""

from flax import linen as nn
import jax

import moon_jax as mj


class CrossDeviceCNN(nn.Module):
  """The network; maps images [B, H, W, C] to logits [B, K].

  Attributes:
    num_classes: K.
    has_dropout: whether the dropout layers are active in training.
    is_fast: whether to use moon_jax's convolution on all platforms.
  """

  num_classes: int = 10
  has_dropout: bool = True
  is_fast: bool = True

  @nn.compact
  def __call__(self, x, train):
    x = nn.relu(self._conv(32, x))
    x = nn.relu(self._conv(64, x))
    x = nn.max_pool(x, (2, 2), (2, 2))
    x = self._dropout(.25, x, train)
    x = nn.relu(_dense(128, x.reshape(len(x), -1)))
    x = self._dropout(.5, x, train)
    return _dense(self.num_classes, x)

  def _conv(self, num_features, x):
    return nn.Conv(
        num_features, (3, 3), padding='VALID',
        kernel_init=nn.initializers.glorot_uniform(),
        bias_init=_uniform(9 * x.shape[-1]),
        conv_general_dilated=mj.conv_general_dilated if self.is_fast else None
        )(x)

  def _dropout(self, rate, x, train):
    is_active = self.has_dropout and train
    return nn.Dropout(rate, deterministic=not is_active)(x)


def _dense(num_features, x):
  return nn.Dense(
      num_features, kernel_init=nn.initializers.glorot_uniform(),
      bias_init=_uniform(x.shape[-1]))(x)


def _uniform(fan_in):
  """Returns the initializer of PyTorch's biases."""
  bound = fan_in**-.5
  return lambda key, shape, dtype: jax.random.uniform(
      key, shape, dtype, -bound, bound)


def make(num_classes: int = 10, has_dropout: bool = True,
         is_fast: bool = True) -> nn.Module:
  """Returns the network, for --model=experiments.cross_device_cnn:make."""
  return CrossDeviceCNN(num_classes, has_dropout, is_fast)
