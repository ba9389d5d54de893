"""Networks that train in part: LoRA, and weights that are frozen.

`lora` adds a product of two small matrices to dense layers. Hu et al., LoRA:
Low-Rank Adaptation of Large Language Models, ICLR 2022,
https://arxiv.org/abs/2106.09685, section 4.1:

    y = x W + alpha / rank x A B        W [in, out], A [in, rank], B [rank, out]

    A is drawn, uniform in +-1/sqrt(in), and B begins with 0; W is frozen.

FFA-LoRA also freezes A, as it is drawn. Sun, Li, Li and Ding, Improving LoRA in
Privacy-preserving Federated Learning, ICLR 2024,
https://arxiv.org/abs/2403.12313.

Frozen weights are no part of a model's variables. Clients neither receive nor
send them, and neither client state nor checkpoints have them. Devices hold one
copy, for all clients. They are given, or drawn from a seed.
"""

from collections.abc import Callable, Iterator
import contextlib
import contextvars
import itertools
import math
from numbers import Real
import re
from typing import NamedTuple

from flax import linen as nn
from flax import traverse_util
import jax
import jax.numpy as jnp

from moon_jax import trees
from moon_jax.errors import require, UserError
from moon_jax.models import layers
from moon_jax.models import user as user_model
from moon_jax.models.base import Model, Variables

Where = str | Callable[[str], bool]  # a regular expression, or a function

_A, _B = NAMES = 'lora_a', 'lora_b'
_STREAM = 0x6c6f7261  # folded into the key of an initial model
_DENSE = layers.Dense, nn.Dense, nn.DenseGeneral


class DenseLayer(NamedTuple):
  """A dense layer that is called: one of Flax linen or of NNX.

  Attributes:
    path: of its parameters, such as ('block', 'query').
    variable: returns its own parameter of a name, None without it.
    axis: of the inputs that it multiplies, or a tuple of them.
    is_batched: whether it has kernels side by side.
  """

  path: tuple[str, ...]
  variable: Callable[[str], jax.Array | None]
  axis: int | tuple[int, ...] = -1
  is_batched: bool = False


Replace = Callable[[DenseLayer, jax.Array, jax.Array], jax.Array]
_REPLACE: contextvars.ContextVar[Replace | None] = contextvars.ContextVar(
    'replace', default=None)


def replaced_outputs() -> Replace | None:
  """Returns what replaces outputs of dense layers here (`each_dense`)."""
  return _REPLACE.get()


def lora(model: Model, rank: int = 4, where: Where = '', *,
         alpha: float | None = None, train: Where | None = None,
         freeze_a: bool = False, variables: Variables | None = None,
         seed: int = 0) -> Model:
  """Returns the network with low-rank adapters; only these train.

  Args:
    model: a network with dense layers of Flax (`nn.Dense`, `nn.DenseGeneral`,
      `nnx.Linear`, `nnx.LinearGeneral`), such as one of the package, of
      `from_flax` or of `from_nnx`.
    rank: of the adapters.
    where: which dense layers have one, by their path, such as "fc1" or
      "block/query": a regular expression that is searched in it, or a function
      of it. '' takes all.
    alpha: the adapters are scaled by alpha / rank; None for the rank.
    train: further parameters that train, by their path, such as "out/kernel".
    freeze_a: whether A is frozen, too, as in FFA-LoRA: only B trains and is
      sent. All clients and runs have the A of `seed`.
    variables: the pretrained network, as `moon_jax.load` returns it; None
      draws it.
    seed: of the frozen weights if they are drawn, for all runs the same.

  Layers in `nn.scan`, `nn.vmap` and those of NNX have an adapter each.

  Raises:
    UserError: if no dense layer or no parameter of `train` matches, alpha or
      the rank is out of range, or parameters of `nn.scan` are stacked along
      another axis than the first.

  Examples:
    >>> model = moon_jax.lora(
    ...     moon_jax.transformer(data.num_tokens), rank=8,
    ...     where='query|value', variables=pretrained)

  See also: `freeze`, `merge_adapters`, `moon_jax.fedsalora`, `moon_jax.flora`.
  """
  require(isinstance(rank, int) and rank >= 1, 'rank', 'must be an integer of '
          'at least 1', repr(rank), 'rank=4 is usual')
  require(alpha is None or isinstance(alpha, Real) and 0 < alpha < math.inf,
          'alpha', 'must be a finite number above 0, or None', repr(alpha),
          f'None is {rank}, the rank')
  return _partial(
      model, _matcher(train) if train is not None else None, variables, seed,
      _matcher(where), rank, 1. if alpha is None else alpha / rank, freeze_a)


def freeze(model: Model, where: Where, *, variables: Variables | None = None,
           evaluates: bool = False, cache: bool = False,
           seed: int = 0) -> Model:
  """Returns the network with some weights frozen.

  Args:
    model: a network whose parameters are a dict of arrays or of dicts.
    where: which parameters are frozen, by their path, such as "fc1/kernel": a
      regular expression that is searched in it, or a function of it.
    variables: see `lora`.
    evaluates: whether the network is in evaluation mode while clients train:
      batch norm has its running statistics, which are frozen and not sent, and
      nothing drops out.
    cache: whether a simulation computes once per example what depends on
      inputs and frozen weights only, the features. Rounds and evaluations then
      cost the remaining layers; numbers are equal up to rounding. It needs
      `evaluates`, frozen first layers, and no augmentation.
    seed: see `lora`.

  Raises:
    UserError: if no parameter matches, or all do; or if features cannot be
      cached, when a simulation is made.

  Examples:
    >>> model = moon_jax.freeze(moon_jax.mlp(10), 'fc1', variables=pretrained)
    >>> model = moon_jax.freeze(  # all but the head
    ...     moon_jax.resnet18(10), '^(?!out)', variables=pretrained,
    ...     evaluates=True, cache=True)

  See also: `lora`.
  """
  is_frozen = _matcher(where)
  require(evaluates or not cache, 'cache', 'needs evaluates=True: dropout and '
          'batch norm in training mode change features', cache, 'Give it')
  return _partial(
      model, lambda path: not is_frozen(path), variables, seed,
      evaluates=evaluates)._replace(caches_features=cache)


def _matcher(where):
  if callable(where):
    return where
  require(isinstance(where, str), '', 'where and train must be a regular '
          'expression or a function of a path', repr(where),
          "'fc1|fc2' matches both")
  return lambda path: bool(re.search(where, path))


def _partial(model: Model, is_trained: Callable[[str], bool] | None,
             given: Variables | None, seed: int,
             is_adapted: Callable[[str], bool] | None = None, rank: int = 0,
             scale: float = 1., freeze_a: bool = False,
             evaluates: bool = False) -> Model:
  """Returns a network whose adapters and some parameters train.

  These are none if `is_trained` is None.
  """
  user_model.check_type(model)
  require(model.frozen is None, 'model', 'must be a network without frozen '
          'weights', 'one that has some', 'Give both `where` and `train`')

  def split(params):
    """Returns the parameters that train and those that do not, by path."""
    flat = traverse_util.flatten_dict(params)
    trained = {path: w for path, w in flat.items()
               if is_trained and is_trained(_name(path))}
    return trained, {path: w for path, w in flat.items() if path not in trained}

  def base(key, inputs):
    if given is None:
      return jax.jit(model.init)(key, inputs)
    expected = jax.eval_shape(model.init, key, inputs)
    difference = trees.difference(given, expected)
    require(not difference, 'variables', 'must be those of the network',
            f'others: {difference}', 'Give those of a network like it')
    return jax.tree.map(jnp.asarray, given)

  def drawn(key, inputs):
    """Returns the adapters, by path."""
    stream, made = jax.random.fold_in(key, _STREAM), {}
    for i, (path, (stacked, num_in, num_out)) in enumerate(sorted(
        _dense_layers(model, inputs, is_adapted).items())):
      made[*path, _A] = layers.uniform_fan_in(num_in)(
          jax.random.fold_in(stream, i), (*stacked, num_in, rank))
      made[*path, _B] = jnp.zeros((*stacked, rank, num_out))
    return made

  def frozen(inputs):
    variables = base(jax.random.key(seed), inputs)
    weights = split(variables['params'])[1]
    if freeze_a:
      weights |= {path: x for path, x in drawn(
          jax.random.key(seed), inputs).items() if path[-1] == _A}
    return (variables if evaluates else {}) | {'params': weights}

  def init(key, inputs):
    variables = base(key, inputs)
    trained, rest = split(variables['params'])
    require(rest and (trained or not is_trained),
            'train' if is_adapted else 'where', 'must select some '
            f'parameters of {", ".join(map(_name, {**trained, **rest}))}',
            'all' if bool(rest) != bool(is_adapted) else 'none',
            'Name layers, not all of them')
    trained |= {path: x for path, x in drawn(key, inputs).items()
                if not freeze_a or path[-1] == _B}
    return ({} if evaluates else variables) | {
        'params': traverse_util.unflatten_dict(trained)}

  def apply(variables, inputs, mask_B, train, key=None, frozen=None):
    fixed = frozen_of(inputs) if frozen is None else frozen
    flat = fixed['params'] | traverse_util.flatten_dict(variables['params'])
    # Flax slices stacked adapters. The others are no variables of the network,
    # whose nn.map_variables would change them and which may nest its own.
    adapters = {path: flat.pop(path) for path, w in [*flat.items()]
                if path[-1] in NAMES and w.ndim == 2}
    full = {**fixed, **variables, 'params': traverse_util.unflatten_dict(flat)}

    def add(layer, x, y):
      a, b = (adapters.get((*layer.path, name), layer.variable(name))
              for name in NAMES)
      if a is None:
        return y
      low = jnp.dot(x.reshape(-1, len(a)).astype(y.dtype), a.astype(y.dtype),
                    precision='highest')
      return y + (scale * jnp.dot(low, b.astype(y.dtype), precision='highest')
                  ).reshape(y.shape)

    network = model if key is None else model.with_key(key)
    with each_dense(add):
      outputs, full = network.apply(
          full, inputs, mask_B, train=train and not evaluates)
    return outputs, {name: variables[name] if name == 'params' else full[name]
                     for name in variables}

  frozen_of = frozen  # `apply` has an argument of this name
  return model._replace(
      init=init, apply=apply, frozen=frozen, lora_scale=scale)


def _name(path):
  return '/'.join(map(str, path))


@contextlib.contextmanager
def each_dense(replace: Replace) -> Iterator[None]:
  """A context in which replace(layer, x, y) replaces y of each dense layer."""
  def interceptor(next_fun, args, kwargs, context):
    y, layer = next_fun(*args, **kwargs), context.module
    if context.method_name == '__call__' and isinstance(layer, _DENSE):
      return replace(DenseLayer(
          layer.path, lambda name: layer.get_variable('params', name),
          getattr(layer, 'axis', -1), bool(getattr(layer, 'batch_dims', ()))),
                     (args or [*kwargs.values()])[0], y)
    return y

  token = _REPLACE.set(replace)
  try:
    with nn.intercept_methods(interceptor):
      yield
  finally:
    _REPLACE.reset(token)


def _dense_layers(model, inputs, is_adapted):
  """Returns the sizes (stacked, in, out) of the layers to adapt, by path.

  The parameters of layers in `nn.scan` or `nn.vmap` are stacked along leading
  axes of these lengths, and so are their adapters.
  """
  if is_adapted is None:
    return {}
  sizes = {}

  def record(layer, x, y):
    axes = layer.axis if isinstance(layer.axis, tuple) else (layer.axis,)
    num_in = len(axes)
    if is_adapted(_name(layer.path)) and (
        layer.is_batched or {axis % x.ndim for axis in axes}
        != {*range(x.ndim - num_in, x.ndim)}):
      raise UserError(
          'where', 'must match dense layers of the last axes, without '
          'batch_dims', f'{_name(layer.path)} of axis {axes}', 'Name others')
    sizes[layer.path] = (getattr(layer.variable('kernel'), 'shape', None),
                         math.prod(x.shape[-num_in:]),
                         math.prod(y.shape[x.ndim - num_in:]))
    return y

  def run():
    variables = model.init(jax.random.key(0), inputs)
    with each_dense(record):  # `init` of NNX calls no layers
      model.apply(variables, inputs, jnp.ones(len(inputs)), train=False)
    return variables['params']

  params = jax.eval_shape(run)
  require(sizes, 'model', 'must have dense layers of Flax, such as nn.Dense or '
          'nnx.Linear', f'none{model.place}',
          'moon_jax.freeze takes any network')
  kernels = traverse_util.flatten_dict(params)
  adapted = {}
  for path, (shape, num_in, num_out) in sizes.items():
    if is_adapted(_name(path)):
      stacked = ()
      kernel = kernels.get((*path, 'kernel'))  # or None: nested otherwise
      # All axes of one layer, and more if stacked. Otherwise nn.map_variables
      # may have made the one from the other.
      if shape and kernel is not None and (
          shape in itertools.combinations(kernel.shape, len(shape))):
        stacked = kernel.shape[:kernel.ndim - len(shape)]
      if stacked and kernel.shape != stacked + shape:
        raise UserError(
            'where', 'must match layers whose parameters are stacked along '
            'axis 0', f'{_name(path)}/kernel {list(kernel.shape)} of layers '
            f'with {list(shape)}', "Give nn.scan variable_axes={'params': 0}")
      adapted[path] = stacked, num_in, num_out
  require(adapted, 'where', 'must match a dense layer of '
          f'{", ".join(map(_name, sizes))}', 'none', 'Name one of them')
  return adapted
