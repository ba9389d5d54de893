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
import jax
import numpy as np

from moon_jax import user_code
from moon_jax.config import parts
from moon_jax.config.parts import (
  checked,
  File,
  FromRun,
  Natural,
  Part,
  Positive,
)
from moon_jax.errors import require, setting, UserError
from moon_jax.models import base, networks, pretrained, transformers, user
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
    'vit': transformers.ViT,
    'bert': transformers.Bert,
    'gpt2': transformers.GPT2,
}

_Norm = Literal['batch', 'group']
_Dtype = Literal['float32', 'bfloat16']
_Precision = Literal['highest', 'tf32x3', 'tf32', 'bfloat16']
_Convolution = Literal['im2col', 'native']
_Dim = Annotated[int, Ge(1)] | None  # of the projection
_Count = Annotated[int, Ge(1)] | None  # None for that of the size
_Token = Annotated[int, Ge(0)] | None
_Stem = Literal['cifar', 'imagenet'] | None
# Widths and numbers of layers. Heads of the attention have 64 units.
_VIT = {'tiny': (192, 12), 'small': (384, 12), 'base': (768, 12)}
_BERT = {'tiny': (128, 2), 'mini': (256, 4), 'small': (512, 4),
         'medium': (512, 8), 'base': (768, 12)}
_GPT2 = {'distil': (768, 6), 'small': (768, 12), 'medium': (1024, 24)}


@checked
def make(name: str, num_classes: FromRun[int], projection_dim: _Dim = 256,
         dtype: str = 'float32', norm: _Norm = 'batch', num_tokens: int = 0,
         precision: _Precision = 'highest',
         convolution: _Convolution = 'im2col', task: str = 'classification',
         **fields: Any) -> Model:
  """Returns the network `name`, a key of `MODELS`.

  The other arguments are those of `base.Options` and `Arithmetic`, and fields
  of the module. The dtype may be float64 with jax.enable_x64.
  """
  require(name in MODELS, 'name', f'must be one of {", ".join(MODELS)}',
          repr(name), 'Correct it')
  require(isinstance(num_classes, int | np.integer) and num_classes >= 1,
          'num_classes', 'must be an integer of at least 1',
          num_classes if isinstance(num_classes, int | float | str)
          else type(num_classes).__name__, 'Pass data.num_classes')
  has_float64 = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
  require(dtype in ('float32', 'bfloat16', *(['float64'] * has_float64)),
          'dtype', 'must be float32 or bfloat16', repr(dtype), 'Correct it')
  require(precision == 'highest' or dtype == 'float32', 'precision',
          f'must be highest with {setting("dtype", dtype)}', precision,
          'Remove one of them')
  require(convolution == 'im2col' or precision in ('highest', 'tf32'),
          'convolution', f'must be im2col with {setting("precision")}='
          f'{precision}', convolution, 'Remove one of them, or give '
          f'{setting("dtype", "bfloat16")} without {setting("precision")}')
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


@checked
def resnet18(num_classes: FromRun[int], projection_dim: _Dim = 256, *,
             init: File = '', keep_head: bool = False, stem: _Stem = None,
             resize: Natural = 0, norm: _Norm = 'batch',
             dtype: _Dtype = 'float32', precision: _Precision = 'highest',
             convolution: _Convolution = 'im2col') -> Model:
  """Returns ResNet-18 for small images; see `resnet50` for the arguments."""
  return _resnet('resnet18', num_classes, projection_dim, init, keep_head, stem,
                 resize, dtype, norm, precision, convolution)


@checked
def resnet50(num_classes: FromRun[int], projection_dim: _Dim = 256, *,
             init: File = '', keep_head: bool = False, stem: _Stem = None,
             resize: Natural = 0, norm: _Norm = 'batch',
             dtype: _Dtype = 'float32', precision: _Precision = 'highest',
             convolution: _Convolution = 'im2col') -> Model:
  """Returns ResNet-50 for small images, the paper's network for CIFAR-100.

  Args:
    num_classes: number of logits.
    projection_dim: length of the projection z; None leaves the head out.
    init: file of weights of torchvision or timm (docs/pretrained.md).
    keep_head: whether the output layer is that of the file.
    stem: "cifar", a 3x3 convolution, or "imagenet", one of 7x7 and stride 2,
      and pooling; None is "imagenet" with `init` and otherwise "cifar".
    resize: side in pixels to which images are resized on the device; 0 leaves
      them.
    norm: "batch", whose running statistics are averaged with the parameters, or
      "group".
    dtype: "float32" or "bfloat16".
    precision: "highest", "tf32x3", "tf32" or "bfloat16".
    convolution: "im2col" or "native" (cuDNN on NVIDIA GPUs).
  """
  return _resnet('resnet50', num_classes, projection_dim, init, keep_head, stem,
                 resize, dtype, norm, precision, convolution)


def _resnet(name, num_classes, projection_dim, init, keep_head, stem, resize,
            dtype, norm, precision, convolution):
  _check_head(keep_head, projection_dim)
  return pretrained.initialized(make(
      name, num_classes, projection_dim, dtype, norm, precision=precision,
      convolution=convolution, resize=resize,
      stem=stem or ('imagenet' if init else 'cifar')),
                                init, 'resnet', keep_head)


@checked
def vit(num_classes: FromRun[int], projection_dim: _Dim = None, *,
        size: Literal['tiny', 'small', 'base'] = 'tiny', init: File = '',
        keep_head: bool = False, patch_size: Annotated[int, Ge(1)] = 16,
        resize: Natural = 0, epsilon: Positive = 1e-6, width: _Count = None,
        num_layers: _Count = None, num_heads: _Count = None,
        num_prompts: Natural = 0, dtype: _Dtype = 'float32',
        precision: _Precision = 'highest') -> Model:
  """Returns a vision transformer, as timm and Hugging Face have it.

  See `resnet50` for the other arguments.

  Args:
    size: width and number of layers: 192 and 12 (tiny), 384 and 12 (small), 768
      and 12 (base).
    init: file of weights of timm or Hugging Face (docs/pretrained.md).
    patch_size: side of a patch in pixels; weights of others are resampled.
    epsilon: added to variances, in most files of Hugging Face 1e-12.
    width: length of the vector of a patch or token, instead of that of
      `size`.
    num_layers: instead of that of `size`.
    num_heads: heads of the attention; None for one per 64 units of the width.
    num_prompts: number of trained vectors that are inserted for prompt tuning
      (docs/adapters.md).

  Examples:
    >>> model = moon_jax.vit(10, init='vit_tiny.safetensors', patch_size=4)
  """
  return _transformer(
      'vit', init, keep_head, _sizes(_VIT[size], width, num_layers, num_heads),
      num_classes, projection_dim, dtype, precision=precision,
      patch_size=patch_size, resize=resize, epsilon=epsilon,
      num_prompts=num_prompts)


@checked
def bert(num_classes: FromRun[int], num_tokens: FromRun[int],
         projection_dim: _Dim = None, *, task: FromRun[str] = 'classification',
         size: Literal['tiny', 'mini', 'small', 'medium', 'base'] = 'base',
         init: File = '', keep_head: bool = False, pad_token: _Token = 0,
         sep_token: _Token = None, width: _Count = None,
         num_layers: _Count = None, num_heads: _Count = None,
         num_prompts: Natural = 0, dtype: _Dtype = 'float32',
         precision: _Precision = 'highest') -> Model:
  """Returns BERT, an encoder for the classification of text.

  For the task "tokens" it has logits for each. See `vit` and see `resnet50` for
  the other arguments.

  Args:
    num_tokens: size of the vocabulary, `Dataset.num_tokens`.
    size: width and number of layers: 128 and 2 (tiny), 256 and 4 (mini), 512
      and 4 (small), 512 and 8 (medium), 768 and 12 (base).
    init: file of weights of Hugging Face (docs/pretrained.md).
    keep_head: whether the output layer is that of the file.
    pad_token: the token that fills short texts, which others do not see; None
      if there is none.
    sep_token: the token after which the second text of a pair begins; None for
      one text.
  """
  return _transformer(
      'bert', init, keep_head, _sizes(
          _BERT[size], width, num_layers, num_heads),
      num_classes, projection_dim, dtype, precision=precision, task=task,
      num_tokens=num_tokens, pad_token=pad_token, sep_token=sep_token,
      num_prompts=num_prompts)


@checked
def gpt2(num_tokens: FromRun[int], num_classes: FromRun[int] = 0,
         projection_dim: _Dim = None, *, task: FromRun[str] = 'tokens',
         size: Literal['distil', 'small', 'medium'] = 'small',
         init: File = '', keep_head: bool = False, pad_token: _Token = None,
         width: _Count = None, num_layers: _Count = None,
         num_heads: _Count = None, num_prompts: Natural = 0,
         dtype: _Dtype = 'float32', precision: _Precision = 'highest') -> Model:
  """Returns GPT-2, a decoder that predicts the next tokens of text.

  For the task "tokens" without projection its output layer is the embedding.
  See `bert`, see `vit` and see `resnet50` for the other arguments.

  Args:
    size: width and number of layers: 768 and 6 (distil), 768 and 12 (small),
      1024 and 24 (medium).
    pad_token: the token that fills short texts on the right: a classification
      reads the last other one; None reads the last.
  """
  return _transformer(
      'gpt2', init, keep_head, _sizes(
          _GPT2[size], width, num_layers, num_heads),
      num_classes or num_tokens, projection_dim, dtype, precision=precision,
      task=task, num_tokens=num_tokens, pad_token=pad_token,
      num_prompts=num_prompts)


def _sizes(size, width, num_layers, num_heads):
  """Returns the fields of a transformer; others than None replace a size."""
  width, num_layers = width or size[0], num_layers or size[1]
  num_heads = num_heads or max(1, width // 64)
  require(width % num_heads == 0, 'width', 'must be a multiple of '
          f'{setting("num_heads", num_heads)}', width, 'Change one of them')
  return {'width': width, 'num_layers': num_layers, 'num_heads': num_heads}


def _transformer(name, init, keep_head, sizes, num_classes, projection_dim,
                 dtype, **options):
  _check_head(keep_head, projection_dim)
  return pretrained.initialized(
      make(name, num_classes, projection_dim, dtype, **options, **sizes), init,
      name, keep_head, num_heads=sizes['num_heads'],
      epsilon=options.get('epsilon', 0))


def _check_head(keep_head, projection_dim):
  require(not keep_head or projection_dim is None, 'keep_head=True',
          'needs a network without a projection head',
          setting('projection_dim', projection_dim),
          f'Give {setting("projection_dim", None)}')


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
