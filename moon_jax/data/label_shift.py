"""Labels that depend on the client: label noise and concept shift.

Each function returns new labels of the training examples; test labels stay as
they are. Clients must not share examples, since an example has one label.

Label noise is symmetric: a label is replaced by another class, drawn
uniformly. Noise is globalized if all clients have the same probability, and
localized if each has its own (Liang et al., FedNoisy,
https://arxiv.org/abs/2306.11650). FedNoisy draws the probabilities of localized
noise uniformly; here they increase evenly from client to client.

Concept shift: the same input has another label on other clients. Groups of
clients permute the classes differently (Sattler et al.,
https://arxiv.org/abs/1910.01991; Ghosh et al., IFCA,
https://arxiv.org/abs/2006.04088, for the groups).

Label flips of hostile clients: y becomes K - 1 - y (Karimireddy et al.,
https://arxiv.org/abs/2012.10333, section 7).

Random numbers are NumPy's, seeded with (seed, client or group, 0, purpose), so
those of a client do not depend on the number of clients.

Arguments that several functions share:

  labels       classes of the training examples, int [N], from 0
  clients      for each client the indices of its examples; disjoint
  num_classes  K
  seed         seed of all draws
"""

from collections.abc import Sequence
import math
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt
import numpy as np

from moon_jax import errors
from moon_jax.config import Config, parts
from moon_jax.config.parts import FromRun
from moon_jax.data import attackers
from moon_jax.data import clients as clients_lib
from moon_jax.data.dataset import Dataset
from moon_jax.errors import require, setting

_NOISE, _CONCEPT = 2, 3  # the last numbers of the seeds


def clean(labels: FromRun[np.ndarray]) -> np.ndarray:
  """Returns the labels of the data set."""
  return labels


def noise(labels: FromRun[np.ndarray], clients: FromRun[Sequence[np.ndarray]],
          num_classes: FromRun[int], seed: FromRun[int],
          rate: Annotated[float, Gt(0), Lt(1)] = 0.2,
          form: Literal['globalized', 'localized'] = 'globalized'
          ) -> np.ndarray:
  """Returns labels that are another class with a probability.

  The module describes labels, clients, num_classes and seed.

  Args:
    rate: the largest probability over clients.
    form: which clients have noise: "globalized", all equally; or "localized",
      increasing linearly from 0 for the first client to `rate` for the last.
  """
  count = len(clients)
  rates = np.full(count, rate) if form == 'globalized' else (
      rate * np.arange(count) / max(count - 1, 1))
  return noisy(labels, clients, rates, num_classes, seed)


def shift(labels: FromRun[np.ndarray], clients: FromRun[Sequence[np.ndarray]],
          num_classes: FromRun[int], seed: FromRun[int],
          groups: Annotated[int, Ge(2)] = 2,
          noise_rate: Annotated[float, Ge(0), Lt(1)] = 0.,
          noise_form: Literal['globalized', 'localized'] = 'globalized'
          ) -> np.ndarray:
  """Returns labels permuted differently by groups of clients.

  The module describes labels, clients, num_classes and seed.

  Args:
    groups: client i is in group i modulo this number; the first group keeps
      the labels.
    noise_rate: of label noise after the permutation, as `noise`; 0 has none.
    noise_form: its form.
  """
  labels = permuted(labels, clients, groups, num_classes, seed)
  return labels if not noise_rate else noise(
      labels, clients, num_classes, seed, noise_rate, noise_form)


@errors.naming(num_groups='labels.groups', rates='labels')
def configured(config: Config, dataset: Dataset,
               clients: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the labels of the training examples, shifted as configured.

  `clients` have the examples that they will hold out, too.

  Raises:
    UserError: if clients share examples, or there are too few classes.
  """
  if config.labels.name != 'clean':
    _check_may_change(config, dataset, clients, 'labels', config.labels)
  made = parts.make(
      'labels', config.labels, labels=dataset.train_labels, clients=clients,
      num_classes=dataset.num_classes, seed=config.split_seed())
  if config.labels.is_own:
    _check_own(config.labels.name, made, dataset)
  return made


def _check_own(name, labels, dataset):
  """Checks the labels that your own function returns."""
  count, most = len(dataset.train_labels), dataset.num_classes - 1
  is_array = labels.shape == (count,) and labels.dtype.kind in 'iu'
  require(is_array and 0 <= labels.min() and labels.max() <= most,
          f'labels={name}', f'must return the labels of the {count} training '
          f'examples, integers from 0 to {most}',
          f'{labels.dtype} {list(labels.shape)}' + (
              f' from {labels.min()} to {labels.max()}' if is_array else ''),
          'Change the function')


def with_flips(config: Config, dataset: Dataset, labels: np.ndarray,
               clients: Sequence[np.ndarray]) -> np.ndarray:
  """Returns `labels`, flipped where hostile clients train on them.

  Raises:
    UserError: if clients share examples, or labels are not classes.
  """
  if config.attack.name != 'label_flip':
    return labels
  _check_may_change(config, dataset, clients, 'attack', config.attack)
  return flipped(
      labels, clients, attackers.configured(config), dataset.num_classes)


def _check_may_change(config, dataset, clients, name, value):
  """Checks that each client may have labels of its own."""
  check_classes(dataset, name, value, 'Remove it')
  require(clients_lib.are_disjoint(clients), name, 'must not change labels of '
          'clients that share examples, since an example has one label', value,
          f'Remove it, or give another {setting("partition")} than '
          f'{config.partition}')


def check_classes(dataset: Dataset, name: str, value: object,
                  remedy: str) -> None:
  """Raises a UserError, of the setting `name`, unless labels are classes."""
  task = dataset.task_name
  require(task == 'classification', name, f'must suit the task {task} of '
          f'{dataset.name}, whose labels are no classes', value, remedy)


def _require_disjoint(clients):
  require(clients_lib.are_disjoint(clients), 'clients', 'must not share '
          'examples, since an example has one label', 'some that do',
          'Give each example to one client')


def noisy(labels: np.ndarray, clients: Sequence[np.ndarray],
          rates: Sequence[float], num_classes: int, seed: int) -> np.ndarray:
  """Returns labels, replaced by another class with the `rates` of the clients.

  Raises:
    UserError: if there is one class only, not a rate from 0 to 1 for each
      client, or clients share examples.

  Examples:
    >>> labels = np.zeros(8, np.int32)
    >>> clients = [np.arange(4), np.arange(4, 8)]
    >>> noisy(labels, clients, rates=[0, 1], num_classes=3, seed=0)
    array([0, 0, 0, 0, 2, 2, 2, 2], dtype=int32)
  """
  require(num_classes >= 2, 'rates', 'must be for at least 2 classes',
          num_classes, 'Remove it, as there is no other label')
  rate_C = np.asarray(rates)
  require(rate_C.shape == (len(clients),) and np.all(
      (0 <= rate_C) & (rate_C <= 1)), 'rates', 'must be a number from 0 to 1 '
          f'for each of the {len(clients)} clients', rates,
          f'[0.2] * {len(clients)} has the same one for all')
  _require_disjoint(clients)
  labels = _copied(labels, num_classes)
  for client, (indices, rate) in enumerate(zip(clients, rates, strict=True)):
    random = np.random.default_rng([seed, client, 0, _NOISE])
    is_wrong = random.random(len(indices)) < rate
    offset = random.integers(1, num_classes, len(indices))  # 1 to K - 1
    labels[indices] = np.where(
        is_wrong, (labels[indices] + offset) % num_classes, labels[indices])
  return labels


def flipped(labels: np.ndarray, clients: Sequence[np.ndarray],
            hostile: Sequence[int], num_classes: int) -> np.ndarray:
  """Returns labels, y replaced by K - 1 - y for examples of some clients."""
  labels = _copied(labels, num_classes)
  for client in hostile:
    labels[clients[client]] = num_classes - 1 - labels[clients[client]]
  return labels


def _copied(labels, num_classes):
  """Returns a copy of labels in a type that holds all classes."""
  return labels.astype(np.result_type(
      labels.dtype, np.min_scalar_type(num_classes - 1)))


def permutations(num_groups: int, num_classes: int, seed: int) -> np.ndarray:
  """Returns the label of each class in each group, int64 [G, K].

  The first group keeps the labels; the permutations of all groups differ.

  Raises:
    UserError: if there are fewer permutations than groups.
  """
  most = math.factorial(min(num_classes, 20))
  require(num_groups <= most, 'num_groups', f'must be at most {most}, the '
          f'number of permutations of {num_classes} classes', num_groups,
          'Lower it')
  chosen = [tuple(range(num_classes))]
  for group in range(1, num_groups):
    random = np.random.default_rng([seed, group, 0, _CONCEPT])
    while (drawn := tuple(random.permutation(num_classes))) in chosen:
      pass
    chosen.append(drawn)
  return np.array(chosen)


def permuted(labels: np.ndarray, clients: Sequence[np.ndarray],
             num_groups: int, num_classes: int, seed: int) -> np.ndarray:
  """Returns labels permuted differently in each group of clients.

  Client i is in group i modulo `num_groups`.

  Raises:
    UserError: if there are fewer permutations than groups, or clients share
      examples.
  """
  _require_disjoint(clients)
  labels = _copied(labels, num_classes)
  new_GK = permutations(num_groups, num_classes, seed).astype(labels.dtype)
  for i, indices in enumerate(clients):
    labels[indices] = new_GK[i % num_groups][labels[indices]]
  return labels
