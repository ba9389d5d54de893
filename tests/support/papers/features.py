"""References and golden values of methods that share features of classes."""

import itertools

import jax
import numpy as np

import moon_jax as mj
from moon_jax.engine import local
from support.papers import plain
from support.papers.plain import (
  combine,
  cross_entropy,
  forward,
  gradient,
  LR,
  sgd,
  X,
  Y,
)

WHOLE = {c: (X[i], Y[i]) for c, i in enumerate(plain.CLIENTS)}


def class_means(w, c):
  """Returns the mean feature of each class that a client has."""
  x, y = WHOLE[c]
  h, _ = forward(w, x)
  return {k: h[y == k].mean(0) for k in range(3) if (y == k).any()}


def weighted_prototypes(old, models):
  """Returns the means over the cohort's examples; `old` where it has none."""
  new = dict(old)
  means = {c: class_means(w, c) for c, w in models.items()}
  for k in range(3):
    having = [c for c in models if k in means[c]]
    if having:
      total = sum(plain.COUNTS[c][k] for c in having)
      new[k] = sum(plain.COUNTS[c][k] * means[c][k] for c in having) / total
  return new


# FedProto

def fedproto(cohorts, lam=.7):
  trained, models = plain.Trained([], {}), {}
  prototypes = {}
  for cohort in cohorts:
    def loss(w, x, y, prototypes=prototypes):
      h, _ = forward(w, x)
      distance = sum(np.linalg.norm(h[y == k].mean(0) - prototypes[k])
                     for k in set(y.tolist()) & set(prototypes))
      return cross_entropy(w, x, y) + lam * distance

    for c in cohort:
      models[c] = sgd(models.get(c, plain.INITIAL), loss, c)
      trained.personal[c] = nearest(models[c], c, prototypes)
    prototypes = weighted_prototypes(
        prototypes, {c: models[c] for c in cohort})
    trained.rounds.append(plain.INITIAL)
  return trained


def nearest(w, c, prototypes):
  """Returns w with -|h - C_k|^2 / 2 + |h|^2 / 2 as logits."""
  if not prototypes:
    return w
  W2, b2 = np.zeros((5, 3)), np.full(3, -1e9)
  for k, mean in prototypes.items():
    W2[:, k] = mean
    if plain.COUNTS[c][k]:
      b2[k] = -mean @ mean / 2
  return {**w, 'W2': W2, 'b2': b2}


# FedPAC

def fedpac(cohorts, lam=2., fraction=.5):
  trained, w, prototypes = plain.Trained([], {}), plain.INITIAL, {}
  heads = [{k: w[k] for k in plain.HEAD} for _ in range(plain.NUM_CLIENTS)]
  for cohort in cohorts:
    def loss(v, x, y, prototypes=prototypes):
      h, _ = forward(v, x)
      apart = [((h[i] - prototypes[k]) ** 2).mean() if k in prototypes else 0.
               for i, k in enumerate(y.tolist())]
      return cross_entropy(v, x, y) + lam * np.mean(apart)

    local, h, variance = {}, {}, {}
    for c in cohort:
      x, y = WHOLE[c]
      h[c] = np.stack([(forward(w, x)[0] * (y == k)[:, None]).mean(0)
                       for k in range(3)])
      variance[c] = ((forward(w, x)[0] ** 2).sum(1).mean()
                     - (h[c] ** 2).sum()) / len(y)
      v, steps = {**w, **heads[c]}, plain.batches(c)
      for step, batch in enumerate(steps):
        names = (plain.HEAD if step < round(fraction * len(steps))
                 else plain.BODY)
        plain.record(c, train_loss=loss(v, *batch),
                     cross_entropy=cross_entropy(v, *batch))
        grad = gradient(lambda u, batch=batch: loss(u, *batch), v)
        v = {k: x - LR * grad[k] * (k in names) for k, x in v.items()}
      local[c] = trained.personal[c] = v
    for c in cohort:
      a = best_weights(
          np.diag([variance[j] for j in cohort])
          + np.array([[((h[c] - h[j]) * (h[c] - h[k])).sum()
                       for k in cohort] for j in cohort]))
      heads[c] = combine(*((a_j, {k: local[j][k] for k in plain.HEAD})
                           for a_j, j in zip(a, cohort)))
    prototypes = weighted_prototypes(prototypes, local)
    w = {**plain.mean(local), 'W2': w['W2'], 'b2': w['b2']}
    trained.rounds.append(w)
  return trained


def best_weights(P):
  """Returns the minimum of a' P a on the simplex: the best of all supports."""
  best = None
  for size in range(1, len(P) + 1):
    for support in map(list, itertools.combinations(range(len(P)), size)):
      a = np.zeros(len(P))
      a[support] = np.linalg.solve(P[np.ix_(support, support)], np.ones(size))
      a /= a.sum()
      if (a >= 0).all() and (best is None or a @ P @ a < best @ P @ best):
        best = a
  return best


# FedDBE

def feddbe(cohorts, kappa=5., decay=.3):
  trained, w, r = plain.Trained([], {}), plain.INITIAL, None
  bias = [np.zeros(5) for _ in range(plain.NUM_CLIENTS)]
  for cohort in cohorts:
    local, means = {}, {}
    for c in cohort:
      v, p, mean = dict(w), bias[c], np.zeros(5)
      for x, y in plain.batches(c):
        def terms(u, x=x, y=y, mean=mean):
          h, _ = forward(u, x)
          if r is None:
            return cross_entropy(u, x, y), 0
          shifted = {**u, 'b2': u['b2'] + u['p'] @ u['W2']}
          mean = decay * h.mean(0) + (1 - decay) * mean
          return (cross_entropy(shifted, x, y),
                  kappa * ((mean - r) ** 2).mean() / 2)

        first = terms({**v, 'p': p})
        plain.record(c, train_loss=sum(first), cross_entropy=first[0])
        grad = gradient(lambda u, terms=terms: sum(terms(u)), {**v, 'p': p})
        mean = decay * forward(v, x)[0].mean(0) + (1 - decay) * mean
        p = p - LR * grad['p']
        v = {k: x - LR * grad[k] for k, x in v.items()}
      local[c], bias[c], means[c] = v, p, {'r': mean}
      trained.personal[c] = {**v, 'b2': v['b2'] + p @ v['W2']}
    if r is None:
      r = plain.mean(means)['r']
    else:
      w = plain.mean(local)
    trained.rounds.append(w)
  return trained


# FedUV

def feduv(cohorts, lam=2.5, mu=.5):
  def loss(w, x, y, *_):
    h, logits = forward(w, x)
    p = np.exp(plain.log_softmax(logits))
    lack = np.maximum(3 ** -.5 - p.std(0, ddof=1), 0).mean()
    square = np.array([((a - b) ** 2).sum()
                       for a, b in itertools.combinations(h, 2)])
    median = np.sort(square[square > 0])[(sum(square > 0) - 1) // 2]
    return (cross_entropy(w, x, y) + lam * lack
            + mu * np.exp(-square / median).mean())

  return plain.with_loss(loss)(cohorts)


# CCVR

def cholesky(a):
  """Returns L, of zeros where a unit of the network is never active."""
  is_active = np.diag(a) > 0
  root = np.zeros_like(a)
  root[np.ix_(is_active, is_active)] = np.linalg.cholesky(
      a[np.ix_(is_active, is_active)])
  return root


def ccvr(cohorts, num_virtual=40, rate=.3, num_steps=5):
  trained, w = plain.Trained([], {}), plain.INITIAL
  for cohort in cohorts[:-1]:
    w = plain.mean({c: sgd(w, cross_entropy, c) for c in cohort})
    trained.rounds.append(w)
  x, y = (np.concatenate(arrays) for arrays in zip(
      *(WHOLE[c] for c in cohorts[-1])))
  h, _ = forward(w, x)
  noise = np.asarray(jax.random.normal(  # of the server, in its last round
      jax.random.fold_in(jax.random.fold_in(
          jax.random.split(jax.random.key(0))[1], len(cohorts) - 1),
          local.SERVER), (3, num_virtual, 5)), np.float64)
  virtual = []
  for k in range(3):
    root = cholesky(np.cov(h[y == k].T))
    virtual.append(h[y == k].mean(0) + noise[k] @ root.T)

  def loss(head):
    return np.mean([-plain.log_softmax(z @ head['W2'] + head['b2'])[:, k].mean()
                    for k, z in enumerate(virtual)])

  head = {name: w[name] for name in plain.HEAD}
  for _ in range(num_steps):
    head = combine((1, head), (-rate, gradient(loss, head)))
  trained.rounds.append({**w, **head})
  plain.recorded.clear()  # the last round discards what its clients train
  return trained


ROWS = {
    'fedproto': (mj.fedproto(lam=.7), fedproto, {}),
    'fedpac': (mj.fedpac(4, lam=2., head_fraction=.5), fedpac, {}),
    'feddbe': (mj.feddbe(kappa=5., mean_decay=.3), feddbe, {}),
    'ccvr': (mj.ccvr(
        num_virtual=40, calibration_rate=.3, calibration_steps=5), ccvr, {}),
    'feduv': (mj.feduv(std_coeff=2.5, unif_coeff=.5), feduv, {}),
}
GOLDEN_ROWS = {
    'fedproto_released': (mj.fedproto(  # with the classifiers of clients
        lam=2., form='released', local_epochs=2)._replace(
            personal_model=None), {}),
    'fedpac': (ROWS['fedpac'][0], {}),
    'feddbe': (ROWS['feddbe'][0], {'mean_decay': 1.}),
    'feddbe_momentum': (ROWS['feddbe'][0], {}),
    'feduv': (ROWS['feduv'][0], {}),
}
