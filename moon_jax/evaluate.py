"""Accuracy of models on the test set, and on each client's own examples."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from moon_jax import losses
from moon_jax.models import Model
from moon_jax.models.base import Variables

_BATCH = 100  # examples at a time; divides most test sets


class TestData(NamedTuple):
  """A test set in batches: S batches of B."""

  __test__ = False  # not a test, whatever pytest thinks of the name

  inputs: jax.Array  # as stored, [S, B, ...]
  labels: jax.Array  # int32 [S, B]
  mask: jax.Array  # float32 [S, B], 0 for padding


class Evaluation(NamedTuple):
  """Of each of R models; sums, so that a fraction of them is exact."""

  num_correct: jax.Array  # int32 [R]
  loss_sum: jax.Array  # float32 [R], cross-entropy in nats


def batched(inputs: np.ndarray, labels: np.ndarray) -> TestData:
  """Cuts M examples into batches, the last one padded, on the device."""
  size = min(_BATCH, len(labels))
  padding = -len(labels) % size

  def cut(array):
    width = [(0, padding)] + [(0, 0)] * (array.ndim - 1)
    return jnp.asarray(
        np.pad(array, width).reshape(-1, size, *array.shape[1:]))

  return TestData(cut(inputs), cut(labels),
                  cut(np.ones(len(labels), np.float32)))


def make_evaluate(
    model: Model, normalize_fn: Callable[[jax.Array], jax.Array]
) -> Callable[[Variables, TestData], Evaluation]:
  """Compiles (variables_R, data) -> Evaluation."""

  def of_batch(variables, data):
    outputs, _ = model.apply(
        variables, normalize_fn(data.inputs), data.mask, train=False)
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


class OwnExamples(NamedTuple):
  """The training examples of J clients, in up to S batches of B each."""

  index_JSB: jax.Array  # int32, into the training set, -1 for padding
  num_batches_J: jax.Array  # int32


class ClientEvaluation(NamedTuple):
  """Right answers of models of J clients; int32 [J] each."""

  global_own: jax.Array  # of the global model on the client's own examples
  local_own: jax.Array  # of the client's model on them
  local_test: jax.Array  # of the client's model on the whole test set


def own_examples(clients: Sequence[np.ndarray], most: int) -> OwnExamples:
  """Cuts the clients' indices into batches; `most` is the largest client's."""
  size = min(_BATCH, most)
  index_JN = np.full((len(clients), -(-most // size) * size), -1, np.int32)
  for row, indices in zip(index_JN, clients):
    row[:len(indices)] = indices
  return OwnExamples(
      index_JN.reshape(len(clients), -1, size),
      np.array([-(-len(indices) // size) for indices in clients], np.int32))


def make_evaluate_clients(
    model: Model, normalize_fn: Callable[[jax.Array], jax.Array]
) -> Callable[..., ClientEvaluation]:
  """Compiles (global variables, models_J, own, train data, test data) -> ....

  One client after another; a client's own examples are the part of the
  training set that the partition gave it.
  """
  def num_correct(variables, inputs, labels, mask_B):
    outputs, _ = model.apply(
        variables, normalize_fn(inputs), mask_B, train=False)
    is_correct_B = jnp.argmax(outputs.logits, -1) == labels
    return jnp.sum(is_correct_B & (mask_B > 0))

  def of_client(variables, train, test, client):
    local, index_SB, num_batches = client

    def add_batch(s, counts):
      index_B = index_SB[s]
      at_B = jnp.maximum(index_B, 0)
      batch = (train.inputs[at_B], train.labels[at_B],
               (index_B >= 0).astype(jnp.float32))
      return counts + jnp.stack([
          num_correct(variables, *batch), num_correct(local, *batch)])

    own = lax.fori_loop(0, num_batches, add_batch, jnp.zeros(2, jnp.int32))
    of_test = lax.map(lambda batch: num_correct(local, *batch), test)
    return ClientEvaluation(own[0], own[1], jnp.sum(of_test))

  return jax.jit(lambda variables, models_J, own, train, test: lax.map(
      lambda client: of_client(variables, train, test, client),
      (models_J, *own)))
