"""What a network is to the rest of the package; Flax stays behind this door."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp

from moon_jax.errors import UserError
from moon_jax.models.arithmetic import Arithmetic
from moon_jax.models.arithmetic import FLOAT32

Variables = dict[str, Any]  # {'params': tree, and a model's mutable state}


class Outputs(NamedTuple):
  """What a network computes of a batch: B examples, F features, K classes."""

  features: jax.Array  # float32 [B, F], the encoder's h
  projection: jax.Array  # float32 [B, F'], MOON's z; h without a head
  logits: jax.Array  # float32 [B, K], from the projection


class Options(NamedTuple):
  """What all networks are made with; each takes what concerns it."""

  num_classes: int
  projection_dim: int | None = 256  # None leaves the head out
  arithmetic: Arithmetic = FLOAT32
  norm: str = 'batch'  # a name of layers.NORMS
  num_tokens: int = 0  # of the vocabulary, for networks that read tokens


class Model(NamedTuple):
  """A network as two pure functions over one tree of variables.

  init(key, inputs) -> variables
  apply(variables, inputs, mask_B, train) -> (Outputs, variables)

  Inputs are a batch as `moon_jax.algorithms.base.Batch` describes it.
  `variables` is {'params': ...} with, for networks that have it, mutable state
  (batch statistics) beside it. `apply` returns it with that state moved on
  where `train`, and as it was otherwise. `mask_B` is 0 for padding, which must
  not touch the state.
  """

  init: Callable[[jax.Array, jax.Array], Variables]
  apply: Callable[..., tuple[Outputs, Variables]]


def check_images(model: str, inputs: jax.Array, smallest: int) -> None:
  """Refuses inputs that are not images, or have too few pixels a side.

  Raises:
    UserError: naming the network, the pixels it needs and what it got.
  """
  shape = 'x'.join(map(str, inputs.shape[1:]))
  if inputs.ndim != 4 or not jnp.issubdtype(inputs.dtype, jnp.floating):
    raise UserError(
        f'--model={model} takes images [N, H, W, C]; got {inputs.dtype} inputs '
        f'of shape {shape or "none"}. --model=mlp takes features, '
        '--model=char_lstm tokens')
  if min(inputs.shape[1:3]) < smallest:
    raise UserError(f'--model={model} needs images of at least '
                    f'{smallest}x{smallest} pixels; got {shape}')


def from_flax(module: nn.Module) -> Model:
  """Wraps a module whose call takes (inputs, mask, train) -> Outputs."""

  def init(key, inputs):
    mask_B = jnp.ones(inputs.shape[0])
    return module.init(key, inputs, mask_B, False)

  def apply(variables, inputs, mask_B, train):
    if not train:
      return module.apply(variables, inputs, mask_B, False), variables
    state = [name for name in variables if name != 'params']
    outputs, moved = module.apply(
        variables, inputs, mask_B, True, mutable=state)
    return outputs, {**variables, **moved}

  return Model(init, apply)
