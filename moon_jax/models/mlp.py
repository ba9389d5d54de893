"""A multilayer perceptron with two hidden layers, for features or small images.

The "2NN" of McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629: two
hidden layers of 200 units and the head. The features h are the second layer's
outputs.
"""

from flax import linen as nn

from moon_jax.models import base, layers
from moon_jax.models.base import Options

_WIDTH = 200


class MLP(nn.Module):
  """The network of the module's docstring.

  It has no mutable state, and ignores mask and train.
  """

  options: Options

  @nn.compact
  def __call__(self, inputs, mask_B, train):
    del mask_B, train
    base.check_inputs('mlp', inputs, 'features or images')
    x = inputs.reshape(len(inputs), -1)
    x = nn.relu(layers.Dense(_WIDTH, self.options.arithmetic, name='fc1')(x))
    x = nn.relu(layers.Dense(_WIDTH, self.options.arithmetic, name='fc2')(x))
    return layers.head(x, self.options)
