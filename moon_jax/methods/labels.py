"""Classes of a client and of a batch, for methods of classification.

A client's view has the number n_k of its training examples of each of K
classes, `View.label_counts`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from moon_jax.algorithms.base import Batch, LossAux, View
from moon_jax.errors import UserError


def counts_K(view: View) -> jax.Array:
  """Returns n_k of each class, float32 [K].

  Raises:
    UserError: if labels are not classes.
  """
  if not view.label_counts.size:
    raise UserError(
        'algorithm', 'needs examples with one class each, the task '
        '"classification"', 'another task',
        'Most methods take any task, such as fedavg')
  return view.label_counts.astype(jnp.float32)


def require_classes(view: View) -> None:
  """Raises a UserError if labels are not classes."""
  counts_K(view)


def is_label_BK(batch: Batch, view: View) -> jax.Array:
  """Returns whether a class is the label of an example, bool [B, K]."""
  classes_K = jnp.arange(len(counts_K(view)))
  return batch.labels[:, None] == classes_K[None]


def loss_of_logits(logits_fn: Callable[[jax.Array, View], jax.Array]
                   ) -> Callable:
  """Returns `Algorithm.loss`: cross-entropy of logits_fn(logits [B, K], view).
  """
  def loss(model, variables, batch, view):
    outputs, variables = model.apply(
        variables, batch.inputs, batch.mask, train=True)
    logits_BK = logits_fn(outputs.logits, view)
    return model.task.loss(logits_BK, batch), LossAux(variables, {})

  return loss
