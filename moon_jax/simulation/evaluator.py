"""Evaluates the models of a simulation on its test set and other examples."""

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec
import numpy as np

from moon_jax.distributed import devices
from moon_jax.engine.local import TrainData
from moon_jax.engine.schedule import Table
from moon_jax.errors import DivergedError
from moon_jax.models.base import Variables
from moon_jax.simulation import evaluation_metrics
from moon_jax.simulation import evaluation_programs
from moon_jax.simulation import example_sets
from moon_jax.simulation import metrics as metrics_lib
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.heldout import HeldoutEvaluator
from moon_jax.simulation.records import LastRound
from moon_jax.simulation.round_spec import RoundSpec


class Evaluator:
  """Holds the examples to evaluate on and the compiled evaluation.

  Attributes:
    test_data: the test examples on the devices.
    placed_bytes: bytes of all examples that stay on the devices.
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
    self._federation, self._mesh, self._data_spec = federation, mesh, data_spec
    self._num_test = federation.num_test
    self._sets = example_sets.make(
        federation, mesh, like and like._sets['test'])
    self.test_data = next(self._sets['test'].chunks())
    self.placed_bytes = example_sets.placed_bytes(self._sets)
    self._test_labels = federation.data.with_test_examples(
        federation.eval_examples).test_labels
    program = spec.program
    self._programs: dict = like._programs if like else {}
    make_evaluate = functools.partial(
        evaluation_programs.make_evaluate, program.model, program.normalize_fn,
        mesh)
    evaluate_fn = make_evaluate()
    self._evaluate = {name: evaluate_fn for name in self._sets}
    if federation.metrics:
      self._evaluate['test'] = make_evaluate(with_logits=True)
    self._evaluate_clients = evaluation_programs.make_evaluate_clients(
        program.model, program.normalize_fn, mesh, data_spec)
    self._heldout = None if federation.client_tests is None else (
        HeldoutEvaluator(federation, program, mesh))
    self._compiled_clients = None
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
    num_jobs = len(table.jobs.run)
    models_J = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            (num_jobs, *x.shape), x.dtype,
            sharding=jax.NamedSharding(self._mesh, devices.SPLIT)), variables)
    self._compiled_clients = self._once(
        'evaluate_clients', self._evaluate_clients, variables, models_J,
        *self._placed(table, data), self.test_data)
    if self._heldout:
      self._heldout.compile(variables, models_J)

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

    The names of metrics begin with those of `example_sets.make`, such as
    test_accuracy. The metrics of `Federation.metrics` follow those of the test
    set. A loss that is not finite is None, except on the test set.

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
        line |= evaluation_metrics.compute(
            self._federation.metrics, logits_R, self._test_labels)
    return line

  def _sums(self, name, variables_R, wait):
    """Returns sums over a set in float64, and its logits [R, M, K] or ()."""
    total = evaluation_programs.Evaluation(np.int64(0), np.float64(0))
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
    table, data, metrics, models_J = last_round
    evaluate_fn = self._compiled_clients or self._evaluate_clients
    result = devices.read(evaluate_fn(
        variables, models_J, *self._placed(table, data), self.test_data),
                          self._mesh)
    line = self._num_examples_used | metrics_lib.of_clients(
        table.jobs, metrics, result, self._num_test)
    if self._heldout:
      clients = line.pop('clients')
      heldout, columns = self._heldout.test(
          variables, models_J, table.jobs, metrics)
      line |= heldout | {'clients': clients | columns}
    return line

  def _placed(self, table, data):
    return (devices.put(table.own, self._mesh, devices.SPLIT),
            devices.put(data, self._mesh, self._data_spec))
