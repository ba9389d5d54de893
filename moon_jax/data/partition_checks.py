"""Checks the arguments of `moon_jax.data.partition`, whose users call it.

All functions raise `UserError` with the argument, its value and a remedy.
"""

from numbers import Real
from typing import Any

import numpy as np

from moon_jax.errors import UserError


def labels(labels: Any, what: str = 'labels must be the classes',
           remedy: str = 'data.train_labels') -> np.ndarray:
  """Returns the labels as an array, if they are integers [N]."""
  labels = np.asarray(labels)
  if labels.ndim != 1 or labels.dtype.kind not in 'iu':
    raise UserError(
        f'{what} of the training examples, integers [N]; got {labels.dtype} '
        f'{list(labels.shape)}. Pass {remedy}')
  return labels


def random(seed: int) -> np.random.RandomState:
  """Returns numpy's legacy generator."""
  if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not (
      0 <= seed < 2**32):
    raise UserError('seed must be an integer from 0 to 2**32 - 1, which makes '
                    f'the partition repeatable; got {seed!r}. seed=0 is usual')
  return np.random.RandomState(seed)


def check_beta(beta: float) -> None:
  """Checks a concentration."""
  if not isinstance(beta, Real) or not beta > 0:
    raise UserError(f'beta must be a number above 0; got {beta!r}. The paper '
                    'uses beta=0.5; smaller values are more uneven')


def check_num_clients(num_clients: int, num_examples: int,
                      min_examples: int) -> None:
  """Checks that each client can have `min_examples` examples."""
  for name, value in ('num_clients', num_clients), (
      'num_examples', num_examples):
    if not isinstance(value, int | np.integer) or value < 1:
      shown = (f'{type(value).__name__} of {len(value)}'
               if hasattr(value, '__len__') else value)
      raise UserError(f'{name} must be an integer of at least 1; got {shown}. '
                      'Pass num_clients=10, and len(data.train_labels) for '
                      'num_examples')
  if num_clients * min_examples > num_examples:
    raise UserError(
        f'--num_clients={num_clients} is too many for {num_examples} training '
        f'examples, as each client needs at least {min_examples}; lower '
        f'--num_clients to {num_examples // min_examples} or less')


def check_shards_per_client(shards_per_client: int) -> None:
  """Checks the number of shards of a client."""
  if not isinstance(shards_per_client, int | np.integer) or (
      shards_per_client < 1):
    raise UserError('shards_per_client must be an integer of at least 1; got '
                    f'{shards_per_client!r}. McMahan et al. use 2')
