"""The network of the experiments with epidemic learning: GN-LeNet.

    --model=experiments.epidemic:make

Three convolutions of 5x5 with group normalization, ReLU and max pooling (de Vos
et al., NeurIPS 2023, https://arxiv.org/abs/2310.01972). Sizes are those of
`LeNet` in src/decentralizepy/datasets/CIFAR10.py of
https://github.com/sacs-epfl/decentralizepy, tag epidemic-neurips-2023.
"""

from flax import linen as nn


class Network(nn.Module):
  """GN-LeNet for images of 32x32x3."""

  num_classes: int

  @nn.compact
  def __call__(self, x):
    for layer, features in enumerate((32, 32, 64), 1):
      x = nn.Conv(features, (5, 5), name=f'conv{layer}')(x)
      x = nn.relu(nn.GroupNorm(2, epsilon=1e-5, name=f'norm{layer}')(x))
      x = nn.max_pool(x, (2, 2), (2, 2))
    return nn.Dense(self.num_classes, name='out')(x.reshape(len(x), -1))


def make(num_classes):
  """Returns the network of --model=MODULE:FUNCTION."""
  return Network(num_classes)
