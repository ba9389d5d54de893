"""A federation on the device: data, state and compiled programs, by rounds."""

from collections.abc import Callable
import functools
import math
import time
from typing import NamedTuple

import jax
import numpy as np

from moon_jax.config import Config
from moon_jax.data import cohort
from moon_jax.data import partition
from moon_jax.data.dataset import Dataset
from moon_jax.distributed import devices
from moon_jax.engine import client_store
from moon_jax.engine import lanes
from moon_jax.engine import schedule
from moon_jax.engine import state as state_lib
from moon_jax.engine.local import TrainData
from moon_jax.engine.round import Round
from moon_jax.engine.state import State
from moon_jax.engine.training_set import TrainingSet
from moon_jax.errors import DivergedError
from moon_jax.models.base import Variables
from moon_jax.optimizers import HYPERPARAMETERS
from moon_jax.simulation import checks
from moon_jax.simulation import evaluate
from moon_jax.simulation import memory
from moon_jax.simulation import metrics as metrics_lib
from moon_jax.simulation import round_spec


class RoundRecord(NamedTuple):
  """What one round did; plain numbers."""

  metrics: dict[str, float]  # means over the round's local steps; of drift
  left_out: dict[int, str]  # clients of --on_nan=skip_client, and why each
  num_examples: int  # examples trained on, every epoch counted
  seconds: float  # of training, compilation and evaluation not counted


class Simulation:
  """One federated run, advanced round by round.

  Attributes:
    state: the `moon_jax.engine.state.State` (R = 1) after `rounds_done` rounds;
      of several processes each has the rows of its own clients alone.
    num_lanes: clients trained side by side, on all devices together.
    num_devices: that share them.
    num_test: number of test examples that evaluations use.
  """

  def __init__(self, config: Config, dataset: Dataset,
               clients: list[np.ndarray], cohorts: list[list[int]]):
    """Places the data and makes the first state; compiles nothing large.

    Args:
      config: the configuration.
      dataset: the data.
      clients: for each client the indices of its training examples.
      cohorts: for each round the clients that take part; of more rounds than
        are run the longest counts all the same, so that a run can go on.

    Raises:
      UserError: where the configuration cannot be run, or the network cannot
        take the data set's inputs.
    """
    self.config = config = checks.validate(config)
    checks.validate_dataset(config, dataset)
    dataset = dataset.with_test_examples(config.eval_examples)
    self._clients = clients if config.shuffle else (
        partition.sorted_by_class(clients, dataset.train_labels))
    self._cohorts = cohorts
    self._cohort_size = max(map(len, cohorts))
    self._most_examples = max(map(len, clients))
    self.num_lanes = lanes.choose(
        config.lanes, self._cohort_size, jax.device_count(),
        jax.process_count(), jax.default_backend() == 'cpu')
    self._mesh = devices.mesh(self.num_lanes)
    self.num_devices = self._mesh.size
    spec = round_spec.make(config, dataset, clients, cohorts, self.num_lanes,
                           self._mesh.size)
    memory.check(spec.footprint)
    self._shape, self._program = spec.shape, spec.program
    model, algorithm = spec.program.model, spec.program.algorithm
    normalize_fn, shard_size = spec.program.normalize_fn, spec.shard_size
    self.state = state_lib.placed(state_lib.init(
        [config.seed], model, algorithm, config.num_clients, spec.example),
        self._mesh)
    self._owners = client_store.Owners(self.state.clients, self._mesh)
    whole = functools.partial(devices.put, on=self._mesh)
    self._hparams = whole({
        name: np.full(1, getattr(config, name), np.float32)
        for name in HYPERPARAMETERS})
    self._training = TrainingSet(TrainData(
        dataset.train_inputs, dataset.train_labels,
        spec.noise_std), self._mesh, shard_size)
    self._test_data = evaluate.batched(
        dataset.test_inputs, dataset.test_labels, self._mesh)
    self._evaluate = evaluate.make_evaluate(model, normalize_fn, self._mesh)
    self._evaluate_clients = evaluate.make_evaluate_clients(
        model, normalize_fn, self._mesh, self._training.spec)
    self._num_train = len(dataset.train_labels)
    self.num_test = len(dataset.test_labels)
    self._of_subset = ({'test_examples': self.num_test}
                       if config.eval_examples else {})
    self._round = self._compiled_evaluate = None
    self._next = self._last_round = None

  @property
  def _num_slots(self):
    return self._shape.jobs_per_device * self._shape.num_devices

  @property
  def rounds_done(self) -> int:
    return int(self.state.round)

  @property
  def num_parameters(self) -> int:
    """Of one model."""
    return sum(x.size for x in jax.tree.leaves(self.state.variables['params']))

  @property
  def data_bytes(self) -> int:
    """Of the training examples on a device, and its part of the test set."""
    test = sum(x.nbytes for x in jax.tree.leaves(self._test_data))
    return self._training.device_bytes + test // self.num_devices

  @property
  def client_bytes(self) -> int:
    """Of what all clients keep between rounds."""
    return sum(x.nbytes for x in jax.tree.leaves(self.state.clients))

  def state_on_host(self) -> State:
    """The state as `state.on_host` has it, with the rows of all clients."""
    self._owners.gather(self.state.clients, self._num_slots)
    return state_lib.on_host(self.state)

  def restore(self, state: State) -> None:
    """Goes on from what `state_on_host` gave, the same in all processes."""
    self.state = state_lib.placed(
        state_lib.from_host(state, self.state), self._mesh)
    self._owners = client_store.Owners(self.state.clients, self._mesh)

  def plan(self, round_index: int) -> schedule.Table:
    """The table of a round, from 0; the same whenever it is asked for."""
    config = self.config
    cohort_J = self._cohorts[round_index]
    lost_J = [cohort.is_lost(config.dropout_rate, config.seed, round_index, i)
              for i in cohort_J]
    if config.dropout_stage == 'before_training':
      cohort_J = [i for i, is_lost in zip(cohort_J, lost_J) if not is_lost]
      lost_J = [False] * len(cohort_J)
    indices_J = [self._clients[client] for client in cohort_J]
    batches, num_steps = schedule.local_batches(
        indices_J, config.local_epochs, self._shape.batch_size,
        self._num_train, np.random.default_rng([config.seed, round_index])
        if config.shuffle else None)
    work = schedule.Work(
        run=np.zeros(len(cohort_J), np.int32),
        client=np.array(cohort_J, np.int32),
        num_examples=np.array([len(i) for i in indices_J], np.int32),
        num_steps=num_steps, batches=batches,
        is_received=~np.array(lost_J, bool))
    table = schedule.plan(work, self._shape, config.weighting)
    if (self._program.freeze_once or self._program.keep_models
        or self.config.shard_data):
      table = table._replace(own=self._own_examples(table.jobs))
    return table

  def shorten(self, num_examples: int) -> None:
    """Clients train on their first so many from now on, to try how fast."""
    self._clients = [indices[:num_examples] for indices in self._clients]
    self._next = None

  def compile(self) -> float:
    """Compiles round and evaluation; returns how many seconds that took.

    Every later round runs what was compiled here: a table of another shape
    would be an error, not a second compilation.
    """
    start = time.perf_counter()
    # After the last round any table will do: all have one shape.
    table, data = self._prepared(min(self.rounds_done, len(self._cohorts) - 1))
    compiled = Round(self._program, self._mesh, self._training.spec)
    compiled.compile(self.state, self._hparams, table, data)
    self._round = compiled
    self._compiled_evaluate = self._evaluate.lower(
        self._evaluated(), self._test_data).compile()
    if self._program.keep_models:
      models_J = jax.tree.map(
          lambda x: jax.ShapeDtypeStruct(
              (len(table.jobs.run), *x.shape[1:]), x.dtype,
              sharding=jax.NamedSharding(self._mesh, devices.SPLIT)),
          self.state.variables)
      self._evaluate_clients = self._evaluate_clients.lower(
          self._global_model(), models_J, *self._own(table, data),
          self._test_data).compile()
    return time.perf_counter() - start

  def run_round(self, wait: Callable = lambda function: function()
                ) -> RoundRecord:
    """Trains one round.

    Args:
      wait: calls a function that waits for the devices; where it raises, the
        state is as before the round.

    Raises:
      DivergedError: where a loss or a parameter is no longer a finite number;
        the state is as before the round.
    """
    if self._round is None:
      self.compile()
    start = time.perf_counter()
    index = self.rounds_done
    table, data = self._prepared(index)
    self._owners.bring(self.state.clients, table.jobs)
    started = self._round.start(
        self.state, self._hparams, table, data)
    if index + 1 < self.config.num_rounds:  # while the devices are busy
      self._prepared(index + 1)
    *_, metrics = started
    models_J = metrics.models_J
    wait(functools.partial(devices.wait, metrics))
    metrics = devices.read(metrics._replace(models_J=()), self._mesh)
    left_out = metrics_lib.left_out(self.config, index, table, metrics)
    num_examples = int((table.examples_TLB >= 0).sum())
    line = metrics_lib.of_round(table, metrics)
    if self.config.dropout_rate:
      line['clients_received'] = int(
          (table.jobs.is_received & metrics.finite_J).sum())
    if self.config.on_nan == 'skip_client':
      line['clients_left_out'] = sorted(left_out)
    # Last, so that a state goes on only with a round that can be told.
    self.state = self._round.finish(self.state, table, *started[:2])
    self._owners.trained(table.jobs)
    self._last_round = table, data, metrics, models_J
    return RoundRecord(line, left_out, num_examples,
                       time.perf_counter() - start)

  def evaluate(self, wait: Callable = lambda function: function()
               ) -> dict[str, float]:
    """Test accuracy (a fraction) and test loss of the global model.

    Of several models (solo training) the means, and the accuracies' spread.
    With --eval_examples also how many "test_examples" they are of.

    Args:
      wait: as in `run_round`.

    Raises:
      DivergedError: where the loss is no longer a finite number.
    """
    evaluate_fn = self._compiled_evaluate or self._evaluate
    result = evaluate_fn(self._evaluated(), self._test_data)
    wait(functools.partial(devices.wait, result))
    result = jax.device_get(result)
    accuracies = result.num_correct / self.num_test
    line = {'test_accuracy': float(accuracies.mean())}
    if len(accuracies) > 1:
      line['test_accuracy_std'] = float(accuracies.std())
    loss = float(result.loss_sum.mean(dtype=np.float64) / self.num_test)
    if not math.isfinite(loss):
      raise DivergedError(
          f'round {self.rounds_done}: the test loss became {loss} '
          f'{metrics_lib.remedy(self.config)}')
    return line | {'test_loss': loss} | self._of_subset

  def evaluation_seconds(self) -> float:
    """How long one evaluation takes."""
    start = time.perf_counter()
    self.evaluate()
    return time.perf_counter() - start

  def temporary_bytes(self) -> int:
    """What the round holds on a device while it runs; 0 until compiled."""
    return self._round.temporary_bytes() if self._round else 0

  def evaluate_clients(self) -> dict[str, float | dict[str, list]]:
    """Accuracies of the models that clients ended the last round with.

    Returns:
      Means and standard deviations over the clients, of the global model on
      each client's own examples and of its local model on them and on the
      test set; and under "clients" a list of each, with the clients' numbers,
      examples, whether the server received them, drift, and cosine of the
      update with the mean direction of all, itself included. With
      --eval_examples also how many "test_examples" were taken.
    """
    table, data, metrics, models_J = self._last_round
    result = devices.read(self._evaluate_clients(
        self._global_model(), models_J, *self._own(table, data),
        self._test_data), self._mesh)
    return self._of_subset | metrics_lib.of_clients(
        table.jobs, metrics, result, self.num_test)

  @property
  def has_one_model(self) -> bool:
    """Whether the global model is what training is for, as not in solo."""
    return not self._program.algorithm.per_client_init

  def global_model(self) -> Variables:
    """Its variables in numpy arrays."""
    return jax.device_get(self._global_model())

  def _global_model(self):
    return jax.tree.map(lambda x: x[0], self.state.variables)

  def _own_examples(self, jobs):
    return schedule.own_examples(
        [self._clients[client] if steps else []
         for client, steps in zip(jobs.client, jobs.num_steps)],
        self._most_examples)

  def _own(self, table, data):
    return (devices.put(table.own, self._mesh, devices.SPLIT),
            devices.put(data, self._mesh, self._training.spec))

  def _evaluated(self):
    """The models to evaluate: one, or in solo training each client's."""
    if self._program.algorithm.per_client_init:
      self._owners.gather(self.state.clients, self._num_slots)
    clients = jax.tree.map(lambda x: x[0], self.state.clients)
    return devices.put(self._program.algorithm.evaluated(
        self._global_model(), clients), self._mesh)

  def _prepared(self, index):
    """The table of a round and its examples, made once."""
    if self._next is None or self._next[0] != index:
      self._next = index, self._training.of_round(self.plan(index))
    return self._next[1]

