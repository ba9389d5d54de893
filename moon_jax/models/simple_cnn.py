"""The small network of the MOON paper for CIFAR-10 (section 4.1).

Two 5x5 convolutions with 6 and 16 channels, each followed by 2x2 max pooling,
fully connected layers of 120 and 84 units, and the head. The features h are the
84 units. It has 92,626 parameters for 32x32x3 images, 10 classes and a
projection of size 256.
"""

from flax import linen as nn

from moon_jax.models import base, layers
from moon_jax.models.base import Options

_MIN_SIZE = 16  # pixels per side, which leave one pixel after the second pool


class SimpleCNN(nn.Module):
  """The network of the module's docstring.

  It has no mutable state, and ignores mask and train.
  """

  options: Options

  @nn.compact
  def __call__(self, images_BHWC, mask_B, train):
    del mask_B, train
    base.check_inputs('simple_cnn', images_BHWC, 'images', _MIN_SIZE)
    x = images_BHWC.transpose(1, 2, 3, 0)
    x = layers.PooledConv(6, 5, self.options.arithmetic, name='conv1')(x)
    x = layers.PooledConv(16, 5, self.options.arithmetic, name='conv2')(x)
    x = x.reshape(-1, x.shape[-1]).T
    x = nn.relu(layers.Dense(120, self.options.arithmetic, name='fc1')(x))
    x = nn.relu(layers.Dense(84, self.options.arithmetic, name='fc2')(x))
    return layers.head(x, self.options)
