"""The networks of the package by name, and as functions for use from Python.

Each function returns a `moon_jax.models.base.Model`. With a projection head, a
two-layer projection of length `projection_dim` stands between features and
logits; MOON contrasts its output z. `projection_dim=None` leaves the head out.
`dtype` is the type of activations, and `precision` that of float32 products
(docs/numerics.md).
"""

from collections.abc import Callable
import functools
from typing import Annotated, Any, Literal

from annotated_types import Ge
from flax import linen as nn
import numpy as np

from moon_jax import user_code
from moon_jax.config import parts
from moon_jax.config.parts import checked, FromRun, Part
from moon_jax.errors import require, setting, UserError
from moon_jax.models import base, networks, user
from moon_jax.models import joint as joint
from moon_jax.models.arithmetic import Arithmetic

Model = base.Model
Outputs = base.Outputs

MODELS: dict[str, Callable[[base.Options], nn.Module]] = {
    'simple_cnn': networks.SimpleCNN,
    'resnet18': networks.ResNet,
    'resnet50': functools.partial(
        networks.ResNet, num_blocks=(3, 4, 6, 3), is_bottleneck=True),
    'mlp': networks.MLP,
    'char_lstm': networks.CharLSTM,
    'transformer': networks.Transformer,
}

_Norm = Literal['batch', 'group']
# float64 needs jax.enable_x64.
_Dtype = Literal['float32', 'bfloat16', 'float64']
_Precision = Literal['highest', 'tf32x3', 'tf32', 'bfloat16']
_Convolution = Literal['im2col', 'native']
_Dim = Annotated[int, Ge(1)] | None  # of the projection


@checked
def make(name: str, num_classes: FromRun[int], projection_dim: _Dim = 256,
         dtype: _Dtype = 'float32', norm: _Norm = 'batch', num_tokens: int = 0,
         precision: _Precision = 'highest',
         convolution: _Convolution = 'im2col', task: str = 'classification',
         **fields: int) -> Model:
  """Returns the network `name`, a key of `MODELS`.

  The other arguments are those of `base.Options` and `Arithmetic`, and fields
  of the module.
  """
  require(name in MODELS, 'name', f'must be one of {", ".join(MODELS)}',
          repr(name), 'Correct it')
  require(isinstance(num_classes, int | np.integer) and num_classes >= 1,
          'num_classes', 'must be an integer of at least 1',
          num_classes if isinstance(num_classes, int | float | str)
          else type(num_classes).__name__, 'Pass data.num_classes')
  return user.wrap(MODELS[name](base.Options(
      num_classes, projection_dim, Arithmetic(dtype, precision, convolution),
      norm, num_tokens, task), **fields))._replace(precision=precision)


def simple_cnn(num_classes: FromRun[int], projection_dim: _Dim = 256, *,
               dtype: _Dtype = 'float32', precision: _Precision = 'highest'
               ) -> Model:
  """Returns the paper's CNN for CIFAR-10: two 5x5 convolutions, two layers.

  Args:
    num_classes: number of logits.
    projection_dim: length of the projection z; None leaves the head out.
    dtype: "float32" or "bfloat16".
    precision: "highest", "tf32x3", "tf32" or "bfloat16".

  Examples:
    >>> model = moon_jax.simple_cnn(num_classes=10)
  """
  return make('simple_cnn', num_classes, projection_dim, dtype,
              precision=precision)


def resnet18(num_classes: FromRun[int], projection_dim: _Dim = 256, *,
             norm: _Norm = 'batch', dtype: _Dtype = 'float32',
             precision: _Precision = 'highest',
             convolution: _Convolution = 'im2col') -> Model:
  """Returns ResNet-18 for small images; see `resnet50` for the arguments."""
  return make('resnet18', num_classes, projection_dim, dtype, norm,
              precision=precision, convolution=convolution)


def resnet50(num_classes: FromRun[int], projection_dim: _Dim = 256, *,
             norm: _Norm = 'batch', dtype: _Dtype = 'float32',
             precision: _Precision = 'highest',
             convolution: _Convolution = 'im2col') -> Model:
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
  return make('resnet50', num_classes, projection_dim, dtype, norm,
              precision=precision, convolution=convolution)


def mlp(num_classes: FromRun[int], projection_dim: _Dim = 256, *,
        dtype: _Dtype = 'float32', precision: _Precision = 'highest') -> Model:
  """Returns a multilayer perceptron for features or small images.

  See `simple_cnn` for the arguments.
  """
  return make('mlp', num_classes, projection_dim, dtype,
              precision=precision)


def char_lstm(num_classes: FromRun[int], num_tokens: FromRun[int],
              projection_dim: _Dim = 256, *,
              task: FromRun[str] = 'classification', dtype: _Dtype = 'float32'
              ) -> Model:
  """Returns a two-layer LSTM over characters, as LEAF uses for Shakespeare.

  `num_tokens` is the size of the vocabulary, `Dataset.num_tokens`; with `task`
  "tokens" it predicts at every position. See `simple_cnn` for the other
  arguments.
  """
  return make('char_lstm', num_classes, projection_dim, dtype,
              num_tokens=num_tokens, task=task)


def transformer(num_tokens: FromRun[int], num_classes: FromRun[int] = 0,
                projection_dim: _Dim = None, *, task: FromRun[str] = 'tokens',
                width: Annotated[int, Ge(1)] = 128,
                num_layers: Annotated[int, Ge(1)] = 2,
                num_heads: Annotated[int, Ge(1)] = 4,
                dtype: _Dtype = 'float32') -> Model:
  """Returns a small causal transformer, which predicts the next tokens.

  Args:
    num_tokens: size of the vocabulary, `Dataset.num_tokens`.
    num_classes: number of logits; 0 for the size of the vocabulary.
    projection_dim: length of the projection z; None leaves the head out.
    task: "tokens" for logits at every position, or "classification" for those
      of the last one.
    width: length of the vector of a position, a multiple of `num_heads`.
    num_layers: blocks of attention and two dense layers.
    num_heads: heads of the attention.
    dtype: "float32" or "bfloat16".

  Examples:
    >>> model = moon_jax.transformer(data.num_tokens)
  """
  require(num_heads > 0 and width % num_heads == 0, 'width', 'must be a '
          f'multiple of {setting("num_heads", num_heads)}', width,
          'Change one of them')
  return make('transformer', num_classes or num_tokens, projection_dim, dtype,
              num_tokens=num_tokens, task=task, width=width,
              num_layers=num_layers, num_heads=num_heads)


def network(part: Part, **run: Any) -> Model:
  """Returns the network of a part, with values of the run by name.

  They are num_classes, num_tokens (0 without tokens) and task.
  """
  made = (_own_network(part, **run) if part.is_own
          else parts.make('model', part, **run))
  return made._replace(source=str(part))


def _own_network(part: Part, **run: Any) -> Model:
  """Returns the network of your own factory, --model=MODULE:FACTORY(...).

  The factory returns a Flax module or a `moon_jax.Model`. Of `run` it gets
  `num_classes` and `num_tokens` if its signature names them, and others by
  `FromRun`. If it names `rngs` it makes a module of Flax NNX.
  """
  factory = parts.function_of('model', part)
  try:
    takes_rngs = 'rngs' in user_code.signature_of(factory).parameters
  except (TypeError, ValueError) as error:  # some built-in callables
    raise UserError(
        'model', 'must name a function or class of Python',
        f'{part.name} ({error})', 'Name a function that calls it') from error
  if takes_rngs:
    from moon_jax.models import nnx

    made: Any = nnx.from_nnx(
        lambda rngs: parts.make('model', part, rngs=rngs, **run))
  else:
    made = parts.make('model', part, **run)
    if isinstance(made, nn.Module):
      made = user_code.call('model', part.name, user.from_flax, made)
  require(isinstance(made, base.Model), 'model', 'must return a Flax module '
          'or a moon_jax.Model', f'a {type(made).__name__} of {part}'
          f'{user_code.place(factory)}',
          'A factory of Flax NNX modules takes an argument rngs')
  return made._replace(place=made.place or user_code.place(factory))
