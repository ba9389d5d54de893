"""Custom networks: modules of Flax linen, and checks of all networks.

`moon_jax.models.nnx` wraps those of Flax NNX.
"""

import functools
import inspect
import itertools
from typing import Any
import warnings

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import debugging, errors, tasks, trees, user_code
from moon_jax.config import spelling
from moon_jax.errors import require, UserError
from moon_jax.models import layers
from moon_jax.models.base import Model, Outputs
from moon_jax.models.convolution import fast_on_cpus

# The streams of random keys in training mode. Flax takes those of any other
# name from "params", which is folded in to differ from "dropout".
_OTHER_STREAMS = 1
_ARGUMENTS = ('train', 'training', 'deterministic', 'mask', 'mask_B')
MASKS = {'mask', 'mask_B'}


def from_flax(module: nn.Module) -> Model:
  """Wraps a Flax module (linen) as a network.

  On CPUs its convolutions and maximum pooling are replaced (`fast_on_cpus`).

  Args:
    module: called with the inputs, and with those of these arguments that its
      `__call__` names: `train` or `training` (bool), or `deterministic`, its
      opposite; `mask` or `mask_B`, float32 [B], 0 for padding. It returns
      logits [B, K], or `moon_jax.Outputs`.

  Raises:
    UserError: if its `__call__` requires other arguments.

  Examples:
    >>> model = moon_jax.from_flax(Net(num_classes=10))

  See also: `moon_jax.from_nnx`.
  """
  if not isinstance(module, nn.Module):
    raise UserError(
        'module', 'must be a module of flax.linen, not a class or a function',
        kind_of(module), remedy(module)
        or 'moon_jax.from_flax(Net(...)) wraps a module Net')
  model = wrap(module)
  return model._replace(apply=fast_on_cpus(model.apply))


def wrap(module: nn.Module) -> Model:
  """Wraps a Flax module as `from_flax` does, with its operations as they are.

  The networks of the package have fast ones.
  """
  place = user_code.place(type(module))
  names = call_arguments(module.__call__, place)

  def init(key, inputs):
    mask_B = jnp.ones(inputs.shape[0])
    return module.init(key, inputs, **supplied(names, mask_B, False))

  def apply(variables, inputs, mask_B, train, key=None):
    kwargs = supplied(names, mask_B, train)
    if not train:
      result = module.apply(variables, inputs, **kwargs)
      return to_outputs(result, place), variables
    state = [name for name in variables if name != 'params']
    rngs = {} if key is None else {
        'dropout': key, 'params': jax.random.fold_in(key, _OTHER_STREAMS)}
    result, new_state = module.apply(
        variables, inputs, **kwargs, mutable=state, rngs=rngs)
    return to_outputs(result, place), {**variables, **new_state}

  return Model(init, apply, not MASKS.isdisjoint(names), place)


def call_arguments(call, place: str) -> list[str]:
  """Returns the arguments of a module's `__call__` that a network supplies."""
  _, *parameters = inspect.signature(call).parameters.values() or (None,)
  for parameter in parameters:
    if parameter.name not in _ARGUMENTS and parameter.default is (
        parameter.empty) and parameter.kind not in (
            parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
      raise UserError(
          '', '__call__ of a network must take its inputs and, by name, any of '
          f'{", ".join(_ARGUMENTS)}', f'{inspect.signature(call)}{place}',
          f'Rename {parameter.name}, or give it a default')
  return [parameter.name for parameter in parameters
          if parameter.name in _ARGUMENTS]


def supplied(names: list[str], mask_B: jax.Array, train: bool) -> dict:
  values = train, train, not train, mask_B, mask_B
  return {name: value for name, value in zip(_ARGUMENTS, values)
          if name in names}


def to_outputs(result, place: str) -> Outputs:
  """Converts the result of a module to `Outputs`, of float32 or float64."""
  if isinstance(result, jax.Array):
    result = Outputs(logits=result)
  if not isinstance(result, Outputs) or result.logits is None:
    got = ('Outputs without logits' if isinstance(result, Outputs)
           else f'a {type(result).__name__}')
    raise UserError(
        '', 'a network must return logits, an array [B, K], or '
        'moon_jax.Outputs(features=..., projection=..., logits=...)',
        f'{got}{place}', 'Return the logits')
  if result.projection is None:
    result = result._replace(projection=result.features)
  # In the type of their sums; losses are computed in it.
  return jax.tree.map(
      lambda x: layers.wide(x) if jnp.issubdtype(x.dtype, jnp.floating) else x,
      result)


def check_type(model: Any) -> None:
  """Checks that a value is a network.

  Raises:
    UserError: with the call that makes one from the value.
  """
  if isinstance(model, Model):
    return
  raise UserError(
      'model', 'must be a moon_jax.Model', kind_of(model), remedy(model) or (
          f'Call it: {name_of(model)}(data.num_classes)' if callable(model)
          else 'moon_jax.mlp(data.num_classes) makes one'))


def remedy(value):
  """Returns how to make a network of a value of Flax, or ''."""
  if isinstance(value, Model):
    return 'It is a network already, so pass it as it is'
  is_class = inspect.isclass(value)
  kind = value if is_class else type(value)
  if issubclass(kind, nn.Module):
    return ('Make a module and wrap it: moon_jax.from_flax('
            f'{kind.__name__}(...))' if is_class
            else 'Wrap it: moon_jax.from_flax(...)')
  if any(base.__module__ == 'flax.nnx.module' for base in kind.__mro__):
    return ('Wrap a function that makes it: moon_jax.from_nnx(lambda rngs: '
            f'{kind.__name__}(..., rngs=rngs))')
  return ''


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


def check(model: Model, example: jax.Array, num_classes: int,
          labels: np.ndarray) -> None:
  """Traces the network in both modes and checks its outputs.

  For a value of --model an error of its code is reported as a `UserError`; for
  a value in Python it propagates.

  Args:
    model: the network.
    example: a normalized batch of one input.
    num_classes: K, of the data set.
    labels: [N, ...] of some examples, for the task of the network.
  """
  # With the size of another axis, results over a wrong axis would pass.
  size = next(n for n in itertools.count(2) if n not in (
      num_classes, *example.shape[1:], *labels.shape[1:]))
  inputs = jnp.concatenate([example] * size)
  different = np.unique(labels, axis=0)
  labels = different[np.arange(size) % len(different)]

  def trace(key):
    variables = model.init(key, inputs)
    results = [model.with_key(key).apply(
        variables, inputs, jnp.ones(len(inputs)), train=train)
               for train in (True, False)]
    return variables, results

  shapes = functools.partial(debugging.eval_shape, debugging.watched(
      'the network', trace), jax.random.key(0))
  name = errors.setting('model', model.source) if model.source else 'model'
  own = spelling.custom_name(model.source)
  variables, results = (
      user_code.call('model', own, shapes) if own else shapes())
  others = [f'{jax.tree_util.keystr(path, simple=True, separator="/")} of '
            f'{x.dtype}' for path, x in jax.tree_util.tree_leaves_with_path(
                variables) if x.dtype != jnp.float32]
  require(not others, '', f'{name} must have float32 parameters and state',
          f'{", ".join(others[:3])}{", ..." * (len(others) > 3)}{model.place}',
          'Initialize them as float32 (param_dtype in Flax); layers may '
          'compute in another type')
  for (outputs, after), mode in zip(results, ('True', 'False')):
    _check_outputs(name, outputs, labels, num_classes, model)
    different = trees.difference(after, variables)
    require(not different, '', f'{name} must return the variables of init when '
            f'train={mode}', f'others: {different}{model.place}',
            'Return the variables, changed or not')
  if model.task.name == 'classification' and (
      model.place or user_code.place(model.apply)):
    _warn_of_probabilities(name, model, inputs)


def _warn_of_probabilities(name, model, inputs):
  """Warns if an untrained network returns probabilities instead of logits."""
  @jax.jit
  def logits_of(key):
    outputs, _ = model.apply(
        model.init(key, inputs), inputs, jnp.ones(len(inputs)), train=False)
    return outputs.logits

  logits = np.asarray(logits_of(jax.random.key(0)), np.float64)
  if (logits >= 0).all() and np.allclose(logits.sum(-1), 1, atol=1e-3):
    warnings.warn(
        f'{name} returns rows of numbers from 0 to 1 that sum to 1, as softmax '
        'does. The loss takes them for logits and computes their softmax '
        f'again; return what softmax takes{model.place}', stacklevel=2)


def _check_outputs(name, outputs, labels, num_classes, model):
  logits, task, place = outputs.logits, model.task, model.place
  batch_size = len(labels)
  positions = labels.shape[1:] if task.name == 'tokens' else ()
  shape = (batch_size, *positions, num_classes)
  is_known = task.name in tasks.TASKS
  if (logits.shape != shape if is_known else logits.shape[:1] != shape[:1]
      ) or not jnp.issubdtype(logits.dtype, jnp.floating):
    each = ''.join(f'{n}, ' for n in positions)
    raise UserError(
        '', f'{name} must return logits of floating point '
        f'[B, {each}{num_classes}], one for each '
        f'example{" and position" * len(positions)} and class of the data set '
        f'(task {task.name})',
        f'{trees.shapes(logits)} for B = {batch_size}{place}',
        'Its last layer has data.num_classes outputs')
  require(jnp.finfo(logits.dtype).bits >= 32, '', f'{name} must return logits '
          'of float32, since losses are summed in their type',
          f'{logits.dtype}{place}', 'Return logits.astype(jax.numpy.float32)')
  tasks.check_functions(task, logits, labels)
  for field in ('features', 'projection'):
    value = getattr(outputs, field)
    require(value is None or value.ndim == 2 and len(value) == batch_size, '',
            f'{name} must return {field} [B, F], one row for each example',
            f'{trees.shapes(value)} for B = {batch_size}{place}',
            'Flatten other axes')


class MissingOutput(Exception):
  """Code has read an output that a network leaves out; its name."""


class _Watched(Outputs):
  """Outputs that cannot be read where they are None."""

  features = property(lambda self: self._given('features'))
  projection = property(lambda self: self._given('projection'))

  def _given(self, name):
    value = self[self._fields.index(name)]
    if value is None:
      raise MissingOutput(name)
    return value


def watched(model: Model) -> Model:
  """Returns the network; reading what it leaves out raises MissingOutput."""
  @functools.wraps(model.apply)  # `Model.with_key` looks for the argument key
  def apply(*args, **kwargs):
    outputs, variables = model.apply(*args, **kwargs)
    return _Watched(*outputs), variables

  return model._replace(apply=apply)
