"""How the training examples are split over the clients.

Index for index what the released code of MOON (and of NIID-Bench) draws from
numpy's legacy generator, so that results compare with published ones.
"""

import numpy as np

from moon_jax.errors import UserError

MIN_EXAMPLES = 10  # the published code draws until each client has so many
_MAX_TRIES = 1000


def iid(num_examples: int, num_clients: int, seed: int) -> list[np.ndarray]:
  """Splits a random permutation into clients' parts of nearly equal size.

  Returns:
    For each client the int64 indices of its examples.

  Raises:
    UserError: with more clients than examples.
  """
  _check_enough(num_examples, num_clients, 1)
  order = np.random.RandomState(seed).permutation(num_examples)
  return np.array_split(order, num_clients)


def dirichlet(labels: np.ndarray, num_clients: int, beta: float,
              seed: int) -> list[np.ndarray]:
  """Splits each class by proportions p ~ Dir(beta) over clients.

  A client that already holds num_examples / num_clients examples gets none of
  the next class. Drawn anew until every client has `MIN_EXAMPLES`.

  Yurochkin et al., ICML 2019, https://arxiv.org/abs/1905.12022; Li et al.,
  "Federated Learning on Non-IID Data Silos", https://arxiv.org/abs/2102.02079.

  Args:
    labels: int [N], the classes of the training examples, from 0.
    num_clients: number of clients.
    beta: concentration, above 0.
    seed: of numpy's legacy generator.

  Returns:
    For each client the int64 indices of its examples, shuffled.

  Raises:
    UserError: where a bounded number of tries gives no such split.
  """
  _check_enough(len(labels), num_clients, MIN_EXAMPLES)
  random = np.random.RandomState(seed)
  members = [np.flatnonzero(labels == k) for k in range(labels.max() + 1)]
  for _ in range(_MAX_TRIES):
    draw = _draw(random, members, num_clients, beta)
    if draw is None:
      continue
    pieces = [np.split(indices, cuts) for indices, cuts in draw]
    clients = [np.concatenate(piece) for piece in zip(*pieces)]
    for indices in clients:
      random.shuffle(indices)
    return clients
  raise UserError(
      f'--beta={beta} gave no split in {_MAX_TRIES} tries in which each of '
      f'--num_clients={num_clients} has {MIN_EXAMPLES} of the {len(labels)} '
      'examples; raise --beta or lower --num_clients')


def _draw(random, members, num_clients, beta):
  """One try: each class's shuffled indices and where to cut them.

  None where some client got too little, or where all p underflow to 0.
  """
  limit = sum(map(len, members)) / num_clients
  sizes = np.zeros(num_clients, np.int64)
  draw = []
  for indices in members:
    indices = random.permutation(indices)
    p = random.dirichlet(np.repeat(beta, num_clients)) * (sizes < limit)
    total = p.sum()
    if not total > 0:  # a tiny beta can underflow to 0 or NaN
      return None
    cuts = (np.cumsum(p / total) * len(indices)).astype(int)[:-1]
    sizes += np.diff(cuts, prepend=0, append=len(indices))
    draw.append((indices, cuts))
  return draw if sizes.min() >= MIN_EXAMPLES else None


def quantity(num_examples: int, num_clients: int, beta: float,
             seed: int) -> list[np.ndarray]:
  """Splits a permutation by sizes p ~ Dir(beta): unequal sizes, like classes.

  Li et al., "Federated Learning on Non-IID Data Silos", quantity skew,
  https://arxiv.org/abs/2102.02079; index for index their released code, from
  numpy's legacy generator. Drawn anew until each client has `MIN_EXAMPLES`.

  Returns:
    For each client the int64 indices of its examples.

  Raises:
    UserError: where a bounded number of tries gives no such split.
  """
  _check_enough(num_examples, num_clients, MIN_EXAMPLES)
  random = np.random.RandomState(seed)
  order = random.permutation(num_examples)
  for _ in range(_MAX_TRIES):
    p = random.dirichlet(np.repeat(beta, num_clients))
    p = p / p.sum()
    if np.min(p * num_examples) >= MIN_EXAMPLES:  # never with NaN
      return np.split(order, (np.cumsum(p) * num_examples).astype(int)[:-1])
  raise UserError(
      f'--beta={beta} gave no split in {_MAX_TRIES} tries in which each of '
      f'--num_clients={num_clients} has {MIN_EXAMPLES} of the {num_examples} '
      'examples; raise --beta or lower --num_clients')


def shards(labels: np.ndarray, num_clients: int, shards_per_client: int,
           seed: int) -> list[np.ndarray]:
  """Sorts by class, cuts equal shards, deals each client a few at random.

  The pathological split of McMahan et al., AISTATS 2017, section 3,
  https://arxiv.org/abs/1602.05629, with 2 shards a client: most clients have
  two classes.

  Args:
    labels: int [N], the classes of the training examples, from 0.
    num_clients: number of clients.
    shards_per_client: shards that each client is dealt.
    seed: of numpy's legacy generator.

  Returns:
    For each client the int64 indices of its examples.

  Raises:
    UserError: with more shards than examples.
  """
  num_shards = num_clients * shards_per_client
  if num_shards > len(labels):
    raise UserError(
        f'--num_clients={num_clients} of --shards_per_client='
        f'{shards_per_client} are more shards than the {len(labels)} training '
        'examples; lower one of them')
  pieces = np.array_split(np.argsort(labels, kind='stable'), num_shards)
  dealt = np.random.RandomState(seed).permutation(num_shards)
  return [np.concatenate([pieces[j] for j in of_client])
          for of_client in np.split(dealt, num_clients)]


def natural(client_of_example: np.ndarray | None, num_clients: int,
            seed: int) -> list[np.ndarray]:
  """Gives each client the examples that are its own in the data set.

  Of a data set of more clients `num_clients` are drawn, without replacement, by
  numpy's legacy generator; they stay in the data set's order.

  Args:
    client_of_example: int [N], the client of each training example, from 0;
      None of data sets that have none.
    num_clients: number of clients.
    seed: of the draw.

  Returns:
    For each client the int64 indices of its examples.

  Raises:
    UserError: where the data set has no clients, or too few.
  """
  if client_of_example is None:
    raise UserError(
        '--partition=natural needs a data set that says whose each example '
        'is, as --dataset=shakespeare, or npz with client_train; give another '
        '--partition, such as dirichlet')
  order = np.argsort(client_of_example, kind='stable')
  _, begins = np.unique(client_of_example[order], return_index=True)
  clients = np.split(order, begins[1:])
  if num_clients > len(clients):
    raise UserError(
        f'--num_clients={num_clients} is too many: the data set has '
        f'{len(clients):,} clients of its own; give --num_clients='
        f'{len(clients)} or less')
  chosen = np.random.RandomState(seed).choice(
      len(clients), num_clients, replace=False)
  return [clients[c] for c in np.sort(chosen)]


def sorted_by_class(clients: list[np.ndarray],
                    labels: np.ndarray) -> list[np.ndarray]:
  """Sorts each client's examples by class; those of a class keep their order.

  Args:
    clients: for each client the indices of its examples.
    labels: int [N], the classes of the training examples.

  Returns:
    The same indices for each client, in the new order.
  """
  return [indices[np.argsort(labels[indices], kind='stable')]
          for indices in clients]


def noise_std(clients: list[np.ndarray], most: float,
              num_examples: int) -> np.ndarray:
  """Feature skew: of each example the noise on it, float32 [N].

  Client i of 0..N-1 has Gaussian noise of standard deviation most * i / (N-1),
  as in the code of NIID-Bench; Li et al., section 4.2, call it the variance and
  count i / N from 1.
  """
  std = np.zeros(num_examples, np.float32)
  for i, indices in enumerate(clients):
    std[indices] = most * i / max(len(clients) - 1, 1)
  return std


def are_disjoint(clients: list[np.ndarray]) -> bool:
  """Whether no example is two clients', or one's twice."""
  return np.bincount(np.concatenate(clients)).max() == 1


def _check_enough(num_examples, num_clients, each):
  if num_clients * each > num_examples:
    raise UserError(
        f'--num_clients={num_clients} is too many for {num_examples} training '
        f'examples, as each client needs at least {each}; lower --num_clients '
        f'to {num_examples // each} or less')


def class_counts(labels: np.ndarray, clients: list[np.ndarray],
                 num_classes: int) -> np.ndarray:
  """How many examples of each class each client has, int64 [C, K]."""
  return np.stack(
      [np.bincount(labels[i], minlength=num_classes) for i in clients])
