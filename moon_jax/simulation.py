"""A federation on the device: data, state and compiled programs, by rounds."""

import functools
import math
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import algorithms
from moon_jax import checks
from moon_jax import custom
from moon_jax import evaluate
from moon_jax import memory
from moon_jax import metrics as metrics_lib
from moon_jax import models
from moon_jax.config import Config
from moon_jax.data import augment
from moon_jax.data import cohort
from moon_jax.data import partition
from moon_jax.data.dataset import Dataset
from moon_jax.engine import round as round_lib
from moon_jax.engine import schedule
from moon_jax.engine import state as state_lib
from moon_jax.engine.local import Program
from moon_jax.engine.local import TrainData
from moon_jax.errors import DivergedError
from moon_jax.optimizers import HYPERPARAMETERS

_LANES_OF_ACCELERATOR = 16  # a guess until measured; see BUILD_NOTES.md


class RoundRecord(NamedTuple):
  """What one round did; plain numbers."""

  metrics: dict[str, float]  # means over the round's local steps; of drift
  num_examples: int  # examples trained on, every epoch counted
  seconds: float  # of training, compilation and evaluation not counted


class Simulation:
  """One federated run, advanced round by round.

  Attributes:
    state: the `moon_jax.engine.state.State` (R = 1) after `rounds_done`
      rounds; may be replaced, to resume.
    num_lanes: clients trained side by side.
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
    self._clients = clients
    self._cohorts = cohorts
    self._cohort_size = max(map(len, cohorts))
    self.num_lanes = _choose_lanes(config.lanes, self._cohort_size)
    # A batch larger than every client is all of its examples, and padding.
    self._batch_size = min(config.batch_size, max(map(len, clients)))
    steps = [config.local_epochs
             * schedule.steps_per_epoch(len(i), self._batch_size)
             for i in clients]
    self._num_rows = schedule.max_rows(
        steps, self._cohort_size, self.num_lanes)

    model = models.make(
        config.model, dataset.num_classes,
        config.projection_dim if config.projection_head else None,
        config.dtype, config.norm, dataset.num_tokens)
    algorithm = algorithms.make(config, self._cohort_size)
    normalize_fn = functools.partial(
        augment.normalize, mean=dataset.mean, std=dataset.std)
    example = normalize_fn(jnp.asarray(dataset.train_inputs[:1]))
    if config.is_custom():
      custom.check(config, algorithm, model, example)
    augmentation = dataset.augmentation if config.augment else 'none'
    self._program = Program(
        model, algorithm, config.optimizer,
        augment.AUGMENTATIONS[augmentation], normalize_fn,
        keep_models=config.client_eval_every > 0)
    init = functools.partial(
        state_lib.init, [config.seed], model, algorithm, config.num_clients,
        example)
    memory.check(
        config, jax.eval_shape(init),
        self._num_rows * self.num_lanes * self._batch_size,
        self._cohort_size if self._program.keep_models else 0,
        dataset.nbytes)
    # On a named device, as a restored state is: one program serves both.
    self.state = jax.device_put(init(), jax.devices()[0])
    self._hparams = {
        name: jnp.full(1, getattr(config, name), jnp.float32)
        for name in HYPERPARAMETERS}
    self._train_data = TrainData(
        jnp.asarray(dataset.train_inputs), jnp.asarray(dataset.train_labels),
        _noise_std(config, dataset, clients))
    self._test_data = evaluate.batched(
        dataset.test_inputs, dataset.test_labels)
    self._evaluate = evaluate.make_evaluate(model, normalize_fn)
    self._evaluate_clients = evaluate.make_evaluate_clients(
        model, normalize_fn)
    self._num_test = len(dataset.test_labels)
    self._round = self._compiled_evaluate = None
    self._next_table = self._last_round = None

  @property
  def rounds_done(self) -> int:
    return int(self.state.round)

  @property
  def num_parameters(self) -> int:
    """Of one model."""
    return sum(x.size for x in jax.tree.leaves(self.state.variables['params']))

  @property
  def client_bytes(self) -> int:
    """Of what all clients keep between rounds."""
    return sum(x.nbytes for x in jax.tree.leaves(self.state.clients))

  def plan(self, round_index: int) -> schedule.Table:
    """The table of a round, from 0; the same whenever it is asked for."""
    config = self.config
    jobs = []
    for client in self._cohorts[round_index]:
      place = config.seed, round_index, client
      lost = cohort.is_lost(config.dropout_rate, *place)
      if lost and config.dropout_stage == 'before_training':
        continue
      indices = self._clients[client]
      batches = schedule.local_batches(
          indices, config.local_epochs, self._batch_size,
          np.random.default_rng(place))
      jobs.append(
          schedule.Job(0, client, len(indices), batches, not lost))
    return schedule.plan(
        jobs, self.num_lanes, self._num_rows, self._batch_size,
        config.weighting, self._cohort_size)

  def compile(self) -> float:
    """Compiles round and evaluation; returns how many seconds that took.

    Every later round runs what was compiled here: a table of another shape
    would be an error, not a second compilation.
    """
    start = time.perf_counter()
    table = self.plan(self.rounds_done)
    self._next_table = self.rounds_done, table
    self._round = round_lib.make_round(self._program).lower(
        self.state, self._hparams, table, self._train_data).compile()
    self._compiled_evaluate = self._evaluate.lower(
        self._evaluated(), self._test_data).compile()
    if self._program.keep_models:
      models_J = jax.tree.map(
          lambda x: jax.ShapeDtypeStruct(
              (self._cohort_size, *x.shape[1:]), x.dtype),
          self.state.variables)
      self._evaluate_clients = self._evaluate_clients.lower(
          jax.tree.map(lambda x: x[0], self.state.variables), models_J,
          self._own_examples(table.jobs), self._train_data, self._test_data
      ).compile()
    return time.perf_counter() - start

  def run_round(self) -> RoundRecord:
    """Trains one round.

    Raises:
      DivergedError: where a client's loss is no longer a finite number.
    """
    if self._round is None:
      self.compile()
    start = time.perf_counter()
    index = self.rounds_done
    table = self._table_of(index)
    state, metrics = self._round(
        self.state, self._hparams, table, self._train_data)
    if index + 1 < self.config.num_rounds:  # while the device is busy
      self._next_table = index + 1, self.plan(index + 1)
    models_J = metrics.models_J
    metrics = jax.device_get(metrics._replace(models_J=()))
    seconds = time.perf_counter() - start
    self.state = state
    metrics_lib.check_finite(self.config, index, table, metrics)
    self._last_round = table.jobs, metrics, models_J
    num_examples = int((table.examples_TLB >= 0).sum())
    line = metrics_lib.of_round(table, metrics)
    if self.config.dropout_rate:
      line['clients_received'] = int(table.jobs.is_received.sum())
    return RoundRecord(line, num_examples, seconds)

  def evaluate(self) -> dict[str, float]:
    """Test accuracy (a fraction) and test loss of the global model.

    Of several models (solo training) the means, and the accuracies' spread.

    Raises:
      DivergedError: where the loss is no longer a finite number.
    """
    evaluate_fn = self._compiled_evaluate or self._evaluate
    result = jax.device_get(evaluate_fn(self._evaluated(), self._test_data))
    accuracies = result.num_correct / self._num_test
    line = {'test_accuracy': float(accuracies.mean())}
    if len(accuracies) > 1:
      line['test_accuracy_std'] = float(accuracies.std())
    loss = float(result.loss_sum.mean(dtype=np.float64) / self._num_test)
    if not math.isfinite(loss):
      raise DivergedError(
          f'round {self.rounds_done}: the test loss became {loss} '
          f'{metrics_lib.remedy(self.config)}')
    return line | {'test_loss': loss}

  def evaluate_clients(self) -> dict[str, float | dict[str, list]]:
    """Accuracies of the models that clients ended the last round with.

    Returns:
      Means and standard deviations over the clients, of the global model on
      each client's own examples and of its local model on them and on the
      test set; and under "clients" a list of each, with the clients' numbers,
      examples, whether the server received them, drift, and cosine of the
      update with the mean direction of all, itself included.
    """
    jobs, metrics, models_J = self._last_round
    result = jax.device_get(self._evaluate_clients(
        jax.tree.map(lambda x: x[0], self.state.variables), models_J,
        self._own_examples(jobs), self._train_data, self._test_data))
    return metrics_lib.of_clients(jobs, metrics, result, self._num_test)

  def _own_examples(self, jobs):
    return evaluate.own_examples(
        [self._clients[client] if steps else []
         for client, steps in zip(jobs.client, jobs.num_steps)],
        max(map(len, self._clients)))

  def _evaluated(self):
    """The models to evaluate: one, or in solo training each client's."""
    of_run = functools.partial(jax.tree.map, lambda x: x[0])
    return self._program.algorithm.evaluated(
        of_run(self.state.variables), of_run(self.state.clients))

  def _table_of(self, index):
    if self._next_table is not None and self._next_table[0] == index:
      return self._next_table[1]
    return self.plan(index)

def _noise_std(config, dataset, clients):
  """Of noise on normalised inputs: on images it is told as of those in 0..1."""
  if config.partition != 'feature_noise':
    return None
  std_N = partition.noise_std(
      clients, config.noise_std, len(dataset.train_labels))
  unit_C = dataset.std if dataset.is_images else (1.,)
  return jnp.asarray(std_N[:, None] / np.float32(unit_C))


def _choose_lanes(lanes: int, cohort_size: int) -> int:
  """One lane on CPUs, where a batched product gains nothing; see DESIGN."""
  if lanes == 0:
    lanes = 1 if jax.default_backend() == 'cpu' else _LANES_OF_ACCELERATOR
  return min(lanes, cohort_size)
