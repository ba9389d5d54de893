"""Outputs of a round, lost updates, and results that are not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from moon_jax.algorithms.server import with_server_optimizer
from support import federation as fed

COHORT = (0, 1, 4, 5, 6)


def vectors(tree):
  """Returns a tree with a leading axis J as a matrix, [J, parameters]."""
  return np.concatenate(
      [np.asarray(x, np.float64).reshape(len(x), -1)
       for x in jax.tree.leaves(tree)], 1)


def test_local_models_drift_and_cosines():
  federated = fed.Federation(
      fed.fedavg(), num_lanes=2, num_jobs=7, keep_models=True)
  alone = fed.Federation(fed.fedavg())
  initial = fed.copied(alone.state)
  table, metrics = federated.round(COHORT)
  jobs = fed.jobs_of(table, COHORT)
  for j, client in zip(jobs, COHORT):
    alone.state = fed.copied(initial)
    alone.round((client,))
    fed.assert_trees_close(
        jax.tree.map(lambda x, j=j: x[j], metrics.models_J),
        jax.tree.map(lambda x: x[0], alone.state.variables))
  updates = vectors(metrics.models_J)[jobs] - vectors(initial.variables)[0]
  norms = np.linalg.norm(updates, axis=1)
  np.testing.assert_allclose(metrics.drift_J[jobs], norms, rtol=1e-5)
  assert not np.delete(metrics.drift_J, jobs).any()
  units = updates / norms[:, None]
  pairs = units @ units.T
  between = pairs[np.triu_indices(len(COHORT), 1)].mean()
  np.testing.assert_allclose(metrics.cosine_R, [between], rtol=1e-5)
  mean = units.mean(0) / np.linalg.norm(units.mean(0))
  np.testing.assert_allclose(
      metrics.cosine_J[jobs], units @ mean, rtol=1e-5)
  _, metrics = federated.round((3,))
  assert not np.isfinite(metrics.cosine_R).any()  # one update has no pair


def test_a_step_is_traced_once():
  """Tracing takes a large part of the compilation time."""
  algorithm, traced = fed.fedavg(), []

  def loss(*args):
    traced.append(args)
    return algorithm.loss(*args)

  fed.Federation(algorithm._replace(loss=loss)).round(fed.ALL)
  assert len(traced) == 1


def test_lost_updates_change_the_client_and_not_the_server():
  algorithm = with_server_optimizer(fed.scaffold(8), optax.sgd(1., momentum=.5))
  lost, without, everyone = (
      fed.Federation(algorithm, 2, num_jobs=5, hparams={'momentum': 0.})
      for _ in range(3))
  for t in range(3):
    start = jax.tree.map(np.array, lost.state.clients)
    _, metrics_lost = lost.round(COHORT, lost=(1, 6))
    without.round((0, 4, 5))
    _, metrics_everyone = everyone.round(COHORT)
    if t == 0:  # lost updates count in the cosines
      np.testing.assert_allclose(
          metrics_lost.cosine_R, metrics_everyone.cosine_R, rtol=1e-5)
  fed.assert_trees_close((lost.state.variables, lost.state.server),
                         (without.state.variables, without.state.server))
  moved = vectors(jax.tree.map(lambda x: x[0], lost.state.clients)) != vectors(
      jax.tree.map(lambda x: x[0], start))
  assert moved.any(1).tolist() == [i in COHORT for i in range(8)]
  w, w_everyone = (f.state.variables['params']['w'] for f in (lost, everyone))
  assert np.abs(w - w_everyone).max() > 1e-3


def test_noise_depends_on_the_client_and_not_on_lanes():
  std = np.float32(np.repeat([0] * 4 + [.5] * 4, fed.SIZES))[:, None]
  models = []
  for lanes, noise in ((1, None), (1, std), (3, std), (1, 0 * std)):
    federated = fed.Federation(
        fed.fedavg(), num_lanes=lanes, keep_models=True, num_jobs=8)
    federated.data = federated.data._replace(noise_std=noise)
    table, metrics = federated.round()
    models.append(vectors(metrics.models_J)[fed.jobs_of(table, fed.ALL)])
  plain, noisy, on_lanes, zero = models
  # Two programs, whose fusions may differ in the last bit.
  np.testing.assert_allclose(zero, plain, rtol=0, atol=1e-7)
  np.testing.assert_allclose(on_lanes, noisy, atol=1e-6)
  is_moved = np.abs(noisy - plain).max(1) > 1e-4
  assert is_moved.tolist() == [False] * 4 + [True] * 4


def test_idle_lanes_do_not_affect_the_state():
  """Cohorts include jobs of one step, which start and end in the same row."""
  settings = dict(num_epochs=1, hparams={'momentum': 0.})
  one = fed.Federation(fed.scaffold(8), **settings)
  initial = fed.copied(one.state)
  for cohort, num_lanes in ((0, 2), 3), ((0, 4, 2), 4):
    several = fed.Federation(fed.scaffold(8), num_lanes, **settings)
    table, _ = several.round(cohort)
    one.state = fed.copied(initial)
    one.round(cohort)
    assert 1 in table.jobs.num_steps
    fed.assert_trees_close(one.state, several.state)


def test_idle_lanes_have_metrics_0():
  """Even if the loss of a batch of padding is not 0."""
  def loss(model, variables, batch, view):
    value, aux = fed.fedavg().loss(model, variables, batch, view)
    return value + 1, aux._replace(metrics={'own': value + 2})

  federated = fed.Federation(fed.fedavg()._replace(loss=loss), num_lanes=3)
  table, metrics = federated.round((1, 2))
  is_step = table.job_TL >= 0
  ran = np.arange(len(is_step)) < table.num_rows.max()
  assert (~is_step[ran]).sum() > 8
  for values_TL, least in (metrics.loss_TL, 1), (metrics.extra_TL['own'], 2):
    assert (values_TL[is_step] > least).all() and not values_TL[~is_step].any()


def test_round_without_received_updates_keeps_the_server_state():
  federated = fed.Federation(
      with_server_optimizer(fed.moon(2), optax.sgd(1., momentum=.5)),
      num_jobs=5)
  for cohort, lost in ((COHORT, COHORT), ((), ())):
    federated.round(COHORT)
    before = jax.tree.map(
        np.array, (federated.state.variables, federated.state.server))
    federated.round(cohort, lost=lost)
    fed.assert_trees_close(
        before, (federated.state.variables, federated.state.server), atol=0)
    federated.round(COHORT)
    assert np.isfinite(federated.state.variables['params']['w']).all()


@pytest.mark.parametrize('algorithm, num_lanes, has_state', [
    (fed.moon(3), 2, True),
    *(pytest.param(*values, marks=pytest.mark.long) for values in (
        (fed.moon(1), 1, False), (fed.moon(2), 3, False),
        (fed.l2(), 4, True)))])
def test_freeze_once_equals_freezing_in_each_step(
    algorithm, num_lanes, has_state, monkeypatch):
  """It covers all examples of a client, even those that an epoch drops."""
  monkeypatch.setattr('moon_jax.algorithms.base.Examples.BATCH_SIZE', 7)
  model = fed.linear_model(has_state, is_centred=has_state)
  once, always = (
      fed.Federation(algorithm, num_lanes, (3, 4), num_jobs=14, model=model,
                     freeze_once=freeze) for freeze in (True, False))
  for cohort in (COHORT, (1, 2), COHORT[::-1]):
    _, metrics_once = once.round(cohort, runs=(0, 1))
    _, metrics_always = always.round(cohort, runs=(0, 1))
  fed.assert_trees_close(once.state, always.state)
  np.testing.assert_allclose(
      metrics_once.extra_TL['contrastive_loss'],
      metrics_always.extra_TL['contrastive_loss'], atol=1e-6)
  assert metrics_once.extra_TL['contrastive_loss'].max() > .01


def with_nan(algorithm, where, num_examples):
  """Returns `algorithm`, with NaN for clients with `num_examples` examples."""
  def add_nan(tree, view):
    return jax.tree.map(
        lambda x: jnp.where(
            view.num_examples == num_examples, jnp.nan, x).astype(x.dtype)
        if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)

  def loss(model, variables, batch, view):
    value, aux = algorithm.loss(model, variables, batch, view)
    return value + jax.lax.stop_gradient(
        add_nan(jnp.zeros(()), view)), aux

  def transform_grads(grads, view):
    return add_nan(algorithm.transform_grads(grads, view), view)

  def message(variables, view):
    client, sent = algorithm.finish(variables, view)
    return client, add_nan(sent, view)

  def client(variables, view):
    state, sent = algorithm.finish(variables, view)
    return add_nan(state, view), sent

  return algorithm._replace(**{
      'loss': dict(loss=loss),
      'transform_grads': dict(transform_grads=transform_grads),
      'message': dict(finish=message), 'client': dict(finish=client)}[where])


@pytest.mark.parametrize('algorithm, where, num_lanes', [
    (fed.moon(2), 'client', 4), (fed.scaffold(8), 'message', 2),
    (fed.fednova(), 'transform_grads', 1),
    (with_server_optimizer(fed.fedavg(), optax.sgd(.7, momentum=.9)),
     'loss', 2)])
def test_clients_with_nan_are_left_out(algorithm, where, num_lanes):
  bad = COHORT[2]
  others = tuple(client for client in COHORT if client != bad)
  algorithm = with_nan(algorithm, where, fed.SIZES[bad])
  without, federated = (
      fed.Federation(algorithm, num_lanes, num_jobs=6) for _ in range(2))
  for cohort, remaining in (
      (COHORT, others), (others, others), (COHORT, others)):
    _, expected = without.round(remaining)
    table, metrics = federated.round(cohort)
    is_bad = (table.jobs.client == bad) & (table.jobs.num_steps > 0)
    np.testing.assert_array_equal(metrics.finite_J, ~is_bad)
    assert metrics.finite_R.all()
    np.testing.assert_allclose(metrics.cosine_R, expected.cosine_R, rtol=1e-5)
  fed.assert_trees_close(federated.state, without.state)


def test_clients_with_one_infinite_loss_are_left_out():
  """Even if all later losses and all results are finite."""
  def loss(model, variables, batch, view):
    value, aux = fed.fedavg().loss(model, variables, batch, view)
    is_first = (variables['params']['w'] == view.variables['params']['w']).all()
    return value + jnp.where(is_first & (view.num_examples > 20), jnp.inf, 0
                             ), aux

  federated = fed.Federation(fed.fedavg()._replace(loss=loss), num_jobs=6)
  table, metrics = federated.round(COHORT)
  sizes = table.jobs.num_examples[table.jobs.num_steps > 0]
  np.testing.assert_array_equal(
      metrics.finite_J[table.jobs.num_steps > 0], sizes <= 20)
  assert np.isinf(metrics.loss_TL).sum() == (sizes > 20).sum() > 0
  assert np.isfinite(metrics.drift_J).all()


def test_server_state_that_is_not_finite_is_reported():
  overflow = fed.fedavg()._replace(
      aggregate=lambda variables, server, message, call: (
          jax.tree.map(lambda x: x / 0, message.mean), server, {}))
  _, metrics = fed.Federation(overflow).round(fed.ALL)
  assert metrics.finite_J.all() and not metrics.finite_R.any()
