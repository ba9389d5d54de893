"""Checks the types of the values from which a federation is made in Python."""

from collections.abc import Iterable
from collections.abc import Mapping
from numbers import Real
from typing import Any
from typing import SupportsIndex

from moon_jax.algorithms import user as user_algorithm
from moon_jax.algorithms.base import Algorithm
from moon_jax.data import dataset_checks
from moon_jax.errors import UserError
from moon_jax.models import user as user_model

# Hyperparameters of the algorithms of the package: name -> requirement, whether
# a value meets it, and a usual value.
_HPARAMS = {
    'mu': ('0 or more', lambda x: x >= 0, 1),
    'proximal_mu': ('0 or more', lambda x: x >= 0, 0.01),
    'temperature': ('above 0', lambda x: x > 0, 0.5),
    'num_negatives': ('an integer of at least 1',
                      lambda x: isinstance(x, SupportsIndex) and x >= 1, 1),
}


def check(federation: Any) -> None:
  """Checks a `moon_jax.Federation`, before its values are used.

  Raises:
    UserError: naming the first value of another type, and how to make one.
  """
  dataset_checks.check(federation.data)
  user_model.check_type(federation.model)
  _check_algorithm(federation.algorithm, federation)
  _check_lists(federation)
  rate = federation.learning_rate
  if not callable(rate) and not isinstance(rate, Real) and (
      isinstance(rate, str) or getattr(rate, 'ndim', None) != 0):
    raise UserError(
        'learning_rate must be a number, or a function of the round; got '
        f'{rate!r}. The paper uses learning_rate=0.01')
  for name, metric in dict(federation.metrics).items():
    if not callable(metric):
      raise UserError(
          f'metrics[{name!r}] must be a function of logits and labels; got '
          f'{metric!r}. moon_jax.simulation.evaluation_metrics.BUILT_IN has '
          'those of --metrics')


def _check_algorithm(algorithm, federation):
  if not isinstance(algorithm, Algorithm):
    remedy = (f'call it: {user_model.name_of(algorithm)}()'
              if callable(algorithm) else 'moon_jax.moon(mu=5) makes one')
    raise UserError('algorithm must be a moon_jax.Algorithm; got '
                    f'{user_model.kind_of(algorithm)}; {remedy}')
  user_algorithm.check_hparams(algorithm.hparams)
  for name, value in algorithm.hparams.items():
    requirement, holds_fn, usual = _HPARAMS.get(name, ('', None, 0))
    if holds_fn and not holds_fn(value):
      raise UserError(f'{name} of the algorithm must be {requirement}; got '
                      f'{value}. {name}={usual} is usual')
  for name, needed in algorithm.needs.items():
    if (value := getattr(federation, name)) != needed:
      remedy = (f'Make the algorithm with num_clients={value}'
                if name == 'num_clients'
                else f'Pass {name}={needed!r}, or choose another algorithm')
      raise UserError(f'the algorithm needs {name}={needed!r}; got '
                      f'{name}={value!r} of the federation. {remedy}')


def _check_lists(federation):
  for name, what, remedy in (
      ('clients', 'the indices of the training examples of each client',
       'moon_jax.partition.iid(len(data.train_labels), num_clients=10, seed=0) '
       'makes them'),
      ('cohorts', 'the clients of each round, such as [[0, 3], [1, 2]]',
       'cohorts=None takes all clients in each round')):
    value = getattr(federation, name)
    if name == 'cohorts' and value is None:
      continue
    parts = value if isinstance(value, list | tuple) else ()
    if not hasattr(value, '__len__') or isinstance(value, str | Mapping) or any(
        isinstance(part, str) or not isinstance(part, Iterable)
        for part in parts):
      raise UserError(f'{name} must list {what}; got {_shown(value)}; {remedy}')


def _shown(value):
  text = repr(value)
  return text if len(text) < 80 else user_model.kind_of(value)
