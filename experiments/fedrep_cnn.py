"""The CIFAR-10 network of FedRep, and its clients with their own test examples.

Two 5x5 convolutions without padding, of 64 channels, each with a 2x2 maximum,
dense layers of 120 and 64, and the output layer `out`, the head: 307,842
parameters for 32x32x3 images. Layers are those of `CNNCifar` in models/Nets.py
of https://github.com/lgcollins/FedRep (commit d82e629), initial values those of
PyTorch.
"""

from flax import linen as nn
import jax

import moon_jax as mj


class FedRepCNN(nn.Module):
  """The network; maps images [B, H, W, C] to features, projection and logits.

  Attributes:
    num_classes: K.
  """

  num_classes: int = 10

  @nn.compact
  def __call__(self, x, train):
    del train
    for name in 'conv1', 'conv2':
      init = _uniform(25 * x.shape[-1])
      x = nn.relu(nn.Conv(
          64, (5, 5), padding='VALID', name=name, kernel_init=init,
          bias_init=init, conv_general_dilated=mj.conv_general_dilated)(x))
      x = nn.max_pool(x, (2, 2), (2, 2))
    x = nn.relu(_dense(120, 'fc1', x.reshape(len(x), -1)))
    x = nn.relu(_dense(64, 'fc2', x))
    return mj.Outputs(x, x, _dense(self.num_classes, 'out', x))


def _dense(num_features, name, x):
  init = _uniform(x.shape[-1])
  return nn.Dense(num_features, name=name, kernel_init=init, bias_init=init)(x)


def _uniform(fan_in):
  """Returns the initializer of PyTorch's kernels and biases."""
  bound = fan_in**-.5
  return lambda key, shape, dtype: jax.random.uniform(
      key, shape, dtype, -bound, bound)


def make(num_classes: int = 10) -> nn.Module:
  """Returns the network, for --model=experiments.fedrep_cnn:make."""
  return FedRepCNN(num_classes)
