"""Plain references of methods that change the optimization of one model."""

import numpy as np

import moon_jax as mj
from support.papers import plain
from support.papers.plain import combine

ZERO = combine((0, plain.INITIAL))


def norm(w):
  return np.sqrt(plain.dot(w, w))


def average(terms, of):
  """Returns the uniform mean over the clients `of`."""
  return combine(*((1 / len(of), terms[client]) for client in of))


def feddyn(cohorts, alpha=.1, mean_examples=0):
  """Algorithm 1, with g_i and h as in the paper."""
  w, trained, h = plain.INITIAL, plain.Trained([], {}), ZERO
  g = [ZERO] * plain.NUM_CLIENTS
  for cohort in cohorts:
    local = {}
    for c in cohort:
      a = alpha * mean_examples / plain.SIZES[c] if mean_examples else alpha

      def loss(v, x, y, c=c, a=a, w=w):
        moved = combine((1, v), (-1, w))
        return (plain.cross_entropy(v, x, y) - plain.dot(g[c], v)
                + a / 2 * plain.dot(moved, moved))

      local[c] = plain.sgd(w, loss, c)
      g[c] = combine((1, g[c]), (-a, local[c]), (a, w))
    for c in cohort:
      share = alpha / plain.NUM_CLIENTS
      h = combine((1, h), (-share, local[c]), (share, w))
    w = combine((1, average(local, cohort)), (-1 / alpha, h))
    trained.rounds.append(w)
    trained.personal.update(local)
  return trained


def fedadmm(cohorts, rho=.1, eta=.7, form='paper'):
  w, trained = plain.INITIAL, plain.Trained([], {})
  last = [w] * plain.NUM_CLIENTS
  y = [ZERO] * plain.NUM_CLIENTS
  for cohort in cohorts:
    delta = {}
    for c in cohort:
      def loss(v, x, t, c=c, w=w):
        moved = combine((1, v), (-1, w))
        return (plain.cross_entropy(v, x, t) + plain.dot(y[c], moved)
                + rho / 2 * plain.dot(moved, moved))

      new = plain.sgd(w, loss, c)
      new_y = combine((1, y[c]), (rho, new), (-rho, w))
      delta[c] = combine(
          (1, new), (1 / rho, new_y),
          (-1, last[c] if form == 'paper' else w), (-1 / rho, y[c]))
      last[c] = trained.personal[c] = new
      y[c] = new_y
    w = combine((1, w), (eta, average(delta, cohort)))
    trained.rounds.append(w)
  return trained


def steps(w, client, direction_fn):
  """Returns the weights after SGD along direction_fn(weights, gradient_fn)."""
  for x, y in plain.batches(client):
    plain.record(client, train_loss=plain.cross_entropy(w, x, y))
    gradient_fn = lambda v, x=x, y=y: plain.gradient(
        lambda u: plain.cross_entropy(u, x, y), v)
    w = combine((1, w), (-plain.LR, direction_fn(w, gradient_fn)))
  return w


def ascended(w, g, rho):
  return combine((1, w), (rho / norm(g), g))


def fedspeed(cohorts, lam=2., rho=.3, alpha=.7, averaged='cohort'):
  w, trained = plain.INITIAL, plain.Trained([], {})
  g_hat = [ZERO] * plain.NUM_CLIENTS
  for cohort in cohorts:
    for c in cohort:
      def direction(v, gradient_fn, c=c, w=w):
        g1 = gradient_fn(v)
        g2 = gradient_fn(ascended(v, g1, rho))
        return combine((1 - alpha, g1), (alpha, g2), (-1, g_hat[c]),
                       (1 / lam, v), (-1 / lam, w))

      local = trained.personal[c] = steps(w, c, direction)
      g_hat[c] = combine((1, g_hat[c]), (-1 / lam, local), (1 / lam, w))
    over = cohort if averaged == 'cohort' else range(plain.NUM_CLIENTS)
    w = combine((1, average(trained.personal, cohort)),
                (-lam, average(g_hat, over)))
    trained.rounds.append(w)
  return trained


def averaged_steps(direction_fn):
  """Returns the reference of FedAvg along direction_fn."""
  def train(w, own, c, t):
    local = steps(w, c, direction_fn)
    return local, own, local

  return plain.method(train)


@averaged_steps
def fedsam(w, gradient_fn):
  return gradient_fn(ascended(w, gradient_fn(w), .4))


@averaged_steps
def fedasam(w, gradient_fn):
  g = gradient_fn(w)
  t = {k: abs(v) + .3 if k in ('W1', 'W2') else 1. for k, v in w.items()}
  size = norm({k: t[k] * g[k] for k in g})
  return gradient_fn({k: w[k] + .6 / size * t[k]**2 * g[k] for k in w})


def mimelite(cohorts, beta=.8):
  w, trained, m = plain.INITIAL, plain.Trained([], {}), ZERO
  for cohort in cohorts:
    local = {c: steps(w, c, lambda v, gradient_fn, m=m: combine(
        (1 - beta, gradient_fn(v)), (beta, m))) for c in cohort}
    full = {c: plain.gradient(lambda v, c=c: plain.cross_entropy(
        v, plain.X[plain.CLIENTS[c]], plain.Y[plain.CLIENTS[c]]), w)
            for c in cohort}
    m = combine((1 - beta, plain.mean(full)), (beta, m))
    w = plain.mean(local)
    trained.rounds.append(w)
    trained.personal.update(local)
  return trained


def fedexp(cohorts, epsilon=.003):
  w, trained = plain.INITIAL, plain.Trained([], {})
  for cohort in cohorts:
    local = {c: plain.sgd(w, plain.cross_entropy, c) for c in cohort}
    delta = {c: combine((1, v), (-1, w)) for c, v in local.items()}
    total = sum(plain.SIZES[c] for c in cohort)
    squares = sum(
        plain.SIZES[c] / total * norm(d)**2 for c, d in delta.items())
    mean = plain.mean(delta)
    w = combine(
        (1, w), (max(1, squares / (2 * (norm(mean)**2 + epsilon))), mean))
    trained.rounds.append(w)
    trained.personal.update(local)
  return trained


MEAN_EXAMPLES = sum(plain.GOLDEN_SIZES) / plain.NUM_CLIENTS
OF_ALL = {'weighting': 'uniform'}
_FEDDYN_RELEASED = mj.feddyn(4, alpha=.1, mean_examples=MEAN_EXAMPLES)
_FEDADMM_RELEASED = mj.fedadmm(rho=.1, eta=.7, form='released')

ROWS = {
    'feddyn': (mj.feddyn(4, alpha=.1), feddyn, OF_ALL),
    'fedadmm': (mj.fedadmm(rho=.1, eta=.7), fedadmm, OF_ALL),
    'fedspeed': (mj.fedspeed(4, 2., .3, .7), fedspeed, OF_ALL),
    'fedsam': (mj.fedsam(rho=.4), fedsam, {}),
    'fedasam': (mj.fedasam(rho=.6, eta=.3), fedasam, {}),
    'mimelite': (mj.mimelite(mime_beta=.8), mimelite, {}),
    'fedexp': (mj.fedexp(epsilon=.003), fedexp, {}),
    # Where the released code differs from the paper.
    'feddyn_released': (
        _FEDDYN_RELEASED, lambda cohorts: feddyn(
            cohorts, mean_examples=MEAN_EXAMPLES), OF_ALL),
    'fedadmm_released': (
        _FEDADMM_RELEASED,
        lambda cohorts: fedadmm(cohorts, form='released'), OF_ALL),
    'fedspeed_all': (
        mj.fedspeed(4, 2., .3, .7, averaged='all'),
        lambda cohorts: fedspeed(cohorts, averaged='all'), OF_ALL),
}

# By the name of the file with the values of the released code.
GOLDEN_ROWS = {
    'feddyn': (ROWS['feddyn'][0], OF_ALL),
    'feddyn_released': (_FEDDYN_RELEASED, OF_ALL),
    'fedadmm_released': (_FEDADMM_RELEASED, {**OF_ALL, 'eta': 1.}),
    'fedspeed': (ROWS['fedspeed'][0],
                 {**OF_ALL, 'lam': 10., 'rho': .1, 'alpha': 1.}),
    'fedsam': (ROWS['fedsam'][0], {'rho': .1}),
    'fedasam': (ROWS['fedasam'][0], {'rho': .7, 'eta': .2}),
    'mimelite': (ROWS['mimelite'][0], {'mime_beta': .9}),
    # epsilon .001 of that code is multiplied by the number of clients.
    'fedexp_released': (ROWS['fedexp'][0], {'epsilon': .004}),
}
