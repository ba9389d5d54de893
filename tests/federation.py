"""A federation small enough to run many times: a convex problem, 8 clients.

Images of 2x2 pixels, 3 classes, a linear network with a bias. Its optional
running mean of the inputs is a model's mutable state, as batch norm has it.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from moon_jax import checkpoint
from moon_jax.data import augment
from moon_jax.engine import round as round_lib
from moon_jax.engine import schedule
from moon_jax.engine import state as state_lib
from moon_jax.engine.local import Program
from moon_jax.engine.local import TrainData
from moon_jax.models import Model
from moon_jax.models import Outputs

NUM_CLASSES = 3
SIZES = (13, 40, 8, 21, 3, 30, 16, 9)  # with batches of 8: one has too few
BATCH = 8
HPARAMS = dict(learning_rate=.05, momentum=.5, weight_decay=1e-3, mu=.1,
               temperature=.5)
normalize = functools.partial(augment.normalize, mean=(.5,), std=(.25,))

_random = np.random.RandomState(0)
LABELS = _random.randint(0, NUM_CLASSES, sum(SIZES)).astype(np.int32)
IMAGES = np.clip(
    _random.randint(0, 160, (len(LABELS), 2, 2, 1))
    + 40 * np.eye(4, dtype=int)[LABELS].reshape(-1, 2, 2, 1), 0, 255
).astype(np.uint8)
_ends = np.cumsum(SIZES)
ALL = tuple(range(len(SIZES)))
CLIENTS = [np.arange(end - n, end) for n, end in zip(SIZES, _ends)]


def linear_model(has_state: bool = False) -> Model:
  """Logits z = x W + b; features and projection are the logits too."""
  def init(key, images):
    variables = {'params': {
        'w': .1 * jax.random.normal(key, (images[0].size, NUM_CLASSES)),
        'b': jnp.zeros(NUM_CLASSES)}}
    if has_state:
      variables['batch_stats'] = {'mean': jnp.zeros(images[0].size)}
    return variables

  def apply(variables, images, mask, train):
    x = images.reshape(len(images), -1)
    logits = x @ variables['params']['w'] + variables['params']['b'][None]
    if has_state and train:
      real = jnp.sum(x * mask[:, None], 0) / jnp.maximum(jnp.sum(mask), 1)
      mean = .9 * variables['batch_stats']['mean'] + .1 * real
      variables = {**variables, 'batch_stats': {'mean': mean}}
    return Outputs(logits, logits, logits), variables

  return Model(init, apply)


class Federation:
  """Runs rounds of an algorithm over the clients above."""

  def __init__(self, algorithm, num_lanes=1, seeds=(0,), model=None,
               num_rows=None, optimizer='sgd', hparams=None, num_clients=None,
               augment_fn=augment.keep, num_jobs=None, keep_models=False):
    self.num_lanes = num_lanes
    self.num_jobs = num_jobs
    self.num_clients = num_clients or len(SIZES)
    self.num_rows = num_rows or schedule.max_rows(
        [max(1, n // BATCH) * 2 for n in SIZES] * len(seeds),
        len(SIZES) * len(seeds), num_lanes)
    model = model or linear_model()
    self.program = Program(
        model, algorithm, optimizer, augment_fn, normalize, keep_models)
    # On a named device, as a restored state is: one program serves both.
    self.state = jax.device_put(state_lib.init(
        list(seeds), model, algorithm, self.num_clients,
        jnp.zeros((1, 2, 2, 1))), jax.devices()[0])
    hparams = {**HPARAMS, **(hparams or {})}
    self.hparams = {
        name: jnp.broadcast_to(jnp.asarray(v, jnp.float32), (len(seeds),))
        for name, v in hparams.items()}
    self.data = TrainData(jnp.asarray(IMAGES), jnp.asarray(LABELS))
    self.round_fn = round_lib.make_round(self.program)

  def table(self, cohort, round_index, runs=(0,), lost=()):
    """The round's table; shuffles depend on round and client alone."""
    jobs = []
    for run in runs:
      for client in cohort:
        batches = schedule.local_batches(
            CLIENTS[client], 2, BATCH,
            np.random.default_rng([round_index, client]))
        jobs.append(schedule.Job(
            run, client, SIZES[client], batches, client not in lost))
    return schedule.plan(jobs, self.num_lanes, self.num_rows, BATCH,
                         num_jobs=self.num_jobs)

  def round(self, cohort=ALL, runs=(0,), lost=()):
    table = self.table(cohort, int(self.state.round), runs, lost)
    self.state, metrics = self.round_fn(
        self.state, self.hparams, table, self.data)
    return table, jax.device_get(metrics)


def assert_trees_close(a, b, atol=1e-6):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(
      bits(x), bits(y), atol=atol, rtol=0), a, b)


def bits(x):
  """Random keys as numbers; all else as it is."""
  is_key = isinstance(x, jax.Array) and checkpoint.is_key(x)
  return jax.random.key_data(x) if is_key else x
