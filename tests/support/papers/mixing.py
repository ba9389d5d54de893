"""Plain references of methods that mix single models."""

import jax
import numpy as np

import moon_jax as mj
from moon_jax.engine import local
from support.papers import plain


def square(v, w):
  """Returns |v - w|^2."""
  apart = plain.combine((1, v), (-1, w))
  return plain.dot(apart, apart)


def fedamp(cohorts, alpha=.2, sigma=2., lam=.3):
  everyone = range(plain.NUM_CLIENTS)
  models = {i: plain.INITIAL for i in everyone}
  clouds, trained = dict(models), plain.Trained([], {})
  for cohort in cohorts:
    attention = {i: lambda w, x, y, i=i: square(w, clouds[i]) / 2
                 for i in cohort}
    local = {i: plain.sgd(models[i], lambda w, x, y, i=i: plain.cross_entropy(
        w, x, y) + lam / alpha * attention[i](w, x, y), i,
                          attention=attention[i]) for i in cohort}
    models |= local
    for i in everyone:
      xi = {j: alpha / sigma * np.exp(-square(models[i], models[j]) / sigma)
            for j in everyone if j != i}
      clouds[i] = plain.combine(
          (1 - sum(xi.values()), models[i]),
          *((xi[j], models[j]) for j in xi))
    trained.rounds.append(plain.mean(local))
    trained.personal.update(local)
  return trained


def feddisco(cohorts, a=.8, b=.05):
  w, trained = plain.INITIAL, plain.Trained([], {})
  for cohort in cohorts:
    local = {i: plain.sgd(w, plain.cross_entropy, i) for i in cohort}
    d = {}
    for i in cohort:
      share = plain.COUNTS[i] / plain.SIZES[i]
      share = share[share > 0]
      d[i] = (share * np.log(share * plain.NUM_CLASSES)).sum()
    n, total = sum(plain.SIZES[i] for i in cohort), sum(d.values())
    w = plain.mean(local, {
        i: max(plain.SIZES[i] / n - a * d[i] / total + b, 0) for i in cohort})
    trained.rounds.append(w)
  return trained


def loss_of(w, client):
  at = plain.CLIENTS[client]
  return plain.cross_entropy(w, plain.X[at], plain.Y[at])


def fedfomo(cohorts):
  """Clients receive all models of the previous round."""
  first, last = ({i: plain.INITIAL for i in range(plain.NUM_CLIENTS)}
                 for _ in range(2))
  sent, trained = {}, plain.Trained([], {})
  for cohort in cohorts:
    received, local = dict(sent), {}
    for i in cohort:
      gains, w = {}, first[i]
      for n, v in {**received, i: last[i]}.items():
        apart = square(v, w) ** .5
        gains[n] = max(loss_of(w, i) - loss_of(v, i), 0) / (apart or 1), v
      total = sum(gain for gain, _ in gains.values()) or 1
      first[i] = plain.combine((1, w), *(
          term for gain, v in gains.values()
          for term in ((gain / total, v), (-gain / total, w))))
      local[i] = plain.sgd(first[i], plain.cross_entropy, i)
    last |= local
    sent = local
    trained.rounds.append(plain.mean(local))
    trained.personal.update(local)
  return trained


def fedala(cohorts, eta=2., threshold=.02, batch=5):
  """W learns on all examples of a client, in order."""
  w, trained = plain.INITIAL, plain.Trained([], {})
  own = {i: w for i in range(plain.NUM_CLIENTS)}
  ratio = {i: {k: np.ones_like(w[k]) for k in plain.HEAD} for i in own}
  has_learned = set()
  for cohort in cohorts:
    local = {}
    for i in cohort:
      v, a, at = own[i], ratio[i], plain.CLIENTS[i]
      mixture = lambda a, v=v, w=w: {
          **w, **{k: v[k] + (w[k] - v[k]) * a[k] for k in plain.HEAD}}
      losses = []
      while square(v, w):
        for start in range(0, len(at), batch):
          taken = at[start:start + batch]
          loss = lambda a, taken=taken: plain.cross_entropy(
              mixture(a), plain.X[taken], plain.Y[taken])
          value, grad = loss(a), plain.gradient(loss, a)
          a = {k: np.clip(a[k] - eta * grad[k], 0, 1) for k in a}
        losses.append(value)
        if i in has_learned or (
            len(losses) > 10 and np.std(losses[-10:]) < threshold):
          has_learned.add(i)
          break
      ratio[i] = a
      local[i] = own[i] = plain.sgd(mixture(a), plain.cross_entropy, i)
    w = plain.mean(local)
    trained.rounds.append(w)
    trained.personal.update(local)
  return trained


def fedcross(cohorts, alpha=.7):
  """The server draws which client trains which model."""
  key = plain.federation(FEDCROSS).state.key[0]
  everyone = range(plain.NUM_CLIENTS)
  models, model_of = [plain.INITIAL] * len(everyone), list(everyone)
  trained = plain.Trained([], {})
  for t, cohort in enumerate(cohorts):
    for i in cohort:
      models[model_of[i]] = plain.sgd(
          models[model_of[i]], plain.cross_entropy, i)
    cosine = lambda v, w: plain.dot(v, w) / np.sqrt(
        plain.dot(v, v) * plain.dot(w, w))
    least = [min((cosine(v, w), j) for j, w in enumerate(models) if j != k)[1]
             for k, v in enumerate(models)]
    models = [plain.combine((alpha, v), (1 - alpha, models[j]))
              for v, j in zip(models, least)]
    trained.rounds.append(plain.mean(
        dict(enumerate(models)), dict.fromkeys(everyone, 1)))
    model_of = jax.random.permutation(jax.random.fold_in(
        jax.random.fold_in(key, t), local.SERVER), len(everyone)).tolist()
  return trained


def qfedavg(cohorts, q=1.5):
  w, trained = plain.INITIAL, plain.Trained([], {})
  for cohort in cohorts:
    deltas, h = [], 0
    for i in cohort:
      loss, local = loss_of(w, i), plain.sgd(w, plain.cross_entropy, i)
      g = plain.combine((1 / plain.LR, w), (-1 / plain.LR, local))
      deltas.append((loss**q, g))
      h += q * loss**(q - 1) * plain.dot(g, g) + loss**q / plain.LR
    w = plain.combine((1, w), *((-a / h, g) for a, g in deltas))
    trained.rounds.append(w)
  return trained


QFEDAVG = mj.qfedavg(q=1.5), {'weighting': 'uniform'}
FEDDISCO = mj.feddisco(a=.8, b=.05)
FEDCROSS = mj.fedcross(plain.NUM_CLIENTS, alpha=.7)

ROWS = {
    'fedamp': (mj.fedamp(plain.NUM_CLIENTS, alpha=.2, sigma=2., lam=.3),
               fedamp, {}),
    'feddisco': (FEDDISCO, feddisco, {}),
    'fedfomo': (mj.fedfomo(plain.NUM_CLIENTS), fedfomo, {}),
    'fedala': (mj.fedala(eta=2., share=1., threshold=.02, ala_batch=5), fedala,
               {}),
    'fedcross': (FEDCROSS, fedcross, {}),
    'qfedavg': (QFEDAVG[0], qfedavg, QFEDAVG[1]),
}

# The released codes train on all data, in batches of 4.
GOLDEN_ROWS = {
    'feddisco': (FEDDISCO, {}),
    'fedfomo_released': (mj.fedfomo(plain.NUM_CLIENTS, l1=True), {}),
    'fedala': (mj.fedala(share=1., ala_batch=4), {}),
    'qfedavg': QFEDAVG,
}
