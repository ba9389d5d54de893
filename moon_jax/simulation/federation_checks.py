"""Checks the values of a federation, before anything compiles."""

from typing import Any
from typing import SupportsIndex

import numpy as np

from moon_jax.data import clients as clients_lib
from moon_jax.data import mapped
from moon_jax.data.client_tests import PARTS
from moon_jax.errors import UserError
from moon_jax.simulation import checks
from moon_jax.simulation import evaluation_checks
from moon_jax.simulation import limits
from moon_jax.simulation import value_checks


def check(federation: Any) -> None:
  """Checks a `moon_jax.simulation.federation.Federation`.

  Raises:
    UserError: if a value is out of range or the parts do not fit together.
  """
  if federation.config is None:  # flags have their own checks
    value_checks.check(federation)
  limits.check(federation)
  federation.hparams()
  data = federation.data
  num_test = len(data.test_labels)
  if federation.eval_examples > num_test:
    raise UserError(
        f'--eval_examples must be at most the {num_test} test examples of '
        f'{data.name}; got {federation.eval_examples}. 0 uses all of them')
  checks.check_labels(data, data.name)
  if mapped.is_mapped(data.train_inputs) and not federation.shard_data:
    raise UserError(
        'shard_data must be True for memory-mapped train_inputs, which would '
        'be loaded whole; got False. Pass shard_data=True, or load them with '
        'numpy.array(...)')
  for name in federation.algorithm.hparams:
    if name in vars(federation):
      raise UserError(f'Algorithm.hparams must not set {name}, which is a '
                      'setting of the federation; give it another name')
  if federation.config is None:  # partitions and cohorts of flags are valid
    _check_clients(federation)
    _check_cohorts(federation)
    _check_noise(federation)
  if federation.client_tests is not None:
    _check_client_tests(federation)
  evaluation_checks.check_federation(federation)


def check_type(federation: Any) -> None:
  """Checks that a value is a `moon_jax.Federation`.

  Raises:
    UserError: with how to make one.
  """
  if not hasattr(federation, 'cohorts'):
    raise UserError(
        'a simulation needs a moon_jax.Federation; got a '
        f'{type(federation).__name__}. moon_jax.Federation(data=..., '
        'clients=..., model=..., algorithm=...) makes one, and '
        'moon_jax.run(config) trains a configuration')


def check_cohorts_until(federation: Any, last: int) -> None:
  """Checks that there are cohorts for rounds 1 to `last`.

  Raises:
    UserError: if there are fewer.
  """
  if last > (federation.num_rounds or last):
    raise UserError(
        f'round {federation.num_rounds + 1} has no cohort; cohorts lists '
        f'{federation.num_rounds} rounds, got {last} rounds to train. List '
        'more, train fewer rounds, or pass cohorts=None')


def _check_clients(federation):
  clients, data = federation.clients, federation.data
  num_train = len(data.train_labels)
  empty = np.flatnonzero(clients_lib.sizes(clients) == 0)
  if not len(clients) or empty.size:
    got = 'no client' if not len(clients) else (
        f'no examples in clients[{empty[0]}]' + (
            f' and {empty.size - 1:,} others' * (empty.size > 1)))
    raise UserError('clients must list the training examples of each client, '
                    f'at least one client and one example each; got {got}. '
                    'Leave out clients without examples')
  indices = clients_lib.joined(clients)
  if not np.issubdtype(indices.dtype, np.integer) or not (
      0 <= indices.min() <= indices.max() < num_train):
    raise UserError(
        f'clients must hold integers from 0 to {num_train - 1}, the indices '
        f'of the training examples of {data.name}; got {indices.dtype} '
        f'from {indices.min()} to {indices.max()}. numpy.flatnonzero(...) '
        'turns masks into indices')
  owner = np.repeat(np.arange(len(clients)), clients_lib.sizes(clients))
  key = np.sort(owner * num_train + indices)
  if (twice := np.flatnonzero(key[1:] == key[:-1])).size:
    client, index = divmod(int(key[twice[0]]), num_train)
    raise UserError(
        f'clients[{client}] must list each training example once; got index '
        f'{index} more than once. numpy.unique(...) removes the others')


def _check_cohorts(federation):
  cohorts, num_clients = federation.cohorts, federation.num_clients
  if cohorts is None:
    return
  if not any(map(len, cohorts)):
    raise UserError('cohorts must list the clients of each round; got none. '
                    'cohorts=None takes all clients in each round')
  for index, clients in enumerate(cohorts):
    if not all(isinstance(client, SupportsIndex) for client in clients):
      raise UserError(f'cohorts[{index}] must be integers, the numbers of '
                      f'clients; got {list(clients)}. Convert them with int')
    if len(clients) and not (
        0 <= min(clients) and max(clients) < num_clients):
      raise UserError(
          f'cohorts[{index}] must be clients from 0 to {num_clients - 1}; got '
          f'{min(clients)} to {max(clients)}. Clients are numbered from 0')
    if len(set(clients)) < len(clients):
      raise UserError(f'cohorts[{index}] lists a client twice; got '
                      f'{list(clients)}. List each once')


def _check_noise(federation):
  std, count = federation.input_noise_std, len(federation.data.train_labels)
  if std is not None and np.shape(std) != (count,):
    raise UserError(
        'input_noise_std must have one number for each of the '
        f'{count} training examples; got shape {list(np.shape(std))}. '
        f'numpy.full({count}, 0.1) gives all the same noise')


def _check_client_tests(federation):
  tests, data = federation.client_tests, federation.data
  if tests.part not in PARTS:
    raise UserError(f'client_tests.part must be one of {", ".join(PARTS)}; got '
                    f'{tests.part!r}')
  if len(tests.indices) != federation.num_clients or not tests.sizes.any():
    raise UserError(
        'client_tests.indices must list the held-out examples of each of the '
        f'{federation.num_clients} clients, at least one in all; got '
        f'{tests.sizes.sum()} examples of {len(tests.indices)} clients')
  if not federation.evaluate_clients:
    raise UserError('client_tests are evaluated only with evaluate_clients='
                    'True; got False. Set it, or remove client_tests')
  indices = np.concatenate([i for i in tests.indices if len(i)])
  num_examples = len(getattr(data, f'{tests.part}_labels'))
  if not np.issubdtype(indices.dtype, np.integer) or not (
      0 <= indices.min() <= indices.max() < num_examples):
    raise UserError(
        f'client_tests.indices must be integers from 0 to {num_examples - 1}, '
        f'the indices of the {tests.part} examples of {data.name}; got '
        f'{indices.dtype} from {indices.min()} to {indices.max()}')
  if tests.part == 'train':
    is_trained = np.zeros(num_examples, bool)
    is_trained[np.concatenate(federation.clients)] = True
    if is_trained[indices].any():
      raise UserError(
          'client_tests must hold out training examples that no client trains '
          f'on; training example {indices[is_trained[indices].argmax()]} is in '
          'clients too. Remove it from one of them')
