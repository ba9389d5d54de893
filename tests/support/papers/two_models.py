"""References of personalized methods whose clients train two models.

Each is written from its paper, in plain NumPy, with a loss and its differences.
"""

import numpy as np

import moon_jax as mj
from support.papers import plain

CE = plain.cross_entropy
LR = plain.LR


def stepped(w, grad, lr=LR):
  return plain.combine((1, w), (-lr, grad))


def ditto(w, v, client, t, lam=.3):
  sent = w
  for x, y in plain.batches(client):
    apart = lambda u: plain.combine((1, u), (-1, w))
    of_v = lambda u: CE(u, x, y) + lam / 2 * plain.dot(apart(u), apart(u))
    plain.record(client, train_loss=CE(sent, x, y) + of_v(v),
                 sent_loss=CE(sent, x, y), personal_loss=CE(v, x, y))
    sent = stepped(sent, plain.gradient(lambda u: CE(u, x, y), sent))
    v = stepped(v, plain.gradient(of_v, v))
  return sent, v, v


def apfl(adaptive):
  def train(w, kept, client, t):
    v, a = kept
    for step, (x, y) in enumerate(plain.batches(client)):
      mix = lambda v, a: plain.combine((a, v), (1 - a, w))
      sent_loss, personal_loss = CE(w, x, y), CE(mix(v, a), x, y)
      plain.record(client, train_loss=sent_loss + personal_loss,
                   sent_loss=sent_loss, personal_loss=personal_loss)
      of_w = plain.gradient(lambda u: CE(u, x, y), w)
      of_v = plain.gradient(lambda u: CE(mix(u, a), x, y), v)
      if adaptive and step == 0:
        of_a = plain.dot(plain.combine((1, v), (-1, w)), plain.gradient(
            lambda u: CE(u, x, y), mix(v, a)))
        a = min(max(a - LR * of_a, 0), 1)
      w, v = stepped(w, of_w), stepped(v, of_v)
    return w, (v, a), plain.combine((a, v), (1 - a, w))
  return train


def pfedme(w, own, client, t, lam=15., inner_lr=.05, lr=.01):
  theta = w
  for x, y in plain.batches(client):
    for _ in range(5):
      value = CE(theta, x, y)
      grad = plain.gradient(lambda u: CE(u, x, y), theta)
      theta = plain.combine((1, theta), (-inner_lr, grad),
                            (-inner_lr * lam, theta), (inner_lr * lam, w))
    apart = plain.combine((1, w), (-1, theta))
    plain.record(  # of the last theta that has a gradient
        client, train_loss=value + lam / 2 * plain.dot(apart, apart))
    w = plain.combine((1 - lr * lam, w), (lr * lam, theta))
  return w, own, theta


def perfedavg(order, alpha=.05, delta=.01):
  def train(w, own, client, t):
    whole = plain.CLIENTS[client]
    used = stepped(w, plain.gradient(
        lambda u: CE(u, plain.X[whole], plain.Y[whole]), w), alpha)
    for x, y in plain.batches(client):
      parts = 2 if order == 'fo' else 3
      part = np.arange(len(y)) * parts // len(y)
      losses = [lambda u, is_in=part == i: CE(u, x[is_in], y[is_in])
                for i in range(parts)]
      ahead_w = stepped(w, plain.gradient(losses[0], w), alpha)
      plain.record(client, train_loss=losses[1](ahead_w))
      v = plain.gradient(losses[1], ahead_w)
      if order == 'hf':
        ahead, behind = (plain.gradient(losses[2], plain.combine(
            (1, w), (sign * delta, v))) for sign in (1, -1))
        v = plain.combine((1, v), (-alpha / (2 * delta), ahead),
                          (alpha / (2 * delta), behind))
      w = stepped(w, v)
    return w, own, used
  return train


def kl(p_logits, q_logits):
  """Returns the mean of KL(p || q)."""
  log_p, log_q = plain.log_softmax(p_logits), plain.log_softmax(q_logits)
  return (np.exp(log_p) * (log_p - log_q)).sum(1).mean()


def logits(w, x):
  return plain.forward(w, x)[1]


def fml(meme, local, client, t, alpha=.3, beta=.6):
  for x, y in plain.batches(client):
    teacher, student = local, meme
    of_meme = lambda u: beta * CE(u, x, y) + (1 - beta) * kl(
        logits(teacher, x), logits(u, x))
    of_local = lambda u: alpha * CE(u, x, y) + (1 - alpha) * kl(
        logits(student, x), logits(u, x))
    plain.record(
        client, train_loss=of_meme(meme) + of_local(local),
        sent_loss=of_meme(meme), personal_loss=of_local(local))
    meme, local = (stepped(w, plain.gradient(loss, w)) for w, loss in (
        (meme, of_meme), (local, of_local)))
  return meme, local, local


def compressed(update, t, start, end):
  energy = start + (t + 1) / 3 * (end - start)
  found = {}
  for name, value in update.items():
    if value.ndim < 2:
      found[name] = value
      continue
    u, s, v = np.linalg.svd(value, full_matrices=False)
    k = next((k for k in range(len(s) + 1)
              if (s[:k]**2).sum() > energy * (s**2).sum()), len(s))
    found[name] = (u[:, :k] * s[:k]) @ v[:k]
  return found


def fedkd(form, start=.7, end=.9):
  def objective(own, other, x, y):
    together = CE(own, x, y) + CE(other, x, y)
    apart = plain.forward(own, x)[0] - plain.forward(other, x)[0]
    divergence = kl(logits(other, x), logits(own, x))
    if form == 'released':
      divergence /= plain.NUM_CLASSES
    return CE(own, x, y) + (divergence + (apart**2).mean()) / together

  def train(w, mentor, client, t):
    student = w
    for x, y in plain.batches(client):
      if form == 'paper':
        loss = objective
      else:
        loss = lambda a, b, x, y: objective(a, b, x, y) + objective(b, a, x, y)
      sent_loss, personal_loss = (
          objective(student, mentor, x, y), objective(mentor, student, x, y))
      plain.record(client, train_loss=sent_loss + personal_loss,
                   sent_loss=sent_loss, personal_loss=personal_loss)
      of_student = plain.gradient(lambda u: loss(u, mentor, x, y), student)
      of_mentor = plain.gradient(lambda u: loss(u, student, x, y), mentor)
      student, mentor = stepped(student, of_student), stepped(mentor, of_mentor)
    update = compressed(
        plain.combine((1, student), (-1, w)), t, start, end)
    return plain.combine((1, w), (1, update)), mentor, mentor

  def reference(cohorts):
    rounds = iter(range(len(cohorts)))
    server = lambda w, mean: plain.combine((1, w), (1, compressed(
        plain.combine((1, mean), (-1, w)), next(rounds), start, end)))
    return plain.method(train, server=server)(cohorts)
  return reference


def fedphp(transfer, lam=.3):
  def kd(u, h, x):
    p = np.exp(plain.log_softmax(logits(h, x) / 4))
    return -(p * plain.log_softmax(logits(u, x))).sum(1).mean()

  def mmd(u, h, x, widths):
    z = np.concatenate([plain.forward(v, x)[0] for v in (u, h)])
    kernel = sum(np.exp(-((z[:, None] - z)**2).sum(2) / s) for s in widths)
    b = len(x)
    return (kernel[:b, :b] + kernel[b:, b:]
            - kernel[:b, b:] - kernel[b:, :b]).mean()

  def train(w, kept, client, t):
    h, n = kept
    for x, y in plain.batches(client):
      if transfer == 'kd':
        term = lambda u: kd(u, h, x)
      else:
        z = np.concatenate([plain.forward(v, x)[0] for v in (w, h)])
        width = ((z[:, None] - z)**2).sum() / (len(z)**2 - len(z)) + 1e-8
        widths = width * 2.**np.arange(-2, 3)
        term = lambda u: mmd(u, h, x, widths)
      loss = lambda u: (1 - lam) * CE(u, x, y) + lam * term(u)
      plain.record(client, train_loss=loss(w), transfer=term(w))
      w = stepped(w, plain.gradient(loss, w))
    mu = min(.9 * n / 3, .9)
    h = plain.combine((mu, h), (1 - mu, w))
    return w, (h, n + 1), h
  return plain.method(train, first=(plain.INITIAL, 0))


UNIFORM = {'weighting': 'uniform'}
DITTO = mj.ditto(lam=.3), UNIFORM
PFEDME = mj.pfedme(lam=15., inner_steps=5, personal_learning_rate=.05,
                   server_beta=2.), {'learning_rate': .01}
PERFEDAVG = mj.perfedavg(alpha=.05), {}
FML = mj.fml(alpha=.3, beta_meme=.6, first_local='global'), UNIFORM
FEDPHP_KD = mj.fedphp(lam=.3), {}
FEDPHP_MMD = mj.fedphp(lam=.3, transfer='mmd'), {}


def uniform(train, **of_method):
  return plain.method(train, share=lambda *_: 1., **of_method)


ROWS = {
    'ditto': (DITTO[0], uniform(ditto), UNIFORM),
    'apfl': (mj.apfl(alpha=.3), uniform(
        apfl(False), first=(plain.INITIAL, .3)), UNIFORM),
    'apfl-adaptive': (mj.apfl(alpha=.3, adaptive=True), uniform(
        apfl(True), first=(plain.INITIAL, .3)), UNIFORM),
    'pfedme': (PFEDME[0], plain.method(
        pfedme, server=lambda w, mean: plain.combine((-1, w), (2, mean))),
        PFEDME[1]),
    'perfedavg-fo': (PERFEDAVG[0], plain.method(perfedavg('fo')), {}),
    'perfedavg-hf': (mj.perfedavg(alpha=.05, order='hf', delta=.01),
                     plain.method(perfedavg('hf')), {}),
    'fml': (FML[0], uniform(fml), UNIFORM),
    'fedkd': (mj.fedkd(.7, .9), fedkd('paper'), {}),
    'fedkd-released': (mj.fedkd(.7, .9, 'released'), fedkd('released'), {}),
    'fedphp-kd': (FEDPHP_KD[0], fedphp('kd'), {}),
    'fedphp-mmd': (FEDPHP_MMD[0], fedphp('mmd'), {}),
}

GOLDEN_ROWS = {'ditto': DITTO, 'pfedme_beta2': PFEDME,
               'perfedavg_fo': PERFEDAVG, 'fml': FML,
               'fedphp_kd': FEDPHP_KD, 'fedphp_mmd': FEDPHP_MMD}
