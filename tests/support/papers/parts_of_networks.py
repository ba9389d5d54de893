"""Plain references of methods that share a part of the network."""

import numpy as np

import moon_jax as mj
from support.papers import plain

ALIGN_RATE, FINETUNE_EPOCHS = .3, 5


def part(w, names):
  return {name: w[name] for name in names}


def keeping(kept, train, share=None):
  """Returns the reference of a method whose clients keep weights `kept`.

  `train` returns a client's new model, of w^t, its last model and its number.
  """
  return plain.method(
      lambda w, own, c, t: (train(w, own, c),) * 3, share=share,
      server=lambda w, mean: {**mean, **part(plain.INITIAL, kept)})


def fedper(w, own, client):
  return plain.sgd({**w, **part(own, plain.HEAD)}, plain.cross_entropy, client)


def fedrep(w, own, client):
  """Half of the steps train the head, then half the body."""
  w = {**w, **part(own, plain.HEAD)}
  steps = plain.batches(client)
  for step, (x, y) in enumerate(steps):
    names = plain.HEAD if step < len(steps) / 2 else plain.BODY
    plain.record(client, train_loss=plain.cross_entropy(w, x, y))
    grad = plain.gradient(
        lambda v, x=x, y=y: plain.cross_entropy(v, x, y), w)
    w = {**w, **{name: w[name] - plain.LR * grad[name] for name in names}}
  return w


def lgfedavg(w, own, client):
  return plain.sgd({**w, **part(own, plain.BODY)}, plain.cross_entropy, client)


def fine_tuned(w, client):
  for x, y in plain.batches(client, FINETUNE_EPOCHS):
    grad = plain.gradient(lambda v, x=x, y=y: plain.cross_entropy(v, x, y), w)
    w = plain.combine((1, w), (-plain.LR, grad))
  return w


def fedavg_ft(w, own, client, t):
  sent = plain.sgd(w, plain.cross_entropy, client)
  return sent, own, fine_tuned(w, client)


def fedbabu(w, own, client, t):
  sent = plain.sgd(w, plain.cross_entropy, client, plain.BODY)
  return sent, own, fine_tuned(w, client)


def fedrod(w, head, client, t):
  for x, y in plain.batches(client):
    at, h = np.arange(len(y)), plain.forward(w, x)[0]

    def balanced(v, x=x, y=y, at=at):
      power = np.exp(plain.forward(v, x)[1]) * plain.COUNTS[client]
      return -np.log(power[at, y] / power.sum(1)).mean()

    def own(v, x=x, y=y, at=at, h=h, w=w):
      logits = plain.forward(w, x)[1] + h @ v['W2'] + v['b2']
      return -plain.log_softmax(logits)[at, y].mean()

    plain.record(client, train_loss=balanced(w) + own(head),
                 generic_loss=balanced(w), personal_loss=own(head))
    grads = plain.gradient(balanced, w), plain.gradient(own, head)
    w = plain.combine((1, w), (-plain.LR, grads[0]))
    head = plain.combine((1, head), (-plain.LR, grads[1]))
  used = plain.combine((1, part(w, plain.HEAD)), (1, head))
  return w, head, {**w, **used}


def fedas(w, own, client):
  x, y = plain.X[plain.CLIENTS[client]], plain.Y[plain.CLIENTS[client]]
  h = plain.forward(own, x)[0]
  prototypes = {k: h[y == k].mean(0) for k in set(y.tolist())}

  def misalignment(body, x, y):
    h = plain.forward({**w, **body}, x)[0]
    return sum(((h[y == k] - prototypes[k])**2).mean() for k in set(y.tolist()))

  for x, y in plain.batches(client, epochs=1):
    grad = plain.gradient(
        lambda v, x=x, y=y: misalignment(v, x, y), part(w, plain.BODY))
    w = {**w, **plain.combine(
        (1, part(w, plain.BODY)), (-ALIGN_RATE, grad))}
  return fedper(w, own, client)


def fisher(local, client):
  total = 0
  for x, y in plain.batches(client, epochs=1):
    grad = plain.gradient(
        lambda v, x=x, y=y: plain.cross_entropy(v, x, y), local)
    total += plain.dot(grad, grad)
  return total


UNIFORM = {'weighting': 'uniform'}
ROWS = {
    'fedavg_ft': (mj.fedavg_ft(), plain.method(fedavg_ft), {}),
    'fedper': (mj.fedper(), keeping(plain.HEAD, fedper), {}),
    'fedrep': (mj.fedrep(), keeping(plain.HEAD, fedrep), {}),
    'lgfedavg': (mj.lgfedavg(), keeping(
        plain.BODY, lgfedavg, lambda local, client: 1), UNIFORM),
    'fedbabu': (mj.fedbabu(), plain.method(
        fedbabu, share=lambda *_: 1), UNIFORM),
    'fedrod': (mj.fedrod(), plain.method(
        fedrod, first=part(plain.INITIAL, plain.HEAD)), {}),
    'fedas': (mj.fedas(align_rate=ALIGN_RATE),
              keeping(plain.HEAD, fedas, fisher), {}),
}

# With the same arguments, so that both share a compiled round.
GOLDEN_ROWS = {name: (row[0], row[2]) for name, row in ROWS.items()
               if name != 'fedavg_ft'}  # no code of authors was run
