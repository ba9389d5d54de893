"""A federation on the device: data, state and compiled programs, by rounds."""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import algorithms
from moon_jax import evaluate
from moon_jax import models
from moon_jax.config import Config
from moon_jax.data import augment
from moon_jax.data import cohort
from moon_jax.data.dataset import Dataset
from moon_jax.engine import round as round_lib
from moon_jax.engine import schedule
from moon_jax.engine import state as state_lib
from moon_jax.engine.local import Program
from moon_jax.errors import DivergedError

# Flags whose values are arrays in the program, so that they never recompile.
_HYPERPARAMETERS = (
    'learning_rate', 'momentum', 'weight_decay', 'mu', 'temperature')
_LANES_OF_ACCELERATOR = 16  # a guess until measured; see BUILD_NOTES.md


class RoundRecord(NamedTuple):
  """What one round did; plain numbers."""

  metrics: dict[str, float]  # means over the round's local steps, and drift
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
               clients: list[np.ndarray]):
    """Places the data and makes the first state; compiles nothing large.

    Args:
      config: a validated configuration.
      dataset: the data.
      clients: for each client the indices of its training examples.

    Raises:
      UserError: where the network cannot take the data set's images.
    """
    self.config = config
    self._clients = clients
    self._cohorts = cohort.sample_cohorts(
        config.num_clients, config.cohort_size(), config.num_rounds,
        config.seed)
    self.num_lanes = _choose_lanes(config)
    steps = [config.local_epochs
             * schedule.steps_per_epoch(len(i), config.batch_size)
             for i in clients]
    self._num_rows = schedule.max_rows(
        steps, config.cohort_size(), self.num_lanes)

    model = models.make(
        config.model, dataset.num_classes,
        config.projection_dim if config.projection_head else None,
        config.dtype)
    algorithm = algorithms.make(config)
    normalize_fn = functools.partial(
        augment.normalize, mean=dataset.mean, std=dataset.std)
    augmentation = dataset.augmentation if config.augment else 'none'
    self._program = Program(
        model, algorithm, config.optimizer,
        augment.AUGMENTATIONS[augmentation], normalize_fn)
    example = jnp.zeros((1, *dataset.train_images.shape[1:]), jnp.float32)
    # On a named device, as a restored state is: one program serves both.
    self.state = jax.device_put(
        state_lib.init([config.seed], model, algorithm, config.num_clients,
                       example), jax.devices()[0])
    self._hparams = {
        name: jnp.full(1, getattr(config, name), jnp.float32)
        for name in _HYPERPARAMETERS}
    self._train_data = round_lib.TrainData(
        jnp.asarray(dataset.train_images), jnp.asarray(dataset.train_labels))
    self._test_data = evaluate.batched(
        dataset.test_images, dataset.test_labels)
    self._evaluate = evaluate.make_evaluate(model, normalize_fn)
    self._num_test = len(dataset.test_labels)
    self._round = None
    self._next_table = None

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
      indices = self._clients[client]
      random = np.random.default_rng([config.seed, round_index, client])
      batches = schedule.local_batches(
          indices, config.local_epochs, config.batch_size, random)
      jobs.append(schedule.Job(0, client, len(indices), batches))
    return schedule.plan(
        jobs, self.num_lanes, self._num_rows, config.batch_size)

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
    self._evaluate = self._evaluate.lower(
        self.state.variables, self._test_data).compile()
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
    if index + 1 < len(self._cohorts):  # while the device is busy
      self._next_table = index + 1, self.plan(index + 1)
    metrics = jax.device_get(metrics)
    seconds = time.perf_counter() - start
    self.state = state
    self._check_finite(index, table, metrics)
    is_step_TL = table.job_TL >= 0
    means = {'train_loss': metrics.loss_TL, **metrics.extra_TL}
    means = {name: float(trace_TL[is_step_TL].mean(dtype=np.float64))
             for name, trace_TL in means.items()}
    means['drift'] = float(metrics.drift_J.mean(dtype=np.float64))
    num_examples = int((table.examples_TLB >= 0).sum())
    return RoundRecord(means, num_examples, seconds)

  def evaluate(self) -> dict[str, float]:
    """Test accuracy (a fraction) and test loss of the global model."""
    result = jax.device_get(
        self._evaluate(self.state.variables, self._test_data))
    return {'test_accuracy': int(result.num_correct[0]) / self._num_test,
            'test_loss': float(result.loss_sum[0]) / self._num_test}

  def _table_of(self, index):
    if self._next_table is not None and self._next_table[0] == index:
      return self._next_table[1]
    return self.plan(index)

  def _check_finite(self, index, table, metrics):
    """Losses are of the model before a step; drift tells of the last one."""
    bad_TL = ~np.isfinite(metrics.loss_TL) & (table.job_TL >= 0)
    bad_J = ~np.isfinite(metrics.drift_J)
    if bad_TL.any():
      row, lane = np.argwhere(bad_TL)[0]
      job, value = table.job_TL[row, lane], metrics.loss_TL[row, lane]
      what = f'loss became {value} at local step {table.step_TL[row, lane] + 1}'
    elif bad_J.any():
      job = np.argmax(bad_J)
      what = 'parameters became infinite or NaN at its last local step'
    else:
      return
    config = self.config
    raise DivergedError(
        f'round {index + 1}, client {table.jobs.client[job]}: its {what} '
        f'(--algorithm={config.algorithm} --learning_rate='
        f'{config.learning_rate}). Earlier rounds are kept; lower '
        '--learning_rate')


def _choose_lanes(config: Config) -> int:
  """One lane on CPUs, where a batched product gains nothing; see DESIGN."""
  lanes = config.lanes
  if lanes == 0:
    lanes = 1 if jax.default_backend() == 'cpu' else _LANES_OF_ACCELERATOR
  return min(lanes, config.cohort_size())
