"""Splits networks into a body, which never changes, and a head.

The network is traced. An operation belongs to the body if its results depend
only on inputs and frozen weights, and to the head if they depend on a parameter
that trains. Features are the results of the body that the head reads.
"""

from collections.abc import Callable
import functools
import math
from typing import Any, NamedTuple

import jax
from jax.extend import core
import jax.numpy as jnp

from moon_jax.errors import require
from moon_jax.models import convolution
from moon_jax.models.base import Model

_CONSTANT, _FROZEN, _FEATURE, _TRAINED = range(4)  # what reaches a value


class Split(NamedTuple):
  """A network in two parts.

  Attributes:
    body: `(frozen weights, inputs) -> features`, float32 [B, num_features].
    head: the network of features, with the same variables.
    num_features: of one example.
  """

  body: Callable[[Any, jax.Array], jax.Array]
  head: Model
  num_features: int


class _Traced(NamedTuple):
  """The operations of a network for one batch size."""

  body: core.ClosedJaxpr  # frozen, inputs -> features
  head: core.ClosedJaxpr  # frozen, features, parameters -> outputs
  outputs: Any  # the structure of the outputs
  features: list[Any]  # their shapes and types


@functools.lru_cache(maxsize=2)
def split(model: Model, shape: tuple[int, ...], dtype: str) -> Split:
  """Splits a network of `moon_jax.freeze` for inputs [B, *shape] of a type.

  Raises:
    UserError: if the first layers have no frozen weights, or features are not
      float32 or bfloat16 with the batch as their first axis.
  """
  example = jnp.zeros((1, *shape), dtype)
  weights, variables = jax.eval_shape(
      lambda key: (model.frozen(example), model.init(key, example)),
      jax.random.key(0))
  traced = lambda size: _trace(
      model, weights, variables, jax.ShapeDtypeStruct((size, *shape), dtype))
  one, two = traced(1).features, traced(2).features
  for x, y in zip(one, two):
    require(y.shape[:1] == (2 * x.shape[0],) if x.shape else False, 'cache',
            'needs outputs of frozen layers (features) whose first axis is the '
            'batch', f'{y.str_short()} for 2 examples{model.place}',
            'Freeze other layers, or give cache=False')
    require(x.dtype in ('float32', 'bfloat16'), 'cache', 'needs outputs '
            'of frozen layers (features) of float32 or bfloat16',
            f'{x.dtype}{model.place}',
            'Freeze other layers, or give cache=False')
  sizes = [math.prod(x.shape) for x in one]

  def body(frozen, inputs):
    values = core.jaxpr_as_fun(traced(len(inputs)).body)(
        *jax.tree.leaves(frozen), inputs)
    return jnp.concatenate([x.reshape(len(inputs), -1).astype(
        jnp.float32) for x in values], 1)

  def apply(variables, features, mask_B, train, key=None, frozen=None):
    frozen = model.frozen(example) if frozen is None else frozen
    own, at, values = traced(len(features)), 0, []
    for size, x in zip(sizes, own.features):
      values.append(features[:, at:at + size].reshape(x.shape).astype(x.dtype))
      at += size
    results = core.jaxpr_as_fun(own.head)(
        *jax.tree.leaves(frozen), *values,
        *jax.tree.leaves(variables['params']))
    return jax.tree.unflatten(own.outputs, results), variables

  return Split(body, model._replace(
      init=lambda key, features: model.init(key, example), apply=apply,
      frozen=lambda features: model.frozen(example), caches_features=False),
               sum(sizes))


def _trace(model, weights, variables, inputs):
  """Returns the operations of a network in evaluation mode, in two parts."""
  def run(weights, inputs, params):
    # A mask would reach blocks of `nn.remat` that do not use it.
    return model.apply({'params': params}, inputs, jnp.ones(len(inputs)),
                       train=False, frozen=weights)[0]

  args = weights, inputs, variables['params']
  program, outputs = jax.make_jaxpr(run, return_shape=True)(*args)
  flat = jax.make_jaxpr(functools.partial(convolution.evaluate, program))(
      *jax.tree.leaves(args))
  jaxpr = flat.jaxpr
  num_frozen = len(jax.tree.leaves(weights))
  kind = dict.fromkeys(jaxpr.constvars, _CONSTANT) | dict(zip(
      jaxpr.invars, [_FROZEN] * num_frozen + [_FEATURE] + [_TRAINED] * len(
          jaxpr.invars)))
  kind_of = lambda x: _CONSTANT if isinstance(x, core.Literal) else kind[x]
  first, rest, fixed, is_useful = [], [], [], False
  features: dict[core.Var, None] = {}  # in order
  for eqn in jaxpr.eqns:
    of_inputs = {*map(kind_of, eqn.invars)}
    result = max(of_inputs, default=_CONSTANT)
    kind |= dict.fromkeys(eqn.outvars, result)
    is_useful |= of_inputs >= {_FROZEN, _FEATURE} and result == _FEATURE
    if result == _TRAINED:
      rest.append(eqn)
      features |= dict.fromkeys(
          x for x in eqn.invars if kind_of(x) == _FEATURE)
    else:
      first.append(eqn)
      fixed += [eqn] * (result < _FEATURE)
  require(is_useful, 'cache', 'needs frozen weights in the first layers',
          f'none there{model.place}',
          "Freeze all layers but the head: where='^(?!out)'")
  read = [*(features | dict.fromkeys(
      x for x in jaxpr.outvars if kind_of(x) == _FEATURE))]
  body = jaxpr.replace(
      invars=jaxpr.invars[:num_frozen + 1], outvars=read, eqns=first)
  head = jaxpr.replace(
      invars=[*jaxpr.invars[:num_frozen], *read,
              *jaxpr.invars[num_frozen + 1:]], eqns=[*fixed, *rest])
  return _Traced(*(core.ClosedJaxpr(part, flat.consts) for part in (
      body, head)), jax.tree.structure(outputs), [x.aval for x in read])
