"""User-defined networks: --model=MODULE:FACTORY, or a value in Python."""

import functools
import inspect
from typing import Any

from flax import linen as nn
import jax
import jax.numpy as jnp

from moon_jax import trees
from moon_jax import user_code
from moon_jax.errors import UserError
from moon_jax.models import flax_modules
from moon_jax.models.base import Model

_FIRST = ('it is called with the arguments of --model_args, and with '
          'num_classes, num_tokens and rngs if it names them')


def make(name: str, args: str, num_classes: int, num_tokens: int = 0) -> Model:
  """Returns the network of a factory.

  Args:
    name: MODULE:FACTORY. The factory returns a Flax module or a
      `moon_jax.Model`. It gets `num_classes` and `num_tokens` if its signature
      names them. If it names `rngs` it makes a module of Flax NNX.
    args: --model_args, keyword arguments of the factory.
    num_classes: K, the number of logits.
    num_tokens: size of the vocabulary, of data sets of tokens.

  Raises:
    UserError: if there is no such factory, it does not take these arguments,
      its code fails, or it returns something else.
  """
  factory = user_code.load('model', name)
  offered = {'num_classes': num_classes, 'num_tokens': num_tokens}
  build = functools.partial(user_code.build, 'model', name, args, first=_FIRST,
                            **offered)
  if _takes_rngs(factory):
    made: Any = flax_modules.from_nnx(lambda rngs: build(rngs=rngs))
  else:
    made = build()
    if isinstance(made, nn.Module):
      made = user_code.call('model', name, flax_modules.from_flax, made)
  if not isinstance(made, Model):
    raise UserError(
        f'--model={name} must return a Flax module or a moon_jax.Model; got a '
        f'{type(made).__name__}{user_code.place(factory)}. A factory of Flax '
        'NNX modules takes an argument rngs')
  return made._replace(place=made.place or user_code.place(factory))


def _takes_rngs(factory):
  try:
    return 'rngs' in user_code.signature_of(factory).parameters
  except (TypeError, ValueError):  # `user_code.build` reports it
    return False


def check_type(model: Any) -> None:
  """Checks that a value is a network.

  Raises:
    UserError: with how to make one of it.
  """
  if isinstance(model, Model):
    return
  is_class = inspect.isclass(model)
  kind = model if is_class else type(model)
  if issubclass(kind, nn.Module):
    remedy = ('make a module and wrap it: moon_jax.from_flax('
              f'{kind.__name__}(...))' if is_class
              else 'wrap it: moon_jax.from_flax(...)')
  elif flax_modules.is_nnx_module(kind):
    remedy = f'wrap it: moon_jax.from_nnx(lambda rngs: {kind.__name__}(...))'
  elif callable(model):
    remedy = f'call it: {name_of(model)}(data.num_classes)'
  else:
    remedy = 'moon_jax.mlp(data.num_classes) makes one'
  raise UserError(
      f'model must be a moon_jax.Model; got {kind_of(model)}; {remedy}')


def name_of(value: Any) -> str:
  """Returns the name of a function or a class, or that of a value's class."""
  return getattr(value, '__name__', type(value).__name__)


def kind_of(value: Any) -> str:
  """Returns "the class Net", "the function moon" or "str 'moon'"."""
  if inspect.isclass(value):
    return f'the class {value.__name__}'
  if inspect.isroutine(value):
    return f'the function {name_of(value)}'
  shown = f' {value!r}' if isinstance(value, str | int | float) else ''
  return f'{type(value).__name__}{shown}'


def check(name: str, model: Model, example: jax.Array,
          num_classes: int) -> None:
  """Traces the network in both modes and checks its outputs.

  Args:
    name: the network in messages, such as "--model=MODULE:FACTORY".
    model: the network.
    example: a normalized batch of one input.
    num_classes: K, the number of classes of the data set.

  Raises:
    UserError: naming what the network must return and what it returned. For a
      value of --model also if its code fails; for a value in Python the error
      of the code propagates.
  """
  inputs = jnp.concatenate([example, example])

  def trace(key):
    variables = model.init(key, inputs)
    results = [model.with_key(key).apply(
        variables, inputs, jnp.ones(len(inputs)), train=train)
               for train in (True, False)]
    return variables, results

  trace_shapes = lambda: jax.eval_shape(trace, jax.random.key(0))
  if name.startswith('--model='):
    variables, results = user_code.call(
        'model', name.removeprefix('--model='), trace_shapes)
  else:
    variables, results = trace_shapes()
  for (outputs, after), mode in zip(results, ('True', 'False')):
    _check_outputs(name, outputs, len(inputs), num_classes, model.place)
    if different := trees.difference(after, variables):
      raise UserError(
          f'{name} must return the variables of init when train={mode}; '
          f'{different}{model.place}')


def _check_outputs(name, outputs, batch_size, num_classes, place):
  logits = outputs.logits
  if logits.shape != (batch_size, num_classes) or not jnp.issubdtype(
      logits.dtype, jnp.floating):
    raise UserError(
        f'{name} must return logits of floating point [B, {num_classes}], one '
        'for each example and class of the data set; got '
        f'{trees.shapes(logits)} for B = {batch_size}{place}')
  for field in ('features', 'projection'):
    value = getattr(outputs, field)
    if value is not None and (
        value.ndim != 2 or value.shape[0] != batch_size):
      raise UserError(
          f'{name} must return {field} [B, F], one row for each example; got '
          f'{trees.shapes(value)} for B = {batch_size}{place}')


def missing_outputs(model: Model, example: jax.Array) -> list[str]:
  """Returns the fields of `Outputs` that the network leaves out."""
  outputs = jax.eval_shape(lambda key: model.apply(
      model.init(key, example), example, jnp.ones(1), train=False)[0],
                           jax.random.key(0))
  return [name for name, value in outputs._asdict().items() if value is None]


def with_logits_for(model: Model, names: list[str]) -> Model:
  """Returns the network with its logits as these missing outputs."""
  @functools.wraps(model.apply)  # `Model.with_key` looks for the argument key
  def apply(*args, **kwargs):
    outputs, variables = model.apply(*args, **kwargs)
    return outputs._replace(**{name: outputs.logits for name in names}
                            ), variables

  return model._replace(apply=apply)
