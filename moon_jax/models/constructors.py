"""The networks of the package as functions, for use from Python.

Each returns a `moon_jax.models.base.Model`. With a projection head, a two-layer
projection of length `projection_dim` stands between features and logits; MOON
contrasts its output z. `projection_dim=None` leaves the head out. `dtype` is
the type of activations, and `precision` that of float32 products
(docs/precision.md).
"""

from moon_jax import models
from moon_jax.models.base import Model


def simple_cnn(num_classes: int, projection_dim: int | None = 256, *,
               dtype: str = 'float32', precision: str = 'highest') -> Model:
  """Returns the paper's CNN for CIFAR-10: two 5x5 convolutions, two layers.

  Args:
    num_classes: number of logits.
    projection_dim: length of the projection z; None leaves the head out.
    dtype: "float32" or "bfloat16".
    precision: "highest", "tf32x3", "tf32" or "bfloat16".

  Examples:
    >>> model = moon_jax.simple_cnn(num_classes=10)
  """
  return models.make('simple_cnn', num_classes, projection_dim, dtype,
                     precision=precision)


def resnet18(num_classes: int, projection_dim: int | None = 256, *,
             norm: str = 'batch', dtype: str = 'float32',
             precision: str = 'highest', convolution: str = 'im2col') -> Model:
  """Returns ResNet-18 for small images; see `resnet50` for the arguments."""
  return models.make('resnet18', num_classes, projection_dim, dtype, norm,
                     precision=precision, convolution=convolution)


def resnet50(num_classes: int, projection_dim: int | None = 256, *,
             norm: str = 'batch', dtype: str = 'float32',
             precision: str = 'highest', convolution: str = 'im2col') -> Model:
  """Returns ResNet-50 for small images, the paper's network for CIFAR-100.

  Args:
    num_classes: number of logits.
    projection_dim: length of the projection z; None leaves the head out.
    norm: "batch", whose running statistics are averaged with the parameters, or
      "group".
    dtype: "float32" or "bfloat16".
    precision: "highest", "tf32x3", "tf32" or "bfloat16".
    convolution: "im2col" or "native" (cuDNN on NVIDIA GPUs).
  """
  return models.make('resnet50', num_classes, projection_dim, dtype, norm,
                     precision=precision, convolution=convolution)


def mlp(num_classes: int, projection_dim: int | None = 256, *,
        dtype: str = 'float32', precision: str = 'highest') -> Model:
  """Returns a multilayer perceptron for features or small images.

  See `simple_cnn` for the arguments.
  """
  return models.make('mlp', num_classes, projection_dim, dtype,
                     precision=precision)


def char_lstm(num_classes: int, num_tokens: int,
              projection_dim: int | None = 256, *,
              dtype: str = 'float32') -> Model:
  """Returns a two-layer LSTM over characters, as LEAF uses for Shakespeare.

  `num_tokens` is the size of the vocabulary, `Dataset.num_tokens`; see
  `simple_cnn` for the other arguments.
  """
  return models.make('char_lstm', num_classes, projection_dim, dtype,
                     num_tokens=num_tokens)
