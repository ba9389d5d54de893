"""Sets of examples for evaluation: the test set, validation, training examples.

Each set is a sequence of chunks in batches, which devices share.
"""

from collections.abc import Iterator
from typing import Protocol

import jax
from jax.sharding import Mesh
import numpy as np

from moon_jax.simulation import evaluation_programs
from moon_jax.simulation.evaluation_programs import TestData
from moon_jax.simulation.federation import Federation

_STREAMED_BATCHES = 20  # per chunk and device


class ExampleSet(Protocol):
  """A set of examples for evaluation."""

  num_examples: int

  def chunks(self) -> Iterator[TestData]:
    """Yields all examples, in chunks of one shape."""


class Placed:
  """Examples that stay on the devices, in one chunk."""

  def __init__(self, inputs: np.ndarray, labels: np.ndarray, mesh: Mesh):
    self.num_examples = len(labels)
    self.data = evaluation_programs.batched(inputs, labels, mesh)

  def chunks(self) -> Iterator[TestData]:
    """Yields the one chunk."""
    yield self.data


class Streamed:
  """Examples that move from the host to the devices chunk by chunk.

  Devices hold one chunk at a time, so that a large training set takes no memory
  besides the copy that clients train on.
  """

  def __init__(self, inputs: np.ndarray, labels: np.ndarray,
               indices: np.ndarray, mesh: Mesh):
    self.num_examples = len(indices)
    self._inputs, self._labels = inputs, labels
    self._indices, self._mesh = indices, mesh

  def chunks(self) -> Iterator[TestData]:
    """Yields chunks of one shape; the last one is padded."""
    size = min(len(self._indices), _STREAMED_BATCHES * self._mesh.size
               * evaluation_programs.BATCH)
    for start in range(0, len(self._indices), size):
      indices = self._indices[start:start + size]
      yield evaluation_programs.batched(
          self._inputs[indices], self._labels[indices], self._mesh, size)


def make(federation: Federation, mesh: Mesh, test: ExampleSet | None = None
         ) -> dict[str, ExampleSet]:
  """Returns the sets to evaluate on, by the prefix of their metrics.

  Args:
    federation: the federation.
    mesh: the devices.
    test: the test set of another run with the same data, to share it.
  """
  data = federation.data.with_test_examples(federation.eval_examples)
  if test is None or test.num_examples != federation.num_test:
    test = Placed(data.test_inputs, data.test_labels, mesh)
  sets: dict[str, ExampleSet] = {'test': test}
  inputs, labels = data.train_inputs, data.train_labels
  if federation.validation is not None:
    sets['validation'] = Placed(
        inputs[federation.validation], labels[federation.validation], mesh)
  if federation.eval_on == 'train':
    sets['global_train'] = Streamed(
        inputs, labels, np.unique(np.concatenate(federation.clients)), mesh)
  return sets


def placed_bytes(sets: dict[str, ExampleSet]) -> int:
  """Returns the bytes of examples that stay on the devices, all together."""
  return sum(x.nbytes for examples in sets.values()
             if isinstance(examples, Placed)
             for x in jax.tree.leaves(examples.data))
