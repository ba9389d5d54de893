"""Parts and limits of methods that share features of classes."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

import moon_jax as mj
from moon_jax.algorithms import base
from moon_jax.algorithms.base import Batch, Message
from moon_jax.errors import UserError
from moon_jax.methods import labels, prototypes, simplex
from moon_jax.models.base import Outputs
from support import federation as fed
from support.papers import features


def quadratic(num, seed, num_features=3):
  """Returns a matrix as FedPAC's: variances and a Gram matrix of low rank."""
  random = np.random.default_rng(seed)
  x = random.normal(size=(num, num_features))
  x[0] = 0  # the client itself
  variance = .01 + random.random(num) * random.choice([.1, 10], num)
  return np.diag(variance) + x @ x.T


def weights(p, usable=None):
  usable = np.ones(len(p), bool) if usable is None else usable
  return np.asarray(compiled(np.float32(p), usable), np.float64)


compiled = jax.jit(simplex.weights)


@pytest.mark.parametrize('seed', range(5))
def test_weights_are_the_best_of_all_supports(seed):
  p = quadratic(5, seed)
  np.testing.assert_allclose(weights(p), features.best_weights(p), atol=1e-5)


def test_variances_of_features_far_from_zero():
  """E |z|^2 - |h|^2 in float32 was wrong by 4% here."""
  random = np.random.default_rng(0)
  z, y = np.float32(3000 + random.normal(size=(12, 5))), np.arange(12) % 3 // 2
  mask = np.float32(np.arange(12) < 10)  # two of padding
  view = types.SimpleNamespace(
      num_examples=10, label_counts=np.bincount(y[:10], minlength=3),
      model=types.SimpleNamespace(apply=lambda variables, inputs, mask, train: (
          Outputs(inputs, inputs, inputs), variables)),
      examples=base.Examples(lambda s: Batch(
          jnp.array(z), jnp.array(y), jnp.array(mask)), 1))
  for where in 0, y:  # one class, or two
    y = np.broadcast_to(where, 12).copy()
    view.label_counts = np.bincount(y[:10], minlength=3)
    h, variance = prototypes.statistics({}, view)
    exact = np.stack([(z[:10] * (y[:10] == k)[:, None].astype(float)).mean(0)
                      for k in range(3)])
    np.testing.assert_allclose(h, exact, rtol=1e-6)
    np.testing.assert_allclose(variance, (
        (np.float64(z[:10]) ** 2).sum(1).mean() - (exact ** 2).sum()) / 10,
        rtol=1e-4)


def test_many_weights_fulfil_the_conditions_of_a_minimum():
  p = quadratic(60, 1, num_features=40)
  a = weights(p)
  slope = p @ a / (a @ p @ a)  # 1 where a > 0, and at least 1 elsewhere
  np.testing.assert_allclose(a.sum(), 1, atol=1e-6)
  np.testing.assert_allclose(slope[a > 0], 1, atol=1e-4)
  assert (a >= 0).all() and slope.min() > 1 - 1e-4 and (a > 0).sum() < 60


def least_squares(p):
  """Returns the weights in float64: x / sum(x) of x' P x / 2 - sum x, x >= 0.

  With P = L L' this is the distance of L' x from the solution of L b = 1.
  """
  scale = 1 / np.sqrt(np.diag(p))
  root = np.linalg.cholesky(p * scale * scale[:, None])
  x = scale * scipy.optimize.nnls(root.T, scipy.linalg.solve_triangular(
      root, scale, lower=True), maxiter=10_000)[0]
  return x / x.sum()


def test_weights_of_ill_conditioned_matrices():
  """Of condition number 1e6; their entries are those of float32."""
  for seed in range(6):
    random = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(random.normal(size=(12, 12)))
    p = basis * np.geomspace(1, 1e-6, 12) @ basis.T
    scale = 1 / np.sqrt(np.diag(p))
    p = np.float64(np.float32(p * scale * scale[:, None]))
    np.testing.assert_allclose(weights(p), least_squares(p), atol=5e-5)


@pytest.mark.parametrize('seed', [1, 2])
def test_many_clients_of_two_classes_mix_their_heads_best(seed):
  """Of 3 features, with thousands of examples: variances are small."""
  random, num = np.random.default_rng(seed), 100
  means, share = random.normal(size=(2, 3)), random.dirichlet([.5, .5], num)
  h = np.float32(share[:, :, None] * (
      means + .1 * random.normal(size=(num, 2, 3)))).reshape(num, -1)
  variance = np.float32(3 * (.5 + random.random(num)) / random.integers(
      5_000, 20_000, num))
  found = np.asarray(jax.jit(simplex.mixtures)(
      jnp.eye(num), h, variance, jnp.ones(num, bool)), np.float64)
  np.testing.assert_allclose(found.sum(1), 1, atol=1e-5)
  for i in range(0, num, 10):
    apart = np.float64(h[i]) - h
    p = np.diag(np.float64(variance)) + apart @ apart.T
    best = least_squares(p)
    np.testing.assert_allclose(found[i], best, atol=1e-3)
    np.testing.assert_allclose(
        found[i] @ p @ found[i], best @ p @ best, rtol=1e-5)


def test_weights_of_several_problems_at_once_are_those_of_each():
  """They take different numbers of steps; one is singular in float32."""
  p = np.float32([quadratic(12, 0), quadratic(12, 1, 8),
                  np.ones((12, 12)) + 1e-9 * np.eye(12)])
  together = jax.jit(jax.vmap(simplex.weights))(p, np.ones((3, 12), bool))
  for found, one in zip(together, p):
    np.testing.assert_allclose(found, weights(one), atol=1e-6)
    np.testing.assert_allclose(found.sum(), 1, atol=1e-6)


def test_rows_that_are_not_usable_have_no_effect():
  p = quadratic(4, 3)
  larger = np.full((6, 6), np.nan)
  larger[np.ix_([0, 2, 3, 5], [0, 2, 3, 5])] = p
  usable = np.isin(np.arange(6), [0, 2, 3, 5])
  found = weights(larger, usable)
  np.testing.assert_allclose(found[usable], weights(p), atol=1e-6)
  assert (found[~usable] == 0).all()


def test_a_client_with_one_example_keeps_its_own_head():
  """Its variance is 0."""
  heads, h = jnp.array([[1.], [2.], [3.]]), jnp.array([[0.], [.5], [1.]])
  mixed = jax.jit(simplex.mixtures)(
      heads, h, np.float32([0., .1, .1]), np.ones(3, bool))
  assert np.isfinite(mixed).all()
  np.testing.assert_allclose(mixed[0], heads[0], atol=1e-5)


@pytest.mark.parametrize('make', [
    mj.fedrep, functools.partial(mj.fedpac, 2)])
@pytest.mark.parametrize('fraction, num_steps, num_head', [
    (2 / 3, 10, 7), (.6, 4, 2), (.04, 10, 1), (.96, 10, 9), (0., 5, 0),
    (1., 5, 5), (1 / 6, 3, 1), (.5, 1, 1), (0., 1, 0)])
def test_the_head_trains_in_a_rounded_number_of_steps(
    make, fraction, num_steps, num_head):
  """At least one and not all, unless the fraction is 0 or 1."""
  algorithm = make(head_fraction=fraction)
  view = type('View', (), {'num_steps': jnp.int32(num_steps), 'hparams': {
      name: jnp.float32(x) for name, x in algorithm.hparams.items()}})
  trains = algorithm.trains({'out': 0, 'fc1': 0}, Batch(
      None, None, None, step=jnp.arange(num_steps)), view)
  is_head = np.arange(num_steps) < num_head
  np.testing.assert_array_equal(trains['out'], is_head)
  np.testing.assert_array_equal(trains['fc1'], ~is_head)


def test_fedrcl_takes_the_mean_over_levels_and_features():
  """Each alone is compared with a reference in papers_test.py."""
  random = np.random.default_rng(0)
  levels = [jnp.float32(random.normal(size=(5, size))) for size in (4, 2, 3)]
  batch = Batch(None, jnp.array([0, 1, 0, 1, 1]), jnp.float32([1, 1, 1, 1, 0]))

  def terms(*levels):
    outputs = mj.Outputs(
        features=levels[-1], projection=jnp.ones((5, 1)),
        logits=jnp.ones((5, 2)), levels=levels[:-1])
    algorithm = mj.fedrcl(tau=.5, threshold=0.)
    view = base.first_view(algorithm, {}, num_classes=2)._replace(
        hparams=jax.tree.map(jnp.float32, dict(algorithm.hparams)))
    _, aux = algorithm.loss(mj.Model(None, lambda *_, train: (outputs, {})),
                            {}, batch, view)
    return aux.metrics

  of_each = [terms(level) for level in levels]
  for name, found in terms(*levels).items():
    np.testing.assert_allclose(
        found, np.mean([terms[name] for terms in of_each]), rtol=1e-5)
    assert len({float(terms[name]) for terms in of_each}) == 3


def test_feduv_of_one_example_is_cross_entropy():
  """It has no deviation, which the standard deviation of all would lack."""
  z, mask = jnp.float32([[1, 2], [3, 5]]), jnp.float32([1, 0])
  model = mj.Model(None, lambda *_, train: (mj.Outputs(z, z, z), {}))
  algorithm = mj.feduv()
  value, aux = algorithm.loss(
      model, {}, Batch(None, jnp.zeros(2, jnp.int32), mask), base.first_view(
          algorithm, {}, num_classes=2))
  assert not any(aux.metrics.values())
  np.testing.assert_allclose(value, np.log(1 + np.e), rtol=1e-6)


@pytest.mark.parametrize('count', [1, 2])
def test_ccvr_leaves_out_classes_of_one_example(count):
  """As it does classes of none."""
  random = np.random.default_rng(0)
  algorithm, z = mj.ccvr(num_virtual=5, calibration_steps=3), jnp.float32(
      random.normal(size=(3, 4, 2)))
  variables = {'params': {'out': {
      'kernel': jnp.float32(random.normal(size=(2, 3))),
      'bias': jnp.zeros(3)}}}

  def calibrated(*counts):
    one_KN = np.float32([np.arange(4) < count for count in counts])
    sums = prototypes.ClassSums(
        jnp.einsum('kn,knf->kf', one_KN, z), jnp.float32(counts))
    square_KFF = jnp.einsum('kn,knf,kng->kfg', one_KN, z, z)
    hparams = {name: jnp.float32(x) for name, x in algorithm.hparams.items()}
    found, *_ = algorithm.aggregate(
        variables, (), Message(variables, total=(
            jnp.float32(1), sums, square_KFF)), fed.server_call(hparams))
    return np.asarray(found['params']['out']['kernel'])

  found, without = calibrated(count, 3, 4), calibrated(0, 3, 4)
  assert (found != np.asarray(variables['params']['out']['kernel'])).any()
  assert (found == without).all() == (count == 1)


def test_padding_is_in_no_prototype():
  batch = Batch(jnp.zeros((4, 1)), jnp.array([0, 2, 2, 0]),
                jnp.array([1., 1, 1, 0]))
  view = type('View', (), {'label_counts': jnp.zeros(3, jnp.int32)})
  sums = prototypes.batch_sums(jnp.array([[1.], [2], [4], [9]]), batch, view)
  np.testing.assert_array_equal(
      sums.means(jnp.full((3, 1), -1.))[:, 0], [1, -1, 3])
  np.testing.assert_array_equal(sums.count_K, [1, 0, 2])


def test_tasks_without_classes_have_no_prototypes():
  view = type('View', (), {'label_counts': jnp.zeros(0, jnp.int32)})
  with pytest.raises(UserError, match='classification'):
    labels.counts_K(view)


def test_covariances_of_few_examples_have_roots():
  x = np.random.default_rng(0).normal(size=(4, 7))
  x[:, 2] = 0
  found = np.asarray(prototypes._cholesky(jnp.float32(x.T @ x)))
  np.testing.assert_allclose(found @ found.T, x.T @ x, atol=1e-5)
  assert (np.abs(found).sum(0) > 0).sum() == 4
