"""A federation that plain NumPy trains in float64, to hold beside papers.

4 clients of 12, 20, 3 and 16 examples of 6 features, 3 classes with label skew;
the third has less than a batch, and 8 examples for the golden values.
The network is h = relu(x W1 + b1) [5 units], logits = h W2 + b2. Clients take
their examples in the same order, class by class, in batches of 4, for 2 epochs,
and plain SGD with learning rate 0.1. Gradients of losses are central
differences, so that a reference needs no more than the loss of its paper.
"""

import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import moon_jax as mj
from support import federation as fed

_FILE = np.load(pathlib.Path(__file__).with_name('problem.npz'))
X = _FILE['inputs'].astype(np.float64)
Y = _FILE['labels']
GOLDEN_SIZES = tuple(_FILE['sizes'].tolist())
GOLDEN_CLIENTS = tuple(
    np.split(np.arange(len(Y)), np.cumsum(GOLDEN_SIZES)[:-1]))
CLIENTS = tuple(
    at[[0, 4, 7]] if c == 2 else at for c, at in enumerate(GOLDEN_CLIENTS))
SIZES = tuple(map(len, CLIENTS))
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


# By client and metric, for each step of its last round: what a round records of
# the model before the step. References fill it.
recorded = {}


def record(client, **metrics):
  """Adds a step to `recorded`, of a client whose rounds have equal steps.

  `train_loss` is the loss, and `cross_entropy` its part without penalties.
  """
  for name, value in metrics.items():
    steps = recorded.setdefault(client, {}).setdefault(name, [])
    steps.append(value)
    del steps[:-len(batches(client))]


def sgd(w, loss, client, names=None, **metrics):
  """Returns the weights after a client's local steps on loss(w, x, y).

  Only the weights of `names` move; None moves all. `metrics` are recorded,
  functions like the loss.
  """
  for x, y in batches(client):
    record(client, train_loss=loss(w, x, y),
           cross_entropy=cross_entropy(w, x, y),
           **{name: of_step(w, x, y) for name, of_step in metrics.items()})
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
  metrics: dict = {}  # see `recorded`


def method(train, server=lambda w, mean: mean, first=INITIAL, share=None):
  """Returns the reference of a method, a function of the cohorts.

  Args:
    train: (w^t, what the client keeps, client, round) -> what it sends, what
      it keeps, and the model that it uses.
    server: (w^t, the mean of what clients send) -> w^{t+1}.
    first: what clients keep at first.
    share: (what a client sends, client) -> its weight in the mean.
  """
  def reference(cohorts):
    w, trained = INITIAL, Trained([], {})
    own = dict.fromkeys(range(NUM_CLIENTS), first)
    for t, cohort in enumerate(cohorts):
      sent = {}
      for c in cohort:
        sent[c], own[c], trained.personal[c] = train(w, own[c], c, t)
      w = server(w, mean(
          sent, share and {c: share(sent[c], c) for c in cohort}))
      trained.rounds.append(w)
    return trained

  return reference


def with_loss(loss, **of_method):
  """Returns the reference of a method with the loss (w, x, y, w^t, client)."""
  def train(w, own, c, t):
    local = sgd(w, lambda v, x, y: loss(v, x, y, w, c), c)
    return local, own, local

  return method(train, **of_method)


def network():
  """Returns the network, which begins with the weights of the file."""
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


_HPARAMS = {'learning_rate': LR, 'momentum': 0., 'weight_decay': 0.,
            'mu': 0., 'temperature': .5, 'num_rounds': 3.}
_PROBLEM = fed.Problem(np.float32(X), Y, CLIENTS, BATCH, network(), _HPARAMS,
                       lambda x: x, is_shuffled=False)
# Of both problems, so that they share a compiled round.
_NUM_ROWS = sum(GOLDEN_SIZES) // BATCH * EPOCHS


def federation(algorithm, weighting='examples', clients=CLIENTS, **hparams):
  """Returns this federation, for the engine."""
  return fed.Federation(
      algorithm, 2, hparams={**algorithm.hparams, **hparams}, keep_models=True,
      num_epochs=EPOCHS, weighting=weighting, num_rows=_NUM_ROWS,
      problem=_PROBLEM._replace(clients=clients))


def simulated(algorithm, cohorts, **options):
  """Returns `Trained` after rounds in the engine."""
  federated, trained = federation(algorithm, **options), Trained([], {}, {})
  for cohort in cohorts:
    table, metrics = federated.round(cohort)
    penalty_TL = sum(
        np.asarray(federated.hparams[weight])[0] * metrics.extra_TL[name]
        for name, weight in algorithm.penalties.items())
    for client, job in zip(cohort, fed.jobs_of(table, cohort)):
      trained.personal[client] = as_weights(metrics.models_J, job)
      trained.metrics[client] = {
          name: x_TL[table.job_TL == job] for name, x_TL in {
              **metrics.extra_TL, 'train_loss': metrics.loss_TL,
              'cross_entropy': metrics.loss_TL - penalty_TL}.items()}
    trained.rounds.append(as_weights(federated.state.variables, 0))
  return trained


def assert_equal(found, expected, atol=1e-5):
  """Compares results; of clients those that `expected` has."""
  for t, (w, v) in enumerate(zip(found.rounds, expected.rounds, strict=True)):
    for name in v:
      np.testing.assert_allclose(
          w[name], v[name], atol=atol, err_msg=f'round {t + 1}, {name}')
  for client, v in expected.personal.items():
    for name in v:
      np.testing.assert_allclose(
          found.personal[client][name], v[name], atol=atol,
          err_msg=f'client {client}, {name}')
  for client, metrics in expected.metrics.items():
    for name, steps in metrics.items():
      np.testing.assert_allclose(found.metrics[client][name], steps, atol=atol,
                                 err_msg=f'client {client}, {name}')
