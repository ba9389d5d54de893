"""A perceptron of two hidden layers, for features, and for small images.

The "2NN" of McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629:
200, 200, of which the second is the features h; then the head.
"""

from flax import linen as nn
import jax.numpy as jnp

from moon_jax.errors import UserError
from moon_jax.models import heads
from moon_jax.models import layers
from moon_jax.models.base import Options

_WIDTH = 200


class MLP(nn.Module):
  """See the module's docstring. No mutable state, so mask and train are idle.

  Raises:
    UserError: for tokens, which are no quantities.
  """

  options: Options

  @nn.compact
  def __call__(self, inputs, mask_B, train):
    del mask_B, train
    if not jnp.issubdtype(inputs.dtype, jnp.floating):
      raise UserError(
          f'--model=mlp takes features or images; got {inputs.dtype} inputs. '
          '--model=char_lstm takes tokens')
    x = inputs.reshape(len(inputs), -1)
    x = nn.relu(layers.Dense(_WIDTH, self.options.arithmetic, name='fc1')(x))
    x = nn.relu(layers.Dense(_WIDTH, self.options.arithmetic, name='fc2')(x))
    return heads.head(x, self.options)
