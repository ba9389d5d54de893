"""The layers after the encoder: MOON's projection head and the output layer."""

from flax import linen as nn
import jax

from moon_jax.models import layers
from moon_jax.models.base import Options
from moon_jax.models.base import Outputs


def head(features_BF: jax.Array, options: Options) -> Outputs:
  """Returns h, z = proj2(relu(proj1(h))) and logits = out(z).

  The output layer takes the projection, as in the released code. Without a
  projection head z is h. Must be called in a module's compact method, which
  then owns the layers.

  Args:
    features_BF: h, the output of the encoder.
    options: the options of the network.
  """
  arithmetic, z_BF = options.arithmetic, features_BF
  if options.projection_dim is not None:
    num_features = features_BF.shape[-1]
    z_BF = nn.relu(layers.Dense(num_features, arithmetic, name='proj1')(z_BF))
    z_BF = layers.Dense(options.projection_dim, arithmetic, name='proj2')(z_BF)
  logits_BK = layers.Dense(options.num_classes, arithmetic, name='out')(z_BF)
  return Outputs(*(a.astype(layers.wide_dtype(a.dtype))
                   for a in (features_BF, z_BF, logits_BK)))
