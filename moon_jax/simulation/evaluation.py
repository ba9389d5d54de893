"""Evaluates models on named sets of examples, batch by batch.

The global model is evaluated on the test set, and if configured on validation
and training examples and on further test sets. Each local model of a round
predicts the examples that its client trains on ("own"), those that it holds out
("heldout", `ClientTests`), and the test set. The global model predicts the own
examples of the same clients, and the held-out examples of all clients once,
which the host counts per client.

`moon_jax.engine` lists the axis letters; S batches of B examples, M examples of
a set, H held-out examples of all clients.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
import functools
import math
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
import numpy as np

from moon_jax import debugging, platforms
from moon_jax.data import clients as clients_lib
from moon_jax.data.mapped import aligned
from moon_jax.distributed import devices
from moon_jax.distributed.devices import SPLIT, WHOLE
from moon_jax.engine import round as round_lib
from moon_jax.engine import schedule
from moon_jax.engine.local import RoundProgram, TrainData
from moon_jax.engine.schedule import Table
from moon_jax.engine.training_set import TrainingSet
from moon_jax.models.base import Variables
from moon_jax.simulation import (
  client_metrics,
  client_models,
  metric_functions,
  records,
  round_spec,
)
from moon_jax.simulation.client_metrics import Outcomes
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.metric_functions import plain
from moon_jax.simulation.records import LastRound
from moon_jax.simulation.round_spec import RoundSpec

_BATCH = 100  # examples at a time; divides most test sets
_STREAMED_BATCHES = 20  # per chunk and device

_COMPILER = ThreadPoolExecutor(1, 'evaluation')  # while the round compiles


class Batches(NamedTuple):
  """Examples in batches, or without the axis S one batch."""

  inputs: jax.Array  # as stored, [S, B, ...]
  labels: jax.Array  # [S, B, ...]
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


# What an evaluation returns for each example.
NOTHING = lambda outcomes_B, logits_B: ()
LOGITS = lambda outcomes_B, logits_B: logits_B.astype(jnp.float32)
OUTCOMES = lambda outcomes_B, logits_B: outcomes_B
BOTH = lambda outcomes_B, logits_B: (outcomes_B, logits_B.astype(jnp.float32))


@functools.partial(debugging.watched, 'evaluation')
def _predict(program: RoundProgram, variables: Variables,
             data: TrainData | tuple, item: Any) -> tuple[Outcomes, jax.Array]:
  """Returns outcomes, 0 for padding, and logits of a model for a batch.

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
  is_real_B, task = batch.mask > 0, program.model.task
  outcomes_B = jax.tree.map(
      lambda x_B: jnp.where(is_real_B, x_B, jnp.zeros_like(x_B)),
      Outcomes(task.metrics_B(outputs.logits, batch.labels),
               task.loss_B(outputs.logits, batch.labels)))
  return outcomes_B, outputs.logits


def make_evaluate(program: RoundProgram, mesh: Mesh,
                  each_fn: Callable[[Outcomes, jax.Array], Any]) -> Callable:
  """Returns the jitted evaluation of R models.

  It maps (variables_R, frozen weights, data, items), see `_predict`, to
  `Outcomes` [R] over all S items, and the results of `each_fn` for each of
  them, [R, S, ...]. Devices share the items.
  """
  def evaluate_item(bound, variables, data, item):
    outcomes_B, logits_B = _predict(bound, variables, data, item)
    return jax.tree.map(jnp.sum, outcomes_B), each_fn(outcomes_B, logits_B)

  def evaluate_model(bound, variables, data, items):
    sums_S, each_S = lax.map(
        lambda item: evaluate_item(bound, variables, data, item), items)
    return jax.tree.map(jnp.sum, sums_S), each_S

  def evaluate_on_device(variables_R, frozen, data, items):
    bound = program._replace(model=program.model.with_frozen(frozen))
    sums_R, each_R = lax.map(
        lambda v: evaluate_model(bound, v, data, items), variables_R)
    return (sums_R if program.debug else lax.psum(sums_R, devices.AXIS)), each_R

  return devices.sharded(
      evaluate_on_device, mesh, (WHOLE, WHOLE, WHOLE, SPLIT),
      (WHOLE, PartitionSpec(None, devices.AXIS)), program.debug)


def _sums(program, models, num_batches, data, items):
  """Returns the sums over batches of each of several models (`_predict`)."""
  def sum_batch(s):
    item = jax.tree.map(lambda x: x[s], items)
    return tuple(
        jax.tree.map(jnp.sum, _predict(program, variables, data, item)[0])
        for variables in models)

  return lax.fori_loop(
      0, num_batches,
      lambda s, totals: jax.tree.map(jnp.add, totals, sum_batch(s)),
      jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                   debugging.eval_shape(sum_batch, 0)))


def make_evaluate_jobs(program: RoundProgram, mesh: Mesh,
                       specs: dict[str, PartitionSpec],
                       has_logits: bool = False) -> Callable:
  """Returns the jitted evaluation of the models of J jobs.

  It maps (global variables, frozen weights, models_J, test set or (), examples
  of each set, `OwnExamples` of each set, model_J) to `Outcomes` [J] by name:
  global_own, local_test, and local_NAME for each set. `model_J` has the global
  model of each job, if there are several, and then global_NAME is there for
  each set; () if there is one. With `has_logits` "logits" are those
  of local_heldout, [J, S, B, ...]. Each device evaluates one job after another.
  `specs` has the partition spec of the examples of each set, own or heldout.
  """
  def evaluate_job(bound, variables, test, examples, job):
    local, own, model = job
    has_several, start = isinstance(model, jax.Array), variables
    if has_several:
      start = jax.tree.map(lambda x_M: x_M[model], variables)
    outcomes = {}
    if test:
      outcomes['local_test'], = _sums(
          bound, [local], len(test.labels), (), test)
    for name, (index_SB, num_batches) in own.items():
      models = [local] + [start] * (name == 'own' or has_several)
      outcomes[f'local_{name}'], *of_global = _sums(
          bound, models, num_batches, examples[name], index_SB)
      if of_global:
        outcomes[f'global_{name}'], = of_global
      if has_logits and name == 'heldout':
        outcomes['logits'] = lax.map(lambda index_B: _predict(
            bound, local, examples['heldout'], index_B)[1].astype(jnp.float32),
                                     index_SB)
    return outcomes

  def evaluate_on_device(
      variables, frozen, models_J, test, examples, own, model_J):
    bound = program._replace(model=program.model.with_frozen(frozen))
    return lax.map(functools.partial(
        evaluate_job, bound, variables, test, examples),
                   (models_J, own, model_J))

  return devices.sharded(
      evaluate_on_device, mesh,
      (WHOLE, WHOLE, SPLIT, WHOLE, specs, SPLIT, SPLIT), SPLIT, program.debug)


def _without_batches(x_SB):
  """Returns an array [S, B, ...] with one axis of examples, [S * B, ...]."""
  return x_SB.reshape(-1, *x_SB.shape[2:])


def _moments(x_R, weights_M):
  """Returns mean and standard deviation over models.

  There may be several models for each of the M that have weights.
  """
  weight_R = _model_weights(weights_M, len(x_R))
  if weight_R is None:
    return x_R.mean(), x_R.std()
  mean = np.average(x_R, weights=weight_R)
  return mean, np.sqrt(np.average((x_R - mean) ** 2, weights=weight_R))


def _model_weights(weights_M, count):
  """Returns the weights of `count` models, None if they are equal."""
  return None if weights_M is None else np.repeat(
      weights_M, count // len(weights_M))


class Evaluator:
  """Holds the examples to evaluate on and the compiled evaluations of a run."""

  def __init__(self, federation: Federation, spec: RoundSpec, mesh: Mesh,
               training: TrainingSet, like: 'Evaluator | None' = None):
    """Places the examples; compiles nothing.

    It shares test set and programs with another run's evaluator, `like`.
    """
    self._federation, self._mesh = federation, mesh
    self._has_one_model = spec.program.topology.num_models == 1
    data = federation.data.with_test_examples(federation.eval_examples)
    self._beside = spec.program.algorithm.evaluated_beside
    self._task, self._frozen = spec.program.model.task, training.frozen
    count = lambda labels: int(self._task.counts(labels).sum())
    # Sets of the global model, by the prefix of their metrics.
    sets = {'test': (data.test_inputs, data.test_labels)}
    if (index_M := federation.validation) is not None:
      sets['validation'] = (
          data.train_inputs[index_M], data.train_labels[index_M])
    for name, (inputs, labels) in federation.test_sets.items():
      sets[name] = inputs, labels.astype(data.test_labels.dtype, copy=False)
    self._counts = {  # of predictions
        name: count(labels) for name, (_, labels) in sets.items()}
    self._placed = {
        name: like._placed[name] if name == 'test' and like else batched(
            *arrays, mesh) for name, arrays in sets.items()}
    if federation.eval_on == 'train':
      self._trained_M = np.unique(np.concatenate(federation.clients))
      self._counts['global_train'] = count(data.train_labels[self._trained_M])
    self._specs = {'own': training.spec}
    self._tests = federation.client_tests
    if self._tests is not None:
      self._specs['heldout'] = WHOLE
      self._place_held_out()
    self._jitted = {each_fn: make_evaluate(spec.program, mesh, each_fn)
                    for each_fn in (NOTHING, LOGITS, OUTCOMES, BOTH)}
    self._jitted['clients'] = make_evaluate_jobs(
        spec.program, mesh, self._specs, bool(federation.metrics))
    if federation.evaluate_all:
      self._spec, self._training = spec, training
      self._jitted['own'] = client_models.make(
          spec.program, mesh, training.spec)
      self._jitted['models'] = make_evaluate_jobs(
          spec.program, mesh, dict.fromkeys(self._positions, WHOLE),
          bool(federation.metrics))
    self._compiled: dict = like._compiled if like else {}
    self._num_examples_used = {} if not federation.eval_examples else {
        'test_examples': federation.num_test}

  def _place_held_out(self):
    """Places the held-out examples of clients.

    If the global model has validation examples, so have the models of all
    clients: every second example that a client holds out.
    """
    federation, tests = self._federation, self._tests
    is_split, of_clients = federation.validates_clients, [*tests.indices]
    if is_split:
      of_clients = [x[start::2] for start in (0, 1) for x in tests.indices]
    index_H = np.concatenate(of_clients).astype(np.int64)
    # A copy on each device; CPU cores share one.
    self._heldout = devices.put(TrainData(*(
        aligned(getattr(federation.data, f'{tests.part}_{field}')[index_H])
        for field in ('inputs', 'labels'))), self._mesh)
    # Positions in `self._heldout`, by client and in batches.
    num_clients = len(tests.sizes)
    positions = np.split(
        np.arange(len(index_H), dtype=np.int32),
        np.cumsum([len(x) for x in of_clients])[:-1])
    self._positions = {'heldout': positions[:num_clients]} | (
        {'validation': positions[num_clients:]} if is_split else {})
    counts_H = self._task.counts(np.asarray(self._heldout.labels))
    client_of = lambda positions_C: np.repeat(
        np.arange(num_clients), [len(at) for at in positions_C])
    self._own_counts = {name: np.bincount(  # of predictions, by client
        client_of(positions_C), counts_H[np.concatenate(positions_C)],
        num_clients).astype(np.int64)
        for name, positions_C in self._positions.items()}
    self._client_H = client_of(self._positions['heldout'])
    at_H = np.arange(len(self._client_H), dtype=np.int32)
    size = min(_BATCH, len(at_H))
    self._index_SB = devices.put(
        np.pad(at_H, (0, -len(at_H) % (size * self._mesh.size)),
               constant_values=-1).reshape(-1, size), self._mesh, SPLIT)

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

  def compile(self, variables_R: Variables) -> list[Future]:
    """Begins to compile the evaluation of models with these shapes."""
    return [self._program(self._each_fn(name), variables_R, self._frozen, (),
                          next(self._chunks(name))) for name in self._counts]

  def compile_clients(self, variables: Variables, table: Table,
                      data: TrainData) -> list[Future]:
    """Begins to compile the evaluation of the local models of a table."""
    num_jobs = len(table.jobs.run)
    models_J = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(
            (num_jobs, *x.shape[not self._has_one_model:]), x.dtype,
            sharding=jax.NamedSharding(self._mesh, SPLIT)), variables)
    model_J = () if self._has_one_model else np.zeros(num_jobs, np.int32)
    kinds = [self._job_arguments(
        variables, models_J, table, data, np.zeros(num_jobs, bool), model_J)]
    if self._tests is not None and self._has_one_model:
      kinds.append(self._heldout_arguments(variables))
    return [self._program(*kind) for kind in kinds]

  def _program(self, kind, *args):
    """Returns the future of a compiled function; runs of one program share it.

    The caller's thread traces it, and another compiles it.
    """
    key = (kind, bool(self._federation.metrics), str(
        jax.tree.map(lambda x: (x.shape, str(x.dtype)), args)))
    made = self._compiled.get(key)
    if made is None or (made.done() and made.exception()):
      with platforms.float32_products():
        lowered = self._jitted[kind].lower(*args)
      self._compiled[key] = _COMPILER.submit(lowered.compile)
    return self._compiled[key]

  def _run(self, kind, *args):
    if debugging.is_on():
      return self._jitted[kind](*args)
    return self._program(kind, *args).result()(*args)

  def test(self, variables_R: Variables, round_number: int, wait: Callable,
           weights_M: np.ndarray | None = None) -> dict[str, Any]:
    """Returns the metrics of the task, such as accuracy, and the loss.

    The names of metrics begin with those of the sets: test, validation,
    global_train and `Federation.test_sets`, as in test_accuracy. The metrics of
    `Federation.metrics` follow those of the test set. A number that is not
    finite is None, except the loss on the test set. Results are means over the
    models, and for several models the standard deviation of their metrics too,
    with the weights of the M server models. Models of
    `Algorithm.evaluated_beside` have metrics of their own.

    Raises:
      DivergedError: if the test loss is not finite.
      UserError: if a custom metric fails.
    """
    line: dict[str, Any] = {}
    for name, count in self._counts.items():
      parts, each_R = [], ()
      for chunk in self._chunks(name):
        result = self._run(
            self._each_fn(name), variables_R, self._frozen, (), chunk)
        wait(functools.partial(devices.wait, result))
        sums, each_R = result
        parts.append(jax.device_get(sums))
      total = jax.tree.map(lambda *x: np.sum(
          x, 0, np.result_type(x[0], np.int64)), *parts).known()
      step = 1 + len(self._beside)  # models for each model of the server
      for metric, sum_R in total.metrics.items():
        mean, std = _moments(sum_R[::step] / count, weights_M)
        line[f'{name}_{metric}'] = plain(mean)
        if len(sum_R) > step:
          line[f'{name}_{metric}_std'] = plain(std)
        line |= {f'{name}_{metric}_{other}': plain(
            _moments(sum_R[i::step] / count, weights_M)[0])
                 for i, other in enumerate(self._beside, 1)}
      loss = float(_moments(total.loss[::step], weights_M)[0] / count)
      if name == 'test' and not math.isfinite(loss):
        raise records.diverged(
            f'round {round_number}: the test loss became {loss}',
            self._federation, round_number - 1)
      line[f'{name}_loss'] = plain(loss)
      if name == 'test':
        line |= self._num_examples_used | self._test_metrics(
            each_R, weights_M)
    return line

  def _test_metrics(self, logits_R, weights_M):
    federation = self._federation
    if not federation.metrics:
      return {}
    logits_R = devices.read(logits_R, self._mesh)[::1 + len(self._beside)]
    logits_R = logits_R.reshape(len(logits_R), -1, *logits_R.shape[3:])
    labels = federation.test_labels
    return metric_functions.compute(
        federation.metrics, logits_R[:, :len(labels)], labels,
        _model_weights(weights_M, len(logits_R)))

  def test_clients(self, variables: Variables, last_round: LastRound
                   ) -> dict[str, Any]:
    """Returns the metrics of `Simulation.evaluate_clients`."""
    table, ran_J = last_round.table, last_round.ran_J
    clients, labels = (
        self._federation.clients, self._federation.data.train_labels)
    sums_J = devices.read(self._run(*self._job_arguments(
        variables, last_round.models_J, table, last_round.data, ran_J,
        last_round.metrics.model_J)), self._mesh)
    logits_J = sums_J.pop('logits', ())
    counts = {'own': np.array([
        self._task.counts(labels[clients[i]]).sum()
        for i in table.jobs.client[ran_J]], np.int64),
              'test': np.full(ran_J.sum(), self._counts['test'])}
    of_global = None
    if self._tests is not None:
      client_J = table.jobs.client[ran_J]
      if self._has_one_model:
        of_global = self._global_outcomes(variables)
      else:  # those of other clients are not known
        counts_C = self._own_counts['heldout']
        of_global = client_metrics.per_client(
            client_J, sums_J.pop('global_heldout').select(ran_J),
            counts_C * np.isin(np.arange(len(counts_C)), client_J))
      of_global = of_global.select(slice(len(clients)))
      counts['heldout'] = of_global.counts[client_J]
      if len(logits_J):
        sums_J['local_heldout'] = sums_J['local_heldout']._replace(values={
            name: np.append(x_C, np.nan)[np.where(ran_J, table.jobs.client, -1)]
            for name, x_C in self._client_values(
                client_J, map(_without_batches, logits_J[ran_J])).items()})
    return self._num_examples_used | client_metrics.cohort_metrics(last_round, {
        name: sums.select(ran_J)._replace(
            counts=counts[name.partition('_')[2]])
        for name, sums in sums_J.items()}, of_global,
        clients_lib.names(clients))

  def _global_outcomes(self, variables):
    """Returns outcomes of the global model on each client's held-out data."""
    _, outcomes = devices.read(
        self._run(*self._heldout_arguments(variables)), self._mesh)
    values = {}
    if self._federation.metrics:
      outcomes, logits_1SB = outcomes
      logits_H = logits_1SB.reshape(-1, *logits_1SB.shape[3:])
      values = self._client_values(
          range(len(self._own_counts['heldout'])),
          [logits_H[at] for at in self._positions['heldout']])
    return client_metrics.per_client(self._client_H, jax.tree.map(
        lambda x: x.reshape(-1)[:len(self._client_H)], outcomes),
        self._own_counts['heldout'])._replace(values=values)

  def _client_values(self, client_J, logits_J):
    """Returns the metrics of the federation for each client, [C] by name.

    `logits_J` has those of each client's held-out examples, and then maybe
    those of padding.
    """
    labels_H = np.asarray(self._heldout.labels)
    positions_C = self._positions['heldout']

    def predictions():
      for client, logits in zip(client_J, logits_J):
        at = positions_C[client]
        if len(at):
          yield client, logits[:len(at)], labels_H[at]

    return metric_functions.client_values(
        self._federation.metrics, predictions(), len(positions_C))

  def test_all_clients(self, shared: Mapping[str, Any], hparams_R: Any,
                       rows: Callable, adapted: Callable) -> dict[str, Any]:
    """Returns metrics of the model of every client on its held-out examples.

    Clients that never take part are counted separately: with the model that
    they would begin with (new_heldout), and after they have trained it for a
    round (new_adapted_heldout).

    Args:
      shared: the state of the run that clients share, [1, ...].
      hparams_R: its hyperparameters of the last round, [1].
      rows: returns the state of clients, int [J] -> [J, ...].
      adapted: trains clients, int [J]. It returns which client each job has, -1
        in padding, and the models of the jobs.
    """
    count, federation = self._federation.num_clients, self._federation
    columns: dict[str, list] = {'client': list(range(len(self._tests.sizes)))}
    names = clients_lib.names(federation.clients)
    if names:
      columns['name'] = [
          *names, *(clients_lib.names(federation.new_clients) or ())]
    outcomes = self._model_outcomes((client_J, self._run(
        'own', shared, *self._own_arguments(hparams_R, rows, client_J)))
        for client_J in self._batches_of_clients())
    personal = outcomes['heldout']
    columns |= {'num_heldout': personal.counts.tolist()}
    over, old, new = (
        client_metrics.over_clients, slice(count), slice(count, None))
    line: dict[str, Any] = {}
    if self._has_one_model:
      of_global = self._global_outcomes(
          jax.tree.map(lambda x_R: x_R[0], shared['variables'])).known()
      columns |= of_global.columns('global_heldout')
      line |= over('global_heldout', of_global.select(old))
    columns |= personal.columns('personal_heldout')
    line |= over('personal_heldout', personal.select(old))
    if 'validation' in outcomes:
      line |= over('validation_personal', outcomes['validation'].select(old))
    if len(federation.new_clients):
      size = federation.cohort_size
      of_new = self._model_outcomes(map(adapted, np.split(
          np.arange(count, len(self._tests.sizes)),
          range(size, len(federation.new_clients), size))))['heldout']
      is_new_C = np.arange(len(self._tests.sizes)) >= count
      of_new = of_new._replace(counts=of_new.counts * is_new_C)
      columns['is_new'] = is_new_C.tolist()
      columns |= of_new.columns('adapted_heldout')
      line |= over('new_heldout', personal.select(new)) | over(
          'new_adapted_heldout', of_new.select(new))
    return line | {'clients': columns}

  def _model_outcomes(self, batches):
    """Returns outcomes of models on their clients' held-out examples.

    `batches` has pairs of clients, int [J], -1 for padding, and models [J].
    The outcomes are those of all clients, 0 for clients in no batch, by name:
    heldout, and validation if there are such examples.
    """
    parts = [
        (client_J, devices.read(self._run(
            'models', (), self._frozen, models_J, (),
            dict.fromkeys(self._positions, self._heldout),
            {name: self._held_out_by(client_J, name)
             for name in self._positions}, ()), self._mesh))
        for client_J, models_J in batches]
    client_J, results = jax.tree.map(lambda *x_J: np.concatenate(x_J), *parts)
    has_J = client_J >= 0
    values = self._client_values(
        client_J[has_J], map(_without_batches, results['logits'][has_J])
    ) if 'logits' in results else {}
    return {name: client_metrics.per_client(
        client_J[has_J], results[f'local_{name}'].select(has_J), counts
        )._replace(values=values if name == 'heldout' else {}).known()
            for name, counts in self._own_counts.items()}

  def _held_out_by(self, client_J, name='heldout'):
    """Returns the held-out examples of clients, none for padding, -1."""
    return devices.put(schedule.own_examples(
        [self._positions[name][client] if client >= 0 else []
         for client in client_J], self._tests.sizes.max()), self._mesh, SPLIT)

  def compile_all_clients(self, shared: Mapping[str, Any], hparams_R: Any,
                          rows: Callable, _adapted: Callable) -> list[Future]:
    """Begins to compile `test_all_clients`, but for its last step."""
    variables = jax.tree.map(lambda x_R: x_R[0], shared['variables'])
    client_J = self._batches_of_clients()[0]
    kinds = [self._heldout_arguments(variables)] * self._has_one_model
    return [self._program(*kind) for kind in (*kinds, (
        'own', shared, *self._own_arguments(hparams_R, rows, client_J)))]

  def _batches_of_clients(self):
    """Returns the clients of each batch, int [J]; the last may have padding.

    A batch has as many clients as a round; fewer if their examples are moved
    to the devices, where they take the space of those of a round.
    """
    clients, spec = self._federation.all_clients, self._spec
    most = spec.shape.jobs_per_device
    if spec.shard_size and self._reads_examples():
      sizes = np.sort(clients_lib.sizes(clients))[::-1]
      most = min(most, int((np.cumsum(sizes) <= spec.shard_size).sum()))
    size = min(most, -(-len(clients) // self._mesh.size)) * self._mesh.size
    client_C = np.arange(-(-len(clients) // size) * size)
    return np.where(
        client_C < len(clients), client_C, -1).reshape(-1, size)

  def _own_arguments(self, hparams_R, rows, client_J):
    """Returns the arguments of `client_models.make` after the first one."""
    federation, spec = self._federation, self._spec
    clients = federation.all_clients
    at_J = np.maximum(client_J, 0).astype(np.int32)
    indices_J = [round_spec.reading_order(federation, client, clients[client])
                 for client in at_J]
    sizes_J, zeros = clients_lib.sizes(indices_J), np.zeros_like(at_J)
    steps_J = round_spec.local_steps(federation, sizes_J).astype(np.int32)
    jobs = schedule.Jobs(
        zeros, at_J, sizes_J.astype(np.int32), steps_J * (client_J >= 0),
        np.ones(len(at_J), bool), np.zeros(len(at_J), np.float32),
        federation.data.label_counts(indices_J), zeros)
    is_read = self._reads_examples()
    own = schedule.own_examples(
        [indices if is_read and client >= 0 else []
         for indices, client in zip(indices_J, client_J)],
        round_spec.max_examples(federation))
    table, data = self._training.for_round(
        schedule.without_steps(jobs, own, spec.shape))
    clients_J, table, data = round_lib.placed(
        self._mesh, self._training.spec, rows(at_J), table, data)
    return clients_J, hparams_R, table, data

  def _reads_examples(self):
    """Returns whether clients read examples to make or to choose a model."""
    program = self._spec.program
    return program.algorithm.reads_examples or program.topology.needs_losses

  def _heldout_arguments(self, variables):
    stacked = jax.tree.map(lambda x: x[None], variables)
    each_fn = BOTH if self._federation.metrics else OUTCOMES
    return each_fn, stacked, self._frozen, self._heldout, self._index_SB

  def _job_arguments(self, variables, models_J, table, data, ran_J, model_J):
    """Returns the arguments of `_run` for the models of a table's jobs."""
    examples = {'own': devices.put(
        data._replace(frozen=()), self._mesh, self._specs['own'])}
    own = {'own': devices.put(table.own, self._mesh, SPLIT)}
    if self._tests is not None:
      examples['heldout'] = self._heldout
      own['heldout'] = self._held_out_by(
          np.where(ran_J, table.jobs.client, -1))
    return ('clients', variables, self._frozen, models_J, self._placed['test'],
            examples, own, devices.put(model_J, self._mesh, SPLIT))
