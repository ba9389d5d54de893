"""LoRA and its federated forms against plain loops over clients, in NumPy.

Ten rounds of unequal clients and cohorts. The network is one of Flax NNX.
"""

import functools

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
from papers import low_rank_golden
import pytest

import moon_jax as mj
from moon_jax.engine import local
from moon_jax.methods import flora as flora_lib
from support.papers.plain import log_softmax

SIZES, RATE, BATCH, EPOCHS = (5, 12, 3, 9), .2, 4, 2
COHORTS = [(0, 1, 2, 3), (2, 0), (1, 3), (3, 2, 1), (0,), (1, 2), (0, 3),
           (2, 1, 0), (3, 0), (0, 1, 2, 3)]
NUM_IN, WIDTH, CLASSES, RANK, ALPHA = 5, 6, 3, 2, 3.
SCALE = ALPHA / RANK
RANKS = (3, 1, 2)
_random = np.random.default_rng(0)
X = _random.normal(size=(sum(SIZES) + 8, NUM_IN)).astype(np.float32)
Y = _random.integers(CLASSES, size=len(X)).astype(np.int32)
CLIENTS = [at[np.argsort(Y[at], kind='stable')] for at in np.split(
    np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])]  # as without shuffles


class Net(nnx.Module):

  def __init__(self, rngs):
    self.fc = nnx.Linear(NUM_IN, WIDTH, rngs=rngs)
    self.out = nnx.Linear(WIDTH, CLASSES, rngs=rngs)

  def __call__(self, x):
    return self.out(nnx.tanh(self.fc(x)))


@functools.cache
def network():
  model = mj.from_nnx(Net)
  return model, model.init(jax.random.key(5), X[:1])


def simulation(model, algorithm, **changes):
  num_train = sum(SIZES)
  data = mj.Dataset('plain', X[:num_train], Y[:num_train], X[num_train:],
                    Y[num_train:], ('a', 'b', 'c'), mean=(0.,), std=(1.,))
  return mj.Simulation(mj.Federation(**{
      'data': data, 'clients': CLIENTS, 'model': model, 'algorithm': algorithm,
      'rounds': mj.rounds.listed(COHORTS), 'batch_size': BATCH,
      'local_epochs': EPOCHS, 'learning_rate': RATE, 'shuffle': False,
      'optimizer': 'sgd(momentum=0, weight_decay=0)', 'last_batch': 'keep',
      'keep_local_models': True, **changes}))


def gradients(w, x, y):
  """Returns the gradients of the mean cross-entropy for full weights."""
  h = np.tanh(x @ w['fc/kernel'] + w['fc/bias'])
  logits = h @ w['out/kernel'] + w['out/bias']
  d = (np.exp(log_softmax(logits)) - np.eye(CLASSES)[y]) / len(y)
  dh = (d @ w['out/kernel'].T) * (1 - h**2)
  return {'out/kernel': h.T @ d, 'fc/kernel': x.T @ dh}


def trained(base, adapters, client, scale, freeze_a=False):
  """Returns the adapters of a client after its local steps."""
  adapters = dict(adapters)
  steps = [CLIENTS[client][i:i + BATCH]
           for i in range(0, SIZES[client], BATCH)] * EPOCHS
  for at in steps:
    w = merged(base, adapters, scale)
    grads = gradients(w, X[at].astype(np.float64), Y[at])
    moved = {}
    for layer in 'fc', 'out':
      a, b = (adapters[f'{layer}/lora_{x}'] for x in 'ab')
      dw = scale * grads[f'{layer}/kernel']
      moved[f'{layer}/lora_a'] = a - RATE * (dw @ b.T) * (not freeze_a)
      moved[f'{layer}/lora_b'] = b - RATE * (a.T @ dw)
    adapters = moved
  return adapters


def merged(base, adapters, scale):
  return base | {f'{layer}/kernel': base[f'{layer}/kernel'] + scale * (
      adapters[f'{layer}/lora_a'] @ adapters[f'{layer}/lora_b'])
                 for layer in ('fc', 'out')}


def flat(tree):
  return {jax.tree_util.keystr(path, simple=True, separator='/'):
          np.asarray(x, np.float64)
          for path, x in jax.tree_util.tree_leaves_with_path(tree)}


def mean_of(cohort, by_client):
  share = np.array([SIZES[c] for c in cohort]) / sum(SIZES[c] for c in cohort)
  return {name: sum(p * by_client[c][name] for p, c in zip(share, cohort))
          for name in by_client[cohort[0]]}


def assert_close(found, expected):
  assert {*found} == {*expected}
  for name, x in expected.items():
    np.testing.assert_allclose(found[name], x, atol=1e-5, err_msg=name)


ALL_A, ALL_B = 4 * RANK * (NUM_IN + WIDTH), 4 * RANK * (WIDTH + CLASSES)


def begins(form, **changes):
  """Returns a simulation, its network's adapters, and all of them at first."""
  model, variables = network()
  adapted = mj.lora(model, RANK, alpha=ALPHA, variables=variables, seed=7,
                    freeze_a=form == 'ffa')
  ours = simulation(adapted, mj.fedsalora() if form == 'fedsa'
                    else mj.fedavg(), **changes)
  first = flat(ours.global_model()['params'])
  frozen = {} if form != 'ffa' else {
      '/'.join(path): np.asarray(x, np.float64)
      for path, x in adapted.frozen(X[:1])['params'].items()
      if path[-1] == 'lora_a'}
  return ours, first, {**first, **frozen}


@pytest.mark.parametrize('form', low_rank_golden.FORMS)
def test_adapters_equal_the_released_code(form):
  """All clients in each of three rounds; `low_rank_golden.py` says whose."""
  golden = np.load(low_rank_golden.FILE)
  ours, first, _ = begins(form, keep_local_models=True, rounds=(
      mj.rounds.listed([(0, 1, 2, 3)] * 10)))
  for _ in range(low_rank_golden.ROUNDS):
    ours.run_round()
  found = flat(ours.global_model()['params'])
  for name in first:
    if form != 'fedsa' or name.endswith('a'):
      np.testing.assert_allclose(
          found[name], golden[f'{form} {name}'], atol=1e-6)
  for c, local_model in (
      ours.local_models().items() if form == 'fedsa' else ()):
    for name, x in flat(local_model['params']).items():
      np.testing.assert_allclose(x, golden[f'client{c} {name}'], atol=1e-6)


@pytest.mark.parametrize('form, sent, kept', [
    ('lora', ALL_A + ALL_B, 0), ('ffa', ALL_B, 0), ('fedsa', ALL_A, ALL_B)])
def test_adapters_equal_a_plain_loop(form, sent, kept):
  """Models of server and clients, bytes of a round and client state."""
  base = flat(network()[1]['params'])
  ours, first, w = begins(form)
  assert {*first} == {f'{layer}/lora_{x}' for layer in ('fc', 'out')
                      for x in ('b' if form == 'ffa' else 'ab')}
  own_b = [first] * len(SIZES)  # of FedSA-LoRA
  for cohort in COHORTS:
    begin = {c: w | ({name: x for name, x in own_b[c].items()
                      if name.endswith('b')} if form == 'fedsa' else {})
             for c in cohort}
    after = {c: trained(base, begin[c], c, SCALE, form == 'ffa')
             for c in cohort}
    ours.run_round()
    for c in cohort:
      own_b[c] = after[c]
    averaged = mean_of(cohort, after)
    w = w | {name: x for name, x in averaged.items()
             if form != 'fedsa' or name.endswith('a')}
    assert_close(flat(ours.global_model()['params']),
                 {name: w[name] for name in first})
    if form == 'fedsa':
      for c, local_model in ours.local_models().items():
        assert_close(flat(local_model['params']), after[c])
  num_clients = np.mean([*map(len, COHORTS)])
  assert ours.bytes_per_round() == round(num_clients * 2 * sent)
  assert ours.client_bytes == kept * len(SIZES)


def test_flora_equals_a_plain_loop_that_stacks():
  """Ranks differ; A is drawn in each round by documented keys."""
  model, variables = network()
  algorithm = mj.flora(len(SIZES), .5, ranks=RANKS, scale=2.)
  ours = simulation(model, algorithm, init_variables=variables)
  w = flat(variables['params'])
  key = ours.state.key[0]
  for t, cohort in enumerate(COHORTS):
    stacked = {f'{layer}/lora_{x}': [] for layer in ('fc', 'out') for x in 'ab'}
    total = sum(SIZES[c] for c in cohort)
    for c in cohort:
      rank = RANKS[c % len(RANKS)]
      of_view = jax.random.fold_in(jax.random.fold_in(
          jax.random.fold_in(key, t), c), local.VIEW)
      draws = jax.random.fold_in(of_view, flora_lib._STREAM)
      adapters = {}
      for i, (layer, (n, m)) in enumerate((
          ('fc', (NUM_IN, WIDTH)), ('out', (WIDTH, CLASSES)))):
        bound = 1 / np.sqrt(n)
        a = jax.random.uniform(jax.random.fold_in(draws, i), (n, max(RANKS)),
                               jnp.float32, -bound, bound)
        adapters[f'{layer}/lora_a'] = np.asarray(a, np.float64)[:, :rank]
        adapters[f'{layer}/lora_b'] = np.zeros((rank, m))
      adapters = trained(w, adapters, c, 2.)
      for name, x in adapters.items():
        stacked[name].append(
            x * SIZES[c] / total if name.endswith('a') else x)
    stacked = {name: np.concatenate(parts, int(name.endswith('a')))
               for name, parts in stacked.items()}
    w = merged(w, stacked, 2.)
    ours.run_round()
    assert_close(flat(ours.global_model()['params']), w)
  per_rank = 4 * (NUM_IN + WIDTH + WIDTH + CLASSES)
  ranks = np.resize(RANKS, len(SIZES))
  upload = ranks.mean() * per_rank
  download = ranks.sum() / 2 * per_rank  # adapters of half the clients
  count = np.mean([*map(len, COHORTS)])
  assert ours.bytes_per_round() == round(count * (upload + download))
  assert ours.client_bytes == 0
  attention = {'params': {'query': {
      'kernel': np.zeros((4, 2, 3)), 'bias': np.zeros((2, 3))}}}
  assert mj.flora(1, 1., ranks=(1,), layers='query').upload_bytes(
      attention, {}) == [4 * (4 * 2 + 3)]
