"""The last layer of a network: logits = z W + b.

z is `Outputs.projection`. A custom network's last layer may be a bias alone:
then z has an entry for each class, and W is the identity.
"""

from typing import Any

import jax
import jax.numpy as jnp

from moon_jax.errors import UserError
from moon_jax.models.base import Variables


def parameters(params: Any, head: str = 'out') -> Any:
  """Returns the parameters of the layer: W and b by name, or a bias alone.

  Args:
    params: parameters of the network that train.
    head: name of the layer.

  Raises:
    UserError: if there is no such layer, it has adapters, or W does not train.
  """
  layer = params.get(head)
  if layer is None:
    raise UserError(
        'head', 'must be the name of the last layer, one of '
        + ', '.join(params), repr(head), 'out is that of the built-in networks')
  if isinstance(layer, dict) and not (
      {'kernel'} <= set(layer) <= {'kernel', 'bias'}):
    raise UserError(
        'head', 'must be a layer whose kernel trains, without adapters and '
        'with no parameters except kernel and bias',
        f'{head!r}, where {", ".join(layer)} train', 'Adapt other layers: '
        'mj.lora(model, where="^fc1", train="^out")' if 'lora_a' in layer else
        'Name its parameters kernel and bias')
  return layer


def kernel(params: Any, head: str = 'out') -> jax.Array:
  """Returns W [F, K]; arguments and errors are those of `parameters`."""
  layer = parameters(params, head)
  if not isinstance(layer, dict):
    return jnp.eye(len(layer), dtype=layer.dtype)
  return layer['kernel']


def logits(layer: Any, z: jax.Array) -> jax.Array:
  """Returns z W + b for z [..., F] and the parameters of the layer."""
  if not isinstance(layer, dict):
    return z + layer.reshape(*[1] * (z.ndim - 1), -1)
  outputs = jnp.dot(z, layer['kernel'], precision='highest')
  bias = layer.get('bias', jnp.zeros(outputs.shape[-1], outputs.dtype))
  return outputs + bias.reshape(*[1] * (z.ndim - 1), -1)


def replace(variables: Variables, layer: Any, head: str = 'out') -> Variables:
  """Returns the network with another last layer."""
  return {**variables, 'params': {**variables['params'], head: layer}}


def shift_of_logits(params: Any, shift_F: jax.Array,
                    head: str = 'out') -> jax.Array:
  """Returns what logits [K] gain if a vector is added to z."""
  return jnp.dot(shift_F, kernel(params, head), precision='highest')


def with_shift(variables: Variables, shift_F: jax.Array,
               head: str = 'out') -> Variables:
  """Returns the network whose last layer takes z + shift: with another bias.

  Raises:
    UserError: if the last layer has no bias.
  """
  params = variables['params']
  shift_K, layer = shift_of_logits(params, shift_F, head), params[head]
  if not isinstance(layer, dict):
    return replace(variables, layer + shift_K, head)
  if 'bias' not in layer:
    raise UserError('head', 'must be a layer with a bias', repr(head),
                    'out is usual')
  return replace(variables, {**layer, 'bias': layer['bias'] + shift_K}, head)


def with_nearest(variables: Variables, mean_KF: jax.Array,
                 is_possible_K: jax.Array, head: str = 'out') -> Variables:
  """Returns the network that predicts the class of the nearest prototype.

  Its logits are z . C_j - |C_j|^2 / 2, the largest where |z - C_j| is smallest;
  those of classes that are not possible are -1e9. Without any possible class
  it is the given network.

  Raises:
    UserError: if the last layer has no kernel or no bias.
  """
  layer = variables['params'][head]
  if not isinstance(layer, dict) or set(layer) != {'kernel', 'bias'}:
    raise UserError('head', 'must be a layer with kernel and bias',
                    repr(head), 'out is usual')
  nearest = {
      'kernel': mean_KF.T,
      'bias': jnp.where(is_possible_K, -jnp.sum(mean_KF ** 2, 1) / 2, -1e9)}
  layer = jax.tree.map(lambda x, y: jnp.where(jnp.any(is_possible_K), x, y),
                       nearest, layer)
  return replace(variables, layer, head)
