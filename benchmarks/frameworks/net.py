"""A custom network."""

import flax.linen as nn


class Net(nn.Module):
  num_classes: int

  @nn.compact
  def __call__(self, x):
    h = nn.relu(nn.Dense(64)(x))
    h = nn.relu(nn.Dense(64)(h))
    return nn.Dense(self.num_classes)(h)
