"""Accuracy and loss of global models on the whole test set."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from moon_jax import losses
from moon_jax.models import Model
from moon_jax.models.base import Variables

_BATCH = 500  # examples at a time; a multiple of most test sets


class TestData(NamedTuple):
  """A test set in batches: S batches of B; B and H, W, C as elsewhere."""

  __test__ = False  # not a test, whatever pytest thinks of the name

  images: jax.Array  # uint8 [S, B, H, W, C]
  labels: jax.Array  # int32 [S, B]
  mask: jax.Array  # float32 [S, B], 0 for padding


class Evaluation(NamedTuple):
  """Of each of R models; sums, so that a fraction of them is exact."""

  num_correct: jax.Array  # int32 [R]
  loss_sum: jax.Array  # float32 [R], cross-entropy in nats


def batched(images: np.ndarray, labels: np.ndarray) -> TestData:
  """Cuts M examples into batches, the last one padded, on the device."""
  size = min(_BATCH, len(labels))
  padding = -len(labels) % size

  def cut(array):
    width = [(0, padding)] + [(0, 0)] * (array.ndim - 1)
    return jnp.asarray(
        np.pad(array, width).reshape(-1, size, *array.shape[1:]))

  return TestData(cut(images), cut(labels),
                  cut(np.ones(len(labels), np.float32)))


def make_evaluate(
    model: Model, normalize_fn: Callable[[jax.Array], jax.Array]
) -> Callable[[Variables, TestData], Evaluation]:
  """Compiles (variables_R, data) -> Evaluation."""

  def of_batch(variables, data):
    outputs, _ = model.apply(
        variables, normalize_fn(data.images), data.mask, train=False)
    is_real_B = data.mask > 0
    is_correct_B = jnp.argmax(outputs.logits, -1) == data.labels
    ce_B = losses.cross_entropy_B(outputs.logits, data.labels)
    return Evaluation(jnp.sum(is_correct_B & is_real_B),
                      jnp.sum(jnp.where(is_real_B, ce_B, 0)))

  def of_run(variables, data):
    batches = lax.map(lambda batch: of_batch(variables, batch), data)
    return jax.tree.map(jnp.sum, batches)

  return jax.jit(
      lambda variables, data: lax.map(lambda v: of_run(v, data), variables))
