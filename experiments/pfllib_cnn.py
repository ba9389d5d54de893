"""The 4-layer network of PFLlib's tables of CIFAR-100.

Two 5x5 convolutions without padding, of 32 and 64 channels, each with a 2x2
maximum, a dense layer of 512 and the output layer `out`, which is the head of
methods that split the network: 924,708 parameters for 32x32x3 images and 100
classes. Layers are those of `FedAvgCNN` in system/flcore/trainmodel/models.py
of https://github.com/TsingZ0/PFLlib (commit d832e76), initial values those of
PyTorch.
"""

from flax import linen as nn
import jax

import moon_jax as mj


class PfllibCNN(nn.Module):
  """The network; maps images [B, H, W, C] to features, projection and logits.

  Attributes:
    num_classes: K.
  """

  num_classes: int = 100

  @nn.compact
  def __call__(self, x, train):
    for name, num_features in ('conv1', 32), ('conv2', 64):
      fan_in = 25 * x.shape[-1]
      x = nn.relu(nn.Conv(
          num_features, (5, 5), padding='VALID', name=name,
          kernel_init=_uniform(fan_in), bias_init=_uniform(fan_in))(x))
      x = nn.max_pool(x, (2, 2), (2, 2))
    features = nn.relu(_dense(512, 'fc1', x.reshape(len(x), -1)))
    return mj.Outputs(
        features, features, _dense(self.num_classes, 'out', features))


def _dense(num_features, name, x):
  fan_in = x.shape[-1]
  return nn.Dense(num_features, name=name, kernel_init=_uniform(fan_in),
                  bias_init=_uniform(fan_in))(x)


def _uniform(fan_in):
  """Returns the initializer of PyTorch's kernels and biases."""
  bound = fan_in**-.5
  return lambda key, shape, dtype: jax.random.uniform(
      key, shape, dtype, -bound, bound)


def make(num_classes: int = 100) -> nn.Module:
  """Returns the network, for --model=experiments.pfllib_cnn:make."""
  return PfllibCNN(num_classes)
