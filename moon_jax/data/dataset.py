"""The data set type that all other modules take."""

from collections.abc import Sequence
import functools
import hashlib
import pathlib
import re
from typing import NamedTuple, TYPE_CHECKING

import numpy as np

from moon_jax.data import mapped
from moon_jax.data.io.files import HASH_DIGITS

if TYPE_CHECKING:
  from moon_jax.tasks import Task

_TEST_SUBSET_SEED = 0  # constant, so that all runs share their test examples


def subset(seed: int | Sequence[int], num_examples: int,
           count: int) -> np.ndarray:
  """Returns the sorted indices of a random part of the examples, int [n].

  The draw is uniform without replacement, by NumPy's legacy generator, whose
  numbers are the same in all versions. Smaller parts are contained in larger
  ones.
  """
  return np.sort(np.random.RandomState(seed).permutation(num_examples)[:count])


class Dataset(NamedTuple):
  """A data set: training and test examples as NumPy arrays.

  N training examples, M test examples, K classes, C channels, F features.
  Inputs are stored without normalization or augmentation; both are applied to
  each batch on the device. The dtype of `train_inputs` selects the kind:

    images    uint8 [N, H, W, C], values 0 to 255
    features  float32 [N, ..., F], finite values
    tokens    int8, int16 or int32 [N, T], values 0 to num_tokens - 1

  The constructor checks and converts nothing.
  `moon_jax.data.sources.arrays.to_dataset` builds a data set from array-likes
  of other dtypes, checks them and computes `mean`, `std` and `num_tokens`.

  Attributes:
    name: name of the data set, for logs and reports.
    train_inputs: training inputs, [N, ...] as above. A `numpy.memmap` stays in
      its file and requires `Federation.shard_data`.
    train_labels: classes of the training examples, int32 [N], 0 to K - 1.
    test_inputs: test inputs, [M, ...] of the same dtype and example shape.
    test_labels: classes of the test examples, int32 [M], 0 to K - 1.
    class_names: K strings, one per class, token, label or target.
    mean: mean to subtract: one value per channel of images scaled to 0..1, per
      feature, or for all; unused for tokens.
    std: standard deviation to divide by, in the same form; above 0.
    augmentation: a key of `moon_jax.data.augment.AUGMENTATIONS`; 'none' for
      features and tokens.
    num_tokens: size of the vocabulary; 0 unless the inputs are tokens.
    train_clients: client of each training example for --partition=natural,
      int32 [N], numbered from 0; None if the data set has no natural clients.
    test_clients: client of each test example, int32 [M], numbered as in
      `train_clients`; None if test examples belong to no client.
    client_names: of the clients in `train_clients`, by number; None if they
      have none. They do not change results.
    task: what labels mean: "classification", "tokens", "multilabel",
      "regression", or a `moon_jax.Task`. For all but the first, labels have
      the shapes and types that `moon_jax.tasks` describes.

  Examples:
    >>> rng = np.random.default_rng(0)
    >>> dataset = Dataset(
    ...     name='toy',
    ...     train_inputs=rng.normal(size=(100, 5)).astype(np.float32),
    ...     train_labels=rng.integers(2, size=100).astype(np.int32),
    ...     test_inputs=rng.normal(size=(20, 5)).astype(np.float32),
    ...     test_labels=rng.integers(2, size=20).astype(np.int32),
    ...     class_names=('no', 'yes'))
  """

  name: str
  train_inputs: np.ndarray
  train_labels: np.ndarray
  test_inputs: np.ndarray
  test_labels: np.ndarray
  class_names: tuple[str, ...]
  mean: tuple[float, ...] = (0.,)
  std: tuple[float, ...] = (1.,)
  augmentation: str = 'none'
  num_tokens: int = 0
  train_clients: np.ndarray | None = None
  test_clients: np.ndarray | None = None
  client_names: tuple[str, ...] | None = None
  task: 'str | Task' = 'classification'

  @property
  def num_classes(self) -> int:
    """The number of classes K, or of other outputs."""
    return len(self.class_names)

  @property
  def task_name(self) -> str:
    """The name of the task."""
    return self.task if isinstance(self.task, str) else self.task.name

  @property
  def is_images(self) -> bool:
    """Whether the inputs are images."""
    return self.train_inputs.dtype == np.uint8

  @property
  def num_counted(self) -> int:
    """The number of classes that `label_counts` counts."""
    return self.num_classes if self.task_name == 'classification' else 0

  def label_counts(self, clients: Sequence[np.ndarray]) -> np.ndarray:
    """Returns how many of some training examples each class has.

    Args:
      clients: for each of J clients the indices of its examples.

    Returns:
      int32 [J, K]; [J, 0] for tasks other than classification.
    """
    counts = np.zeros((len(clients), self.num_counted), np.int32)
    if self.num_counted:
      for row, indices in zip(counts, clients):
        row[:] = np.bincount(
            self.train_labels[indices], minlength=len(row))
    return counts

  def with_int32_labels(self) -> 'Dataset':
    """Returns the data set with classes as int32; smaller types overflow."""
    if self.task_name != 'classification' or (
        self.train_labels.dtype == self.test_labels.dtype == np.int32):
      return self
    return self._replace(train_labels=self.train_labels.astype(np.int32),
                         test_labels=self.test_labels.astype(np.int32))

  def with_test_examples(self, count: int) -> 'Dataset':
    """Returns the data set with a random subset of its test examples.

    It is a `subset` of a constant seed. Examples keep their order.

    Args:
      count: number of test examples, at most M; 0 selects all.
    """
    if not count:
      return self
    indices = subset(_TEST_SUBSET_SEED, len(self.test_labels), count)
    return self._replace(
        test_inputs=self.test_inputs[indices],
        test_labels=self.test_labels[indices],
        test_clients=None if self.test_clients is None
        else self.test_clients[indices])

  def fingerprint(self) -> str:
    """Returns a hash of all fields except the names, hexadecimal digits.

    Fields of later versions count only if they are set, so that the hashes of
    earlier versions stay valid.
    """
    fields = [x for name, x in zip(self._fields, self)
              if name not in ('name', 'client_names', 'task')
              and not (name == 'test_clients' and x is None)]
    own_code = _own_code(self.task)
    if own_code or self.task_name != 'classification':
      fields += [self.task_name, *own_code]
    digest = hashlib.sha256(repr([
        x if not isinstance(x, np.ndarray) else (x.dtype.str, x.shape)
        for x in fields]).encode())
    for x in fields:
      if isinstance(x, np.ndarray):
        for part in mapped.chunks(x):
          digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()[:HASH_DIGITS]


def _own_code(task):
  """Returns the source files of the functions of a task of your own."""
  functions = () if isinstance(task, str) else (
      task.loss_B, task.metrics_B, task.count_B)
  files: set[str] = set()
  settings: list[str] = []
  for function in functions:
    while isinstance(function, functools.partial) or (
        hasattr(function, '__wrapped__')):
      if isinstance(function, functools.partial):
        given = repr((function.args, function.keywords))
        settings.append(re.sub(r' at 0x\w+', '', given))  # of another process
        function = function.func
      else:
        function = function.__wrapped__
    if hasattr(function, '__code__') and not (
        str(function.__module__).startswith('moon_jax.')):
      files.add(function.__code__.co_filename)
  return [*settings, *(path.read_bytes() for path in map(
      pathlib.Path, sorted(files)) if path.is_file())]
