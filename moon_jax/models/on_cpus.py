"""Replaces slow operations of a network on CPUs by fast ones of equal value.

In a loop, and a round is one, XLA for CPUs computes convolutions without its
fast library, and the gradient of maximum pooling is slow. `fast_on_cpus` traces
a function and evaluates its operations one by one, replacing some by those of
`moon_jax.models.convolution`. Programs for accelerators keep
XLA's.
"""

from collections.abc import Callable
import functools
import operator
from typing import Any

import jax
from jax.extend import core
import jax.numpy as jnp

from moon_jax import platforms
from moon_jax.models import convolution


def fast_on_cpus(function: Callable[..., Any]) -> Callable[..., Any]:
  """Returns `function` with fast convolutions and maximum pooling on CPUs.

  Networks of `from_flax` and `from_nnx` have them already. Values and gradients
  are equal up to rounding. Convolutions that are dilated, grouped or not of
  images, and operations within loops, `jax.checkpoint` and functions with
  gradients of their own, stay as they are.

  Args:
    function: of arrays, such as `apply` of a `moon_jax.Model`.

  Examples:
    >>> model = moon_jax.Model(init, moon_jax.fast_on_cpus(apply))
  """
  @functools.wraps(function)
  def fast(*args, **kwargs):
    # Arguments are constants of the trace, so that any may be a Python value.
    program, shapes = jax.make_jaxpr(
        lambda: function(*args, **kwargs), return_shape=True)()
    if not _is_slow(program.jaxpr):
      return function(*args, **kwargs)  # whose results may be its arguments
    return jax.tree.unflatten(jax.tree.structure(shapes), _evaluate(program))

  return fast


def _is_slow(jaxpr):
  return any(eqn.primitive.name in _FAST or (
      eqn.primitive.name in _INLINED and _is_slow(eqn.params['jaxpr'].jaxpr))
             for eqn in jaxpr.eqns)


def _evaluate(program, *args):
  """Returns the results of a closed jaxpr."""
  jaxpr = program.jaxpr
  values = dict(zip([*jaxpr.constvars, *jaxpr.invars],
                    [*program.consts, *args]))
  read = lambda x: x.val if isinstance(x, core.Literal) else values[x]
  for eqn in jaxpr.eqns:
    operands = [read(x) for x in eqn.invars]
    if (name := eqn.primitive.name) in _FAST and (
        jnp.issubdtype(eqn.invars[0].aval.dtype, jnp.floating)):
      results = [platforms.by_platform(
          functools.partial(_FAST[name], **eqn.params),
          functools.partial(eqn.primitive.bind, **eqn.params), *operands)]
    elif name in _INLINED:
      results = _evaluate(eqn.params['jaxpr'], *operands)
    else:
      results = _call(jaxpr, eqn, operands)
    values.update(zip(eqn.outvars, results))
  return [read(x) for x in jaxpr.outvars]


def _call(jaxpr, eqn, operands):
  """Returns the results of one equation of a jaxpr."""
  inputs = {x: value for x, value in zip(eqn.invars, operands)
            if not isinstance(x, core.Literal)}
  alone = jaxpr.replace(constvars=[], invars=[*inputs], outvars=eqn.outvars,
                        eqns=[eqn], effects=eqn.effects)
  return core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))(*inputs.values())


def _convolve(images, kernel, **params):
  names = ('window_strides', 'padding', 'lhs_dilation', 'rhs_dilation',
           'dimension_numbers', 'feature_group_count', 'batch_group_count',
           'precision', 'preferred_element_type')
  return convolution.conv_general_dilated(
      images, kernel, *operator.itemgetter(*names)(params))


def _pool(x, *, window_dimensions, window_strides, padding, base_dilation,
          window_dilation):
  return convolution.window_max(x, window_dimensions, window_strides, padding,
                                base_dilation, window_dilation)


_INLINED = ('jit', 'pjit')
_FAST = {'conv_general_dilated': _convolve, 'reduce_window_max': _pool}
