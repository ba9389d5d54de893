"""Custom networks for tests, on small images."""

from flax import linen as nn
from flax import nnx
import jax.numpy as jnp

import moon_jax as mj


class Linen(nn.Module):
  """A dense layer, batch norm that reads the mask, dropout, a dense layer."""

  num_classes: int = 3

  @nn.compact
  def __call__(self, x, mask, train):
    h = jnp.tanh(nn.Dense(8, name='dense')(x.reshape(len(x), -1)))
    h = nn.BatchNorm(use_running_average=not train, name='norm')(
        h, mask=mask[:, None] > 0)
    h = nn.Dropout(.5, deterministic=not train)(h)
    return mj.Outputs(
        features=h, logits=nn.Dense(self.num_classes, name='out')(h))


class Nnx(nnx.Module):
  """The same network."""

  def __init__(self, num_classes=3, *, rngs):
    self.dense = nnx.Linear(4, 8, rngs=rngs)
    self.norm = nnx.BatchNorm(8, momentum=.99, rngs=rngs)
    self.dropout = nnx.Dropout(.5, rngs=rngs)
    self.out = nnx.Linear(8, num_classes, rngs=rngs)

  def __call__(self, x, mask):
    h = jnp.tanh(self.dense(x.reshape(len(x), -1)))
    h = self.dropout(self.norm(h, mask=mask[:, None] > 0))
    return mj.Outputs(features=h, logits=self.out(h))


class Dense(nn.Module):
  """A network that returns only logits, with its activation dropped out."""

  @nn.compact
  def __call__(self, x, deterministic):
    x = nn.Dropout(.5, deterministic=deterministic)(
        jnp.tanh(nn.Dense(8)(x.reshape(len(x), -1))))
    return nn.Dense(3)(x)
