"""A federation small enough to run many times: a convex problem, 8 clients.

Images of 2x2 pixels, 3 classes, a linear network with a bias. Its optional
running mean of the inputs is a model's mutable state, as batch norm has it.
`support/papers/plain.py` has another problem for the same `Federation`.
"""

from collections.abc import Mapping
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import moon_jax as mj
from moon_jax import optimizers, platforms
from moon_jax.algorithms import base
from moon_jax.data import augment
from moon_jax.distributed import devices
from moon_jax.engine import round as round_lib
from moon_jax.engine import schedule
from moon_jax.engine import state as state_lib
from moon_jax.engine.local import RoundProgram, TrainData
from moon_jax.methods import moon as moon_lib
from moon_jax.models import Model, Outputs

NUM_CLASSES = 3
SIZES = (13, 40, 8, 21, 3, 30, 16, 9)  # with batches of 8: one has too few
BATCH = 8
HPARAMS = dict(learning_rate=.05, momentum=.5, weight_decay=1e-3, mu=.1,
               temperature=.5, num_rounds=12.)
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
COUNTS = np.array([np.bincount(LABELS[i], minlength=NUM_CLASSES)
                   for i in CLIENTS])
# Cohorts of a few rounds.
COHORTS = [(0, 1, 4, 5), (7, 2, 1, 3), (6, 5, 4, 0)]


# The same value for the same arguments, so that federations share a compiled
# round.
fedavg, fednova, fedprox, l2, moon, scaffold, solo = map(functools.cache, (
    mj.fedavg, mj.fednova, mj.fedprox, mj.moon_l2, mj.moon, mj.scaffold,
    mj.solo))


@functools.cache
def optimizer_of(text: str) -> optimizers.Optimizer:
  """Returns an optimizer; its numbers are those of the problem."""
  return optimizers.resolve(text)._replace(hparams=())


@functools.cache
def linear_model(has_state: bool = False, is_centred: bool = False) -> Model:
  """Logits z = x W + b; features and projection are the logits too.

  Args:
    has_state: whether it keeps a running mean of its inputs.
    is_centred: whether it subtracts that from them, and the batch's own mean
      while it trains: then the two modes differ.
  """
  def init(key, images):
    variables = {'params': {
        'w': .1 * jax.random.normal(key, (images[0].size, NUM_CLASSES)),
        'b': jnp.zeros(NUM_CLASSES)}}
    if has_state:
      variables['batch_stats'] = {'mean': jnp.zeros(images[0].size)}
    return variables

  def apply(variables, images, mask, train):
    x = images.reshape(len(images), -1)
    centre = variables['batch_stats']['mean'] if has_state else None
    if has_state and train:
      real = jnp.sum(x * mask[:, None], 0) / jnp.maximum(jnp.sum(mask), 1)
      mean = .9 * centre + .1 * real
      variables = {**variables, 'batch_stats': {'mean': mean}}
      centre = real
    if is_centred:
      x = x - centre[None]
    logits = x @ variables['params']['w'] + variables['params']['b'][None]
    return Outputs(logits, logits, logits), variables

  return Model(init, apply)


_made = {}


def made_once(make, model, algorithm, *rest):
  """Returns make(model, algorithm, *rest); the same parts have one value."""
  hashable = lambda x: tuple(x.items()) if isinstance(x, Mapping) else x
  patched = platforms.by_platform, moon_lib._FEW_WEIGHTS
  key = make, model, *map(hashable, algorithm), *rest, *patched
  if key not in _made:
    _made[key] = make(model, algorithm, *rest)
  return _made[key]


def first_state(model, algorithm, num_clients, shape, *seeds):
  return state_lib.init(
      list(seeds), model, algorithm, num_clients, jnp.zeros((1, *shape)))


def round_of(model, algorithm, mesh, *rest):
  return round_lib.Round(RoundProgram(model, algorithm, *rest), mesh)


class Problem(NamedTuple):
  """What clients learn."""

  inputs: np.ndarray
  labels: np.ndarray
  clients: Any  # the examples of each
  batch: int
  model: Model
  hparams: dict
  normalize: Any
  is_shuffled: bool = True


IMAGES_OF_EIGHT = Problem(
    IMAGES, LABELS, CLIENTS, BATCH, linear_model(), HPARAMS, normalize)


class Federation:
  """Runs rounds of an algorithm over the clients of a problem."""

  def __init__(self, algorithm, num_lanes=1, seeds=(0,), model=None,
               num_rows=None, optimizer='sgd', hparams=None, num_clients=None,
               augment_fn=augment.keep, num_jobs=None, keep_models=False,
               freeze_once=False, num_epochs=2, weighting='examples',
               clips=False, problem=IMAGES_OF_EIGHT, augmentation=None):
    self.problem, self.weighting = problem, weighting
    self.sizes = np.array([len(client) for client in problem.clients])
    self.num_clients = num_clients or len(self.sizes)
    self.num_epochs = num_epochs
    self.mesh = devices.mesh(num_lanes)
    self.shape = schedule.shape(
        [max(1, n // problem.batch) * num_epochs for n in self.sizes.tolist()
         ] * len(seeds), num_jobs or len(self.sizes) * len(seeds), num_lanes,
        problem.batch, self.mesh.size)
    if num_rows:
      self.shape = self.shape._replace(num_rows=num_rows)
    model = model or problem.model
    self.program = RoundProgram(
        model, algorithm, optimizer_of(optimizer), augment_fn,
        problem.normalize, keep_models, freeze_once, clip_gradients=clips,
        augmentation=augmentation)
    self.state = state_lib.placed(copied(made_once(
        first_state, model, algorithm, self.num_clients,
        problem.inputs.shape[1:], *seeds)), self.mesh)
    hparams = {**algorithm.hparams, **problem.hparams, **(hparams or {})}
    self.hparams = devices.put(
        {name: jnp.broadcast_to(jnp.asarray(v, jnp.float32), (len(seeds),))
         for name, v in hparams.items()}, self.mesh)
    self.data = TrainData(problem.inputs, problem.labels)
    self.round_fn = made_once(
        round_of, model, algorithm, self.mesh, *self.program[2:])

  def table(self, cohort, round_index, runs=(0,), lost=(), staleness=None):
    """The round's table; shuffles depend on round and client alone.

    Clients of an asynchronous algorithm are stale in different ways.
    """
    algorithm = self.program.algorithm
    if staleness is None and algorithm.max_staleness is not None:
      staleness = np.minimum(np.array(cohort) % 3, round_index)
    labels, examples = self.problem.labels, self.problem.clients
    clients = np.tile(np.array(cohort, np.int32), len(runs))
    batches, num_steps = schedule.local_batches(
        [examples[c] for c in cohort], self.num_epochs, self.problem.batch,
        len(labels), np.random.default_rng(round_index)
        if self.problem.is_shuffled else None)
    num_steps = np.tile(num_steps, len(runs))
    work = schedule.Work(
        run=np.repeat(np.array(runs, np.int32), len(cohort)),
        client=clients, num_examples=self.sizes[clients],
        num_steps=num_steps, batches=np.tile(batches, (len(runs), 1)),
        is_received=~np.isin(clients, lost), share=schedule.share(
            self.weighting, self.sizes[clients], num_steps // self.num_epochs),
        label_counts=np.array([np.bincount(
            labels[examples[c]], minlength=labels.max() + 1)
                               for c in clients]),
        staleness=None if staleness is None else np.tile(staleness, len(runs)))
    table = schedule.plan(work, self.shape)
    if self.program.freeze_once or algorithm.reads_examples:
      table = table._replace(own=schedule.own_examples(
          [examples[c] if steps else [] for c, steps in zip(
              table.jobs.client, table.jobs.num_steps)], self.sizes.max()))
    return table

  def train(self, cohorts=tuple(COHORTS), runs=(0,)):
    """Trains a round with each cohort; returns this federation."""
    for cohort in cohorts:
      self.round(cohort, runs)
    return self

  def round(self, cohort=ALL, runs=(0,), lost=(), staleness=None):
    table = self.table(
        cohort, int(self.state.round[0]), runs, lost, staleness)
    self.state, metrics = self.round_fn(
        self.state, self.hparams, table, devices.put(self.data, self.mesh))
    return table, jax.device_get(metrics)


def server_call(hparams=None, key=None):
  """What a server knows of its first round."""
  return base.ServerCall(
      hparams or {}, jax.random.key(0) if key is None else key, jnp.int32(0))


def jobs_of(table, cohort):
  """Where the table has the jobs of a cohort of one run, in its order."""
  is_job = table.jobs.num_steps > 0
  slots = np.flatnonzero(is_job)
  of_client = dict(zip(table.jobs.client[slots].tolist(), slots.tolist()))
  return [of_client[client] for client in cohort]


def local_updates(cohort, state):
  """The update of each client of a cohort that trains from a state by FedAvg.

  Returns vectors; see `vector`.
  """
  federated = Federation(fedavg(), keep_models=True)
  federated.state = federated.state._replace(
      variables=copied(state.variables), round=state.round[:1])
  table, metrics = federated.round(cohort)
  return {client: vector(metrics.models_J, job) - vector(state.variables)
          for client, job in zip(cohort, jobs_of(table, cohort))}


def copied(state):
  """A state that no round changes: client state is written in place."""
  # `jnp.copy` would compile a program for each shape.
  return jax.tree.map(
      lambda x: jax.device_put(x, x.sharding, may_alias=False)
      if isinstance(x, jax.Array) else x.copy(), state)


def order(round_index, epoch, client):
  """In which a client takes its examples, as `Federation.table` has it."""
  number_N = np.random.default_rng(round_index).random(
      (epoch + 1, len(LABELS)))[epoch]
  return CLIENTS[client][np.argsort(number_N[CLIENTS[client]])]


# Plain NumPy, float64: the network as a matrix [features + 1, K], bias last.
X = np.concatenate([
    (IMAGES.reshape(len(IMAGES), -1) / 255. - .5) / .25,
    np.ones((len(IMAGES), 1))], 1)


def matrix(params, *at):
  """Returns the weights of a linear network as a matrix, bias last."""
  return np.concatenate([np.asarray(params['w'], np.float64)[at],
                         np.asarray(params['b'], np.float64)[at][None]])


def vector(variables, at=0):
  """Returns the parameters of a run or job as a vector, leaf by leaf."""
  return np.concatenate([
      np.ravel(x[at]) for x in jax.tree.leaves(variables['params'])])


def gradient(w, batch):
  """Returns the gradient of the mean cross-entropy of a batch."""
  logits = X[batch] @ w
  p = np.exp(logits - logits.max(1, keepdims=True))
  p /= p.sum(1, keepdims=True)
  return X[batch].T @ (p - np.eye(NUM_CLASSES)[LABELS[batch]]) / len(batch)


def batches(round_index, client, num_epochs=2):
  """Yields the examples of each local step of a client."""
  for epoch in range(num_epochs):
    taken = order(round_index, epoch, client)
    stop = max(len(taken) // BATCH, 1) * BATCH
    yield from np.split(
        taken[:stop], range(BATCH, min(stop, len(taken)), BATCH))


def local_steps(t, client, w, momentum=HPARAMS['momentum'], correction=0,
                proximal_mu=0):
  """Returns a client's model after its steps, and the gradient of each.

  `correction` is added to each direction of descent, without momentum. The
  gradients are without the proximal term.
  """
  w_global = w
  lr, decay = HPARAMS['learning_rate'], HPARAMS['weight_decay']
  gradients, velocity = [], 0
  for batch in batches(t, client):
    gradients.append(gradient(w, batch) + decay * w)
    velocity = momentum * velocity + gradients[-1] + proximal_mu * (
        w - w_global)
    w = w - lr * (velocity + correction)
  return w, gradients


def mean(local):
  """Returns the mean of arrays by client, weighted by their examples."""
  total = sum(SIZES[client] for client in local)
  return sum(SIZES[client] / total * w for client, w in local.items())


def assert_trees_close(a, b, atol=1e-6):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(
      bits(x), bits(y), atol=atol, rtol=0), a, b)


def bits(x):
  """Random keys as numbers; all else as it is."""
  is_key = isinstance(x, jax.Array) and state_lib.is_key(x)
  return jax.random.key_data(x) if is_key else x
