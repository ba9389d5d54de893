"""Evaluates models on each client's own examples, and on those it holds out.

Each local model of a round predicts the examples that its client trains on
("own"), those that it holds out ("heldout", `ClientTests`), and the test set.
The global model predicts the own examples of the same clients, and the held-out
examples of all clients once, which the host counts per client.

The mean over the worst tenth of clients and the standard deviation measure
fairness as in Li et al., Fair Resource Allocation in Federated Learning, ICLR
2020, https://arxiv.org/abs/1905.10497, section 4.

`moon_jax.engine` lists the axis letters; H held-out examples of all clients.
"""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec
import numpy as np

from moon_jax.data.aligned import aligned
from moon_jax.distributed import devices
from moon_jax.distributed.devices import SPLIT
from moon_jax.distributed.devices import WHOLE
from moon_jax.engine import schedule
from moon_jax.engine.local import Program
from moon_jax.engine.local import TrainData
from moon_jax.engine.round import RoundMetrics
from moon_jax.engine.schedule import Jobs
from moon_jax.engine.schedule import Table
from moon_jax.models import Model
from moon_jax.models.base import Variables
from moon_jax.simulation import prediction
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.prediction import Batches
from moon_jax.simulation.prediction import Sums
from moon_jax.simulation.records import LastRound


class ClientEvaluator:
  """Holds the held-out examples of all clients, and the compiled evaluation."""

  def __init__(self, federation: Federation, program: Program, mesh: Mesh,
               data_spec: PartitionSpec, compile_fn: Callable):
    """Places the held-out examples on each device; compiles nothing.

    CPU cores share one copy.

    Args:
      federation: the federation.
      program: the static parts of its rounds.
      mesh: the devices.
      data_spec: the partition spec of the training examples.
      compile_fn: maps (name, jitted function, *args) to a compiled function.
    """
    self._mesh, self._compile_fn = mesh, compile_fn
    self._specs = {'own': data_spec}
    self._tests = tests = federation.client_tests
    if tests is not None:
      self._specs['heldout'] = WHOLE
      index_H = np.concatenate(tests.indices).astype(np.int64)
      self._heldout = devices.put(TrainData(*(
          aligned(getattr(federation.data, f'{tests.part}_{field}')[index_H])
          for field in ('inputs', 'labels'))), mesh)
      # Positions in `self._heldout`, by client.
      self._positions_C = np.split(
          np.arange(len(index_H)), np.cumsum(tests.sizes)[:-1])
      self._batches = devices.put(
          _batched(len(index_H), mesh.size), mesh, SPLIT)
      self._predict = _make_predict(program.model, program.normalize_fn, mesh)
    self._evaluate = make_evaluate_clients(
        program.model, program.normalize_fn, mesh, self._specs)

  def compile(self, variables: Variables, table: Table, data: TrainData,
              test: Batches) -> None:
    """Compiles the evaluation of the local models of a table's jobs."""
    num_jobs = len(table.jobs.run)
    models_J = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            (num_jobs, *x.shape), x.dtype,
            sharding=jax.NamedSharding(self._mesh, SPLIT)), variables)
    self._evaluate = self._compile_fn(
        'evaluate_clients', self._evaluate, variables, models_J, test,
        *self._sets(table, data, np.zeros(num_jobs, bool)))
    if self._tests is not None:
      self._predict = self._compile_fn(
          'predict', self._predict, variables, self._heldout, self._batches)

  def test(self, variables: Variables, last_round: LastRound, test: Batches,
           num_test: int) -> dict[str, Any]:
    """Returns what `Simulation.evaluate_clients` does.

    Args:
      variables: the global model.
      last_round: the last round.
      test: the test set.
      num_test: the number of its examples.
    """
    table, data, metrics, models_J = last_round
    jobs = table.jobs
    ran_J = (jobs.num_steps > 0) & metrics.finite_J  # not padding, nor left out
    found = devices.read(self._evaluate(
        variables, models_J, test, *self._sets(table, data, ran_J)), self._mesh)
    line = of_clients(jobs, metrics, ran_J, found, num_test)
    if self._tests is None:
      return line
    sizes_C, clients = self._tests.sizes, jobs.client[ran_J]
    predictions = devices.read(self._predict(
        variables, self._heldout, self._batches), self._mesh)
    of_global = per_client(
        np.repeat(np.arange(len(sizes_C)), sizes_C),
        *[x.reshape(-1)[:sizes_C.sum()] for x in predictions], len(sizes_C))
    of_local = Outcomes(
        *[x_J[ran_J] for x_J in found['local_heldout']], sizes_C[clients])
    columns = line.pop('clients')
    return (line | heldout_metrics('global_heldout', of_global)
            | heldout_metrics('local_heldout', of_local)
            | {'clients': columns | heldout_columns(
                clients, of_global, of_local)})

  def _sets(self, table, data, ran_J):
    """Returns the examples of each set, and which of them each job has."""
    examples = {'own': devices.put(data, self._mesh, self._specs['own'])}
    own = {'own': devices.put(table.own, self._mesh, SPLIT)}
    if self._tests is not None:
      examples['heldout'] = self._heldout
      own['heldout'] = devices.put(schedule.own_examples(
          [self._positions_C[client] if ran else []
           for client, ran in zip(table.jobs.client, ran_J)],
          self._tests.sizes.max()), self._mesh, SPLIT)
    return examples, own


def make_evaluate_clients(
    model: Model, normalize_fn: Callable[[jax.Array], jax.Array], mesh: Mesh,
    specs: Mapping[str, PartitionSpec]) -> Callable[..., dict[str, Sums]]:
  """Compiles the evaluation of the models of J jobs.

  The function maps (global variables, models_J, test set, examples of each set,
  `OwnExamples` of each set) to `Sums` [J] by name: global_own, local_test, and
  local_NAME for each set. Each device evaluates one job after another.

  Args:
    model: the network.
    normalize_fn: normalizes stored inputs.
    mesh: the devices.
    specs: for each set, own and maybe heldout, the partition spec of examples.
  """
  def sums(models, num_batches, batch_fn):
    def add_batch(s, totals):
      batch = batch_fn(s)
      found = tuple(prediction.summed(prediction.predict(
          model, normalize_fn, variables, batch)) for variables in models)
      return jax.tree.map(jnp.add, totals, found)

    return lax.fori_loop(0, num_batches, add_batch, tuple(
        Sums(jnp.int32(0), jnp.float32(0)) for _ in models))

  def of_job(variables, test, examples, job):
    local, own = job
    found = {}
    found['local_test'], = sums(
        [local], len(test.labels), lambda s: jax.tree.map(lambda x: x[s], test))
    for name, (index_SB, num_batches) in own.items():
      models = [local, variables] if name == 'own' else [local]
      found[f'local_{name}'], *of_global = sums(
          models, num_batches, lambda s: prediction.gathered(
              examples[name], index_SB[s]))
      if of_global:
        found[f'global_{name}'], = of_global
    return found

  def of_device(variables, models_J, test, examples, own):
    return lax.map(lambda job: of_job(variables, test, examples, job),
                   (models_J, own))

  return jax.jit(jax.shard_map(
      of_device, mesh=mesh, in_specs=(WHOLE, SPLIT, WHOLE, dict(specs), SPLIT),
      out_specs=SPLIT, check_vma=False))


def _make_predict(model: Model, normalize_fn: Callable, mesh: Mesh) -> Any:
  """Compiles (variables, data, index_SB) -> (is_correct, loss), [S, B] each.

  The devices share the batches.
  """
  def of_device(variables, data, index_SB):
    return lax.map(lambda index_B: prediction.predict(
        model, normalize_fn, variables, prediction.gathered(data, index_B)
    )[:2], index_SB)

  return jax.jit(jax.shard_map(
      of_device, mesh=mesh, in_specs=(WHOLE, WHOLE, SPLIT), out_specs=SPLIT,
      check_vma=False))


def _batched(count: int, num_devices: int) -> np.ndarray:
  """Returns 0 to count - 1 in batches, int32 [S, B], padded with -1."""
  size = min(prediction.BATCH, count)
  padding = -count % (size * num_devices)
  return np.pad(np.arange(count, dtype=np.int32), (0, padding),
                constant_values=-1).reshape(-1, size)


def of_clients(jobs: Jobs, metrics: RoundMetrics, ran_J: np.ndarray,
               found: Mapping[str, Sums], num_test: int) -> dict[str, Any]:
  """Returns means and deviations over clients, and "clients" with columns.

  Args:
    jobs: the jobs of a round.
    metrics: of the round.
    ran_J: whether a job is evaluated.
    found: the result of `make_evaluate_clients`.
    num_test: the number of test examples.
  """
  size = jobs.num_examples[ran_J]
  accuracies = {
      f'{name}_accuracy': found[name].num_correct[ran_J] / count
      for name, count in (('global_own', size), ('local_own', size),
                          ('local_test', num_test))}
  line: dict[str, Any] = {}
  for name, accuracy in accuracies.items():
    if ran_J.any():
      line |= {name: float(accuracy.mean()),
               f'{name}_std': float(accuracy.std())}
  columns = {'client': jobs.client[ran_J], 'num_examples': size,
             'received': jobs.is_received[ran_J],
             'drift': metrics.drift_J[ran_J],
             'cosine_with_mean': metrics.cosine_J[ran_J], **accuracies}
  return line | {'clients': {
      name: column.tolist() for name, column in columns.items()}}


class Outcomes(NamedTuple):
  """The predictions on the held-out examples of C clients."""

  num_correct: np.ndarray  # int [C]
  loss_sum: np.ndarray  # float [C], cross-entropy in nats
  num_examples: np.ndarray  # int [C]; 0 for clients without held-out examples

  @property
  def accuracies(self) -> list[float | None]:
    """The accuracy of each client; None without held-out examples."""
    return [correct / count if count else None for correct, count in zip(
        self.num_correct.tolist(), self.num_examples.tolist())]


def per_client(client_N: np.ndarray, is_correct_N: np.ndarray,
               loss_N: np.ndarray, num_clients: int) -> Outcomes:
  """Returns sums over the examples of each client.

  Args:
    client_N: client of each example.
    is_correct_N: whether the model predicts its class.
    loss_N: its loss.
    num_clients: C.
  """
  count = lambda weight_N: np.bincount(client_N, weight_N, num_clients)
  return Outcomes(count(is_correct_N).astype(np.int64),
                  count(loss_N.astype(np.float64)),
                  np.bincount(client_N, minlength=num_clients))


def heldout_metrics(name: str, outcomes: Outcomes) -> dict[str, float | None]:
  """Returns metrics over the clients that have held-out examples.

  A loss is None if it is not finite. Without such clients there are none.

  Args:
    name: of the models; the names of the metrics begin with it.
    outcomes: the predictions of the models.
  """
  has_C = outcomes.num_examples > 0
  if not has_C.any():
    return {}
  num_correct, loss_sum, num_examples = (x_C[has_C] for x_C in outcomes)
  accuracy = num_correct / num_examples
  num_worst = max(1, len(accuracy) // 10)
  values = {
      'accuracy': accuracy.mean(),
      'accuracy_weighted': num_correct.sum() / num_examples.sum(),
      'accuracy_std': accuracy.std(),
      'accuracy_worst_tenth': np.sort(accuracy)[:num_worst].mean(),
      'loss': (loss_sum / num_examples).mean()}
  return {f'{name}_{key}': float(value) if np.isfinite(value) else None
          for key, value in values.items()}


def heldout_columns(client: np.ndarray, of_global: Outcomes,
                    of_local: Outcomes) -> dict[str, list[Any]]:
  """Returns columns of "clients" for the clients that trained in a round.

  Args:
    client: the J clients.
    of_global: predictions of the global model, for all C clients.
    of_local: predictions of the local models, for the J clients.
  """
  of_global = Outcomes(*[x_C[client] for x_C in of_global])
  return {'num_heldout': of_global.num_examples.tolist(),
          'global_heldout_accuracy': of_global.accuracies,
          'local_heldout_accuracy': of_local.accuracies}
