"""The interface of networks; only `moon_jax.models` depends on Flax."""

from collections.abc import Callable
import functools
import inspect
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from moon_jax import tasks
from moon_jax.errors import require, setting
from moon_jax.models.arithmetic import Arithmetic, FLOAT32

Variables = dict[str, Any]  # {'params': tree, ...: mutable state}


class Outputs(NamedTuple):
  """Network outputs for a batch: B examples, F features, K classes.

  A custom network may leave out features and projection, which few
  methods need. They are None then; without a projection alone, it is h.

  Attributes:
    features: float32 [B, F], the encoder's h.
    projection: float32 [B, F'], MOON's z; h if there is no head.
    logits: float32 [B, K], computed from the projection; [B, T, K] for the
      task "tokens".
    levels: a tuple of float32 [B, F_l], the outputs of stages before h, for
      methods that compare representations at several levels. Of the built-in
      networks the ResNets have them: global means after the stem and after each
      stage but the last.
  """

  features: Any = None
  projection: Any = None
  logits: Any = None
  levels: Any = ()


class Options(NamedTuple):
  """Options of all networks; a network ignores those it does not need."""

  num_classes: int
  projection_dim: int | None = 256  # None for no projection head
  arithmetic: Arithmetic = FLOAT32
  norm: str = 'batch'  # a key of layers.NORMS
  num_tokens: int = 0  # vocabulary size, for networks that take tokens
  task: str = 'classification'  # networks that take tokens return logits
  # [B, T, K] for the task "tokens"


@jax.tree_util.register_static  # functions are no arrays
class Model(NamedTuple):
  """A network as two pure functions of one tree of variables.

      init(key, inputs) -> variables
      apply(variables, inputs, mask_B, train, key=None) -> (Outputs, variables)

  Inputs are a batch as described in `moon_jax.algorithms.base.Batch`.
  `variables` is {'params': ...}, plus mutable state (batch statistics) if the
  network has any. `apply` returns the variables with updated state if `train`,
  and unchanged otherwise. `mask_B` is 0 for padding, which must not affect the
  state. `key` is the random key of dropout and other draws of the training
  mode, given by name. The model that `Algorithm.loss` receives has the key of
  its step. A network without random draws needs no argument `key`.

  Attributes:
    init: see above.
    apply: see above.
    uses_mask: whether `apply` uses `mask_B`.
    place: " (at FILE, line N)" of a custom network, for messages.
    source: the call of a configuration that made it, such as "simple_cnn", for
      messages; '' of a value in Python.
    task: what labels mean; simulations set that of their data.
    precision: of products of float32 arrays; see `models.arithmetic`.
    frozen: `(inputs) -> tree`. Returns the weights that do not train, which
      are neither sent nor stored for clients; None if all train. `apply` has
      an argument of this name, and without it computes them. Their tree is
      {'params': {path: array}, ...: mutable state}.
    lora_scale: alpha / rank of the adapters of `moon_jax.lora`.
    caches_features: whether simulations compute what no client changes once
      per example (`moon_jax.freeze`).
  """

  init: Callable[[jax.Array, jax.Array], Variables]
  apply: Callable[..., tuple[Outputs, Variables]]
  uses_mask: bool = True
  place: str = ''
  task: tasks.Task = tasks.CLASSIFICATION
  frozen: Callable[[jax.Array], Any] | None = None
  source: str = ''
  precision: str = 'highest'
  lora_scale: float = 1.
  caches_features: bool = False

  def with_frozen(self, tree: Any) -> 'Model':
    """Returns the model with these results of `frozen`, if it has any."""
    if self.frozen is None:
      return self
    return self._replace(apply=functools.partial(self.apply, frozen=tree))

  def with_key(self, key: jax.Array) -> 'Model':
    """Returns the model that draws from `key` unless `apply` gets another."""
    if 'key' not in inspect.signature(self.apply).parameters:
      return self
    return self._replace(apply=functools.partial(self.apply, key=key))


def check_inputs(model: str, inputs: jax.Array, kind: str,
                 min_size: int = 0) -> None:
  """Raises an error for other inputs of the network --model than `kind`.

  This is "images" of at least `min_size` pixels per side, "tokens", or
  "features or images".
  """
  num_axes = {'images': 4, 'tokens': 2}.get(kind, inputs.ndim)
  dtype = jnp.signedinteger if kind == 'tokens' else jnp.floating
  shape = 'x'.join(map(str, inputs.shape[1:]))
  size = f' of at least {min_size}x{min_size} pixels' if min_size else ''
  require(inputs.ndim == num_axes and jnp.issubdtype(inputs.dtype, dtype)
          and (not min_size or min(inputs.shape[1:3]) >= min_size), 'model',
          f'must take inputs of {inputs.dtype} and shape {shape or "none"}',
          f'{model}, which takes {kind}{size}',
          f'{setting("model", "simple_cnn")} takes images [N, H, W, C], '
          f'{setting("model", "mlp")} features, '
          f'{setting("model", "char_lstm")} tokens [N, T]')
