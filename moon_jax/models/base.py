"""What a network is to the rest of the package; Flax stays behind this door."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp

Variables = dict[str, Any]  # {'params': tree, and a model's mutable state}


class Outputs(NamedTuple):
  """What a network computes of a batch: B examples, F features, K classes."""

  features: jax.Array  # float32 [B, F], the encoder's h
  projection: jax.Array  # float32 [B, F'], MOON's z; h without a head
  logits: jax.Array  # float32 [B, K], from the projection


class Model(NamedTuple):
  """A network as two pure functions over one tree of variables.

  init(key, images_BHWC) -> variables
  apply(variables, images_BHWC, mask_B, train) -> (Outputs, variables)

  `variables` is {'params': ...} with, for networks that have it, mutable state
  (batch statistics) beside it. `apply` returns it with that state moved on
  where `train`, and as it was otherwise. `mask_B` is 0 for padding, which must
  not touch the state.
  """

  init: Callable[[jax.Array, jax.Array], Variables]
  apply: Callable[..., tuple[Outputs, Variables]]


def from_flax(module: nn.Module) -> Model:
  """Wraps a module whose call takes (images, mask, train) -> Outputs."""

  def init(key, images_BHWC):
    mask_B = jnp.ones(images_BHWC.shape[0])
    return module.init(key, images_BHWC, mask_B, False)

  def apply(variables, images_BHWC, mask_B, train):
    if not train:
      return module.apply(variables, images_BHWC, mask_B, False), variables
    state = [name for name in variables if name != 'params']
    outputs, moved = module.apply(
        variables, images_BHWC, mask_B, True, mutable=state)
    return outputs, {**variables, **moved}

  return Model(init, apply)
