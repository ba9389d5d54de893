"""Custom networks: --model=MODULE:FACTORY, or a value in Python.

`from_flax` and `from_nnx` wrap modules of Flax, of its APIs linen and NNX.
"""

from collections.abc import Callable, Collection
import functools
import inspect
from typing import Any
import warnings

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import errors, tasks, trees, user_code
from moon_jax.config import parts, spelling
from moon_jax.config.parts import Part
from moon_jax.errors import require, UserError
from moon_jax.models import layers
from moon_jax.models.base import Model, Outputs
from moon_jax.models.convolution import fast_on_cpus

# The streams of random keys in training mode. Flax takes those of any other
# name from "params", which is folded in to differ from "dropout".
_OTHER_STREAMS = 1
_ARGUMENTS = ('train', 'training', 'deterministic', 'mask', 'mask_B')
_MASKS = {'mask', 'mask_B'}


def network(part: Part, **run: Any) -> Model:
  """Returns the network of a part, with values of the run by name.

  They are num_classes, num_tokens (0 without tokens) and task.
  """
  made = make(part, **run) if part.is_own else parts.make('model', part, **run)
  return made._replace(source=str(part))


def make(part: Part, **run: Any) -> Model:
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
    made: Any = from_nnx(
        lambda rngs: parts.make('model', part, rngs=rngs, **run))
  else:
    made = parts.make('model', part, **run)
    if isinstance(made, nn.Module):
      made = user_code.call('model', part.name, from_flax, made)
  require(isinstance(made, Model), 'model', 'must return a Flax module or a '
          'moon_jax.Model', f'a {type(made).__name__} of {part}'
          f'{user_code.place(factory)}',
          'A factory of Flax NNX modules takes an argument rngs')
  return made._replace(place=made.place or user_code.place(factory))


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
        kind_of(module), _remedy(module)
        or 'moon_jax.from_flax(Net(...)) wraps a module Net')
  model = wrap(module)
  return model._replace(apply=fast_on_cpus(model.apply))


def wrap(module: nn.Module) -> Model:
  """Wraps a Flax module as `from_flax` does, with its operations as they are.

  The networks of the package have fast ones.
  """
  place = user_code.place(type(module))
  names = _call_arguments(module.__call__, place)

  def init(key, inputs):
    mask_B = jnp.ones(inputs.shape[0])
    return module.init(key, inputs, **_select(names, mask_B, False))

  def apply(variables, inputs, mask_B, train, key=None):
    kwargs = _select(names, mask_B, train)
    if not train:
      result = module.apply(variables, inputs, **kwargs)
      return _to_outputs(result, place), variables
    state = [name for name in variables if name != 'params']
    rngs = {} if key is None else {
        'dropout': key, 'params': jax.random.fold_in(key, _OTHER_STREAMS)}
    result, new_state = module.apply(
        variables, inputs, **kwargs, mutable=state, rngs=rngs)
    return _to_outputs(result, place), {**variables, **new_state}

  return Model(init, apply, not _MASKS.isdisjoint(names), place)


def from_nnx(factory: Callable[[nnx.Rngs], nnx.Module]) -> Model:
  """Wraps the modules of a factory as a network.

  Parameters are `variables['params']` and all other state, such as batch
  statistics, `variables['state']`, by the path of the array in the module.
  `train()` and `eval()` of the module select the mode. In training mode the
  random streams of the module restart from the key of each step.

  Args:
    factory: maps `nnx.Rngs` to a new module, which is called as `from_flax`
      describes.

  Raises:
    UserError: if it is no such function, it returns no module, or the module's
      `__call__` requires other arguments.

  Examples:
    >>> model = moon_jax.from_nnx(lambda rngs: Net(num_classes=10, rngs=rngs))
  """
  _check_factory(factory)

  def make():
    module = factory(nnx.Rngs(0))
    require(isinstance(module, nnx.Module), '', 'a factory with an argument '
            'rngs must return a module of Flax NNX',
            f'a {type(module).__name__}{user_code.place(factory)}',
            _remedy(module) or 'Return the module')
    return module

  module = nnx.eval_shape(make)
  place = user_code.place(type(module))
  names = _call_arguments(module.__call__, place)
  graphs = {}
  for train in (True, False):
    (module.train if train else module.eval)()
    graphs[train], *abstract = _split(module)

  def variables_of(module):
    _, params, _, rest = _split(module)
    rest = _by_path(rest)
    return {'params': _by_path(params)} | ({'state': rest} if rest else {})

  def init(key, inputs):
    return variables_of(factory(nnx.Rngs(key)))

  def apply(variables, inputs, mask_B, train, key=None):
    params, rngs, rest = abstract
    if train and key is None and nnx.to_flat_state(rngs):
      raise UserError(
          'key', 'must be given to train a network with random draws',
          f'none{place}', 'Call model.apply(..., train=True, key=key)')
    module = nnx.merge(
        graphs[train], _filled(params, variables['params']),
        _restarted(rngs, jax.random.key(0) if key is None else key),
        _filled(rest, variables.get('state', {})))
    result = module(inputs, **_select(names, mask_B, train))
    return (_to_outputs(result, place),
            variables_of(module) if train else variables)

  return Model(init, fast_on_cpus(apply), not _MASKS.isdisjoint(names), place)


def _check_factory(factory):
  """Checks that a value maps `nnx.Rngs` to something."""
  signature = None
  is_module = isinstance(factory, nn.Module | nnx.Module | Model) or (
      inspect.isclass(factory) and issubclass(factory, nn.Module))
  if is_valid := callable(factory) and not is_module:
    try:
      signature = user_code.signature_of(factory)
      signature.bind(None)
    except TypeError:
      is_valid = False
    except ValueError:  # it has no signature: the call will show
      pass
  if not is_valid:
    takes = '' if signature is None else (
        f' with the arguments ({", ".join(signature.parameters)})')
    raise UserError(
        'factory', 'must be a function of nnx.Rngs that makes a module of Flax '
        'NNX', f'{kind_of(factory)}{takes}{user_code.place(factory)}',
        _remedy(factory) or 'lambda rngs: Net(..., rngs=rngs) is one')


def _call_arguments(call, place: str) -> list[str]:
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


def _select(names: list[str], mask_B: jax.Array, train: bool) -> dict:
  values = train, train, not train, mask_B, mask_B
  return {name: value for name, value in zip(_ARGUMENTS, values)
          if name in names}


def _to_outputs(result, place: str) -> Outputs:
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


def _split(module):
  return nnx.split(module, nnx.Param, nnx.RngState, ...)


def _by_path(state):
  return {'/'.join(map(str, path)): variable.get_value()
          for path, variable in nnx.to_flat_state(state)}


def _filled(state, values):
  """Returns an abstract state with the values of `_by_path`."""
  return nnx.from_flat_state([
      (path, variable.replace(values['/'.join(map(str, path))]))
      for path, variable in nnx.to_flat_state(state)])


def _restarted(state, key):
  """Returns the state of random streams that begin at different keys."""
  def value(i, x):
    if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
      return jax.numpy.zeros(x.shape, x.dtype)  # number of draws so far
    stream = jax.random.fold_in(key, i)
    return jax.random.split(stream, x.shape) if x.shape else stream

  return nnx.from_flat_state([
      (path, variable.replace(value(i, variable.get_value())))
      for i, (path, variable) in enumerate(nnx.to_flat_state(state))])


def check_type(model: Any, name: str = 'model') -> None:
  """Checks that a value is a network; `name` is that of the argument.

  Raises:
    UserError: with the call that makes one from the value.
  """
  if isinstance(model, Model):
    return
  raise UserError(
      name, 'must be a moon_jax.Model', kind_of(model), _remedy(model) or (
          f'Call it: {name_of(model)}(data.num_classes)' if callable(model)
          else 'moon_jax.mlp(data.num_classes) makes one'))


def _remedy(value):
  """Returns how to make a network of a value of Flax, or ''."""
  if isinstance(value, Model):
    return 'It is a network already, so pass it as it is'
  is_class = inspect.isclass(value)
  kind = value if is_class else type(value)
  if issubclass(kind, nn.Module):
    return ('Make a module and wrap it: moon_jax.from_flax('
            f'{kind.__name__}(...))' if is_class
            else 'Wrap it: moon_jax.from_flax(...)')
  if issubclass(kind, nnx.Module):
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
    labels: of the example, for the task of the network.
  """
  inputs = jnp.concatenate([example, example])

  def trace(key):
    variables = model.init(key, inputs)
    results = [model.with_key(key).apply(
        variables, inputs, jnp.ones(len(inputs)), train=train)
               for train in (True, False)]
    return variables, results

  shapes = functools.partial(jax.eval_shape, trace, jax.random.key(0))
  name = errors.setting('model', model.source) if model.source else 'model'
  own = spelling.custom_name(model.source)
  variables, results = (
      user_code.call('model', own, shapes) if own else shapes())
  for (outputs, after), mode in zip(results, ('True', 'False')):
    _check_outputs(name, outputs, np.repeat(labels, 2, 0), num_classes, model)
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
        'does. They are taken for logits, of which the loss computes the '
        f'softmax again; return what softmax takes{model.place}', stacklevel=2)


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


def with_outputs(model: Model, names: Collection[str]) -> Model:
  """Returns the network with logits for those of these that it leaves out."""
  @functools.wraps(model.apply)  # `Model.with_key` looks for the argument key
  def apply(*args, **kwargs):
    outputs, variables = model.apply(*args, **kwargs)
    return outputs._replace(**{
        name: outputs.logits for name in names
        if getattr(outputs, name) is None}), variables

  return model._replace(apply=apply)
