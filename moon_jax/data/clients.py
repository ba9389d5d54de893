"""Who has which training examples, compactly: a million clients in two arrays.

`Federation.clients` is any sequence of integer arrays. The functions here take
all of them, and are fast for `Clients`, the type that most partitions return.
"""

from collections.abc import Sequence
import operator

import numpy as np


class Clients(Sequence):
  """A sequence of index arrays, stored as one array and the sizes of its parts.

  `clients[i]` is a view. A list of a million arrays takes 200 MB besides the
  indices, and seconds to build; this type takes 8 bytes per client.

  Attributes:
    indices: the training examples of client 0, then of client 1, ...; int [N].
    sizes: number of examples of each client, int64 [C].

  Examples:
    >>> clients = Clients(np.array([4, 0, 3]), np.array([1, 2]))
    >>> [c.tolist() for c in clients]
    [[4], [0, 3]]
  """

  def __init__(self, indices: np.ndarray, sizes: np.ndarray):
    """Stores the arrays; `sizes` must sum to the length of `indices`."""
    self.indices, self.sizes = indices, np.asarray(sizes, np.int64)
    self._ends = np.cumsum(self.sizes)

  def __len__(self):
    return len(self.sizes)

  def __iter__(self):
    for end, size in zip(self._ends.tolist(), self.sizes.tolist()):
      yield self.indices[end - size:end]

  def __getitem__(self, at):
    if isinstance(at, slice):
      return [self[i] for i in range(*at.indices(len(self)))]
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


def are_disjoint(clients: Sequence[np.ndarray]) -> bool:
  """Returns whether no example occurs twice."""
  return np.bincount(joined(clients)).max() == 1


def class_counts(labels: np.ndarray, clients: Sequence[np.ndarray],
                 num_classes: int) -> np.ndarray:
  """Returns the number of examples per client and class, int64 [C, K]."""
  owner = np.repeat(np.arange(len(clients)), sizes(clients))
  return np.bincount(
      owner * num_classes + labels[joined(clients)],
      minlength=len(clients) * num_classes).reshape(-1, num_classes)


def shortened(clients: Sequence[np.ndarray], num_examples: int) -> Clients:
  """Returns the clients with at most their first `num_examples` each."""
  sizes_C = sizes(clients)
  fewer_C = np.minimum(sizes_C, num_examples)
  return Clients(gather(joined(clients), np.cumsum(sizes_C) - sizes_C, fewer_C),
                 fewer_C)


def equal_sizes(total: int, count: int) -> np.ndarray:
  """Returns the sizes of the parts of `np.array_split`, int64 [count]."""
  part, rest = divmod(total, count)
  return part + (np.arange(count) < rest)


def gather(values: np.ndarray, starts: np.ndarray,
           lengths: np.ndarray) -> np.ndarray:
  """Returns values[start:start + length] of all ranges, concatenated."""
  first = np.cumsum(lengths) - lengths
  return values[np.repeat(starts - first, lengths)
                + np.arange(lengths.sum())]
