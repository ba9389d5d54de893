"""Networks of modules of Flax NNX, which is slow to import."""

from collections.abc import Callable
import functools
import inspect

from flax import linen as nn
from flax import nnx, traverse_util
import jax
import jax.numpy as jnp

from moon_jax import user_code
from moon_jax.errors import require, UserError
from moon_jax.models import adapters, user
from moon_jax.models.base import Model
from moon_jax.models.convolution import fast_on_cpus


def from_nnx(factory: Callable[[nnx.Rngs], nnx.Module]) -> Model:
  """Wraps the modules of a factory as a network.

  Parameters are `variables['params']` and all other state, such as batch
  statistics, `variables['state']`, nested as the attributes of the module.
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
            user.remedy(module) or 'Return the module')
    return module

  module = nnx.eval_shape(make)
  place = user_code.place(type(module))
  names = user.call_arguments(module.__call__, place)
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
    if replace := adapters.replaced_outputs():
      _intercept(module, replace, variables['params'])
    result = module(inputs, **user.supplied(names, mask_B, train))
    return (user.to_outputs(result, place),
            variables_of(module) if train else variables)

  return Model(
      init, fast_on_cpus(apply), not user.MASKS.isdisjoint(names), place)


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
        'NNX', f'{user.kind_of(factory)}{takes}{user_code.place(factory)}',
        user.remedy(factory) or 'lambda rngs: Net(..., rngs=rngs) is one')


def _split(module):
  return nnx.split(module, nnx.Param, nnx.RngState, ...)


def _by_path(state):
  return traverse_util.unflatten_dict({
      tuple(map(str, path)): variable.get_value()
      for path, variable in nnx.to_flat_state(state)})


def _filled(state, values):
  """Returns an abstract state with the values of `_by_path`."""
  flat = traverse_util.flatten_dict(values, sep='/')
  return nnx.from_flat_state([
      (path, variable.replace(flat['/'.join(map(str, path))]))
      for path, variable in nnx.to_flat_state(state)])


def _intercept(module, replace, params):
  """Lets a function replace the outputs of dense layers (`each_dense`).

  Adapters become attributes of their layer, so that `nnx.scan` slices them.
  """
  flat = traverse_util.flatten_dict(params, sep='/')
  for keys, layer in nnx.iter_modules(module):
    if isinstance(layer, nnx.Linear | nnx.LinearGeneral):
      path = '/'.join(map(str, keys))
      for name in adapters.NAMES:
        if f'{path}/{name}' in flat:
          setattr(layer, name, nnx.Param(flat[f'{path}/{name}']))
      layer._moon_jax = path, replace
      object.__setattr__(layer, '__class__', _intercepted(type(layer)))


@functools.cache
def _intercepted(kind):
  """Returns a subclass of a dense layer whose outputs are replaced."""
  class Intercepted(kind):

    def __call__(self, inputs, *args, **kwargs):
      outputs = super().__call__(inputs, *args, **kwargs)
      path, replace = self._moon_jax

      def variable(name):
        value = getattr(self, name, None)
        return None if value is None else value.get_value()

      return replace(adapters.DenseLayer(
          tuple(path.split('/')) if path else (), variable,
          getattr(self, 'axis', -1),
          bool(getattr(self, 'batch_axis', ()))), inputs, outputs)

  return Intercepted


def _restarted(state, key):
  """Returns the state of random streams that begin at different keys."""
  def value(i, x):
    if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
      return jnp.zeros(x.shape, x.dtype)  # number of draws so far
    stream = jax.random.fold_in(key, i)
    return jax.random.split(stream, x.shape) if x.shape else stream

  return nnx.from_flat_state([
      (path, variable.replace(value(i, variable.get_value())))
      for i, (path, variable) in enumerate(nnx.to_flat_state(state))])
