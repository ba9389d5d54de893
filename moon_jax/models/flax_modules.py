"""Wraps modules of Flax, of its APIs linen and NNX, as networks."""

from collections.abc import Callable
import inspect

from flax import linen as nn
from flax import nnx
import jax
import jax.numpy as jnp

from moon_jax import user_code
from moon_jax.errors import UserError
from moon_jax.models.base import Model
from moon_jax.models.base import Outputs

# The streams of random keys in training mode. Flax takes those of any other
# name from "params", which is folded in to differ from "dropout".
_OTHER_STREAMS = 1


def from_flax(module: nn.Module) -> Model:
  """Wraps a Flax module (linen) as a network.

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
    got = (f'the class {module.__name__}; make a module: {module.__name__}()'
           if inspect.isclass(module) else f'a {type(module).__name__}')
    raise UserError('from_flax takes a module of flax.linen, not a class or a '
                    f'function; got {got}')
  place = user_code.place(type(module))
  names = _call_arguments(module.__call__, place)

  def kwargs(mask_B, train):
    return _select(names, mask_B, train)

  def init(key, inputs):
    mask_B = jnp.ones(inputs.shape[0])
    return module.init(key, inputs, **kwargs(mask_B, False))

  def apply(variables, inputs, mask_B, train, key=None):
    if not train:
      result = module.apply(variables, inputs, **kwargs(mask_B, False))
      return _to_outputs(result, place), variables
    state = [name for name in variables if name != 'params']
    rngs = {} if key is None else {
        'dropout': key, 'params': jax.random.fold_in(key, _OTHER_STREAMS)}
    result, new_state = module.apply(
        variables, inputs, **kwargs(mask_B, True), mutable=state, rngs=rngs)
    return _to_outputs(result, place), {**variables, **new_state}

  return Model(init, apply, uses_mask=bool({'mask', 'mask_B'} & set(names)),
               place=place)


def is_nnx_module(kind: type) -> bool:
  """Returns whether a class is one of modules of Flax NNX."""
  return issubclass(kind, nnx.Module)


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
    UserError: if it returns no module, or the module's `__call__` requires
      other arguments.

  Examples:
    >>> model = moon_jax.from_nnx(lambda rngs: Net(num_classes=10, rngs=rngs))
  """
  module = nnx.eval_shape(lambda: factory(nnx.Rngs(0)))
  if not isinstance(module, nnx.Module):
    raise UserError('a factory with an argument rngs must return a module of '
                    f'Flax NNX; got a {type(module).__name__}'
                    f'{user_code.place(factory)}')
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
    del inputs
    return variables_of(factory(nnx.Rngs(key)))

  def apply(variables, inputs, mask_B, train, key=None):
    params, rngs, rest = abstract
    if train and key is None and nnx.to_flat_state(rngs):
      raise UserError('a network with random draws needs a key to train: '
                      f'model.apply(..., train=True, key=key){place}')
    module = nnx.merge(
        graphs[train], _filled(params, variables['params']),
        _restarted(rngs, jax.random.key(0) if key is None else key),
        _filled(rest, variables.get('state', {})))
    result = module(inputs, **_select(names, mask_B, train))
    return (_to_outputs(result, place),
            variables_of(module) if train else variables)

  return Model(init, apply, uses_mask=bool({'mask', 'mask_B'} & set(names)),
               place=place)


def _call_arguments(call, place: str) -> list[str]:
  """Returns the arguments of a module's `__call__` that a network supplies.

  Args:
    call: `__call__` of the module, bound to it.
    place: where the module is defined, for messages.

  Raises:
    UserError: if it requires other arguments.
  """
  _, *parameters = inspect.signature(call).parameters.values() or (None,)
  known = ('train', 'training', 'deterministic', 'mask', 'mask_B')
  for parameter in parameters:
    if parameter.name not in known and parameter.default is (
        parameter.empty) and parameter.kind not in (
            parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
      raise UserError(
          'a network is called with its inputs and, by name, those of '
          f'{", ".join(known)} that its __call__ takes; got __call__'
          f'{inspect.signature(call)}{place}. Rename {parameter.name}, or give '
          'it a default')
  return [parameter.name for parameter in parameters
          if parameter.name in known]


def _select(names: list[str], mask_B: jax.Array, train: bool) -> dict:
  """Returns the arguments `names` of a module's `__call__`."""
  values = {'train': train, 'training': train, 'deterministic': not train,
            'mask': mask_B, 'mask_B': mask_B}
  return {name: values[name] for name in names}


def _to_outputs(result, place: str) -> Outputs:
  """Converts the result of a module to `Outputs`.

  Raises:
    UserError: if it is neither an array nor `Outputs` with logits.
  """
  if isinstance(result, jax.Array):
    return Outputs(logits=result)
  if not isinstance(result, Outputs) or result.logits is None:
    raise UserError(
        'a network must return logits, an array [B, K], or '
        'moon_jax.Outputs(features=..., projection=..., logits=...); got '
        f'{_describe(result)}{place}')
  if result.projection is None:
    return result._replace(projection=result.features)
  return result


def _describe(result):
  if isinstance(result, Outputs):
    return 'Outputs without logits'
  return f'a {type(result).__name__}'



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
