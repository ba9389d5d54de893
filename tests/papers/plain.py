"""A federation that plain NumPy trains in float64, to hold beside papers.

4 clients of 12, 20, 8 and 16 examples of 6 features, 3 classes with label skew.
The network is h = relu(x W1 + b1) [5 units], logits = h W2 + b2. Clients take
their examples in the same order, class by class, in batches of 4, for 2 epochs,
and plain SGD with learning rate 0.1. Gradients of losses are central
differences, so that a reference needs no more than the loss of its paper.
"""

import functools
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import moon_jax as mj
from moon_jax.algorithms import base
from moon_jax.data import augment
from moon_jax.distributed import devices
from moon_jax.engine import round as round_lib
from moon_jax.engine import schedule
from moon_jax.engine import state as state_lib
from moon_jax.engine.local import Program, TrainData

_FILE = np.load(pathlib.Path(__file__).with_name('problem.npz'))
X = _FILE['inputs'].astype(np.float64)
Y = _FILE['labels']
SIZES = tuple(_FILE['sizes'].tolist())
CLIENTS = tuple(np.split(np.arange(len(Y)), np.cumsum(SIZES)[:-1]))
NUM_CLIENTS, NUM_CLASSES = len(SIZES), 3
COUNTS = np.array([np.bincount(Y[i], minlength=3) for i in CLIENTS])
INITIAL = {k: _FILE[k].astype(np.float64) for k in ('W1', 'b1', 'W2', 'b2')}
BODY, HEAD = ('W1', 'b1'), ('W2', 'b2')  # layers fc1 and out
LR, BATCH, EPOCHS = .1, 4, 2

ALL = ((0, 1, 2, 3),) * 3  # cohorts of the golden values
SOME = ((0, 1, 2, 3), (2, 0), (1, 3, 2))  # and of the references


def forward(w, x):
  """Returns h and logits."""
  h = np.maximum(x @ w['W1'] + w['b1'], 0)
  return h, h @ w['W2'] + w['b2']


def log_softmax(logits):
  logits = logits - logits.max(-1, keepdims=True)
  return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def cross_entropy(w, x, y):
  """Returns the mean cross-entropy."""
  return -log_softmax(forward(w, x)[1])[np.arange(len(y)), y].mean()


def gradient(loss, w, step=1e-5):
  """Returns the central differences of loss(w), a dict like `w`."""
  found = {}
  for name, value in w.items():
    found[name] = np.zeros_like(value)
    for at in np.ndindex(value.shape):
      ends = []
      for sign in 1, -1:
        moved = value.copy()
        moved[at] += sign * step
        ends.append(loss({**w, name: moved}))
      found[name][at] = (ends[0] - ends[1]) / (2 * step)
  return found


def combine(*terms):
  """Returns the sum of (number, weights) pairs."""
  return {name: sum(a * w[name] for a, w in terms) for name in terms[0][1]}


def dot(v, w):
  return sum((v[name] * w[name]).sum() for name in v)


def batches(client, epochs=EPOCHS):
  """Returns the examples of each local step, inputs and labels."""
  steps = [CLIENTS[client][i:i + BATCH]
           for i in range(0, SIZES[client], BATCH)] * epochs
  return [(X[at], Y[at]) for at in steps]


def sgd(w, loss, client, names=None):
  """Returns the weights after a client's local steps on loss(w, x, y).

  Only the weights of `names` move; None moves all.
  """
  for x, y in batches(client):
    grad = gradient(lambda v, x=x, y=y: loss(v, x, y), w)
    w = {name: value - LR * grad[name] * (names is None or name in names)
         for name, value in w.items()}
  return w


def mean(models, weights=None):
  """Returns the mean of models by client, weighted by their examples."""
  share = weights or {client: SIZES[client] for client in models}
  total = sum(share[client] for client in models)
  return combine(*((share[c] / total, w) for c, w in models.items()))


class Trained(NamedTuple):
  """What a method ends with."""

  rounds: list  # the global weights after each round
  personal: dict = {}  # by client: the model that it uses, of its last round


@functools.cache
def _network():
  def init(key, inputs):
    return as_variables(INITIAL)

  def apply(variables, inputs, mask, train):
    params = variables['params']
    h = jax.nn.relu(inputs @ params['fc1']['kernel']
                    + params['fc1']['bias'][None])
    logits = h @ params['out']['kernel'] + params['out']['bias'][None]
    return mj.Outputs(features=h, projection=h, logits=logits), variables

  return mj.Model(init, apply)


def as_variables(w):
  layer = lambda i: {'kernel': jnp.float32(w[f'W{i}']),
                     'bias': jnp.float32(w[f'b{i}'])}
  return {'params': {'fc1': layer(1), 'out': layer(2)}}


def as_weights(variables, *at):
  """Returns one model as float64 weights, of arrays with leading axes."""
  params = jax.tree.map(
      lambda x: np.asarray(x, np.float64)[at], variables['params'])
  return {f'{letter}{i}': params[layer][part]
          for i, layer in ((1, 'fc1'), (2, 'out'))
          for letter, part in (('W', 'kernel'), ('b', 'bias'))}


_rounds = {}  # of an algorithm by its identity, compiled once


def _round_of(algorithm):
  if id(algorithm) not in _rounds:
    program = Program(_network(), algorithm, 'sgd', augment.keep,
                      lambda x: x, keep_models=True)
    _rounds[id(algorithm)] = (
        round_lib.Round(program, devices.mesh(2)), algorithm)  # which stays
  return _rounds[id(algorithm)][0]


class Simulated:
  """Trains rounds of an algorithm on this federation, in the engine.

  Attributes:
    state: the engine's state, with axis R = 1.
  """

  def __init__(self, algorithm, weighting='examples', **hparams):
    self._weighting, self._mesh = weighting, devices.mesh(2)
    steps = [EPOCHS * n // BATCH for n in SIZES]
    self._shape = schedule.shape(
        steps, NUM_CLIENTS, 2, BATCH, self._mesh.size)
    self._round, self._algorithm = _round_of(algorithm), algorithm
    values = {'learning_rate': LR, 'momentum': 0., 'weight_decay': 0.,
              'mu': 0., 'temperature': .5, 'num_rounds': 3.,
              **algorithm.hparams, **hparams}
    self._hparams = {k: jnp.full(1, v, jnp.float32) for k, v in values.items()}
    self._data = devices.put(TrainData(np.float32(X), Y), self._mesh)
    self.restart()

  def restart(self):
    self.state = state_lib.placed(state_lib.init(
        [0], _network(), self._algorithm, NUM_CLIENTS, jnp.zeros((1, 6))),
        self._mesh)

  def round(self, cohort):
    """Trains a round; returns the personal models of the cohort by client."""
    clients = [CLIENTS[client] for client in cohort]
    taken, num_steps = schedule.local_batches(
        clients, EPOCHS, BATCH, len(Y), None)
    sizes = np.array(SIZES)[list(cohort)]
    table = schedule.plan(schedule.Work(
        run=np.zeros(len(cohort), np.int32), client=np.array(cohort, np.int32),
        num_examples=sizes, num_steps=num_steps, batches=taken,
        is_received=np.ones(len(cohort), bool),
        share=schedule.share(self._weighting, sizes, num_steps),
        label_counts=COUNTS[list(cohort)]), self._shape)
    if base.reads_examples(self._algorithm):
      table = table._replace(own=schedule.own_examples(
          [CLIENTS[c] if steps else [] for c, steps in zip(
              table.jobs.client, table.jobs.num_steps)], max(SIZES)))
    self.state, metrics = self._round(
        self.state, self._hparams, table, self._data)
    return {int(client): as_weights(metrics.models_J, job)
            for job, client in enumerate(table.jobs.client)
            if table.jobs.num_steps[job]}

  def run(self, cohorts):
    """Returns `Trained` after the rounds of these cohorts."""
    self.restart()
    trained = Trained([], {})
    for cohort in cohorts:
      trained.personal.update(self.round(cohort))
      trained.rounds.append(as_weights(self.state.variables, 0))
    return trained


def assert_equal(found, expected, atol=1e-5):
  """Compares results; personal models only if `expected` has some."""
  for t, (w, v) in enumerate(zip(found.rounds, expected.rounds, strict=True)):
    for name in v:
      np.testing.assert_allclose(
          w[name], v[name], atol=atol, err_msg=f'round {t + 1}, {name}')
  for client, v in expected.personal.items():
    for name in v:
      np.testing.assert_allclose(
          found.personal[client][name], v[name], atol=atol,
          err_msg=f'client {client}, {name}')
