"""The small network of the MOON paper for CIFAR-10 (section 4.1).

conv 6 5x5, pool, conv 16 5x5, pool, 120, 84: the features h; then the head.
92,626 parameters for 32x32x3 images, 10 classes and a projection of 256.
"""

from flax import linen as nn

from moon_jax.models import base
from moon_jax.models import heads
from moon_jax.models import layers
from moon_jax.models.base import Options

_SMALLEST = 16  # pixels a side that leave one pixel after the second pool


class SimpleCNN(nn.Module):
  """See the module's docstring. No mutable state, so mask and train are idle.

  Raises:
    UserError: for other inputs than images of 16 pixels a side or more.
  """

  options: Options

  @nn.compact
  def __call__(self, images_BHWC, mask_B, train):
    del mask_B, train
    base.check_images('simple_cnn', images_BHWC, _SMALLEST)
    x = images_BHWC.transpose(1, 2, 3, 0)
    x = layers.PooledConv(6, 5, self.options.arithmetic, name='conv1')(x)
    x = layers.PooledConv(16, 5, self.options.arithmetic, name='conv2')(x)
    x = x.reshape(-1, x.shape[-1]).T
    x = nn.relu(layers.Dense(120, self.options.arithmetic, name='fc1')(x))
    x = nn.relu(layers.Dense(84, self.options.arithmetic, name='fc2')(x))
    return heads.head(x, self.options)
