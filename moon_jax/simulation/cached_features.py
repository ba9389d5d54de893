"""Federations whose inputs are replaced by features of frozen layers.

For a network of `moon_jax.freeze(..., cache=True)`, a simulation trains such a
federation instead of the given one. Plans need only the shapes of features; a
program computes the features when it is made.
"""

import copy
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import platforms
from moon_jax.data import augment, mapped
from moon_jax.data.dataset import Dataset
from moon_jax.errors import require
from moon_jax.models import features
from moon_jax.simulation.federation import Federation

_BATCH = 100  # examples at a time
_COMPARED = 8  # of the first examples; every second one checks the parts
_TOLERANCE = 1e-3  # relative to the largest output


def planned(federation: Federation) -> Federation:
  """Returns the federation of features, which have the right shapes but are 0.

  Returns the given federation if its network caches no features.

  Raises:
    UserError: if features would not be the same in each step.
  """
  if not federation.model.caches_features:
    return federation
  data = federation.data
  instead = 'or give moon_jax.freeze(..., cache=False)'
  require(not federation.augment or data.augmentation == 'none', 'augment',
          'must be False for a network that caches features',
          f'the augmentation {data.augmentation}', f'Turn it off, {instead}')
  for name in 'augmentation', 'input_noise_std':
    require(getattr(federation, name) is None, name, 'must be None for a '
            'network that caches features', 'another value',
            f'Remove it, {instead}')
  parts = _split(federation)
  zeros = lambda x: np.broadcast_to(
      np.float32(0), (len(x), parts.num_features))
  return _with(federation, parts.head, data._replace(
      train_inputs=zeros(data.train_inputs),
      test_inputs=zeros(data.test_inputs)), {
          name: (zeros(inputs), labels)
          for name, (inputs, labels) in federation.test_sets.items()})


def filled(given: Federation, frozen: Any,
           like: tuple[Federation, Federation] | None = None) -> Federation:
  """Returns the federation of features, computed with the frozen weights.

  `like` is a federation with the same data and network, and its result: further
  test sets that are the same arrays have the same features, too.

  Raises:
    UserError: if the features of an example depend on others of its batch.
  """
  if not given.model.caches_features:
    return given
  parts, data = _split(given), given.data
  known = like and like[1].data
  sets = {id(inputs): like[1].test_sets[name][0] for name, (inputs, _) in
          like[0].test_sets.items()} if like else {}
  normalize = functools.partial(augment.normalize, mean=data.mean, std=data.std)
  body = jax.jit(lambda frozen, stored: parts.body(frozen, normalize(stored)))

  def of(inputs):
    found = np.empty((len(inputs), parts.num_features), np.float32)
    for start in range(0, len(inputs), _BATCH):
      index = np.arange(start, start + _BATCH)
      rows = mapped.rows(inputs, np.minimum(index, len(inputs) - 1))
      found[start:start + _BATCH] = body(frozen, rows)[:len(inputs) - start]
    return found

  with platforms.float32_products():
    made = known or data._replace(train_inputs=of(data.train_inputs),
                                  test_inputs=of(data.test_inputs))
    if known is None:
      _check(given, parts, frozen, normalize, made)
    for inputs, _ in given.test_sets.values():
      if id(inputs) not in sets:
        sets[id(inputs)] = of(inputs)
  return _with(given, parts.head, made, {
      name: (sets[id(inputs)], labels)
      for name, (inputs, labels) in given.test_sets.items()})


def _split(federation: Federation) -> features.Split:
  data = federation.data
  example = jax.eval_shape(
      functools.partial(augment.normalize, mean=data.mean, std=data.std),
      jax.ShapeDtypeStruct((1, *data.train_inputs.shape[1:]),
                           data.train_inputs.dtype))
  return features.split(
      federation.model, example.shape[1:], str(example.dtype))


def _with(federation: Federation, model: Any, data: Dataset,
          test_sets: Any) -> Federation:
  """Returns a federation of features, which need no checks."""
  made = copy.copy(federation)
  for name, value in (('model', model), ('test_sets', test_sets), (
      'data', data._replace(mean=(0.,), std=(1.,), augmentation='none'))):
    object.__setattr__(made, name, value)
  return made


def _check(given, parts, frozen, normalize, made):
  """Compares the network with its parts on a batch of other examples."""
  count = min(_COMPARED, len(given.data.train_labels) - 1)
  index = np.arange(count, -1, -1)[::2]
  key, mask = jax.random.key(0), jnp.ones(len(index))
  stored = normalize(jnp.asarray(mapped.rows(given.data.train_inputs, index)))

  def outputs(model, inputs):
    variables = model.init(key, inputs)
    found, _ = model.with_frozen(frozen).with_key(key).apply(
        variables, inputs, mask, train=True)
    return found

  expected, found = (
      jax.jit(functools.partial(outputs, model))(inputs) for model, inputs in (
          (given.model, stored), (parts.head, made.train_inputs[index])))
  is_close = jax.tree.map(
      lambda x, y: jnp.abs(x - y).max() <= _TOLERANCE * jnp.abs(x).max(),
      expected, found)
  require(all(jax.tree.leaves(is_close)), 'cache', 'needs frozen layers '
          'whose output for an example does not depend on the other examples '
          'of the batch', 'another output with other examples'
          f'{given.model.place}', 'Give moon_jax.freeze(..., cache=False)')
