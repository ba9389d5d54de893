"""Methods whose clients train another loss, written from their papers."""

import numpy as np

import moon_jax as mj
from support.papers import plain


def own_loss(loss):
  """Returns the reference of a method without personal models."""
  return lambda cohorts: plain.with_loss(loss)(cohorts)._replace(personal={})


def entropy(logits, y):
  return -plain.log_softmax(logits)[np.arange(len(y)), y].mean()


def fedlc(w, x, y, w_t, client, tau=.5):
  with np.errstate(divide='ignore'):
    margin = tau * plain.COUNTS[client] ** -.25
  return entropy(plain.forward(w, x)[1] - margin, y)


def fedrs(w, x, y, w_t, client, alpha=.5):
  return entropy(plain.forward(w, x)[1] * np.where(
      plain.COUNTS[client] > 0, 1, alpha), y)


def fedrs_released(w, x, y, w_t, client, alpha=.5):
  share = plain.COUNTS[client] / plain.COUNTS[client].max()
  return entropy(
      plain.forward(w, x)[1] * (share * (1 - alpha) + alpha), y)


def divergence(teacher, logits):
  log_p, log_q = plain.log_softmax(teacher), plain.log_softmax(logits)
  return (np.exp(log_p) * (log_p - log_q)).sum(-1)


def fedntd(w, x, y, w_t, client, beta=.7, tau=2.):
  others = np.array([[k for k in range(3) if k != label] for label in y])
  not_true = lambda v: np.take_along_axis(plain.forward(v, x)[1], others, 1)
  kl = divergence(not_true(w_t) / tau, not_true(w) / tau).mean()
  return plain.cross_entropy(w, x, y) + beta * kl


def feddecorr(w, x, y, w_t, client, beta=.5):
  h = plain.forward(w, x)[0]
  z = h - h.mean(0)
  z = z / np.sqrt((z**2).mean(0) + 1e-8)
  correlation = z.T @ z / len(x) * (1 - np.eye(5))  # its diagonal is constant
  return plain.cross_entropy(w, x, y) + beta * (correlation**2).mean()


def fedgkd(cohorts, gamma=.2, buffer=2, tau=2.):
  w, trained = plain.INITIAL, plain.Trained([], {})
  for cohort in cohorts:
    last = trained.rounds[-buffer:]
    teacher = plain.combine(*((1 / len(last), v) for v in last)) if last else w
    weight = gamma / 2 * tau**2 if last else 0

    def loss(v, x, y, weight=weight, teacher=teacher):
      logits = [plain.forward(u, x)[1] / tau for u in (teacher, v)]
      return plain.cross_entropy(v, x, y) + weight * divergence(*logits).mean()

    w = plain.mean({c: plain.sgd(w, loss, c) for c in cohort})
    trained.rounds.append(w)
  return trained


def unit(z):
  return z / np.maximum(np.linalg.norm(z, axis=-1, keepdims=True), 1e-8)


def fedproc(cohorts, total_rounds=1.5):
  w, trained, centers = plain.INITIAL, plain.Trained([], {}), np.zeros((3, 5))
  for t, cohort in enumerate(cohorts):
    alpha = min(t / total_rounds, 1) if t else 1

    def prototype_loss(v, x, y, centers=centers):
      return entropy(unit(plain.forward(v, x)[0]) @ unit(centers).T, y)

    def loss(v, x, y, alpha=alpha, prototype_loss=prototype_loss):
      return (alpha * plain.cross_entropy(v, x, y)
              + (1 - alpha) * prototype_loss(v, x, y))

    local = {c: plain.sgd(w, loss, c, prototype_loss=prototype_loss)
             for c in cohort}
    w = plain.mean(local)
    z = np.concatenate([
        unit(plain.forward(local[c], plain.X[plain.CLIENTS[c]])[0])
        for c in cohort])
    y = np.concatenate([plain.Y[plain.CLIENTS[c]] for c in cohort])
    centers = np.stack([z[y == k].mean(0) if (y == k).any() else centers[k]
                        for k in range(3)])
    trained.rounds.append(w)
  return trained


def fedrcl(w, x, y, w_t, client, scl=.8, beta=1.5, tau=.5, threshold=.7):
  total, z = 0, unit(plain.forward(w, x)[0])
  for i in range(len(y)):
    s = z @ z[i]
    others = [s[j] for j in range(len(y)) if y[j] == y[i] and j != i]
    negatives = np.sort(s[y != y[i]])[::-1][:2]
    positive = min(others + [1.])
    total += scl * np.log1p(np.exp((negatives - positive) / tau).sum())
    near = min(others) if others and min(others) >= threshold else -1
    total += beta * np.log1p(np.exp((near - 1) / tau))
  return plain.cross_entropy(w, x, y) + total / len(y)


FEDLC, FEDGKD = mj.fedlc(.5), mj.fedgkd(.2, buffer=2, tau=2.)
FEDRCL = mj.fedrcl(.8, 1.5, tau=.5)
FEDPROC = mj.fedproc(total_rounds=3)
FEDRS = {form: mj.fedrs(.5, form=form) for form in ('paper', 'released')}
ROWS = {
    'fedlc': (FEDLC, own_loss(fedlc), {}),
    'fedrs': (FEDRS['paper'], own_loss(fedrs), {}),
    'fedrs_released': (FEDRS['released'], own_loss(fedrs_released), {}),
    'fedntd': (mj.fedntd(.7, tau=2.), own_loss(fedntd), {}),
    'feddecorr': (mj.feddecorr(.5), own_loss(feddecorr), {}),
    'fedgkd': (FEDGKD, fedgkd, {}),
    'fedrcl': (FEDRCL, own_loss(fedrcl), {}),
    'fedproc': (FEDPROC, fedproc, {'total_rounds': 1.5}),
}
GOLDEN_ROWS = {
    'fedlc': (FEDLC, {}),
    'fedrs': (FEDRS['paper'], {}),
    'fedrs_released': (FEDRS['released'], {}),
    'fedntd': (mj.fedntd(.7, tau=2., form='released'), {}),
    'feddecorr': (mj.feddecorr(.1, form='released'), {}),
    'fedgkd': (FEDGKD, {}),
    'fedrcl': (FEDRCL, {'scl_weight': 1., 'penalty_weight': 1.}),
    'fedproc': (FEDPROC, {}),
}
