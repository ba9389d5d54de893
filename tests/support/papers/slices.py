"""Plain references of clients with networks of different widths.

They cut the arrays: a client trains a small network alone, by SGD with momentum
and weight decay, and the server averages each number over those who have it.
"""

import math

import jax
import numpy as np

import moon_jax as mj
from moon_jax.engine import local
from support.papers import plain

RATES = (1., .4, .6, .2)  # of 5 units: 5, 2, 3 and 1
NARROW = (.4, .7)
MOMENTUM, DECAY = .5, .01
OPTIONS = {'momentum': MOMENTUM, 'weight_decay': DECAY}


def at(rate, first=0):
  """Returns the units of a slice."""
  return [(first + i) % 5 for i in range(math.ceil(rate * 5))]


def cut(w, units):
  return {'W1': w['W1'][:, units], 'b1': w['b1'][units], 'W2': w['W2'][units],
          'b2': w['b2']}


def whole(small, units):
  """Returns the full network, with zeros outside of the slice."""
  w = {name: np.zeros_like(x) for name, x in plain.INITIAL.items()}
  w['W1'][:, units], w['b1'][units] = small['W1'], small['b1']
  w['W2'][units], w['b2'][:] = small['W2'], small['b2']
  return w


def steps(w, client, loss):
  """Returns the weights after local steps on loss(w, x, y, number of step)."""
  moved = {name: 0. for name in w}
  for s, (x, y) in enumerate(plain.batches(client)):
    of_step = lambda v, x=x, y=y, s=s: loss(v, x, y, s)
    plain.record(client, train_loss=of_step(w))
    grad = plain.gradient(of_step, w, step=1e-7)  # ReLUs bend near by
    moved = {name: MOMENTUM * moved[name] + grad[name] + DECAY * w[name]
             for name in w}
    w = plain.combine((1, w), (-plain.LR, moved))
  return w


def method(train, rates, rolls=False, sends_own_classes=False):
  """Returns a reference; `train` maps (slice of w^t, client, rate, round)."""
  def reference(cohorts):
    w, trained = plain.INITIAL, plain.Trained([], {})
    for t, cohort in enumerate(cohorts):
      total = {name: np.zeros_like(x) for name, x in w.items()}
      weight = {name: np.zeros_like(x) for name, x in w.items()}
      for c in cohort:
        rate = rates[c % len(rates)]
        units = at(rate, t * rolls)
        small = train(cut(w, units), c, rate, t)
        has = whole({name: np.ones_like(x) for name, x in small.items()},
                    units)
        if sends_own_classes:
          has['W2'][:, plain.COUNTS[c] == 0] = 0
          has['b2'][plain.COUNTS[c] == 0] = 0
        sent = trained.personal[c] = whole(small, units)
        for name, x in sent.items():
          total[name] += plain.SIZES[c] * has[name] * x
          weight[name] += plain.SIZES[c] * has[name]
      w = {name: np.where(weight[name] > 0, total[name] / np.maximum(
          weight[name], 1), x) for name, x in w.items()}
      trained.rounds.append(w)
    return trained

  return reference


def heterofl(w, client, rate, t):
  """With the scaler, and without the classes that the client lacks."""
  def loss(v, x, y, step):
    logits = plain.forward(
        {**v, 'W1': v['W1'] / rate, 'b1': v['b1'] / rate}, x)[1]
    logits = np.where(plain.COUNTS[client] > 0, logits, 0)
    return -plain.log_softmax(logits)[np.arange(len(y)), y].mean()

  return steps(w, client, loss)


def cross_entropy(w, client, rate, t):
  return steps(w, client, lambda v, x, y, step: plain.cross_entropy(v, x, y))


FJORD = mj.fjord(RATES)


def fjord(w, client, rate, t):
  """Each step has a rate up to the client's."""
  levels = sorted(RATES)
  key = jax.random.fold_in(jax.random.fold_in(
      plain.federation(FJORD).state.key[0], t), client)

  units = [at(levels[int(jax.random.randint(
      jax.random.fold_in(jax.random.fold_in(key, step), local._LOSS), (), 0,
      levels.index(rate) + 1))]) for step in range(len(plain.batches(client)))]
  return steps(w, client, lambda v, x, y, step: plain.cross_entropy(
      cut(v, units[step]), x, y))


ROWS = {
    'heterofl': (mj.heterofl(RATES), method(
        heterofl, RATES, sends_own_classes=True), OPTIONS),
    'heterofl-unscaled': (
        mj.heterofl(RATES, scale=False, masked=False),
        method(cross_entropy, RATES), OPTIONS),
    'fedrolex': (mj.fedrolex(NARROW, scale=False, masked=False), method(
        cross_entropy, NARROW, rolls=True), OPTIONS),
    'fjord': (FJORD, method(fjord, RATES), OPTIONS)}

GOLDEN_ROWS = {
    'heterofl': (ROWS['heterofl'][0], {'weighting': 'uniform'})}
