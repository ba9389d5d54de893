"""Splits a data set over clients, as a configuration describes it."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from moon_jax.config import Config
from moon_jax.config import is_user_code
from moon_jax.data import client_tests
from moon_jax.data import clients as clients_lib
from moon_jax.data import label_shift
from moon_jax.data import partition
from moon_jax.data import user_partition
from moon_jax.data.client_tests import ClientTests
from moon_jax.data.clients import Clients
from moon_jax.data.dataset import Dataset
from moon_jax.errors import UserError

_VALIDATION_STREAM = 0, 1  # end of the seed of the validation examples
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
    clients = _partition(config, dataset)
  else:
    of_rest = _partition(config, _with_examples(config, dataset, rest))
    clients = Clients(
        rest[clients_lib.joined(of_rest)], clients_lib.sizes(of_rest))
  # Before clients hold examples out, so that these have the same labels.
  labels = label_shift.configured(config, dataset, clients)
  clients, tests = client_tests.make(config, dataset, clients)
  if config.concept_shift > 1 and tests is not None and tests.part == 'test':
    raise UserError(
        f'--concept_shift={config.concept_shift} changes labels of training '
        f'examples only, and the clients of --dataset={config.dataset} hold '
        'out test examples; remove it, or give another --partition')
  return Split(clients, tests, validation, labels)


def _used(config, num_train):
  """Returns the sorted indices of the training examples of the run, int [n].

  With --train_examples they are drawn uniformly without replacement by numpy's
  legacy generator from a constant seed. Smaller subsets are contained in larger
  ones.
  """
  count = config.train_examples
  if not count:
    return np.arange(num_train)
  if count > num_train:
    raise UserError(
        f'--train_examples must be at most the {num_train} training examples '
        f'of --dataset={config.dataset}; got {count}. --train_examples=0 uses '
        'all of them')
  random = np.random.RandomState(_SUBSET_SEED)
  return np.sort(random.permutation(num_train)[:count])


def _validation(config, used):
  """Returns the indices of the validation examples among those used, or None.

  They are drawn uniformly without replacement by numpy's legacy generator,
  whose numbers are the same in all versions of numpy. No other draw uses its
  seed of three numbers.
  """
  if not config.validation_fraction:
    return None
  num_examples = len(used)
  count = round(config.validation_fraction * num_examples)
  if not 0 < count < num_examples:
    raise UserError(
        '--validation_fraction must leave examples on both sides; got '
        f'{config.validation_fraction}, which is {count} of {num_examples} '
        'training examples. --validation_fraction=0.1 is usual')
  random = np.random.RandomState([config.split_seed(), *_VALIDATION_STREAM])
  return used[np.sort(random.permutation(num_examples)[:count])]


def _with_examples(config, dataset, indices):
  """Returns a data set with some of the training examples.

  Built-in partitions read no inputs, which are left out: they may be large.
  """
  owners = dataset.train_clients
  return dataset._replace(
      train_inputs=(dataset.train_inputs[indices]
                    if is_user_code(config.partition)
                    else dataset.train_inputs[:0]),
      train_labels=dataset.train_labels[indices],
      train_clients=None if owners is None else owners[indices])


def _partition(config, dataset):
  """Returns for each client the indices of its training examples."""
  if config.partition == 'feature_noise' and dataset.num_tokens:
    raise UserError('--partition=feature_noise adds noise to inputs, and those '
                    f'of --dataset={config.dataset} are tokens; give another '
                    '--partition')
  labels, clients = dataset.train_labels, config.num_clients
  seed = config.split_seed()
  if config.partition_file:
    return user_partition.from_file(
        config.partition_file, clients, len(labels))
  if is_user_code(config.partition):
    return user_partition.make(config.partition, dataset, clients, seed)
  return {
      'iid': lambda: partition.iid(len(labels), clients, seed),
      'dirichlet': lambda: partition.dirichlet(
          labels, clients, config.beta, seed),
      'shards': lambda: partition.shards(
          labels, clients, config.shards_per_client, seed),
      'quantity': lambda: partition.quantity(
          len(labels), clients, config.beta, seed),
      'feature_noise': lambda: partition.iid(len(labels), clients, seed),
      'natural': lambda: partition.natural(
          dataset.train_clients, clients, seed),
  }[config.partition]()
