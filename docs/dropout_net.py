"""A network of your own with dropout."""

from flax import linen as nn

import moon_jax as mj


class DropoutNet(nn.Module):
  num_classes: int
  rate: float = 0.25

  @nn.compact
  def __call__(self, x, train):
    h = nn.relu(nn.Dense(128)(x.reshape(len(x), -1)))
    h = nn.Dropout(self.rate, deterministic=not train)(h)
    return mj.Outputs(features=h, logits=nn.Dense(self.num_classes)(h))
