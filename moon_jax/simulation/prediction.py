"""Predictions of a model for a batch of examples, the core of all evaluations.

`moon_jax.engine` lists the axis letters; S batches of B examples.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
import numpy as np

from moon_jax import losses
from moon_jax.distributed import devices
from moon_jax.distributed.devices import SPLIT
from moon_jax.engine.local import TrainData
from moon_jax.models import Model
from moon_jax.models.base import Variables

BATCH = 100  # examples at a time; divides most test sets


class Batches(NamedTuple):
  """Examples in batches, or without the axis S one batch."""

  inputs: jax.Array  # as stored, [S, B, ...]
  labels: jax.Array  # int32 [S, B]
  mask: jax.Array  # float32 [S, B], 0 for padding


class Predictions(NamedTuple):
  """Predictions of examples; those of padding are False and 0."""

  is_correct: jax.Array  # bool [B]
  loss: jax.Array  # float32 [B], cross-entropy in nats
  logits: jax.Array  # [B, K], not masked


class Sums(NamedTuple):
  """Sums over examples."""

  num_correct: jax.Array  # int32
  loss: jax.Array  # float32, cross-entropy in nats


def batched(inputs: np.ndarray, labels: np.ndarray, mesh: Mesh,
            least: int = 0) -> Batches:
  """Splits M examples into padded batches, the same number for each device.

  Args:
    inputs: [M, ...].
    labels: int32 [M].
    mesh: the devices.
    least: pads to at least this number of examples.
  """
  num_examples = max(len(labels), least)
  size = min(BATCH, num_examples)
  padding = num_examples - len(labels) + -num_examples % (size * mesh.size)

  def cut(array):
    width = [(0, padding)] + [(0, 0)] * (array.ndim - 1)
    return devices.put(
        np.pad(array, width).reshape(-1, size, *array.shape[1:]), mesh, SPLIT)

  return Batches(cut(inputs), cut(labels),
                 cut(np.ones(len(labels), np.float32)))


def gathered(data: TrainData, index_B: jax.Array) -> Batches:
  """Returns the batch of the examples at `index_B`; -1 is padding."""
  at_B = jnp.maximum(index_B, 0)
  return Batches(data.inputs[at_B], data.labels[at_B],
                 (index_B >= 0).astype(jnp.float32))


def predict(model: Model, normalize_fn: Callable[[jax.Array], jax.Array],
            variables: Variables, batch: Batches) -> Predictions:
  """Returns the predictions of a model for a batch."""
  outputs, _ = model.apply(
      variables, normalize_fn(batch.inputs), batch.mask, train=False)
  is_real_B = batch.mask > 0
  is_correct_B = jnp.argmax(outputs.logits, -1) == batch.labels
  ce_B = losses.cross_entropy_B(outputs.logits, batch.labels)
  return Predictions(is_correct_B & is_real_B, jnp.where(is_real_B, ce_B, 0),
                     outputs.logits)


def summed(predictions: Predictions) -> Sums:
  """Returns the sums over a batch."""
  return Sums(jnp.sum(predictions.is_correct), jnp.sum(predictions.loss))
