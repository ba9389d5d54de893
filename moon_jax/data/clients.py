"""Who has which training examples, compactly: a million clients in two arrays.

`Federation.clients` is any sequence of integer arrays. The functions here take
all of them, and are fast for `Clients`, the type that most partitions return.
"""

from collections.abc import Mapping, Sequence
import operator
from typing import Any

import numpy as np

from moon_jax.errors import UserError


class Clients(Sequence):
  """A sequence of index arrays, stored as one array and the sizes of its parts.

  `clients[i]` is a view; a slice, or an array of indices, is of this type, with
  names. A list of
  a million arrays takes 200 MB besides the indices, and seconds to build; this
  type takes 8 bytes per client.

  Attributes:
    indices: the training examples of client 0, then of client 1, ...; int [N].
    sizes: number of examples of each client, int64 [C].
    names: of the clients, C strings; None if they have none.

  Examples:
    >>> clients = Clients(np.array([4, 0, 3]), np.array([1, 2]))
    >>> [c.tolist() for c in clients]
    [[4], [0, 3]]
  """

  def __init__(self, indices: np.ndarray, sizes: np.ndarray,
               names: Sequence[str] | None = None):
    """Stores the arrays; `sizes` must sum to the length of `indices`."""
    self.indices, self.sizes = indices, np.asarray(sizes, np.int64)
    self.names = None if names is None else tuple(map(str, names))
    self._ends = np.cumsum(self.sizes)

  def __len__(self):
    return len(self.sizes)

  def __iter__(self):
    for end, size in zip(self._ends.tolist(), self.sizes.tolist()):
      yield self.indices[end - size:end]

  def __getitem__(self, at):
    if isinstance(at, slice | np.ndarray):
      at = np.arange(len(self))[at]
      return Clients(
          gather(self.indices, (self._ends - self.sizes)[at], self.sizes[at]),
          self.sizes[at],
          None if self.names is None else [self.names[i] for i in at])
    i = range(len(self))[operator.index(at)]  # IndexError; negative indices
    return self.indices[self._ends[i] - self.sizes[i]:self._ends[i]]


def sizes(clients: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the number of examples of each client, int64 [C]."""
  if isinstance(clients, Clients):
    return clients.sizes
  return np.fromiter(map(len, clients), np.int64, len(clients))


def joined(clients: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the examples of all clients, those of client 0 first; int [N]."""
  return clients.indices if isinstance(clients, Clients) else (
      np.concatenate(clients))


def names(clients: Sequence[np.ndarray]) -> tuple[str, ...] | None:
  """Returns the names of the clients, or None if they have none."""
  return clients.names if isinstance(clients, Clients) else None


def checked(clients: Any, num_examples: int, title: str,
            end: str = '') -> Sequence[np.ndarray]:
  """Returns valid clients as `Clients`; those of this type are unchanged.

  Args:
    clients: a sequence of array-likes, the indices of each client's training
      examples; or a mapping from the names of clients to them.
    num_examples: number of training examples.
    title: what error messages call a client, with {} for its index.
    end: the end of error messages.

  Raises:
    UserError: naming the first client without examples, or with indices that
      are no integers, out of range, or repeated.
  """
  def error(client, requirement, got, remedy):
    name = f' ({known[client]!r:.60})' if known else ''
    return UserError('', f'{title.format(client)}{name} must {requirement}',
                     got, remedy + end)

  known = names(clients)
  if isinstance(clients, Mapping):
    known, clients = tuple(map(str, clients)), list(clients.values())
  if not isinstance(clients, Clients):
    clients = [_indices(part, client, error)
               for client, part in enumerate(clients)]
    clients = Clients(np.concatenate([np.zeros(0, np.int64), *clients]),
                      sizes(clients), known)
  elif len(clients.indices) != (total := clients.sizes.sum()):
    raise UserError('', 'sizes of clients must sum to the number of their '
                    f'indices, {len(clients.indices)}', total,
                    'moon_jax.partition makes clients')
  elif clients.indices.dtype != np.int64:  # others may overflow
    clients = Clients(_indices(clients.indices, 0, error), clients.sizes, known)
  if len(empty := np.flatnonzero(sizes(clients) == 0)):
    raise error(empty[0], 'have at least one training example', 'none' + (
        f', as {len(empty) - 1:,} others' * (len(empty) > 1)),
                'Leave out clients without examples')
  flat = joined(clients)
  owner = np.repeat(np.arange(len(clients)), sizes(clients))
  if len(bad := np.flatnonzero((flat < 0) | (flat >= num_examples))):
    raise error(owner[bad[0]], 'have indices of training examples, 0 to '
                f'{num_examples - 1}', flat[bad[0]], 'Indices count from 0')
  key = np.sort(owner * num_examples + flat)
  if len(twice := np.flatnonzero(key[1:] == key[:-1])):
    client, index = divmod(int(key[twice[0]]), num_examples)
    raise error(client, 'list each training example once', f'index {index} '
                'more than once', 'numpy.unique(...) removes the others')
  return clients


def _indices(part, client, error):
  """Returns the indices of a client as int64 [n]."""
  try:
    indices = np.asarray(part)
  except Exception as reason:  # array-likes can raise anything
    raise error(client, 'be an array of indices, integers [n]',
                f'a {type(part).__name__}', 'Convert it') from reason
  if indices.ndim != 1:
    raise error(client, 'be a list of indices, integers [n]',
                f'shape {list(indices.shape)}', 'numpy.ravel(...) makes one')
  if indices.size and indices.dtype.kind not in 'iu':
    raise error(client, 'be a list of indices, integers [n]', indices.dtype,
                'numpy.flatnonzero(...) turns masks into indices')
  return indices.astype(np.int64, copy=False)


def are_disjoint(clients: Sequence[np.ndarray]) -> bool:
  """Returns whether no example occurs twice."""
  return np.bincount(joined(clients)).max(initial=0) <= 1


def class_counts(labels: np.ndarray, clients: Sequence[np.ndarray],
                 num_classes: int) -> np.ndarray:
  """Returns the number of examples per client and class, int64 [C, K].

  Labels that are no classes, of other tasks, count as one class, [C, 1].
  """
  if labels.ndim != 1 or labels.dtype.kind not in 'iu' or not (
      0 <= labels.min(initial=0) <= labels.max(initial=0) < num_classes):
    return sizes(clients).astype(np.int64)[:, None]
  owner = np.repeat(np.arange(len(clients)), sizes(clients))
  return np.bincount(
      owner * num_classes + labels[joined(clients)].astype(np.int64),
      minlength=len(clients) * num_classes).reshape(-1, num_classes)


def shortened(clients: Sequence[np.ndarray], num_examples: int) -> Clients:
  """Returns the clients with at most their first `num_examples` each."""
  sizes_C = sizes(clients)
  fewer_C = np.minimum(sizes_C, num_examples)
  return Clients(gather(joined(clients), np.cumsum(sizes_C) - sizes_C, fewer_C),
                 fewer_C, names(clients))


def equal_sizes(total: int, count: int) -> np.ndarray:
  """Returns the sizes of the parts of `np.array_split`, int64 [count]."""
  part, rest = divmod(int(total), int(count))  # those of NumPy may overflow
  return part + (np.arange(count) < rest)


def gather(values: np.ndarray, starts: np.ndarray,
           lengths: np.ndarray) -> np.ndarray:
  """Returns values[start:start + length] of all ranges, concatenated."""
  first = np.cumsum(lengths) - lengths
  return values[np.repeat(starts - first, lengths)
                + np.arange(lengths.sum())]
