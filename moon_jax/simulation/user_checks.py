"""Checks user-defined algorithms and networks by tracing them."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax.algorithms import user as user_algorithm
from moon_jax.data import clients as clients_lib
from moon_jax.models import user as user_model
from moon_jax.simulation.federation import Federation

_SAMPLED = 100  # examples whose values are looked at
_MAX_NORMALIZED = 100  # larger values look like pixels of 0 to 255


def check(federation: Federation, example: jax.Array) -> None:
  """Traces what is user-defined, before anything compiles.

  Values in Python are treated as user-defined.

  Args:
    federation: the federation.
    example: a normalized batch of one input.

  Raises:
    UserError: if a function returns a value of the wrong type or shape, or the
      algorithm needs outputs that the network does not return.
  """
  config, model = federation.config, federation.model
  _warn_of_pixels(federation, example)
  if has_user_model(federation):
    user_model.check(f'--model={config.model}' if config else 'model', model,
                     example, federation.data.num_classes)
    _warn_of_padding(federation, example)
    _warn_of_slow_convolutions(model, example)
  if has_user_model(federation) or has_user_algorithm(federation):
    user_algorithm.check(
        f'--algorithm={config.algorithm}' if config else 'algorithm',
        federation.algorithm, model, example)


def has_user_model(federation: Federation) -> bool:
  """Returns whether the network is user-defined, or a value in Python."""
  return federation.config is None or federation.config.has_user_model()


def has_user_algorithm(federation: Federation) -> bool:
  """Returns whether the algorithm is user-defined, or a value in Python."""
  return federation.config is None or federation.config.has_user_algorithm()


def _warn_of_pixels(federation, example):
  """Warns if floating-point inputs look like pixels of 0 to 255."""
  data = federation.data
  if data.train_inputs.ndim != 4 or data.train_inputs.dtype.kind != 'f':
    return
  inputs = np.asarray(data.train_inputs[:_SAMPLED], np.float32)
  largest = np.abs((inputs - np.float32(data.mean)) / np.float32(data.std)
                   ).max()
  if largest > _MAX_NORMALIZED:
    warnings.warn(
        f'{data.name}: inputs of floating point are normalized only by a given '
        f'mean and std, and reach {largest:.0f}; give mean and std, or images '
        'as uint8, which are normalized by default (docs/user_data.md)',
        stacklevel=2)


def _warn_of_padding(federation, example):
  """Warns if the padding of short batches reaches the network's state."""
  sizes_C, size = clients_lib.sizes(federation.clients), federation.batch_size
  is_padded_C = (sizes_C % size > 0 if federation.last_batch == 'keep'
                 else sizes_C < size)
  if federation.model.uses_mask or not is_padded_C.any():
    return
  smallest = sizes_C[is_padded_C].min()
  variables = jax.eval_shape(
      federation.model.init, jax.random.key(0), example)
  if state := sorted(variables.keys() - {'params'}):
    warnings.warn(
        f'a batch of a client with {smallest} examples is padded to '
        f'--batch_size={federation.batch_size}, and the network'
        f'{federation.model.place} takes no mask, so that the padding changes '
        f'its {", ".join(state)}. Take the argument mask, or lower '
        '--batch_size (docs/user_model.md)', stacklevel=2)


def _warn_of_slow_convolutions(model, example):
  """Warns if a CPU computes convolutions of a network in a loop."""
  def logits(key):
    outputs, _ = model.apply(
        model.init(key, example), example, jnp.ones(len(example)), train=False)
    return outputs.logits

  if jax.default_backend() == 'cpu' and 'conv_general_dilated' in str(
      jax.make_jaxpr(logits)(jax.random.key(0))):
    warnings.warn(
        f'the network{model.place} uses convolutions that are slow on CPUs '
        'within a round; nn.Conv(..., conv_general_dilated='
        'mj.conv_general_dilated) computes the same values up to 18 times as '
        'fast (docs/user_model.md)', stacklevel=2)
