"""Partitions of the training examples over clients.

Each function returns a sequence with one int64 array per client, the indices of
the client's examples. `iid`, `dirichlet` and `quantity` return exactly the
indices that the released code of MOON and NIID-Bench draws from numpy's legacy
generator, so results are comparable with published ones.

Arguments that several functions share:

  labels        classes of the training examples, int array [N], from 0
  num_examples  number of training examples N
  num_clients   number of clients
  seed          seed of all draws, of `numpy.random.RandomState`: 0 to 2**32 - 1
"""

import bisect
from collections.abc import Sequence
import inspect
from typing import Annotated, Any

from annotated_types import Ge, Gt, Le
import numpy as np

from moon_jax.config.parts import checked, FromRun, parse
from moon_jax.config.suggest import arguments
from moon_jax.data import clients as clients_lib
from moon_jax.data import mapped
from moon_jax.data.clients import Clients
from moon_jax.errors import (
  first_line,
  require,
  require_package,
  setting,
  UserError,
)

MIN_EXAMPLES = 10  # per client; the released code draws until all have them
_MAX_TRIES = 1000


@arguments
def iid(num_examples: FromRun[int], num_clients: FromRun[int],
        seed: FromRun[int]) -> Clients:
  """Splits a random permutation into parts of equal size, up to one example.

  Raises:
    UserError: if there are more clients than examples.
  """
  _check_num_clients(num_clients, num_examples, 1)
  order = _random(seed).permutation(num_examples)
  return Clients(order, clients_lib.equal_sizes(num_examples, num_clients))


@arguments
@checked
def dirichlet(labels: FromRun[np.ndarray], num_clients: FromRun[int],
              beta: Annotated[float, Gt(0)] = 0.5, seed: FromRun[int] = 0
              ) -> list[np.ndarray]:
  """Splits each class over clients in proportions p ~ Dir(beta): label skew.

  A client that already has num_examples / num_clients examples gets none of the
  following classes. The split is drawn again until each client has at least
  `MIN_EXAMPLES` examples.

  Sources: Yurochkin et al., ICML 2019, https://arxiv.org/abs/1905.12022; Li et
  al., ICDE 2022, https://arxiv.org/abs/2102.02079.

  The module describes labels, num_clients and seed.

  Args:
    beta: concentration. Smaller values give fewer classes per client.

  Raises:
    UserError: if 1,000 tries give no such split.

  Examples:
    >>> labels = np.repeat(np.arange(10), 100)
    >>> clients = dirichlet(labels, num_clients=5, beta=0.5, seed=0)
    >>> [len(indices) for indices in clients]
    [190, 226, 177, 213, 194]
  """
  labels = _numbered(labels)
  _check_num_clients(num_clients, len(labels), MIN_EXAMPLES)
  num_classes = labels.max() + 1
  return _dirichlet(_random(seed), labels, beta,
                    np.ones((num_classes, num_clients), bool))


def _dirichlet(random, labels, beta, owners_KC):
  """Returns the split by class; `owners_KC` has who may have which class."""
  members = [np.flatnonzero(labels == k) for k in range(len(owners_KC))]
  for _ in range(_MAX_TRIES):
    draw = _draw_dirichlet(random, members, beta, owners_KC)
    if draw is None:
      continue
    pieces = [np.split(indices, cuts) for indices, cuts in draw]
    clients = [np.concatenate(piece) for piece in zip(*pieces)]
    for indices in clients:
      random.shuffle(indices)
    return clients
  raise _no_split_error(beta, owners_KC.shape[1], len(labels))


def _draw_dirichlet(random, members, beta, owners_KC):
  """Returns (shuffled indices, cut positions) of each class, or None.

  None means that a client has fewer than `MIN_EXAMPLES` examples, or that all
  proportions of a class underflow to 0.
  """
  num_clients = owners_KC.shape[1]
  limit = sum(map(len, members)) / num_clients
  sizes = np.zeros(num_clients, np.int64)
  draw = []
  for indices, owners_C in zip(members, owners_KC):
    indices = random.permutation(indices)
    p = random.dirichlet(np.repeat(beta, num_clients)) * (
        owners_C & (sizes < limit))
    total = p.sum()
    if not total > 0:  # p can be 0 or NaN if beta is tiny
      return None
    cuts = (np.cumsum(p / total) * len(indices)).astype(int)[:-1]
    cuts[np.flatnonzero(owners_C)[-1]:] = len(indices)  # despite rounding
    sizes += np.diff(cuts, prepend=0, append=len(indices))
    draw.append((indices, cuts))
  return draw if sizes.min() >= MIN_EXAMPLES else None


@arguments
@checked
def quantity(num_examples: FromRun[int], num_clients: FromRun[int],
             beta: Annotated[float, Gt(0)] = 0.5, seed: FromRun[int] = 0
             ) -> Clients:
  """Splits a permutation into sizes in proportions p ~ Dir(beta).

  Clients differ in size, but not in the distribution of classes. The sizes are
  drawn again until each client has at least `MIN_EXAMPLES` examples. Source:
  quantity skew of Li et al., ICDE 2022, https://arxiv.org/abs/2102.02079.

  Args:
    beta: concentration; smaller values give more unequal sizes.

  Raises:
    UserError: if 1,000 tries give no such split.
  """
  _check_num_clients(num_clients, num_examples, MIN_EXAMPLES)
  random = _random(seed)
  order = random.permutation(num_examples)
  for _ in range(_MAX_TRIES):
    p = random.dirichlet(np.repeat(beta, num_clients))
    p = p / p.sum()
    if np.min(p * num_examples) >= MIN_EXAMPLES:  # false if p is NaN
      cuts = (np.cumsum(p) * num_examples).astype(int)[:-1]
      return Clients(order, np.diff(cuts, prepend=0, append=num_examples))
  raise _no_split_error(beta, num_clients, num_examples)


@arguments
@checked
def shards(labels: FromRun[np.ndarray], num_clients: FromRun[int],
           shards_per_client: Annotated[int, Ge(1)] = 2,
           seed: FromRun[int] = 0) -> Clients:
  """Sorts examples by class and assigns equal shards to clients at random.

  With 2 shards per client, this is the pathological non-IID split of McMahan et
  al., AISTATS 2017, section 3, https://arxiv.org/abs/1602.05629: most clients
  have two classes.

  Args:
    shards_per_client: number of shards of each client.

  Raises:
    UserError: if there are more shards than examples.
  """
  labels = _labels(labels)
  _check_num_clients(num_clients, len(labels), 1)
  num_shards = int(num_clients) * shards_per_client
  require(num_shards <= len(labels), 'shards_per_client', 'must be such that '
          f'{setting("num_clients", num_clients)} times it is at most the '
          f'{len(labels)} training examples',
          f'{shards_per_client}, which gives {num_shards} shards',
          'Lower one of them')
  sizes = clients_lib.equal_sizes(len(labels), num_shards)
  order = _random(seed).permutation(num_shards)
  return Clients(
      clients_lib.gather(np.argsort(labels, kind='stable'),
                         (np.cumsum(sizes) - sizes)[order], sizes[order]),
      sizes[order].reshape(num_clients, -1).sum(1))


@arguments
@checked
def feature_noise(num_examples: FromRun[int], num_clients: FromRun[int],
                  seed: FromRun[int],
                  noise_std: Annotated[float, Ge(0)] = 0.1) -> Clients:
  """Splits as `iid`; the inputs of client i of C have noise.

  `moon_jax.partition.noise_std` has its standard deviations, which
  `moon_jax.Federation.input_noise_std` takes.

  The module describes num_examples, num_clients and seed.

  Args:
    noise_std: standard deviation of the noise of the last client, for images in
      0..1 or normalized features. It increases linearly from 0 for the first.
  """
  return iid(num_examples, num_clients, seed)


@arguments
@checked
def rotated(num_examples: FromRun[int], num_clients: FromRun[int],
            seed: FromRun[int], groups: Annotated[int, Ge(2), Le(4)] = 4
            ) -> Clients:
  """Splits as `iid`; each group of clients has images of another rotation.

  Ghosh et al., https://arxiv.org/abs/2006.04088, section 6.2, where each image
  is in all groups. `moon_jax.partition.turned` rotates the images. Held-out
  examples are rotated too; test and validation examples are not.

  The module describes num_examples, num_clients and seed.

  Args:
    groups: 2 or 4. Images of client i are rotated by (i mod groups) * 360 /
      groups degrees.
  """
  require(groups != 3, 'groups', 'must be 2 or 4, for turns by multiples of 90 '
          'degrees', groups, 'Give one of them')
  return iid(num_examples, num_clients, seed)


@arguments
def natural(client_of_example: FromRun[np.ndarray | None],
            num_clients: FromRun[int], seed: FromRun[int],
            names: FromRun[Sequence[str] | None] = None) -> Clients:
  """Uses the clients of the data set, such as users or writers.

  If the data set has more than `num_clients` clients, a random subset is drawn
  without replacement. Clients keep the order of the data set.

  The module describes num_clients and seed.

  Args:
    client_of_example: client of each training example, int array [N], from 0
      (`Dataset.train_clients`); None if the data set has no clients.
    names: of all clients of the data set (`Dataset.client_names`), if any.

  Raises:
    UserError: if the data set has no clients or fewer than `num_clients`, or
      clients lack a name.
  """
  client_of_example = _labels(
      _with_clients('natural', client_of_example), 'client_of_example',
      'the clients', 'data.train_clients')
  _check_num_clients(num_clients, len(client_of_example), 0)
  random = _random(seed)
  order = np.argsort(client_of_example, kind='stable')
  starts = np.flatnonzero(np.diff(
      client_of_example[order], prepend=client_of_example.min() - 1))
  sizes = np.diff(starts, append=len(order))
  require(num_clients <= len(sizes), 'num_clients', 'must be at most the '
          f'{len(sizes):,} clients of the data set', num_clients,
          f'Give {setting("num_clients", len(sizes))} or less')
  chosen = np.sort(random.choice(len(sizes), num_clients, replace=False))
  ids = client_of_example[order[starts[chosen]]]
  require(not names or max(ids) < len(names), 'names', 'must have a name for '
          f'each of the clients 0 to {max(ids)} of the data set',
          f'{len(names or ())} names', 'Add the others')
  return Clients(clients_lib.gather(order, starts[chosen], sizes[chosen]),
                 sizes[chosen], names and [names[i] for i in ids])


@arguments
@checked
def extended_dirichlet(labels: FromRun[np.ndarray], num_clients: FromRun[int],
                       classes_per_client: Annotated[int, Ge(1)] = 2,
                       beta: Annotated[float, Gt(0)] = 0.5,
                       seed: FromRun[int] = 0) -> list[np.ndarray]:
  """Draws classes for each client, and splits them as `dirichlet`: ExDir.

  The clients that have a class share it in proportions p ~ Dir(beta). The
  indices are those of the released code for the same state of NumPy's legacy
  generator. Source: Li and Lyu, NeurIPS 2023, appendix G,
  https://arxiv.org/abs/2311.03154.

  Args:
    classes_per_client: number of classes of each client.
    beta: concentration. Smaller values give less equal shares of a class.

  Raises:
    UserError: if there are fewer classes, or 1,000 tries give no such split.
  """
  classes, labels = _classes(labels, classes_per_client, num_clients)
  num_classes = len(classes)
  _check_num_clients(num_clients, len(labels), MIN_EXAMPLES)
  random = _random(seed)
  least = max(classes_per_client * num_clients // num_classes // 5, 1)
  for _ in range(_MAX_TRIES):
    owners_KC = np.zeros((num_classes, num_clients), bool)
    for i in range(num_clients):
      owners_KC[random.choice(
          num_classes, classes_per_client, replace=False), i] = True
    if owners_KC.sum(1).min() >= least:
      return _dirichlet(random, labels, beta, owners_KC)
  raise UserError(
      'classes_per_client', f'must be so large that one of {_MAX_TRIES} draws '
      f'gives each of the {num_classes} classes to at least {least} of '
      f'{setting("num_clients", num_clients)} clients', classes_per_client,
      'Raise it or num_clients')


@arguments
@checked
def pathological(labels: FromRun[np.ndarray], num_clients: FromRun[int],
                 classes_per_client: Annotated[int, Ge(1)] = 2,
                 seed: FromRun[int] = 0) -> list[np.ndarray]:
  """Gives each client examples of the same number of classes.

  In turn, each client gets the classes that the fewest clients have so far;
  ties are broken at random. The clients of a class share it equally. Unlike
  with `shards`, no client has fewer classes.

  Args:
    classes_per_client: number of classes of each client.

  Raises:
    UserError: if there are fewer classes, or a class has too few examples.
  """
  classes, labels = _classes(labels, classes_per_client, num_clients)
  num_classes = len(classes)
  random = _random(seed)
  owners_KC = np.zeros((num_classes, num_clients), bool)
  for i in range(num_clients):
    order = random.permutation(num_classes)
    rarest = np.argsort(owners_KC[order].sum(1), kind='stable')
    owners_KC[order[rarest[:classes_per_client]], i] = True
  clients: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
  for k, owners_C in enumerate(owners_KC):
    members = random.permutation(np.flatnonzero(labels == k))
    owners = np.flatnonzero(owners_C)
    require(len(members) >= len(owners), 'num_clients', 'must be such that '
            f'each of the {len(owners)} clients of class {classes[k]} gets one '
            f'of its {len(members)} examples', num_clients,
            'Lower it or classes_per_client')
    for owner, piece in zip(owners, np.array_split(members, len(owners))):
      clients[owner].append(piece)
  return [np.concatenate(pieces) for pieces in clients]


@arguments
@checked
def client_dirichlet(labels: FromRun[np.ndarray], num_clients: FromRun[int],
                     beta: Annotated[float, Gt(0)] = 0.5,
                     seed: FromRun[int] = 0) -> Clients:
  """Draws a class mix q ~ Dir(beta) for each client; all have equal sizes.

  In random order, clients take one example at a time, from a class drawn from q
  among the classes with examples left. So there is always a split, even for a
  tiny beta, and all examples are used. A client that takes its last examples
  after some classes have run out has more of the other classes. Sources: Acar
  et al., ICLR 2021, https://arxiv.org/abs/2111.04263; Hsu et al., 2019,
  https://arxiv.org/abs/1909.06335, whose alpha multiplies the shares of the
  classes: alpha = K * beta for K equally frequent classes.

  Args:
    beta: concentration. Smaller values give fewer classes per client.
  """
  labels = _numbered(labels)
  _check_num_clients(num_clients, len(labels), 1)
  random = _random(seed)
  left_K = np.bincount(labels)
  sizes = clients_lib.equal_sizes(len(labels), num_clients)
  with np.errstate(all='ignore'):
    q_CK = random.dirichlet(np.repeat(beta, len(left_K)), num_clients)
  limit_CK = np.eye(len(left_K))[random.randint(len(left_K), size=num_clients)]
  q_CK = np.where(np.isfinite(q_CK), q_CK, limit_CK)  # NaN if beta is tiny
  takers = random.permutation(np.repeat(np.arange(num_clients), sizes))
  classes = _drawn_classes(q_CK, left_K, takers.tolist(),
                           random.random_sample(len(labels)).tolist())
  examples = np.empty(len(labels), np.int64)
  for k in range(len(left_K)):
    examples[classes == k] = random.permutation(np.flatnonzero(labels == k))
  return Clients(examples[np.argsort(takers, kind='stable')], sizes)


def _drawn_classes(q_CK, left_K, takers, uniform):
  """Returns the class that each taker draws, int [N]."""
  left = left_K.tolist()
  ends = _ends(q_CK, left)
  classes = np.empty(len(takers), np.int64)
  for n, (i, u) in enumerate(zip(takers, uniform)):
    # Less than 1 by more than rounding, so that it is below the last end.
    k = bisect.bisect_right(ends[i], u * (1 - 2.**-40) * ends[i][-1])
    classes[n] = k
    left[k] -= 1
    if not left[k]:
      ends = _ends(q_CK, left)
  return classes


def _ends(q_CK, left):
  """Returns cumulative weights of the classes that are left, C lists of K.

  A client whose classes are gone takes what is left.
  """
  p_CK = q_CK * (np.array(left) > 0)
  p_CK = np.where(p_CK.sum(1, keepdims=True) > 0, p_CK, left)
  return np.cumsum(p_CK, 1).tolist()


@arguments
def domains(client_of_example: FromRun[np.ndarray | None],
            num_clients: FromRun[int], seed: FromRun[int],
            names: FromRun[Sequence[str] | None] = None) -> Clients:
  """Splits each domain over several clients.

  The domains are the clients of the data set, such as photo and sketch. Client
  i of C has examples of domain floor(i D / C), of D domains. The examples of a
  domain are split at random, into equal parts.

  The module describes num_clients and seed.

  Args:
    client_of_example: domain of each training example (see `natural`).
    names: of the domains, if any.

  Raises:
    UserError: if the data set has no domains or more than `num_clients`.
  """
  domains_N = _with_clients('domains', client_of_example)
  parts = natural(domains_N, len(np.unique(domains_N)), seed, names)
  require(num_clients >= len(parts), 'num_clients', 'must be at least the '
          f'{len(parts):,} domains of the data set', num_clients,
          f'Raise it, or give {setting("partition", "natural")}')
  random = _random(seed)
  counts = np.bincount(np.arange(num_clients) * len(parts) // num_clients)
  split, titles = [], []
  for domain, (indices, count) in enumerate(zip(parts, counts)):
    require(len(indices) >= count, 'num_clients', 'must be so small that each '
            f'of the {count} clients of a domain gets one of its '
            f'{len(indices)} examples', num_clients, 'Lower it')
    split += [np.sort(piece) for piece in np.array_split(
        random.permutation(indices), count)]
    title = parts.names[domain] if parts.names else str(domain)
    titles += [f'{title} {i}' if count > 1 else title for i in range(count)]
  return Clients(np.concatenate(split), clients_lib.sizes(split), titles)


@arguments
def temporal(num_examples: FromRun[int], num_clients: FromRun[int]) -> Clients:
  """Cuts the examples, in the order of the data set, into equal parts.

  The parts are periods if `csv(time=COLUMN)` has sorted the examples by time:
  client 0 has the earliest ones.

  The module describes num_examples and num_clients.
  """
  _check_num_clients(num_clients, num_examples, 1)
  return Clients(np.arange(num_examples),
                 clients_lib.equal_sizes(num_examples, num_clients))


@arguments
@checked
def flower(labels: FromRun[np.ndarray], num_clients: FromRun[int],
           partitioner: str, seed: FromRun[int] = 0,
           client_of_example: FromRun[np.ndarray | None] = None
           ) -> list[np.ndarray]:
  """Splits as a partitioner of the package flwr-datasets does.

  The module describes labels, num_clients and seed.

  Args:
    partitioner: a call of its class, such as
      "PathologicalPartitioner(num_classes_per_partition=2)". The run gives the
      number of clients, the seed and partition_by: the clients of the data set
      for NaturalIdPartitioner, and the labels for others.
    client_of_example: client of each example, for NaturalIdPartitioner.

  Raises:
    UserError: if the package is not installed, or its partitioner fails.
  """
  require_package('flwr_datasets', 'partition=flower', 'flower')
  import datasets
  from flwr_datasets import partitioner as library

  call = parse('partition', partitioner)
  made: Any = getattr(library, call.name, None)
  require(made is not None, 'partitioner', 'must be a class of '
          'flwr_datasets.partitioner', call.name,
          f'It has {", ".join(library.__all__)}')
  columns = {'label': labels, 'index': np.arange(len(labels))}
  if client_of_example is not None:
    columns['client'] = client_of_example
  known = {'num_partitions': num_clients, 'seed': seed,
           'partition_by': 'client' if 'NaturalId' in call.name else 'label',
           'partition_sizes': clients_lib.equal_sizes(
               len(labels), num_clients).tolist()}
  given = {name: known[name] for name in inspect.signature(made).parameters
           if name in known} | dict(call.arguments)
  try:
    split = made(**given)
    split.dataset = datasets.Dataset.from_dict(columns)
    clients = [np.asarray(split.load_partition(i)['index'], np.int64)
               for i in range(split.num_partitions)]
  except Exception as error:  # the library raises many kinds
    raise UserError('partitioner', 'must make a split', f'{partitioner} '
                    f'({first_line(error)})', 'Correct its arguments'
                    ) from error
  require(len(clients) == num_clients, 'num_clients', 'must be the '
          f'{len(clients)} clients of {call.name}', num_clients,
          f'Give {setting("num_clients", len(clients))}')
  return clients


def sorted_by_class(clients: Sequence[np.ndarray],
                    labels: np.ndarray) -> list[np.ndarray]:
  """Returns the indices of each client, sorted by class with a stable sort.

  Labels of tasks other than classification leave the order as it is.
  """
  if labels.ndim != 1 or labels.dtype.kind not in 'iu':
    return list(clients)
  return [indices[np.argsort(labels[indices], kind='stable')]
          for indices in clients]


def noise_std(clients: Sequence[np.ndarray], max_std: float,
              num_examples: int) -> np.ndarray:
  """Returns the standard deviation of the noise on each example, float32 [N].

  This is the feature skew of NIID-Bench: client i of 0..C-1 has Gaussian noise
  of standard deviation max_std * i / (C - 1). The formula is that of the
  released code; section 4.2 of Li et al. calls it the variance and uses i / C
  with i from 1.
  """
  std = np.zeros(num_examples, np.float32)
  for i, indices in enumerate(clients):
    std[indices] = max_std * i / max(len(clients) - 1, 1)
  return std


def turned(images: np.ndarray, clients: Sequence[np.ndarray],
           groups: int) -> np.ndarray:
  """Returns a copy of images [N, H, W, C], turned in groups of clients.

  Those of client i are turned counterclockwise, i modulo `groups` times by 360
  / `groups` degrees. Clients share no examples.

  Raises:
    UserError: if they are no images, not square, or stay in their file; or if
      `groups` is not 2 or 4.
  """
  require(groups in (2, 4), 'groups', 'must be 2 or 4, for turns by multiples '
          'of 90 degrees', groups, 'Give one of them')
  require(images.ndim == 4 and images.shape[1] == images.shape[2], 'partition',
          'needs square images to turn them', f'inputs of shape '
          f'{list(images.shape[1:])}', 'Give another one, such as iid')
  require(not mapped.is_mapped(images), 'partition', 'must not turn images '
          'that stay in their file, since it turns a copy in memory',
          f'{images.nbytes:,} bytes', 'Give another one, such as iid, or '
          'images in an npz file')
  images = images.copy()
  for i, indices in enumerate(clients):
    images[indices] = np.rot90(
        images[indices], i % groups * (4 // groups), axes=(1, 2))
  return images


def _classes(labels, classes_per_client, num_clients):
  """Returns the classes that examples have, and the index of each one's class.

  Clients can have all of them.
  """
  classes, index_N = np.unique(_labels(labels), return_inverse=True)
  require(classes_per_client <= len(classes)
          <= classes_per_client * num_clients, 'classes_per_client',
          f'must be at most the {len(classes)} classes, and so large that '
          f'{setting("num_clients", num_clients)} clients can have all of them',
          classes_per_client, 'Change it or num_clients')
  return classes, index_N


def _with_clients(name, client_of_example):
  """Returns the client of each example, which a partition of a name needs."""
  require(client_of_example is not None, f'partition={name}', 'needs a data '
          'set that assigns examples to clients', 'one without', 'Choose '
          'another partition, such as dirichlet; or data with clients, such as '
          f'{setting("dataset")}=shakespeare or npz with client_train')
  return client_of_example


def _no_split_error(beta, num_clients, num_examples):
  return UserError(
      'beta', f'must give a split in {_MAX_TRIES} tries where each of '
      f'{setting("num_clients", num_clients)} clients has at least '
      f'{MIN_EXAMPLES} of the {num_examples} examples', beta,
      f'Raise {setting("beta")} or lower {setting("num_clients")}')


# Checks of the arguments, since users call these functions.


def _labels(labels: Any, name: str = 'labels', what: str = 'the classes',
            remedy: str = 'data.train_labels; labels of other tasks need '
            'iid, quantity or natural') -> np.ndarray:
  x = np.zeros(()) if isinstance(labels, tuple) else np.asarray(labels)
  if x.ndim != 1 or x.dtype.kind not in 'iu':
    raise UserError(
        '', f'{name} must be {what} of the training examples, integers [N]',
        f'a {type(labels).__name__}'  # such as a whole `Dataset`
        if isinstance(labels, tuple) else f'{x.dtype} {list(x.shape)}',
        f'Pass {remedy}')
  return x.astype(np.int64)  # smaller types overflow


def _numbered(labels: Any) -> np.ndarray:
  """Returns `_labels` for functions that count the classes from 0."""
  labels = _labels(labels)
  least = labels.min(initial=0)
  require(least >= 0, 'labels', 'must number the classes from 0', least,
          'Pass numpy.unique(labels, return_inverse=True)[1]')
  return labels


def _random(seed: int) -> np.random.RandomState:
  require(not isinstance(seed, bool) and isinstance(seed, int | np.integer)
          and 0 <= seed < 2**32, 'seed', 'must be an integer from 0 to '
          '2**32 - 1, which makes the partition repeatable', repr(seed),
          f'{setting("seed", 0)} is usual')
  return np.random.RandomState(seed)


def _check_num_clients(num_clients: int, num_examples: int,
                       min_examples: int) -> None:
  for name, value in ('num_clients', num_clients), (
      'num_examples', num_examples):
    require(isinstance(value, int | np.integer) and value >= 1, name, 'must be '
            'an integer of at least 1', f'{type(value).__name__} of '
            f'{len(value)}' if hasattr(value, '__len__') else repr(value),
            'Pass num_clients=10, and len(data.train_labels) for num_examples')
  if int(num_clients) * min_examples > num_examples:
    raise UserError(
        'num_clients', f'must be at most {num_examples // min_examples}, so '
        f'that each client has at least {min_examples} of the {num_examples} '
        'training examples', num_clients, 'Lower it')
