"""The interface of networks; only `moon_jax.models` depends on Flax."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp

from moon_jax.errors import UserError
from moon_jax.models.arithmetic import Arithmetic
from moon_jax.models.arithmetic import FLOAT32

Variables = dict[str, Any]  # {'params': tree, ...: mutable state}


class Outputs(NamedTuple):
  """Network outputs for a batch: B examples, F features, K classes."""

  features: jax.Array  # float32 [B, F], the encoder's h
  projection: jax.Array  # float32 [B, F'], MOON's z; h if there is no head
  logits: jax.Array  # float32 [B, K], computed from the projection


class Options(NamedTuple):
  """Options of all networks; a network ignores those it does not need."""

  num_classes: int
  projection_dim: int | None = 256  # None for no projection head
  arithmetic: Arithmetic = FLOAT32
  norm: str = 'batch'  # a key of layers.NORMS
  num_tokens: int = 0  # vocabulary size, for networks that take tokens


class Model(NamedTuple):
  """A network as two pure functions of one tree of variables.

  init(key, inputs) -> variables
  apply(variables, inputs, mask_B, train) -> (Outputs, variables)

  Inputs are a batch as described in `moon_jax.algorithms.base.Batch`.
  `variables` is {'params': ...}, plus mutable state (batch statistics) if the
  network has any. `apply` returns the variables with updated state if `train`,
  and unchanged otherwise. `mask_B` is 0 for padding, which must not affect the
  state.
  """

  init: Callable[[jax.Array, jax.Array], Variables]
  apply: Callable[..., tuple[Outputs, Variables]]


def check_images(model: str, inputs: jax.Array, min_size: int) -> None:
  """Checks that the inputs are images of at least `min_size` pixels per side.

  Raises:
    UserError: if they are not.
  """
  shape = 'x'.join(map(str, inputs.shape[1:]))
  if inputs.ndim != 4 or not jnp.issubdtype(inputs.dtype, jnp.floating):
    raise UserError(
        f'--model={model} takes images [N, H, W, C]; got {inputs.dtype} inputs '
        f'of shape {shape or "none"}. --model=mlp takes features, '
        '--model=char_lstm tokens')
  if min(inputs.shape[1:3]) < min_size:
    raise UserError(f'--model={model} needs images of at least '
                    f'{min_size}x{min_size} pixels; got {shape}')


def from_flax(module: nn.Module) -> Model:
  """Wraps a Flax module called as (inputs, mask, train) -> Outputs."""

  def init(key, inputs):
    mask_B = jnp.ones(inputs.shape[0])
    return module.init(key, inputs, mask_B, False)

  def apply(variables, inputs, mask_B, train):
    if not train:
      return module.apply(variables, inputs, mask_B, False), variables
    state = [name for name in variables if name != 'params']
    outputs, new_state = module.apply(
        variables, inputs, mask_B, True, mutable=state)
    return outputs, {**variables, **new_state}

  return Model(init, apply)
