"""Evaluates models on named sets of examples, batch by batch.

The global model is evaluated on the test set, and if configured on validation
and training examples. Each local model of a round predicts the examples that
its client trains on ("own"), those that it holds out ("heldout",
`ClientTests`), and the test set. The global model predicts the own examples of
the same clients, and the held-out examples of all clients once, which the host
counts per client.

The mean over the worst tenth of clients and the standard deviation measure
fairness as in Li et al., Fair Resource Allocation in Federated Learning, ICLR
2020, https://arxiv.org/abs/1905.10497, section 4.

`moon_jax.engine` lists the axis letters; S batches of B examples, M examples of
a set, H held-out examples of all clients.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import math
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
import numpy as np

from moon_jax import losses
from moon_jax.data import clients as clients_lib
from moon_jax.data.mapped import aligned
from moon_jax.distributed import devices
from moon_jax.distributed.devices import SPLIT, WHOLE
from moon_jax.engine import schedule
from moon_jax.engine.local import Program, TrainData
from moon_jax.engine.schedule import Table
from moon_jax.errors import DivergedError
from moon_jax.models.base import Variables
from moon_jax.simulation import metric_functions, records
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.records import LastRound
from moon_jax.simulation.round_spec import RoundSpec

_BATCH = 100  # examples at a time; divides most test sets
_STREAMED_BATCHES = 20  # per chunk and device


class Batches(NamedTuple):
  """Examples in batches, or without the axis S one batch."""

  inputs: jax.Array  # as stored, [S, B, ...]
  labels: jax.Array  # int32 [S, B]
  mask: jax.Array  # float32 [S, B], 0 for padding


def batched(inputs: np.ndarray, labels: np.ndarray, mesh: Mesh,
            least: int = 0) -> Batches:
  """Splits M examples, padded to `least` or more, into batches.

  Each device has the same number of batches.
  """
  num_examples = max(len(labels), least)
  size = min(_BATCH, num_examples)
  padding = num_examples - len(labels) + -num_examples % (size * mesh.size)

  def cut(array):
    width = [(0, padding)] + [(0, 0)] * (array.ndim - 1)
    return devices.put(
        np.pad(array, width).reshape(-1, size, *array.shape[1:]), mesh, SPLIT)

  return Batches(cut(inputs), cut(labels),
                 cut(np.ones(len(labels), np.float32)))


class Predictions(NamedTuple):
  """Predictions of examples; those of padding are False and 0."""

  is_correct: jax.Array  # bool [B]
  loss: jax.Array  # float32 [B], cross-entropy in nats
  logits: jax.Array  # [B, K], not masked


class Sums(NamedTuple):
  """Sums over examples."""

  num_correct: Any  # int32
  loss: Any  # float32, cross-entropy in nats


# What an evaluation returns for each example.
NOTHING = lambda predictions: ()
LOGITS = lambda predictions: predictions.logits.astype(jnp.float32)
OUTCOMES = lambda predictions: (predictions.is_correct, predictions.loss)


def _predict(program: Program, variables: Variables, data: TrainData | tuple,
             item: Any) -> Predictions:
  """Returns the predictions of a model for a batch.

  An item is a batch if `data` is (), otherwise the indices of its examples in
  the data, int32 [B], -1 for padding.
  """
  batch = item
  if data:
    at_B = jnp.maximum(item, 0)
    batch = Batches(data.inputs[at_B], data.labels[at_B],
                    (item >= 0).astype(jnp.float32))
  outputs, _ = program.model.apply(
      variables, program.normalize_fn(batch.inputs), batch.mask, train=False)
  is_real_B = batch.mask > 0
  is_correct_B = jnp.argmax(outputs.logits, -1) == batch.labels
  ce_B = losses.cross_entropy_B(outputs.logits, batch.labels)
  return Predictions(is_correct_B & is_real_B, jnp.where(is_real_B, ce_B, 0),
                     outputs.logits)


def _summed(predictions):
  return Sums(jnp.sum(predictions.is_correct), jnp.sum(predictions.loss))


def make_evaluate(program: Program, mesh: Mesh,
                  each_fn: Callable[[Predictions], Any] = NOTHING) -> Callable:
  """Returns the jitted evaluation of R models.

  It maps (variables_R, data, items), see `_predict`, to `Sums` [R] over all S
  items, and the results of `each_fn` for each of them, [R, S, ...]. Devices
  share the items.
  """
  def of_item(variables, data, item):
    predictions = _predict(program, variables, data, item)
    return _summed(predictions), each_fn(predictions)

  def of_model(variables, data, items):
    sums_S, each_S = lax.map(
        lambda item: of_item(variables, data, item), items)
    return jax.tree.map(jnp.sum, sums_S), each_S

  def of_device(variables_R, data, items):
    sums_R, each_R = lax.map(lambda v: of_model(v, data, items), variables_R)
    return lax.psum(sums_R, devices.AXIS), each_R

  return jax.jit(jax.shard_map(
      of_device, mesh=mesh, in_specs=(WHOLE, WHOLE, SPLIT),
      out_specs=(WHOLE, PartitionSpec(None, devices.AXIS)), check_vma=False))


def make_evaluate_clients(program: Program, mesh: Mesh,
                          specs: dict[str, PartitionSpec]) -> Callable:
  """Returns the jitted evaluation of the models of J jobs.

  It maps (global variables, models_J, test set, examples of each set,
  `OwnExamples` of each set) to `Sums` [J] by name: global_own, local_test, and
  local_NAME for each set. Each device evaluates one job after another. `specs`
  has the partition spec of the examples of each set, own and maybe heldout.
  """
  def sums(models, num_batches, data, items):
    def add_batch(s, totals):
      item = jax.tree.map(lambda x: x[s], items)
      found = tuple(_summed(_predict(program, variables, data, item))
                    for variables in models)
      return jax.tree.map(jnp.add, totals, found)

    return lax.fori_loop(0, num_batches, add_batch, tuple(
        Sums(jnp.int32(0), jnp.float32(0)) for _ in models))

  def of_job(variables, test, examples, job):
    local, own = job
    found = {}
    found['local_test'], = sums([local], len(test.labels), (), test)
    for name, (index_SB, num_batches) in own.items():
      models = [local, variables] if name == 'own' else [local]
      found[f'local_{name}'], *of_global = sums(
          models, num_batches, examples[name], index_SB)
      if of_global:
        found[f'global_{name}'], = of_global
    return found

  def of_device(variables, models_J, test, examples, own):
    return lax.map(lambda job: of_job(variables, test, examples, job),
                   (models_J, own))

  return jax.jit(jax.shard_map(
      of_device, mesh=mesh, in_specs=(WHOLE, SPLIT, WHOLE, specs, SPLIT),
      out_specs=SPLIT, check_vma=False))


class Evaluator:
  """Holds the examples to evaluate on and the compiled evaluations of a run.

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
    data = federation.data.with_test_examples(federation.eval_examples)
    # Sets of the global model, by the prefix of their metrics.
    self._sizes = {'test': len(data.test_labels)}
    self._placed = {'test': like._placed['test'] if like else batched(
        data.test_inputs, data.test_labels, mesh)}
    if (index_M := federation.validation) is not None:
      self._sizes['validation'] = len(index_M)
      self._placed['validation'] = batched(
          data.train_inputs[index_M], data.train_labels[index_M], mesh)
    if federation.eval_on == 'train':
      self._trained_M = np.unique(np.concatenate(federation.clients))
      self._sizes['global_train'] = len(self._trained_M)
    self.test_data = self._placed['test']
    self.placed_bytes = sum(x.nbytes for x in jax.tree.leaves(self._placed))
    self._specs = {'own': data_spec}
    self._tests = tests = federation.client_tests
    if tests is not None:
      self._specs['heldout'] = WHOLE
      index_H = np.concatenate(tests.indices).astype(np.int64)
      # A copy on each device; CPU cores share one.
      self._heldout = devices.put(TrainData(*(
          aligned(getattr(federation.data, f'{tests.part}_{field}')[index_H])
          for field in ('inputs', 'labels'))), mesh)
      # Positions in `self._heldout`, by client and in batches.
      at_H = np.arange(len(index_H), dtype=np.int32)
      self._positions_C = np.split(at_H, np.cumsum(tests.sizes)[:-1])
      size = min(_BATCH, len(at_H))
      self._index_SB = devices.put(
          np.pad(at_H, (0, -len(at_H) % (size * mesh.size)),
                 constant_values=-1).reshape(-1, size), mesh, SPLIT)
    self._jitted = {each_fn: make_evaluate(spec.program, mesh, each_fn)
                    for each_fn in (NOTHING, LOGITS, OUTCOMES)}
    self._jitted['clients'] = make_evaluate_clients(
        spec.program, mesh, self._specs)
    self._compiled: dict = like._compiled if like else {}
    self._num_examples_used = {} if not federation.eval_examples else {
        'test_examples': federation.num_test}

  def _chunks(self, name):
    """Yields the batches of a set in chunks of one shape; the last is padded.

    Training examples move to the devices chunk by chunk, so that a large set
    takes no memory besides the copy that clients train on.
    """
    if name in self._placed:
      yield self._placed[name]
      return
    data, index_M = self._federation.data, self._trained_M
    size = min(len(index_M), _STREAMED_BATCHES * self._mesh.size * _BATCH)
    for start in range(0, len(index_M), size):
      index = index_M[start:start + size]
      yield batched(data.train_inputs[index], data.train_labels[index],
                    self._mesh, size)

  def _each_fn(self, name):
    return LOGITS if name == 'test' and self._federation.metrics else NOTHING

  def compile(self, variables_R: Variables) -> None:
    """Compiles the evaluation of models with these shapes."""
    for name in self._sizes:
      self._compile(self._each_fn(name), variables_R, (),
                    next(self._chunks(name)))

  def compile_clients(self, variables: Variables, table: Table,
                      data: TrainData) -> None:
    """Compiles the evaluation of the local models of a table's jobs."""
    num_jobs = len(table.jobs.run)
    models_J = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            (num_jobs, *x.shape), x.dtype,
            sharding=jax.NamedSharding(self._mesh, SPLIT)), variables)
    self._compile('clients', variables, models_J, self.test_data,
                  *self._of_jobs(table, data, np.zeros(num_jobs, bool)))
    if self._tests is not None:
      self._compile(OUTCOMES, *self._of_heldout(variables))

  def _compile(self, kind, *args):
    """Compiles a function, unless another run of the program has done so."""
    key = _key(kind, args)
    if key not in self._compiled:
      self._compiled[key] = self._jitted[kind].lower(*args).compile()

  def _run(self, kind, *args):
    function = self._compiled.get(_key(kind, args), self._jitted[kind])
    return function(*args)

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
      UserError: if a custom metric fails.
    """
    line: dict[str, Any] = {}
    for name, num_examples in self._sizes.items():
      total, each_R = Sums(np.int64(0), np.float64(0)), ()
      for chunk in self._chunks(name):
        result = self._run(self._each_fn(name), variables_R, (), chunk)
        wait(functools.partial(devices.wait, result))
        sums, each_R = result
        total = jax.tree.map(np.add, total, jax.device_get(sums))
      accuracies = total.num_correct / num_examples
      line[f'{name}_accuracy'] = float(accuracies.mean())
      if len(accuracies) > 1:
        line[f'{name}_accuracy_std'] = float(accuracies.std())
      loss = float(total.loss.mean() / num_examples)
      if name == 'test' and not math.isfinite(loss):
        raise DivergedError(
            f'round {round_number}: the test loss became {loss} '
            f'{records.remedy(self._federation)}')
      line[f'{name}_loss'] = loss if math.isfinite(loss) else None
      if name == 'test':
        line |= self._num_examples_used | self._test_metrics(each_R)
    return line

  def _test_metrics(self, logits_R):
    federation, data = self._federation, self._federation.data
    if not federation.metrics:
      return {}
    logits_R = devices.read(logits_R, self._mesh)
    logits_R = logits_R.reshape(len(logits_R), -1, logits_R.shape[-1])
    labels = data.with_test_examples(federation.eval_examples).test_labels
    return metric_functions.compute(
        federation.metrics, logits_R[:, :len(labels)], labels)

  def test_clients(self, variables: Variables, last_round: LastRound
                   ) -> dict[str, Any]:
    """Returns what `Simulation.evaluate_clients` does."""
    table, ran_J = last_round.table, last_round.ran_J
    found = devices.read(self._run(
        'clients', variables, last_round.models_J, self.test_data,
        *self._of_jobs(table, last_round.data, ran_J)), self._mesh)
    sizes = {'own': table.jobs.num_examples[ran_J],
             'test': np.full(ran_J.sum(), self._federation.num_test)}
    of_global = None
    if self._tests is not None:
      sizes_C = self._tests.sizes
      sizes['heldout'] = sizes_C[table.jobs.client[ran_J]]
      _, outcomes = devices.read(
          self._run(OUTCOMES, *self._of_heldout(variables)), self._mesh)
      of_global = per_client(
          np.repeat(np.arange(len(sizes_C)), sizes_C),
          *[x.reshape(-1)[:sizes_C.sum()] for x in outcomes], len(sizes_C))
    return self._num_examples_used | of_clients(last_round, {
        name: Outcomes(*[x_J[ran_J] for x_J in sums],
                       sizes[name.partition('_')[2]])
        for name, sums in found.items()}, of_global,
        clients_lib.names(self._federation.clients))

  def _of_heldout(self, variables):
    stacked = jax.tree.map(lambda x: x[None], variables)
    return stacked, self._heldout, self._index_SB

  def _of_jobs(self, table, data, ran_J):
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


def _key(kind, args):
  return kind, str(jax.tree.map(lambda x: (x.shape, str(x.dtype)), args))


class Outcomes(NamedTuple):
  """The predictions of models on the examples of C clients."""

  num_correct: np.ndarray  # int [C]
  loss_sum: np.ndarray  # float [C], cross-entropy in nats
  num_examples: np.ndarray  # int [C]; 0 for clients without examples

  @property
  def accuracies(self) -> list[float | None]:
    """The accuracy of each client; None without examples."""
    return [correct / count if count else None for correct, count in zip(
        self.num_correct.tolist(), self.num_examples.tolist())]


def per_client(client_N: np.ndarray, is_correct_N: np.ndarray,
               loss_N: np.ndarray, num_clients: int) -> Outcomes:
  """Returns sums over the examples of each of C clients."""
  count = lambda weight_N: np.bincount(client_N, weight_N, num_clients)
  return Outcomes(count(is_correct_N).astype(np.int64),
                  count(loss_N.astype(np.float64)),
                  np.bincount(client_N, minlength=num_clients))


def of_clients(last_round: LastRound, found: Mapping[str, Outcomes],
               heldout: Outcomes | None,
               names: Sequence[str] | None = None) -> dict[str, Any]:
  """Returns metrics over clients, and "clients" with one list per column.

  Args:
    last_round: the round whose local models were evaluated.
    found: for its clients that were not left out the outcomes of global_own,
      local_own, local_test, and with held-out examples local_heldout.
    heldout: those of the global model on the held-out examples of all clients.
    names: of all clients; None if they have none.
  """
  jobs, ran_J = last_round.table.jobs, last_round.ran_J
  columns = {'client': jobs.client[ran_J].tolist()}
  if names:
    columns['name'] = [names[client] for client in columns['client']]
  columns |= {name: column[ran_J].tolist() for name, column in {
      'num_examples': jobs.num_examples,
      'received': jobs.is_received, 'drift': last_round.metrics.drift_J,
      'cosine_with_mean': last_round.metrics.cosine_J}.items()}
  line: dict[str, Any] = {}
  for name in 'global_own', 'local_own', 'local_test':
    line |= over_clients(name, found[name], ('accuracy', 'accuracy_std'))
    columns[f'{name}_accuracy'] = found[name].accuracies
  if heldout is not None:
    of_local = found['local_heldout']
    line |= over_clients('global_heldout', heldout)
    line |= over_clients('local_heldout', of_local)
    heldout = Outcomes(*[x_C[columns['client']] for x_C in heldout])
    columns |= {'num_heldout': heldout.num_examples.tolist(),
                'global_heldout_accuracy': heldout.accuracies,
                'local_heldout_accuracy': of_local.accuracies}
  return line | {'clients': columns}


def over_clients(name: str, outcomes: Outcomes,
                 keys: tuple[str, ...] = ()) -> dict[str, float | None]:
  """Returns metrics over the clients that have examples, if any, of a set.

  A loss is None if it is not finite. Names begin with `name`, of models and
  set. `keys` selects metrics; () has all.
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
          for key, value in values.items() if key in keys or not keys}
