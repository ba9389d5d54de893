"""Plain references of methods that share a part of the network."""

import numpy as np

import moon_jax as mj
import plain

ALIGN_RATE, FINETUNE_EPOCHS = .3, 5


def part(w, names):
  return {name: w[name] for name in names}


def keeping(kept, train, share=lambda local, client: plain.SIZES[client]):
  """Returns the reference of a method whose clients keep weights `kept`.

  Args:
    kept: names of weights.
    train: (global model, the client's last model, client) -> its new model.
    share: (new model, client) -> its weight in the mean.
  """
  def reference(cohorts):
    w, trained = plain.INITIAL, plain.Trained([], {})
    own = {c: w for c in range(plain.NUM_CLIENTS)}
    for cohort in cohorts:
      for c in cohort:
        own[c] = train(w, own[c], c)
        trained.personal[c] = own[c]
      w = {**plain.mean({c: own[c] for c in cohort},
                        {c: share(own[c], c) for c in cohort}),
           **part(plain.INITIAL, kept)}
      trained.rounds.append(w)
    return trained

  return reference


def fedper(w, own, client):
  return plain.sgd({**w, **part(own, plain.HEAD)}, plain.cross_entropy, client)


def fedrep(w, own, client):
  """Half of the steps train the head, then half the body."""
  w = {**w, **part(own, plain.HEAD)}
  steps = plain.batches(client)
  for step, (x, y) in enumerate(steps):
    names = plain.HEAD if step < len(steps) / 2 else plain.BODY
    grad = plain.gradient(
        lambda v, x=x, y=y: plain.cross_entropy(v, x, y), w)
    w = {**w, **{name: w[name] - plain.LR * grad[name] for name in names}}
  return w


def lgfedavg(w, own, client):
  return plain.sgd({**w, **part(own, plain.BODY)}, plain.cross_entropy, client)


def fedbabu(cohorts):
  w, trained = plain.INITIAL, plain.Trained([], {})
  for cohort in cohorts:
    for c in cohort:
      tuned = w
      for x, y in plain.batches(c, FINETUNE_EPOCHS):
        grad = plain.gradient(
            lambda v, x=x, y=y: plain.cross_entropy(v, x, y), tuned)
        tuned = plain.combine((1, tuned), (-plain.LR, grad))
      trained.personal[c] = tuned
    w = plain.mean({c: plain.sgd(w, plain.cross_entropy, c, plain.BODY)
                    for c in cohort}, dict.fromkeys(cohort, 1))
    trained.rounds.append(w)
  return trained


def fedrod(cohorts):
  w, trained = plain.INITIAL, plain.Trained([], {})
  heads = {c: part(w, plain.HEAD) for c in range(plain.NUM_CLIENTS)}
  for cohort in cohorts:
    sent = {}
    for c in cohort:
      generic, head = w, heads[c]
      for x, y in plain.batches(c):
        at, h = np.arange(len(y)), plain.forward(generic, x)[0]

        def balanced(v, x=x, y=y, at=at, c=c):
          power = np.exp(plain.forward(v, x)[1]) * plain.COUNTS[c]
          return -np.log(power[at, y] / power.sum(1)).mean()

        def own(v, x=x, y=y, at=at, h=h, generic=generic):
          logits = plain.forward(generic, x)[1] + h @ v['W2'] + v['b2']
          return -plain.log_softmax(logits)[at, y].mean()

        grads = plain.gradient(balanced, generic), plain.gradient(own, head)
        generic = plain.combine((1, generic), (-plain.LR, grads[0]))
        head = plain.combine((1, head), (-plain.LR, grads[1]))
      sent[c], heads[c] = generic, head
      trained.personal[c] = {
          **generic, **plain.combine((1, part(generic, plain.HEAD)), (1, head))}
    w = plain.mean(sent)
    trained.rounds.append(w)
  return trained


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
    'fedper': (mj.fedper(), keeping(plain.HEAD, fedper), {}),
    'fedrep': (mj.fedrep(), keeping(plain.HEAD, fedrep), {}),
    'lgfedavg': (mj.lgfedavg(), keeping(
        plain.BODY, lgfedavg, lambda local, client: 1), UNIFORM),
    'fedbabu': (mj.fedbabu(), fedbabu, UNIFORM),
    'fedrod': (mj.fedrod(), fedrod, {}),
    'fedas': (mj.fedas(align_rate=ALIGN_RATE),
              keeping(plain.HEAD, fedas, fisher), {}),
}

# With the same arguments, so that both share a compiled round.
GOLDEN_ROWS = {name: (row[0], row[2]) for name, row in ROWS.items()}
