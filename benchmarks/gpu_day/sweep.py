"""Measures a sweep of R runs in one program against R separate runs.

The engine stacks runs: state, hyperparameters and jobs have an index of the
run, so the jobs of all runs share the lanes. `moon_jax.Simulation` has R = 1;
this module calls the same round with R > 1.
"""

import functools
import statistics
import time
from typing import Any

import numpy as np

from benchmarks import bench_child


def measure(task: dict[str, Any]) -> dict[str, Any]:
  """Returns seconds of a round of all runs, in one program and one by one.

  The task has "config", "num_examples", "seeds" and "mus" (one run for each
  pair of seed and mu), "lanes" of the sweep, "lanes_alone" of a single run, and
  "repeats". Runs share the split of the data and differ in their models,
  shuffles and mu. The result includes the largest difference of parameters
  between both ways after all rounds.
  """
  from moon_jax.distributed import cpu_devices

  cpu_devices.share()
  import jax

  config, dataset, clients = bench_child.inputs(task)
  make_runs = functools.partial(_Runs, config, dataset, clients)
  points = [(seed, mu) for seed in task['seeds'] for mu in task['mus']]
  together, seconds = make_runs(points, task['lanes']), []
  compile_seconds = together.run_round()
  for _ in range(task['repeats']):
    seconds.append(together.run_round())

  first = make_runs(points[:1], task['lanes_alone'])
  alone = [first] + [first.like(point) for point in points[1:]]
  compile_seconds_alone = [run.run_round() for run in alone][0]
  seconds_alone = [sum(run.run_round() for run in alone)
                   for _ in range(task['repeats'])]
  differences = [
      float(np.abs(np.asarray(x)[r] - np.asarray(y)[0]).max())
      for r, run in enumerate(alone)
      for x, y in zip(*[jax.tree.leaves(runs.state.variables['params'])
                        for runs in (together, run)])]
  seconds, seconds_alone = map(statistics.median, (seconds, seconds_alone))
  return {
      'num_runs': len(points), 'lanes': task['lanes'],
      'lanes_alone': task['lanes_alone'], 'rows': together.num_rows,
      'rows_alone': sum(run.num_rows for run in alone),
      'seconds': seconds, 'seconds_one_by_one': seconds_alone,
      'ratio': seconds_alone / seconds,
      'first_round_seconds': compile_seconds,
      'first_round_seconds_alone': compile_seconds_alone,
      'largest_difference': max(differences)}


class _Runs:
  """R runs of one configuration in one program.

  Attributes:
    state: the stacked state of all runs.
    num_rows: table rows of the last round.
  """

  def __init__(self, config, dataset, clients, points, num_lanes):
    """Moves the data to the devices.

    Args:
      config: the fields that all runs share.
      dataset: the data set.
      clients: for each client the indices of its training examples.
      points: seed and mu of each run.
      num_lanes: lanes that all runs share.
    """
    import jax.numpy as jnp

    from moon_jax import models
    from moon_jax.algorithms import from_config
    from moon_jax.data import augment
    from moon_jax.distributed import devices
    from moon_jax.engine import round as round_lib
    from moon_jax.engine import schedule
    from moon_jax.engine.local import Program
    from moon_jax.engine.local import TrainData

    self._config, self._clients = config, clients
    self._num_train = len(dataset.train_labels)
    sizes = np.array([len(indices) for indices in clients])
    batch_size = min(config.batch_size, int(sizes.max()))
    steps = config.local_epochs * schedule.steps_per_epoch(sizes, batch_size)
    self._mesh = devices.mesh(num_lanes)
    self._shape = schedule.shape(
        np.tile(steps, len(points)), len(clients) * len(points), num_lanes,
        batch_size, self._mesh.size)
    self._model = models.make(
        config.model, dataset.num_classes, config.projection_dim, config.dtype,
        config.norm, dataset.num_tokens, config.precision, config.convolution)
    self._algorithm = from_config.make(config, len(clients))
    normalize_fn = functools.partial(
        augment.normalize, mean=dataset.mean, std=dataset.std)
    self._example = normalize_fn(jnp.asarray(dataset.train_inputs[:1]))
    augmentation = dataset.augmentation if config.augment else 'none'
    self._round = round_lib.Round(
        Program(self._model, self._algorithm, config.optimizer,
                augment.AUGMENTATIONS[augmentation], normalize_fn), self._mesh)
    self._data = devices.put(
        TrainData(dataset.train_inputs, dataset.train_labels), self._mesh)
    self._init_runs(points)

  def like(self, point):
    """Returns another single run that shares the compiled program."""
    import copy

    other = copy.copy(self)
    other._init_runs([point])
    return other

  def _init_runs(self, points):
    from moon_jax.distributed import devices
    from moon_jax.engine import state as state_lib
    from moon_jax.optimizers import HYPERPARAMETERS

    self._points, self.num_rows = points, 0
    seeds, mus = zip(*points)
    self.state = state_lib.placed(state_lib.init(
        list(seeds), self._model, self._algorithm, len(self._clients),
        self._example), self._mesh)
    self._hparams = devices.put({
        name: np.array(mus if name == 'mu' else
                       [getattr(self._config, name)] * len(points), np.float32)
        for name in HYPERPARAMETERS}, self._mesh)

  def run_round(self):
    """Trains a round and returns its seconds, with planning and transfers."""
    import jax

    start = time.perf_counter()
    table = self._table(int(self.state.round))
    self.state, metrics = self._round(
        self.state, self._hparams, table, self._data)
    jax.block_until_ready((self.state.variables, metrics))
    self.num_rows = int(table.num_rows.max())
    return time.perf_counter() - start

  def _table(self, round_index):
    from moon_jax.engine import schedule

    num_clients, num_runs = len(self._clients), len(self._points)
    batches, num_steps = zip(*[schedule.local_batches(
        self._clients, self._config.local_epochs, self._shape.batch_size,
        self._num_train, np.random.default_rng([seed, round_index]))
                               for seed, _ in self._points])
    jobs = num_clients * num_runs
    return schedule.plan(schedule.Work(
        run=np.repeat(np.arange(num_runs), num_clients),
        client=np.tile(np.arange(num_clients), num_runs),
        num_examples=np.tile([len(i) for i in self._clients], num_runs),
        num_steps=np.concatenate(num_steps), batches=np.concatenate(batches),
        is_received=np.ones(jobs, bool)), self._shape)
