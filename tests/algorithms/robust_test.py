"""Robust rules and attacks: NumPy loops, other libraries, errors, limits."""

import dataclasses
import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import moon_jax as mj
from moon_jax.algorithms import attacks, backdoor, robust, updates
from moon_jax.algorithms.base import Each
from moon_jax.config import Config
from moon_jax.config.kinds import UPDATE_ATTACKS
from moon_jax.data import attackers
from moon_jax.errors import DivergedError, UserError
from moon_jax.methods import registry
from moon_jax.simulation import agreement, build, checks
from support import federation as fed

GOLDEN = pathlib.Path(__file__).parent / 'robust_golden.json'


def rows(seed, n, num_rows=14, num_numbers=6, ties=False):
  """Returns updates [J, D], weights and whether they are received, n of them.

  Rows that are not received hold NaN, and are between the others.
  """
  random = np.random.default_rng(seed)
  u = random.normal(size=(num_rows, num_numbers)).astype(np.float32)
  if ties:
    u = np.round(u)
    u[1::2] = u[::2][:len(u[1::2])]
  is_received = np.zeros(num_rows, bool)
  is_received[random.permutation(num_rows)[:n]] = True
  weight = np.where(is_received, random.uniform(.1, 1, num_rows), 0)
  u[~is_received] = np.nan
  return u, (weight / weight.sum()).astype(np.float32), is_received


def applied(rule, u, weight, is_received):
  """Returns the update of a rule, for rows in any order."""
  return np.asarray(compiled(rule)(Each(
      u, weight, is_received, np.arange(len(u), dtype=np.int32))))


@functools.cache
def compiled(rule):
  return jax.jit(lambda each: rule.apply(
      updates.in_order(each), rule.init(jnp.zeros(each.value.shape[1])),
      jax.random.key(0))[0])


@functools.cache
def made(name, **arguments):
  return getattr(robust, name)(**arguments)


# The rules on received updates and their weights, client by client.


def np_scores(u, f):
  scores = []
  for i in range(len(u)):
    d = sorted(((u[i] - u[j])**2).sum() for j in range(len(u)) if j != i)
    scores.append(sum(d[:max(1, len(u) - f - 2)]))
  return np.array(scores)


def np_trimmed_mean(u, p, byzantine):
  found = []
  for column in u.T:
    found.append(np.mean(sorted(column)[byzantine:len(column) - byzantine]))
  return np.array(found)


def np_multi_krum(u, p, byzantine, keep=0):
  best = np.argsort(np_scores(u, byzantine), kind='stable')
  return u[best[:keep or len(u) - byzantine]].mean(0)


def np_bulyan(u, p, byzantine):
  left, chosen = list(range(len(u))), []
  while len(chosen) < len(u) - 2 * byzantine:
    best = left[int(np.argmin(np_scores(u[left], byzantine)))]
    left.remove(best)
    chosen.append(best)
  found = []
  for column in u[sorted(chosen)].T:
    near = np.argsort(abs(column - np.median(column)), kind='stable')
    found.append(column[near[:len(chosen) - 2 * byzantine]].mean())
  return np.array(found)


def np_geometric_median(u, p, iterations=3, nu=1e-6):
  v = p @ u
  for _ in range(iterations):
    b = [p_i / max(nu, np.linalg.norm(v - u_i)) for p_i, u_i in zip(p, u)]
    v = sum(b_i * u_i for b_i, u_i in zip(b, u)) / sum(b)
  return v


def np_clip(x, radius):
  norm = np.linalg.norm(x)
  return x if norm <= radius else x * radius / norm


def np_centred_clipping(u, p, radius, iterations=1, v=0):
  for _ in range(iterations):
    v = v + np.mean([np_clip(u_i - v, radius) for u_i in u], 0)
  return v


def np_dnc(u, p, byzantine, iterations=1, coordinates=10_000, remove=1.):
  kept, size = set(range(len(u))), min(coordinates, u.shape[1])
  for i in range(iterations):
    key = jax.random.fold_in(jax.random.key(0), robust._COORDINATES)
    at = np.asarray(jax.random.choice(
        jax.random.fold_in(key, i), u.shape[1], (size,), replace=False))
    centred = u[:, at] - u[:, at].mean(0)
    scores = (centred @ np.linalg.svd(centred)[2][0])**2
    kept &= {*np.argsort(scores)[:len(u) - int(remove * byzantine)].tolist()}
  return u[sorted(kept)].mean(0)


def np_fltrust(u, p, at):
  root, rest = u[at], np.delete(u, at, 0)
  scores = [max(0, u_i @ root / np.linalg.norm(u_i) / np.linalg.norm(root))
            for u_i in rest]
  return sum(s * np.linalg.norm(root) / np.linalg.norm(u_i) * u_i
             for s, u_i in zip(scores, rest)) / sum(scores)


RULES = [
    ('mean', {}, lambda u, p: p @ u),
    ('median', {}, lambda u, p: np.median(u, 0)),
    ('trimmed_mean', dict(byzantine=0), np_trimmed_mean),
    ('trimmed_mean', dict(byzantine=2), np_trimmed_mean),
    ('krum', dict(byzantine=2), lambda u, p, byzantine: np_multi_krum(
        u, p, byzantine, 1)),
    ('multi_krum', dict(byzantine=2), np_multi_krum),
    ('multi_krum', dict(byzantine=1, keep=3), np_multi_krum),
    ('bulyan', dict(byzantine=1), np_bulyan),
    ('geometric_median', {}, np_geometric_median),
    ('geometric_median', dict(iterations=20, nu=.1), np_geometric_median),
    ('norm_clipping', dict(radius=1.5), lambda u, p, radius: sum(
        p_i * np_clip(u_i, radius) for p_i, u_i in zip(p, u))),
    ('centred_clipping', dict(radius=1., iterations=3), np_centred_clipping),
    ('secure_sum', {}, lambda u, p: p @ u),
    ('dnc', dict(byzantine=2), np_dnc),
    ('dnc', dict(byzantine=1, iterations=3, coordinates=4, remove=1.5), np_dnc),
    ('majority_vote', dict(step=.1), lambda u, p, step: step * np.sign(
        np.sign(u).sum(0)))]


@pytest.mark.parametrize('name, arguments, reference', RULES)
def test_rule_equals_a_numpy_loop(name, arguments, reference):
  """With unequal weights, and rows of NaN that were not received."""
  for n in 7, 8, 11:
    u, p, is_received = rows(n, n)
    found = applied(made(name, **arguments), u, p, is_received)
    expected = reference(u[is_received].astype(np.float64), p[is_received],
                         **arguments)
    np.testing.assert_allclose(found, expected, atol=2e-6)


@pytest.mark.parametrize('name, arguments, reference', [
    case for case in RULES if case[0] != 'dnc'])  # which rounding decides
def test_rule_with_ties(name, arguments, reference):
  """Of equal clients the one with the lower number counts."""
  u, p, is_received = rows(1, 14, ties=True)
  found = applied(made(name, **arguments), u, p, is_received)
  np.testing.assert_allclose(
      found, reference(u.astype(np.float64), p, **arguments), atol=2e-6)


@pytest.mark.parametrize('name, arguments, reference', RULES[:-1])
def test_equal_updates_are_the_result(name, arguments, reference):
  u = np.tile(np.float32([.1, -.2, .3] * 2), (14, 1))
  found = applied(made(name, **arguments), u,
                  np.full(14, 1 / 14, np.float32), np.ones(14, bool))
  np.testing.assert_allclose(found, u[0], atol=1e-6)


@pytest.mark.parametrize('rule', [
    robust.median(), robust.krum(0), robust.multi_krum(0), robust.bulyan(0),
    robust.geometric_median(), robust.norm_clipping(9.), robust.dnc(0)])
def test_one_client_is_the_result(rule):
  u, p, is_received = rows(0, 1)
  np.testing.assert_allclose(applied(rule, u, p, is_received),
                             u[is_received][0], atol=1e-6)


@pytest.mark.parametrize('name, arguments', [
    (name, arguments) for name, arguments, _ in RULES
    if name not in (
        'mean', 'norm_clipping', 'centred_clipping', 'majority_vote',
        'secure_sum')
    and arguments.get('byzantine', 2) == 2
    and (name != 'geometric_median' or arguments)])
def test_two_huge_updates_do_not_matter(name, arguments):
  """Distances of honest updates are exact next to them.

  A geometric median approaches them in more than its usual iterations.
  """
  u, p, is_received = rows(3, 9)
  u *= 1e-2
  honest = u[is_received][2:]
  u[np.flatnonzero(is_received)[:2]] = 1e6
  found = applied(made(name, **arguments), u, p, is_received)
  assert (found <= honest.max(0) + .02).all()
  assert (found >= honest.min(0) - .02).all()


@pytest.mark.parametrize('n', [2, 5, 11])
def test_fltrust_equals_a_numpy_loop(n):
  u, p, is_received = rows(n + 1, n)
  u += 1  # so that some point in the direction of the trusted one
  clients = np.flatnonzero(is_received)
  for at in 0, n - 1:
    found = applied(
        robust.fltrust(trusted=int(clients[at])), u, p, is_received)
    np.testing.assert_allclose(
        found, np_fltrust(u[is_received].astype(np.float64), p, at), atol=2e-6)


def test_fltrust_trusts_no_opposite_and_no_absent_client():
  u = np.float32([[1, 0], [-1, .1], [3, 0]])
  equal, all_received = np.full(3, 1 / 3, np.float32), np.ones(3, bool)
  trusts = functools.partial(applied, robust.fltrust(), u, equal)
  np.testing.assert_allclose(trusts(all_received), [1, 0], atol=1e-7)
  np.testing.assert_array_equal(
      trusts(np.array([False, True, True])), [0, 0])


def test_masked_integers_hide_updates_and_have_their_sum():
  """Against integers of Python, of 2 and of 5 clients."""
  random = np.random.default_rng(0)
  q = random.integers(-2**30, 2**30, (7, 20_000)).astype(np.int32)
  client, key = np.array([1, 4, 5, 6, 9, 0, 0]), jax.random.key(1)
  for n in 2, 5:
    is_received = np.arange(7) < n
    sent = np.asarray(robust.masked(q, is_received, client, key))
    for d in range(50):
      assert sum(map(int, sent[:, d])) % 2**32 == (
          sum(map(int, q[:n, d])) % 2**32)
    assert not sent[n:].any()
    for i in range(n):
      uniform = sent[i] / 2**32
      assert abs(uniform.mean() - .5) < .01
      assert abs(uniform.var() * 12 - 1) < .02
      assert abs(np.corrcoef(uniform, q[i])[0, 1]) < .03
      # Other integers under the same mask differ from these by what they do.
      zero = np.asarray(robust.masked(0 * q, is_received, client, key))
      np.testing.assert_array_equal(sent[i] - zero[i], q[i].view(np.uint32))
    assert len(set(zero[:n].ravel())) > .99 * zero[:n].size


@pytest.mark.parametrize('bits', [2, 12, 31])
def test_a_secure_sum_is_the_sum_of_rounded_integers(bits):
  """Each at most 1 from the exact number, with the exact mean, and clipped."""
  u, p, is_received = rows(5, 6, 9, num_numbers=400)
  u, scale = np.nan_to_num(u), 2.**(bits - 1) / 1.5
  summed = jax.jit(robust.secure_sum(1.5, bits).apply)
  rows_J = updates.Rows(*updates.in_order(
      Each(u, p, is_received, jnp.arange(9)))[:3], jnp.arange(9))
  q = scale * p.astype(np.float64)[:, None] * np.clip(u, -1.5, 1.5)
  mean, found = p.astype(np.float64) @ u, []
  for seed in range(200):
    update, _, metrics = summed(rows_J, (), jax.random.key(seed))
    found.append(scale * np.asarray(update, np.float64))
    assert metrics['secure_error'] == pytest.approx(
        np.linalg.norm(update - mean) / np.linalg.norm(mean), rel=1e-3)
  slack = 1e-6 * abs(q).sum(0)  # float32 has 24 bits
  np.testing.assert_allclose(found, np.round(found), atol=slack.max())
  assert (abs(found - q.sum(0)) <= 6 + slack).all()
  assert abs(np.mean(found - q.sum(0), 0)).max() < .25 + slack.max()


@pytest.mark.parametrize('bits', [1, 32, 16.5, '31'])
def test_the_sum_must_fit(bits):
  with pytest.raises(UserError, match=f'bits must be .*got {bits!r}'):
    robust.secure_sum(bits=bits)
  with pytest.raises(UserError, match='limit must be a finite.*; got inf'):
    robust.secure_sum(limit=np.inf)


@pytest.mark.parametrize('scale', [0, 1e-38, 1e-30, 1e-22, 1e-15, 1e38])
def test_fltrust_of_updates_of_any_length(scale):
  """The result is no longer than the trusted update."""
  u = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
  u[1] = scale * np.sign(u[0])
  found = applied(robust.fltrust(), u, np.full(3, 1 / 3, np.float32),
                  np.ones(3, bool))
  assert np.linalg.norm(found) < 1.0001 * np.linalg.norm(u[0])


def test_centred_clipping_begins_with_the_last_result():
  u, p, is_received = rows(2, 6, num_rows=6)
  rule = robust.centred_clipping(radius=.5)
  state = rule.init(jnp.zeros(6))
  v = 0
  for t in range(3):
    found, state, _ = rule.apply(updates.Rows(
        jnp.asarray(u + t), p, is_received, np.arange(len(u))), state, None)
    v = np_centred_clipping(u.astype(np.float64) + t, p, .5, v=v)
    np.testing.assert_allclose(found, v, atol=1e-6)


# Attacks.


def np_min_max(honest, direction):
  """Halves steps of gamma, as the released code does."""
  m = honest.mean(0)
  p = {'std': -honest.std(0, ddof=1), 'unit': -m / np.linalg.norm(m),
       'sign': -np.sign(m)}[direction]
  most = max(np.linalg.norm(x - y) for x in honest for y in honest)
  gamma, step, found = 10., 10., 0.
  while step > 1e-9:
    step /= 2
    if max(np.linalg.norm(m + gamma * p - x) for x in honest) <= most:
      found, gamma = gamma, gamma + step
    else:
      gamma -= step
  return m + found * p


def np_little_is_enough(honest, b, z=0.):
  n = len(honest) + b
  k = n // 2 + 1 - b
  z = z or max(0, scipy.stats.norm.ppf((n - b - k) / (n - b)))
  return honest.mean(0) - z * honest.std(0)


CRAFTED = [
    (attacks.sign_flip(2.), lambda own, honest, b: -2 * own),
    (attacks.scaling(5.), lambda own, honest, b: 5 * own),
    (attacks.inner_product(.5), lambda own, honest, b: -.5 * honest.mean(0)),
    (attacks.little_is_enough(), lambda own, honest, b: np_little_is_enough(
        honest, b)),
    (attacks.little_is_enough(1.5), lambda own, honest, b:
     np_little_is_enough(honest, b, 1.5)),
    *((attacks.min_max(direction), lambda own, honest, b, direction=direction:
       np_min_max(honest, direction)) for direction in ('std', 'unit', 'sign'))]


def attacked(craft, u, is_received, num_attackers):
  attack = attacks.make(craft, num_attackers, len(u))
  u = np.where(is_received[:, None], u, 0)
  found = jax.jit(lambda rows: attack.apply(
      rows, attack.hparams, jax.random.key(0)))(updates.Rows(
          u, (), is_received, np.arange(len(u), dtype=np.int32)))
  is_hostile = np.asarray(attackers.drawn(num_attackers, len(u), 0))
  return np.asarray(found), is_hostile & is_received


@pytest.mark.parametrize('craft, reference', CRAFTED)
def test_attack_equals_numpy(craft, reference):
  u, _, is_received = rows(5, 10)
  u[np.asarray(attackers.drawn(3, len(u), 0))] *= 10  # they do not count
  found, is_hostile = attacked(craft, u, is_received, 3)
  honest = u[is_received & ~is_hostile].astype(np.float64)
  b = is_hostile.sum()
  assert 0 < b < 4
  for client in range(len(u)):
    if is_hostile[client]:
      np.testing.assert_allclose(
          found[client], reference(u[client], honest, b), atol=1e-5)
    elif is_received[client]:
      np.testing.assert_array_equal(found[client], u[client])


@pytest.mark.parametrize('n, b, z', [
    (6, 1, 0), (8, 6, scipy.stats.norm.ppf(.9999))])
def test_the_deviations_of_alie_have_limits(n, b, z):
  """Phi(z) is .4 and 1.5 without them."""
  u, _, is_received = rows(5, n, num_rows=n)
  found, is_hostile = attacked(
      attacks.little_is_enough(), u, is_received, b)
  honest = u[~is_hostile].astype(np.float64)
  expected = honest.mean(0) - z * honest.std(0)
  np.testing.assert_allclose(
      found[is_hostile], np.tile(expected, (b, 1)), atol=1e-4)


@pytest.mark.parametrize('name', UPDATE_ATTACKS)
def test_all_clients_hostile(name):
  """They read one another's updates; the result is finite."""
  u, _, is_received = rows(5, 6)
  found, is_hostile = attacked(
      getattr(attacks, name)(), u, is_received, len(u))
  np.testing.assert_array_equal(is_hostile, is_received)
  assert np.isfinite(found[is_received]).all()
  assert (found[is_received] != u[is_received]).any()


def test_noise_belongs_to_the_client():
  u = np.zeros((50, 40), np.float32)
  found, is_hostile = attacked(attacks.gaussian(3.), u, np.ones(50, bool), 30)
  noise = found[is_hostile]
  assert not found[~is_hostile].any() and len(np.unique(noise[:, 0])) == 30
  assert abs(noise.std() - 3) < .2 and abs(noise.mean()) < .3


def test_noise_is_no_draw_of_a_topology():
  """`topologies.graphs.recipients` folds small numbers into the same key."""
  found, _ = attacked(
      attacks.gaussian(), np.zeros((6, 5), np.float32), np.ones(6, bool), 6)
  others = [jax.random.normal(jax.random.fold_in(jax.random.key(0), i), 5)
            for i in range(6)]
  assert not np.isclose(found[:, None], others).all(-1).any()


def test_attackers_are_drawn_from_the_seed():
  draws = [np.flatnonzero(attackers.drawn(3, 20, seed)).tolist()
           for seed in range(9)]
  assert all(len(draw) == 3 for draw in draws)
  assert len({*map(tuple, draws)}) > 6
  assert {*draws[0]} < {*np.flatnonzero(attackers.drawn(6, 20, 0)).tolist()}
  config = Config(
      attack='sign_flip(attackers=0.15)', num_clients=20, seed=4)
  assert attackers.configured(config) == draws[4]
  assert not attackers.configured(Config())


def test_labels_of_hostile_clients_are_flipped():
  config = checks.validate(Config(
      dataset='digits', algorithm='fedavg', partition='iid', model='mlp',
      attack='label_flip(attackers=0.3)', seed=2))
  honest = build.federation(dataclasses.replace(config, attack='none'))
  federation = build.federation(config)
  hostile = attackers.configured(config)
  assert len(hostile) == 3
  for client, indices in enumerate(federation.clients):
    labels = honest.data.train_labels[indices]
    np.testing.assert_array_equal(
        federation.data.train_labels[indices],
        9 - labels if client in hostile else labels)


def test_a_backdoor_stamps_images_of_hostile_clients():
  config = checks.validate(Config(
      dataset='cifar10', algorithm='fedavg', partition='iid', num_clients=5,
      attack='backdoor(target=3, fraction=0.25, size=2, attackers=0.4)',
      eval_examples=30))
  random = np.random.default_rng(0)
  data = mj.Dataset(
      'images', random.integers(0, 200, (100, 8, 8, 3)).astype(np.uint8),
      random.integers(0, 5, 100).astype(np.int32),
      random.integers(0, 200, (40, 8, 8, 3)).astype(np.uint8),
      random.integers(0, 5, 40).astype(np.int32), (*'abcde',))
  federation = build.federation(config, data)
  poisoned, hostile = federation.data, attackers.configured(config)
  assert len(hostile) == 2 and data.train_inputs.max() < 200
  for client, indices in enumerate(federation.clients):
    before, after = (x.train_inputs[indices] for x in (data, poisoned))
    is_stamped = (after[:, -2:, -2:] == 255).all((1, 2, 3))
    assert is_stamped.sum() == (5 if client in hostile else 0)
    np.testing.assert_array_equal(after[:, :6], before[:, :6])
    np.testing.assert_array_equal(after[~is_stamped], before[~is_stamped])
    np.testing.assert_array_equal(
        poisoned.train_labels[indices],
        np.where(is_stamped, 3, data.train_labels[indices]))
  inputs, labels = federation.test_sets['backdoor']
  tests = data.with_test_examples(30)
  assert len(labels) == (tests.test_labels != 3).sum() and (labels == 3).all()
  assert (inputs[:, -2:, -2:] == 255).all() and (inputs[:, :6] < 200).all()
  for remedy, other in (('a class', 'target=7'), ('at most 8', 'size=9')):
    with pytest.raises(UserError, match=remedy):
      build.federation(dataclasses.replace(
          config, attack=f'backdoor({other}, attackers=0.4)'), data)
  with pytest.raises(UserError, match='images in memory; got .*breast_can'):
    build.federation(config, mj.load_dataset('breast_cancer'))


def test_a_backdoor_draws_images_by_seed_and_client():
  data = mj.Dataset(
      'images', np.zeros((60, 4, 4, 1), np.uint8),
      np.tile(np.int32([0, 1, 2]), 20), np.zeros((3, 4, 4, 1), np.uint8),
      np.int32([0, 1, 2]), (*'abc',))
  clients, draws = np.split(np.arange(60), 3), []
  for seed in range(2):
    poisoned = backdoor.Backdoor(size=2).poisoned(
        data, clients, [0, 1, 2], seed).train_inputs
    draws += [tuple(np.flatnonzero(poisoned[at].any((1, 2, 3))).tolist())
              for at in clients]
  assert len(set(draws)) == 6


# Together with the engine.


def test_four_lanes_equal_one():
  """On as many devices as there are, which gather the messages."""
  algorithm = robust.with_rule(
      fed.fedavg(), robust.multi_krum(1),
      attacks.make(attacks.min_max(), 2, len(fed.SIZES)))
  one, four = (
      fed.Federation(algorithm, num_lanes=n).train().state for n in (1, 4))
  fed.assert_trees_close((one.variables, one.server),
                         (four.variables, four.server))


def test_rounds_equal_a_numpy_loop():
  """Local training, an attack and a rule, with lost messages."""
  federated = fed.Federation(
      robust.with_rule(fed.fedavg(), robust.median(), attacks.make(
          attacks.sign_flip(3.), 3, len(fed.SIZES))))
  is_hostile = np.asarray(attackers.drawn(3, len(fed.SIZES), 0))
  for cohort in [(0, 1, 4, 5, 7), (7, 2, 1, 3, 6)]:
    before = fed.vector(federated.state.variables)
    updates = fed.local_updates(cohort, federated.state)
    sent = [-3 * updates[client] if is_hostile[client] else updates[client]
            for client in cohort[1:]]
    federated.round(cohort, lost=cohort[:1])
    np.testing.assert_allclose(fed.vector(federated.state.variables),
                               before + np.median(sent, 0), atol=1e-6)


def test_runs_with_other_attackers_share_a_program():
  config = Config(dataset='digits', algorithm='fedavg', model='mlp',
                  attack='sign_flip', aggregation='krum')
  keys = {agreement.program_key(dataclasses.replace(config, seed=seed))
          for seed in range(3)}
  assert len(keys) == 1
  first, second = (registry.make(dataclasses.replace(config, seed=seed))
                   for seed in range(2))
  assert agreement._value(first) == agreement._value(second)
  assert first.hparams['attack_seed'] != second.hparams['attack_seed']


def test_methods_that_send_more_are_refused():
  with pytest.raises(UserError, match='nothing else, with robust rules.*total'):
    fed.Federation(robust.with_rule(
        mj.feddyn(len(fed.SIZES)), robust.median())).round()


@pytest.mark.parametrize('rule', [
    robust.majority_vote(), robust.fltrust(), robust.centred_clipping(),
    robust.secure_sum()])
def test_rules_that_could_make_variances_negative_refuse_them(rule):
  with pytest.raises(UserError, match='rule needs a network without running'):
    fed.Federation(robust.with_rule(fed.fedavg(), rule),
                   model=fed.linear_model(has_state=True)).round()


def federation_of(rule, attack=None, **settings):
  data = mj.load_dataset('digits')
  return mj.Federation(
      data=data, clients=mj.partition.iid(200, 6, seed=0),
      model=mj.mlp(data.num_classes), local_epochs=1, batch_size=32,
      algorithm=robust.with_rule(mj.fedavg(), rule, attack), **settings)


def test_too_few_clients_are_an_error():
  with pytest.raises(UserError, match='at least 7 clients in each.*got 6'):
    federation_of(robust.krum(2))
  with pytest.raises(UserError, match='at least 5 clients in each.*got 4'):
    federation_of(robust.krum(1), rounds=mj.rounds.listed(
        [range(5), range(4)]))
  failing = mj.Simulation(federation_of(
      robust.krum(1), rounds=mj.rounds.with_dropout(
          mj.rounds.all_clients(), .6, 'after_training')))
  with pytest.raises(DivergedError, match='received . of .* 5. Updates'):
    failing.run(3)


def test_rules_assume_hostile_clients_of_a_round():
  """And not of the whole federation: 2 of 10, of 20 clients."""
  config = Config(num_clients=20, participation=.5, aggregation='krum')
  assert registry.make(config).min_received == robust.krum(2).min_received


def test_fltrust_needs_an_honest_client_in_each_round():
  config = Config(dataset='digits', algorithm='fedavg', model='mlp',
                  aggregation='fltrust', attack='sign_flip')
  hostile = attackers.configured(config)
  for flags, error in (
      ({'aggregation': f'fltrust(trusted={hostile[0]})'},
       f'must be an honest client; got {hostile[0]}'),
      ({'aggregation': 'fltrust(trusted=10)'},
       'must be an honest client; got 10'),
      ({'participation': .5}, 'trusted client in each round.*Remove')):
    with pytest.raises(UserError, match=error):
      checks.validate(dataclasses.replace(config, **flags))
  with pytest.raises(UserError, match='needs all 6 clients in each'):
    federation_of(robust.fltrust(), rounds=mj.rounds.listed([[1, 2, 3]]))


@pytest.mark.parametrize('made_for', [5, 7])
def test_an_attack_is_made_for_the_clients_of_the_federation(made_for):
  attack = attacks.make(attacks.sign_flip(), 2, made_for)
  with pytest.raises(UserError, match=f'num_clients=6; got {made_for}'):
    federation_of(robust.median(), attack)
  with pytest.raises(UserError, match='from 0 to num_clients=3; got 4'):
    attacks.make(attacks.sign_flip(), 4, 3)


def test_fltrust_trusts_a_client_of_the_federation():
  with pytest.raises(UserError, match='a client from 0 to 5; got 6'):
    federation_of(robust.fltrust(trusted=6))


@pytest.mark.long
def test_a_round_records_who_was_excluded():
  """Hostile clients send far larger updates than the others."""
  config = Config(
      dataset='digits', algorithm='fedavg', model='mlp', partition='iid',
      num_clients=8, attack='sign_flip(scale=50, attackers=0.25)',
      aggregation='multi_krum', server='sgd(momentum=0.5)', num_rounds=2,
      local_epochs=1)
  configs = [dataclasses.replace(config, seed=seed) for seed in range(3)]
  data = mj.load_dataset('digits')
  program = mj.Program([build.federation(c, data) for c in configs])
  for record, c in zip(program.run_round(range(3)), configs):
    assert record.metrics['clients_excluded'] == attackers.configured(c)
  config = dataclasses.replace(
      config, aggregation='secure_sum', attack='none')
  record, = mj.Simulation(build.federation(config)).run(1)
  assert 'clients_excluded' not in record.metrics
  assert 0 < record.metrics['secure_error'] < 1e-3


def test_metrics_of_a_server_are_recorded():
  """Beside those of the loss; numbers that are not finite are None."""
  def aggregate(variables, server, message, call):
    return message.mean, server, {
        'norm': jnp.float32(2), 'none': jnp.float32(np.nan),
        'some': jnp.array([1., np.inf]), 'ids': jnp.array([3, -1, 0])}

  def loss(*args):
    value, aux = mj.fedavg().loss(*args)
    return value, aux._replace(metrics={'own': value})

  federation = dataclasses.replace(
      federation_of(robust.mean()),
      algorithm=mj.fedavg()._replace(aggregate=aggregate, loss=loss))
  record, = mj.Simulation(federation).run(1)
  found = {name: record.metrics[name]
           for name in ('norm', 'none', 'some', 'ids')}
  assert found == {
      'norm': 2, 'none': None, 'some': [1, None], 'ids': [3, -1, 0]}
  assert record.metrics['train_loss'] == record.metrics['own']
  assert 'local_loss' not in record.metrics
  lost = dataclasses.replace(federation, rounds=mj.rounds.with_dropout(
      mj.rounds.all_clients(), .999))
  nothing = mj.Simulation(lost).run_round().metrics
  assert nothing['clients_received'] == 0 and 'norm' not in nothing


def test_flags_make_rules():
  config = Config(num_clients=15, participation=.9999, algorithm='fedavg',
                  aggregation='trimmed_mean')  # 14 clients, 2.8 of them hostile
  assert registry.rule_of(config, 15).min_received == 7  # 3 of 15
  assert registry.rule_of(config, 14).min_received == 7
  assert registry.rule_of(dataclasses.replace(
      config, aggregation='trimmed_mean(byzantine=1)'), 14).min_received == 3
  assert registry.rule_of(Config(), 10) is None
  assert registry.attack_of(Config(attack='label_flip')) is None


# ByzFL and Flower on the same messages; `robust_golden.py` made the file.


@pytest.mark.parametrize('name, arguments', [
    ('median', {}), ('trimmed_mean', dict(byzantine=2)),
    ('krum', dict(byzantine=2)), ('multi_krum', dict(byzantine=2, keep=4)),
    ('bulyan', dict(byzantine=2)),
    ('geometric_median', dict(iterations=1000, nu=.1)),
    ('centred_clipping', dict(radius=1.))])
def test_other_libraries_agree(name, arguments):
  golden = json.loads(GOLDEN.read_text())
  u = np.float32(golden['updates'])
  weight = np.full(len(u), 1 / len(u), np.float32)
  found = applied(getattr(robust, name)(**arguments), u, weight,
                  np.ones(len(u), bool))
  libraries = [library for library in golden['versions']
               if name in golden[library]]
  assert libraries
  for library in libraries:
    np.testing.assert_allclose(found, golden[library][name], atol=1e-6)
