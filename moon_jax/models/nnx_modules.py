"""Wraps modules of Flax NNX as networks."""

from collections.abc import Callable

from flax import nnx
import jax

from moon_jax import user_code
from moon_jax.errors import UserError
from moon_jax.models import flax_modules
from moon_jax.models.base import Model


def is_module(kind: type) -> bool:
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
  names = flax_modules.call_arguments(module.__call__, place)
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
    result = module(inputs, **flax_modules.select(names, mask_B, train))
    return (flax_modules.to_outputs(result, place),
            variables_of(module) if train else variables)

  return Model(init, apply, uses_mask=bool({'mask', 'mask_B'} & set(names)),
               place=place)


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
