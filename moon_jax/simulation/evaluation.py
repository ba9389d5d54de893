"""Evaluates models on named sets of examples: test, validation and training.

A set is a sequence of chunks of one shape in batches, which devices share.
`moon_jax.engine` lists the axis letters; S batches of B examples.
"""

from collections.abc import Callable
from collections.abc import Iterator
import functools
import math
from typing import Any
from typing import NamedTuple
from typing import Protocol

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec
import numpy as np

from moon_jax.distributed import devices
from moon_jax.distributed.devices import SPLIT
from moon_jax.distributed.devices import WHOLE
from moon_jax.engine.local import TrainData
from moon_jax.engine.schedule import Table
from moon_jax.errors import DivergedError
from moon_jax.models import Model
from moon_jax.models.base import Variables
from moon_jax.simulation import metric_functions
from moon_jax.simulation import metrics as metrics_lib
from moon_jax.simulation import prediction
from moon_jax.simulation.client_evaluation import ClientEvaluator
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.prediction import Batches
from moon_jax.simulation.records import LastRound
from moon_jax.simulation.round_spec import RoundSpec

_STREAMED_BATCHES = 20  # per chunk and device


class ExampleSet(Protocol):
  """A set of examples for evaluation."""

  num_examples: int

  def chunks(self) -> Iterator[Batches]:
    """Yields all examples, in chunks of one shape."""


class Placed:
  """Examples that stay on the devices, in one chunk."""

  def __init__(self, inputs: np.ndarray, labels: np.ndarray, mesh: Mesh):
    self.num_examples = len(labels)
    self.data = prediction.batched(inputs, labels, mesh)

  def chunks(self) -> Iterator[Batches]:
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

  def chunks(self) -> Iterator[Batches]:
    """Yields chunks of one shape; the last one is padded."""
    size = min(len(self._indices), _STREAMED_BATCHES * self._mesh.size
               * prediction.BATCH)
    for start in range(0, len(self._indices), size):
      indices = self._indices[start:start + size]
      yield prediction.batched(
          self._inputs[indices], self._labels[indices], self._mesh, size)


class Evaluation(NamedTuple):
  """Exact sums over examples for each of R models."""

  num_correct: Any  # int32 [R]
  loss_sum: Any  # float32 [R], cross-entropy in nats
  logits: Any = ()  # float32 [R, S, B, K] of all examples, if requested


def make_evaluate(
    model: Model, normalize_fn: Callable[[jax.Array], jax.Array], mesh: Mesh,
    with_logits: bool = False) -> Callable[[Variables, Batches], Evaluation]:
  """Compiles (variables_R, batches) -> Evaluation; devices share the batches.

  Each device returns the logits of its batches, if they are requested.
  """
  def of_batch(variables, batch):
    predictions = prediction.predict(model, normalize_fn, variables, batch)
    logits_BK = predictions.logits.astype(jnp.float32) if with_logits else ()
    return Evaluation(*prediction.summed(predictions), logits_BK)

  def of_run(variables, batches):
    of_batches = lax.map(lambda batch: of_batch(variables, batch), batches)
    sums = jax.tree.map(jnp.sum, of_batches._replace(logits=()))
    return sums._replace(logits=of_batches.logits)

  def of_device(variables_R, batches):
    result_R = lax.map(lambda v: of_run(v, batches), variables_R)
    sums_R = lax.psum(result_R._replace(logits=()), devices.AXIS)
    return sums_R._replace(logits=result_R.logits)

  logits_spec = PartitionSpec(None, devices.AXIS) if with_logits else ()
  return jax.jit(jax.shard_map(
      of_device, mesh=mesh, in_specs=(WHOLE, SPLIT),
      out_specs=Evaluation(WHOLE, WHOLE, logits_spec), check_vma=False))


class Evaluator:
  """Holds the examples to evaluate on and the compiled evaluation.

  Attributes:
    test_data: the test examples on the devices.
    placed_bytes: bytes of the sets that stay on the devices.
  """

  def __init__(self, federation: Federation, spec: RoundSpec, mesh: Mesh,
               data_spec: PartitionSpec, like: 'Evaluator | None' = None):
    """Places the examples; compiles nothing.

    Args:
      federation: the federation.
      spec: the specification of its rounds.
      mesh: the devices.
      data_spec: the partition spec of the training examples.
      like: the evaluator of another run of the same program, which shares its
        test set and compiled programs.
    """
    self._federation, self._mesh = federation, mesh
    self._num_test = federation.num_test
    data = federation.data.with_test_examples(federation.eval_examples)
    self._test_labels = data.test_labels
    test = like and like._sets['test']
    if not test or test.num_examples != self._num_test:
      test = Placed(data.test_inputs, data.test_labels, mesh)
    self._sets = {'test': test, **_of_training(federation, mesh)}
    self.test_data = next(test.chunks())
    self.placed_bytes = sum(
        x.nbytes for examples in self._sets.values()
        if isinstance(examples, Placed) for x in jax.tree.leaves(examples.data))
    self._programs: dict = like._programs if like else {}
    make = functools.partial(make_evaluate, spec.program.model,
                             spec.program.normalize_fn, mesh)
    self._evaluate = dict.fromkeys(self._sets, make())
    if federation.metrics:
      self._evaluate['test'] = make(with_logits=True)
    self._clients = ClientEvaluator(
        federation, spec.program, mesh, data_spec, self._once)
    self._num_examples_used = ({'test_examples': self._num_test}
                               if federation.eval_examples else {})

  def compile(self, variables_R: Variables) -> None:
    """Compiles the evaluation of models with these shapes."""
    for name, examples in self._sets.items():
      with_logits = name == 'test' and bool(self._federation.metrics)
      self._evaluate[name] = self._once(
          ('evaluate', with_logits), self._evaluate[name], variables_R,
          next(examples.chunks()))

  def compile_clients(self, variables: Variables, table: Table,
                      data: TrainData) -> None:
    """Compiles the evaluation of the local models of a table's jobs."""
    self._clients.compile(variables, table, data, self.test_data)

  def _once(self, name, function, *args):
    """Compiles a function, unless another run of the program has done so."""
    shapes = jax.tree.map(lambda x: (x.shape, str(x.dtype)), args)
    key = name, str(shapes)
    if key not in self._programs:
      self._programs[key] = function.lower(*args).compile()
    return self._programs[key]

  def test(self, variables_R: Variables, round_number: int,
           wait: Callable) -> dict[str, Any]:
    """Returns accuracy (a fraction) and loss of the models on each set.

    The names of metrics begin with those of the sets: test, validation and
    global_train, as in test_accuracy. The metrics of `Federation.metrics`
    follow those of the test set. A loss that is not finite is None, except on
    the test set.

    Args:
      variables_R: models with a leading axis; the result is their mean, and
        for several models the standard deviation of their accuracies.
      round_number: the number of completed rounds, for messages.
      wait: see `Simulation.run_round`.

    Raises:
      DivergedError: if the test loss is not finite.
      UserError: if a user-defined metric fails.
    """
    line: dict[str, Any] = {}
    for name, examples in self._sets.items():
      found, logits_R = self._sums(name, variables_R, wait)
      accuracies = found.num_correct / examples.num_examples
      line[f'{name}_accuracy'] = float(accuracies.mean())
      if len(accuracies) > 1:
        line[f'{name}_accuracy_std'] = float(accuracies.std())
      loss = float(found.loss_sum.mean() / examples.num_examples)
      if name == 'test' and not math.isfinite(loss):
        raise DivergedError(
            f'round {round_number}: the test loss became {loss} '
            f'{metrics_lib.remedy(self._federation)}')
      line[f'{name}_loss'] = loss if math.isfinite(loss) else None
      if name == 'test':
        line |= self._num_examples_used
        line |= metric_functions.compute(
            self._federation.metrics, logits_R, self._test_labels)
    return line

  def _sums(self, name, variables_R, wait):
    """Returns sums over a set in float64, and its logits [R, M, K] or ()."""
    total = Evaluation(np.int64(0), np.float64(0))
    logits_R = ()
    for chunk in self._sets[name].chunks():
      result = self._evaluate[name](variables_R, chunk)
      wait(functools.partial(devices.wait, result))
      if name == 'test' and self._federation.metrics:
        logits_R = devices.read(result.logits, self._mesh)
        logits_R = logits_R.reshape(
            len(logits_R), -1, logits_R.shape[-1])[:, :self._num_test]
      result = jax.device_get(result._replace(logits=()))
      total = jax.tree.map(np.add, total, result)
    return total, logits_R

  def test_clients(self, variables: Variables, last_round: LastRound
                   ) -> dict[str, Any]:
    """Returns what `Simulation.evaluate_clients` does.

    Args:
      variables: the global model.
      last_round: the last round.
    """
    return self._num_examples_used | self._clients.test(
        variables, last_round, self.test_data, self._num_test)


def _of_training(federation: Federation, mesh: Mesh) -> dict[str, ExampleSet]:
  """Returns the sets of training examples, by the prefix of their metrics."""
  sets: dict[str, ExampleSet] = {}
  data = federation.data
  if (validation := federation.validation) is not None:
    sets['validation'] = Placed(
        data.train_inputs[validation], data.train_labels[validation], mesh)
  if federation.eval_on == 'train':
    sets['global_train'] = Streamed(
        data.train_inputs, data.train_labels,
        np.unique(np.concatenate(federation.clients)), mesh)
  return sets
