"""Held-out examples of clients, to evaluate models on each client's own data.

They are a random part of each client's training examples (`hold_out`), or the
test examples of a data set whose test examples have clients (`natural`).
"""

from collections.abc import Mapping, Sequence
import math
from typing import NamedTuple

import numpy as np

from moon_jax.config import Config
from moon_jax.data import clients as clients_lib
from moon_jax.data.clients import Clients
from moon_jax.data.dataset import Dataset, subset
from moon_jax.errors import setting, UserError

PARTS = ('train', 'test')


class ClientTests(NamedTuple):
  """The held-out examples of each client.

  Attributes:
    indices: for each client the indices of its held-out examples, int [n]; a
      client may have none.
    part: the examples that the indices refer to: "train" for training examples,
      which no client may train on, or "test" for test examples.

  Examples:
    >>> tests = moon_jax.ClientTests([np.arange(5), np.arange(5, 9)], 'test')
  """

  indices: Sequence[np.ndarray]
  part: str = 'train'

  @property
  def sizes(self) -> np.ndarray:
    """The number of held-out examples of each client, int [C]."""
    return np.array([len(indices) for indices in self.indices], np.int64)


def hold_out(clients: Sequence[np.ndarray] | Mapping[str, np.ndarray],
             fraction: float, seed: int) -> tuple[Clients, ClientTests]:
  """Splits the examples of each client at random into two parts.

  A client with n examples holds out n * fraction of them, rounded to the
  nearest integer (halves up), but keeps at least one for training. The draw of
  a client depends on the seed, its index and n, and on no other client.

  Args:
    clients: for each client the indices of its training examples, int [n]; or
      a mapping from the names of clients to them.
    fraction: held-out fraction, at least 0 and below 1.
    seed: seed of the draws, 0 to 2**32 - 1.

  Returns:
    The examples of each client to train on, with the clients' names, and those
    held out, in order.

  Raises:
    UserError: if the fraction is out of range.

  Examples:
    >>> clients, tests = hold_out([np.arange(10), np.arange(10, 12)], 0.2, 0)
    >>> [len(indices) for indices in clients], tests.sizes
    ([8, 2], array([2, 0]))
  """
  if not 0 <= fraction < 1:
    raise UserError('fraction', 'must be 0 or more and below 1', fraction,
                    '0.2 is usual')
  names: tuple[str, ...] | None
  if isinstance(clients, Mapping):
    names, clients = tuple(clients), list(clients.values())
  else:
    names = clients_lib.names(clients)
  kept, held_out = [], []
  for client, indices in enumerate(map(np.asarray, clients)):
    size = len(indices)
    # Rounded first: 0.29 of 50 examples is below 14.5 in floating point.
    count = min(math.floor(round(size * fraction, 6) + .5), size - 1)
    is_held_out = np.zeros(size, bool)
    if count:
      is_held_out[subset([seed, client], size, count)] = True
    kept.append(indices[~is_held_out])
    held_out.append(indices[is_held_out])
  return (Clients(np.concatenate(kept), clients_lib.sizes(kept), names),
          ClientTests(held_out, 'train'))


def natural(clients: Sequence[np.ndarray], train_clients: np.ndarray,
            test_clients: np.ndarray) -> ClientTests:
  """Returns the test examples of each client of `moon_jax.partition.natural`.

  The other arguments are those fields of the `Dataset`.
  """
  ids = train_clients[[indices[0] for indices in clients]]
  order = np.argsort(test_clients, kind='stable')
  starts, ends = (np.searchsorted(test_clients[order], ids, side)
                  for side in ('left', 'right'))
  return ClientTests(
      [order[start:end] for start, end in zip(starts, ends)], 'test')


def make(config: Config, dataset: Dataset, clients: Sequence[np.ndarray]
         ) -> tuple[Sequence[np.ndarray], ClientTests | None]:
  """Returns the clients' training examples and the configured held-out data.

  Raises:
    UserError: if no client has enough examples, or the data set already has
      test examples of each client.
  """
  fraction = config.client_test_fraction
  train_clients, test_clients = dataset.train_clients, dataset.test_clients
  if config.partition.name == 'natural' and (
      train_clients is not None and test_clients is not None):
    if fraction:
      raise UserError(
          'client_test_fraction', 'must be 0 with '
          f'{setting("dataset", config.dataset)}, which has test examples of '
          'each client (client_test)', fraction,
          'Remove it, or client_test from the data')
    tests = natural(clients, train_clients, test_clients)
    return clients, tests if tests.sizes.any() else None
  if not fraction:
    return clients, None
  if not clients_lib.are_disjoint(clients):
    raise UserError(
        'client_test_fraction', 'must be 0 if clients share examples, since '
        'another client could train on a held-out one', fraction,
        f'Give another {setting("partition")} than {config.partition}')
  kept, tests = hold_out(clients, fraction, config.split_seed())
  if not tests.sizes.any():
    largest = max(map(len, clients))
    enough = math.ceil(.5e4 / largest) / 1e4
    fewer = setting('num_clients')
    raise UserError(
        'client_test_fraction', 'must hold out an example of the largest '
        f'client, which has {largest}', fraction,
        f'Give {setting("client_test_fraction", enough)} or more, or fewer '
        f'{fewer}' if largest > 1 else f'Lower {fewer}')
  return kept, tests
