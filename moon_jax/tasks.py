"""What labels mean: the loss and the metrics of one batch, for each task.

    classification  a class per example      int [N], 0 to K - 1
    tokens          a token per position     int [N, T], 0 to K - 1; -1: ignored
    multilabel      K yes-or-no labels       0 or 1, [N, K]
    regression      D numbers                floating point [N], or [N, D]

The number of outputs, K or D, is that of `Dataset.class_names`. A method takes
the loss of the task of its data: `model.task.loss(logits, batch)`.
"""

from collections.abc import Callable, Mapping
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import errors, losses, trees, user_code
from moon_jax.errors import UserError

# Names that evaluations record themselves, after those of sets ("test_loss").
_RESERVED = re.compile('loss|examples|.*_(std|weighted|worst_tenth)')


class Task(NamedTuple):
  """A task as pure functions of one batch of B examples.

  Results of the functions are sums over the predictions of an example: one, or
  as many as `count_B` returns. Means are over all predictions of a set.

  Attributes:
    name: for messages, and for the fingerprint of data.
    loss_B: `(logits, labels) -> float [B]`. Returns the loss.
    metrics_B: `(logits, labels) -> {name: [B]}`. Returns numbers by name, such
      as bool [B] as "accuracy"; evaluations record the mean
      ("test_accuracy"). The best round has the highest accuracy, or without
      one the lowest loss. Evaluations use the names "loss" and "examples"
      themselves, and names that end in "_std", "_weighted" or "_worst_tenth".
    count_B: `(labels) -> int [B]`. Returns the number of predictions; None if
      each example has one.

  Examples:
    >>> huber = moon_jax.Task('huber', lambda logits, labels: jnp.mean(
    ...     optax.huber_loss(logits, labels.reshape(logits.shape)), 1))
    >>> dataset = dataset._replace(task=huber)
  """

  name: str
  loss_B: Callable[[jax.Array, jax.Array], jax.Array]
  metrics_B: Callable[[jax.Array, jax.Array], dict[str, jax.Array]] = (
      lambda logits, labels: {})
  count_B: Callable[[jax.Array], jax.Array] | None = None

  def loss(self, logits: jax.Array, batch: Any) -> jax.Array:
    """Returns the mean loss of a `moon_jax.Batch` over its predictions."""
    loss_B = self.loss_B(logits, batch.labels)
    if batch.mixed is not None:
      labels, weight = batch.mixed
      loss_B = weight * loss_B + (1 - weight) * self.loss_B(logits, labels)
    if self.count_B is None:
      return losses.masked_mean(loss_B, batch.mask)
    total = jnp.sum(jnp.where(batch.mask > 0, loss_B, 0))
    return total / jnp.maximum(self.count(batch).astype(loss_B.dtype), 1)

  def count(self, batch: Any) -> jax.Array:
    """Returns the number of predictions of a `moon_jax.Batch`, float32."""
    if self.count_B is None:
      return jnp.sum(batch.mask)
    count_B = self.count_B(batch.labels).astype(jnp.float32)
    return jnp.sum(jnp.where(batch.mask > 0, count_B, 0))

  def counts(self, labels: np.ndarray) -> np.ndarray:
    """Returns the number of predictions of each of N examples, int [N]."""
    return np.ones(len(labels), np.int64) if self.count_B is None else (
        np.asarray(self.count_B(labels), np.int64))


def _token_loss_B(logits_BTK, labels_BT):
  """Returns the sum of the cross-entropies; that of an ignored token is 0."""
  loss_N = losses.cross_entropy_B(
      logits_BTK.reshape(-1, logits_BTK.shape[-1]), labels_BT.reshape(-1))
  return jnp.sum(loss_N.reshape(labels_BT.shape), 1)


def _label_loss_B(logits_BK, labels_BK):
  """Returns the mean binary cross-entropy of the labels, in nats."""
  labels = labels_BK.astype(logits_BK.dtype)
  return jnp.mean(jax.nn.softplus(logits_BK) - labels * logits_BK, 1)


def _squared_error_B(outputs_BD, labels):
  """Returns the mean squared error of the targets, [B] or [B, D]."""
  return jnp.mean((outputs_BD - labels.reshape(outputs_BD.shape))**2, 1)


CLASSIFICATION = Task(
    'classification', losses.cross_entropy_B,
    lambda logits_BK, labels_B: {
        'accuracy': jnp.argmax(logits_BK, -1) == labels_B})
TOKENS = Task(
    'tokens', _token_loss_B,
    lambda logits_BTK, labels_BT: {'accuracy': jnp.sum(
        jnp.argmax(logits_BTK, -1) == labels_BT, 1)},
    lambda labels_BT: (labels_BT >= 0).sum(1))
MULTILABEL = Task(
    'multilabel', _label_loss_B,
    lambda logits_BK, labels_BK: {
        'accuracy': jnp.mean((logits_BK > 0) == (labels_BK > 0), 1),
        'exact_match': jnp.all((logits_BK > 0) == (labels_BK > 0), 1)})
REGRESSION = Task(
    'regression', _squared_error_B,
    lambda outputs_BD, labels: {'mse': _squared_error_B(outputs_BD, labels)})
TASKS = {task.name: task for task in (
    CLASSIFICATION, TOKENS, MULTILABEL, REGRESSION)}


def get(task: 'str | Task') -> Task:
  """Returns a task by name; returns a `Task` itself.

  Raises:
    UserError: if there is no such task.
  """
  if isinstance(task, Task):
    return task
  if not isinstance(task, str) or task not in TASKS:
    raise UserError('task', f'must be one of {", ".join(TASKS)}, or a '
                    'moon_jax.Task', repr(task), 'Correct it')
  return TASKS[task]


def check_functions(task: Task, logits: Any, labels: Any) -> None:
  """Checks the results of the loss and the metrics of a task.

  Args:
    task: the task.
    logits: array of B examples, or its shape and type.
    labels: of these examples, with different values if there are such.

  Raises:
    UserError: if a result is not [B], the metrics are no dict by name, one has
      a reserved name, the number of predictions is no integer, or numbers of an
      example depend on the others.
  """
  place = user_code.place(task.loss_B)
  if task.count_B is not None:
    count = jax.eval_shape(lambda labels: jnp.asarray(task.count_B(labels)),
                           jnp.asarray(labels))
    errors.require(
        count.shape == (len(labels),) and jnp.issubdtype(
            count.dtype, jnp.integer), '', f'count_B of the task {task.name} '
        'must return the number of predictions of each example, integers [B]',
        f'{trees.shapes(count)} for B = {len(labels)}'
        f'{user_code.place(task.count_B)}',
        'Sum over other axes: (labels >= 0).sum(1)')

  def results(logits):
    metrics = task.metrics_B(logits, labels)
    if not isinstance(metrics, Mapping) or not all(
        isinstance(name, str) for name in metrics):
      got = (list(metrics) if isinstance(metrics, Mapping)
             else trees.shapes(metrics))
      raise UserError(
          '', f'metrics_B of the task {task.name} must return a dict of '
          'numbers by name', f'{got}{place}',
          "Return a dict such as {'mae': mae_B}")
    return metrics, task.loss_B(logits, labels)

  metrics, loss = jax.eval_shape(results, logits)
  if any(x.shape != (len(labels),) for x in jax.tree.leaves((metrics, loss))):
    raise UserError(
        '', f'loss_B and metrics_B of the task {task.name} must return one '
        'number for each example, [B]', f'{trees.shapes((loss, metrics))} for '
        f'B = {len(labels)}{place}', 'Sum over other axes')
  if names := [name for name in metrics if _RESERVED.fullmatch(name)]:
    raise UserError(
        '', f'metrics_B of the task {task.name} must use other names than loss '
        'and examples, and none that ends in _std, _weighted or _worst_tenth, '
        'which evaluations record', f'{names[0]!r}{place}', 'Rename it')
  if task.name not in TASKS:
    _check_examples_are_separate(task, logits, labels, place)


def _check_examples_are_separate(task, logits, labels, place):
  """Checks that the numbers of the first example are the same without others.

  Labels [B] and logits [B, 1] broadcast to [B, B], whose mean is [B], too.
  """
  z = np.random.default_rng(0).normal(size=logits.shape).astype(logits.dtype)

  def numbers(count):
    z_B, labels_B = jnp.asarray(z[:count]), jnp.asarray(labels[:count])
    return {'loss_B': task.loss_B(z_B, labels_B)[0], **{
        f'metrics_B {name!r}': x[0] for name, x in task.metrics_B(
            z_B, labels_B).items()}}

  alone = numbers(1)
  for name, x in numbers(len(z)).items():
    errors.require(
        np.allclose(x, alone[name], rtol=1e-3, atol=1e-5, equal_nan=True), '',
        f'{name} of the task {task.name} must give each example a number that '
        'does not depend on the others of the batch', f'{float(x):.4g} in a '
        f'batch of {len(z)} and {float(alone[name]):.4g} alone{place}',
        f'With logits {list(z.shape)} and labels {list(labels.shape)}, '
        'labels.reshape(logits.shape) gives both the same shape'
        if z.size == labels.size and z.shape != labels.shape
        else 'Take no sums or means over the first axis')


def check_labels(task: Task, name: str, labels: Any, num_examples: int,
                 num_outputs: int, num_positions: int = 0) -> None:
  """Checks that labels other than classes fit a task; of your own, their count.

  Args:
    task: not `CLASSIFICATION`.
    name: of the labels, such as "train_labels"; messages begin with it.
    labels: [N, ...].
    num_examples: N.
    num_outputs: K or D.
    num_positions: T of the inputs, if they are tokens.

  Raises:
    UserError: with the requirement, what the labels are, and a remedy.
  """
  def require(is_valid, requirement, got, remedy):
    errors.require(is_valid, '', f'{name} of the task {task.name} must '
                   f'{requirement}', got, remedy)

  require(isinstance(labels, np.ndarray | jax.Array), 'be an array of NumPy',
          f'a {type(labels).__name__}', 'Pass numpy.asarray(labels)')
  shape = labels.shape
  got = f'{labels.dtype} {list(shape)}'
  require(shape[:1] == (num_examples,), 'be an array with one row for each of '
          f'the {num_examples} examples', got, 'Give as many of both')
  kind, width = labels.dtype.kind, (num_examples, num_outputs)
  require(kind in 'biuf', 'be numbers', got, 'Convert them')
  if task.name == 'tokens':
    length = num_positions or 'T'
    require(kind in 'iu' and len(shape) == 2 and (
        not num_positions or shape[1] == num_positions),
            f'be integers [N, {length}], a token for each position', got,
            "Give -1 where none counts; task='classification' takes a class "
            'for each example')
    low, high = labels.min(), labels.max()
    require(-1 <= low and 0 <= high < num_outputs,
            f'be tokens from 0 to {num_outputs - 1}, or -1 where none counts',
            f'{low} to {high}', 'Give as many class_names as there are tokens')
  elif task.name == 'multilabel':
    requirement = f'be 0 or 1, [N, {num_outputs}], one for each of class_names'
    require(shape == width, requirement, got, "task='classification' takes "
            'classes, integers [N]')
    is_other = ~np.isin(labels, (0, 1))
    if is_other.any():
      first = np.asarray(labels)[is_other].tolist()[0]
      require(False, requirement, f'{is_other.sum():,} others, such as {first}',
              'If they mean no, give labels > 0; if unknown, remove these '
              'examples')
  elif task.name == 'regression':
    is_flat = num_outputs == 1 and len(shape) == 1
    require(kind == 'f' and (is_flat or shape == width),
            f'be floating point [N, {num_outputs}]' + (
                ' or [N]' * (num_outputs == 1)) + ', one for each of '
            'class_names', got, "Pass labels.astype('float64'), and a name for "
            'each target')
    is_bad = ~np.isfinite(labels).reshape(num_examples, -1).all(1)
    require(not is_bad.any(), 'be finite', 'NaN or infinity in '
            f'{is_bad.sum():,} examples, the first at index {is_bad.argmax()}',
            'Remove these examples')
