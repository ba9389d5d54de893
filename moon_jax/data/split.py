"""Splits a data set over clients, as a configuration describes it.

Partitions are those of `moon_jax.data.partition`, of a file, or of a function
of your own.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import NamedTuple

import numpy as np

from moon_jax import errors, user_code
from moon_jax.config import Config, parts
from moon_jax.config.parts import File, FromRun
from moon_jax.data import client_tests, label_shift
from moon_jax.data import clients as clients_lib
from moon_jax.data.client_tests import ClientTests
from moon_jax.data.clients import Clients
from moon_jax.data.dataset import Dataset, subset
from moon_jax.data.io import files
from moon_jax.errors import require, setting, UserError

# End of the seed of the validation examples; no other draw uses this seed.
_VALIDATION_STREAM = 0, 1
_NEW_STREAM = 0, 3  # of the choice of new clients
_SUBSET_SEED = 0, 0, 2  # of --train_examples; the same in all runs


class Split(NamedTuple):
  """Who has which examples.

  All indices refer to the whole training set, except those of held-out examples
  that are test examples.
  """

  clients: Sequence[np.ndarray]  # the training examples of each client, int [n]
  client_tests: ClientTests | None = None  # held-out examples of each client
  validation: np.ndarray | None = None  # examples of no client, sorted int [V]
  train_labels: np.ndarray | None = None  # of the whole training set, as the
  # clients see them; None if they are those of the data set
  new_clients: Sequence[np.ndarray] = ()  # as `clients`, of those that never
  # take part; their held-out examples follow those of the clients


def make(config: Config, dataset: Dataset) -> Split:
  """Returns the configured split of a data set.

  Raises:
    UserError: if the data set cannot be partitioned as configured.
  """
  num_train = len(dataset.train_labels)
  used = _used(config, num_train)
  validation = _validation(config, used)
  rest = used if validation is None else np.setdiff1d(used, validation)
  if len(rest) == num_train:
    clients = _partition_with_new(config, dataset)
  else:
    of_rest = _partition_with_new(config, _with_examples(config, dataset, rest))
    clients = Clients(
        rest[clients_lib.joined(of_rest)], clients_lib.sizes(of_rest),
        clients_lib.names(of_rest))
  # Before clients hold examples out, so that these have the same labels.
  labels = label_shift.configured(config, dataset, clients)
  clients, tests = client_tests.make(config, dataset, clients)
  require(config.labels.name == 'clean' or not config.client_eval_every
          or not tests or tests.part == 'train',
          'labels', 'must be clean if clients are evaluated on test examples, '
          f'as those of {setting("dataset", config.dataset)}: it changes '
          'labels of training examples only', config.labels,
          f'Remove it, or give {setting("client_eval_every", 0)} or another '
          f'{setting("partition")}')
  count = config.num_new_clients()
  require(not count or (
      tests is not None and tests.sizes[len(clients) - count:].any()),
          'new_clients', 'needs held-out examples of new clients',
          config.new_clients, f'Give {setting("client_test_fraction", 0.2)}')
  clients, new = (clients[:-count], clients[-count:]) if count else (
      clients, ())
  # Last: hostile clients flip only what they train on.
  return Split(clients, tests, validation, label_shift.with_flips(
      config, dataset, labels, clients), new)


def _used(config, num_train):
  """Returns the sorted indices of the training examples of the run, int [n]."""
  count = config.train_examples
  if not count:
    return np.arange(num_train)
  require(count <= num_train, 'train_examples', f'must be at most the '
          f'{num_train} training examples of '
          f'{setting("dataset", config.dataset)}', count,
          f'{setting("train_examples", 0)} uses all of them')
  return subset(_SUBSET_SEED, num_train, count)


def _validation(config, used):
  """Returns the validation examples among those used, or None."""
  if not config.validation_fraction:
    return None
  num_examples = len(used)
  count = round(config.validation_fraction * num_examples)
  require(0 < count < num_examples, 'validation_fraction',
          'must leave examples on both sides', f'{config.validation_fraction}, '
          f'which is {count} of {num_examples} training examples',
          f'{setting("validation_fraction", 0.1)} is usual')
  seed = config.split_seed(), *_VALIDATION_STREAM
  return used[subset(seed, num_examples, count)]


def _with_examples(config, dataset, indices):
  """Returns a data set with some of the training examples.

  Inputs may be large, and only partitions of users read them.
  """
  owners = dataset.train_clients
  return dataset._replace(
      train_inputs=(dataset.train_inputs[indices]
                    if config.partition.is_own
                    else dataset.train_inputs[:0]),
      train_labels=dataset.train_labels[indices],
      train_clients=None if owners is None else owners[indices])


def _partition_with_new(config, dataset):
  """Returns the partition; clients that never take part are last."""
  count = config.num_new_clients()
  if not count:
    return _partition(config, dataset)
  total = config.num_clients + count
  clients = clients_lib.checked(_partition(
      dataclasses.replace(config, num_clients=total), dataset),
      len(dataset.train_labels), 'clients[{}]')
  seed = config.split_seed(), *_NEW_STREAM
  new = subset(seed, total, count)
  return clients[np.concatenate([np.setdiff1d(np.arange(total), new), new])]


def _partition(config, dataset):
  """Returns for each client the indices of its training examples."""
  name, part = config.partition.name, config.partition
  require(name != 'feature_noise' or not dataset.num_tokens, 'partition',
          'must not add noise to inputs that are tokens, as those of '
          f'{setting("dataset", config.dataset)}', name, 'Give another one')
  if name in ('dirichlet', 'client_dirichlet', 'extended_dirichlet', 'shards',
              'pathological'):
    label_shift.check_classes(
        dataset, 'partition', name,
        f'Give {setting("partition")}=iid, quantity or natural')
  labels, num_clients = dataset.train_labels, config.num_clients
  clients = parts.make(
      'partition', part, dataset=dataset, labels=labels,
      num_examples=len(labels), num_clients=num_clients,
      seed=config.split_seed(), client_of_example=dataset.train_clients,
      names=dataset.client_names)
  if name == 'file':
    return clients_lib.checked(
        clients, len(labels), f'{setting("partition", part)}: client {{}}',
        '. Or name the file of a run of the same data set')
  return _checked(part, clients, num_clients, len(labels)
                  ) if part.is_own else clients


def _checked(part, clients, num_clients, num_examples):
  """Checks what your own partition returns.

  It is a sequence with the indices of each client's training examples, or a
  mapping from names of clients to them. Clients may share examples.
  """
  place = user_code.place(parts.function_of('partition', part))
  require(isinstance(clients, Iterable) and not isinstance(clients, str),
          'partition', 'must return a list of index arrays, one per client',
          f'a {type(clients).__name__} of {part}', f'Fix it{place}')
  if not isinstance(clients, Mapping | Clients):  # a generator may fail
    clients = user_code.call('partition', part.name, list, clients)
  require(len(clients) == num_clients, 'partition', 'must return the examples '
          f'of each of {setting("num_clients", num_clients)} clients',
          f'{len(clients)} clients of {part}', f'Fix it{place}')
  return clients_lib.checked(
      clients, num_examples, f'{setting("partition", part)}: client {{}}',
      place)


def read_file(path: File, num_clients: FromRun[int]) -> Clients:
  """Reads the indices of each client from the partition.npz of a run.

  It holds `sizes` [C] and `indices` [N], whose range is not checked, and may
  hold `names` [C].

  Args:
    path: the file, such as WORKDIR/partition.npz.
  """
  place = files.user_path(path, 'partition.path')
  try:
    with np.load(place, allow_pickle=False) as file:
      sizes, indices = (file[name] for name in ('sizes', 'indices'))
      names = file['names'] if 'names' in file else None
      left_out = [name for name in ('heldout', 'validation', 'new_sizes')
                  if name in file]
    if len(sizes) and sizes.min() < 1 or sizes.sum() != len(indices):
      raise ValueError(f'its sizes sum to {sizes.sum()}, of {len(indices)} '
                       'indices, or one is below 1')
    if names is not None and len(names) != len(sizes):
      raise ValueError(f'{len(names)} names of {len(sizes)} clients')
    clients = Clients(
        *(x.astype(np.int64, casting='same_kind') for x in (indices, sizes)),
        names)
  except Exception as error:  # a damaged file can raise almost anything
    raise UserError(
        'partition.path', 'must name a file with the arrays sizes and indices',
        f'{path} ({errors.first_line(error)})',
        'Write it again, or name the partition.npz of a run') from error
  require(len(sizes) == num_clients, 'num_clients', f'must be {len(sizes)}, as '
          f'in {setting("partition.path", path)}', num_clients,
          f'Give {setting("num_clients", len(sizes))}, or name another file')
  require(not left_out, 'partition.path', 'must name the file of a run without '
          'other examples than those of its clients, which would be left out',
          f'{path} with {", ".join(left_out)}', 'Repeat the run with its own '
          f'{setting("partition")} and seed, or name another file')
  return clients
