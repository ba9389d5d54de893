"""Which models clients receive, and what clients that are alone do."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax.algorithms import mixing
from moon_jax.algorithms.base import Batch, Message
from moon_jax.methods import fedcross
from support import federation as fed

AFFINITY = np.float32([.3, -.2, .9, 0., .5])
IS_FREE = np.array([True, True, False, True, True])
chosen = jax.jit(mixing.chosen, static_argnames=('chance', 'count'))


@pytest.mark.parametrize('chance, count, expected', [
    (0., 2, [4, 0]), (0., 5, [4, 0, 3, 1, -1])])
def test_the_models_of_largest_affinity_are_sent(chance, count, expected):
  for seed in range(3):
    assert chosen(AFFINITY[None], IS_FREE[None], chance, count,
                  jax.random.key(seed)).tolist() == [expected]


def test_explored_models_are_different_and_of_all_others():
  sent = chosen(*(np.tile(x, (200, 1)) for x in (AFFINITY, IS_FREE)),
                1., 2, jax.random.key(0))
  assert (sent[:, 0] != sent[:, 1]).all()
  counts = np.bincount(np.ravel(sent), minlength=5)
  assert counts[2] == 0 and (counts[[0, 1, 3, 4]] > 60).all()


@pytest.mark.parametrize('selection, round_, expected', [
    ('lowest', 0, [2, 2, 1]), ('highest', 0, [1, 0, 0]),
    ('in_order', 0, [1, 2, 0]), ('in_order', 1, [2, 0, 1]),
    ('in_order', 2, [1, 2, 0])])
def test_partners_in_fedcross(selection, round_, expected):
  models = {'params': {'w': jnp.array([[1., 0], [4, 1], [0, -3]]),
                       'b': jnp.array([0., 0, .1])}}
  assert fedcross.partners(
      models, jnp.int32(round_), selection).tolist() == expected


def test_parts_of_a_batch_hold_each_example_once():
  batch = Batch(jnp.arange(14.).reshape(7, 2), jnp.arange(7), jnp.ones(7))
  parts = mixing.parts(batch, 3)
  assert parts.inputs.shape == (3, 3, 2)
  np.testing.assert_array_equal(parts.mask.ravel()[:7], batch.mask)
  assert parts.mask.sum() == 7
  np.testing.assert_array_equal(parts.labels.ravel()[:7], batch.labels)


@pytest.mark.parametrize('buffer', [1, 2, 3])
def test_the_teacher_of_fedgkd_is_the_mean_of_the_last_models(buffer):
  """Without the first, w^0."""
  algorithm = mj.fedgkd(buffer=buffer)
  models = jnp.array([100., 1., 4., 9., 16., 25.])  # w^0, w^1 ...
  model = mj.Model(None, lambda variables, *_, train: (
      mj.Outputs(features=(), projection=(), logits=variables['w']), variables))
  server = algorithm.init_server({'w': models[0]})
  for t in range(1, 5):
    _, server, _ = algorithm.aggregate(
        {'w': models[t - 1]}, server, mj.Message({'w': models[t]}),
        fed.server_call())
    totals, num_rounds = algorithm.broadcast(server, None)
    assert len(totals) == (buffer > 1)  # models that clients receive besides
    before = sum(total['w'] for total in totals)
    assert num_rounds == t  # not View.round: a round may receive nothing
    last = models[max(1, t + 1 - buffer):t + 1]
    assert models[t] + before == last.sum()
    view = types.SimpleNamespace(
        variables={'w': models[t]}, server=(totals, num_rounds))
    np.testing.assert_allclose(algorithm.frozen(
        model, Batch(None, None, None), view), last.mean(), rtol=1e-6)


def test_q_fedavg_stays_where_it_is_if_no_loss_has_a_power():
  """1e-5 to the power of 10 is 0 in float32."""
  w = {'params': {'a': jnp.array([1., 2.])}}
  powers = jnp.float32([1e-5, 2e-5])**10
  delta = {'a': jnp.sum(powers) * jnp.array([3., 4.])}
  found, *_ = mj.qfedavg(q=10.).aggregate(
      w, (), Message({'params': (delta, jnp.sum(powers))}), fed.server_call())
  np.testing.assert_array_equal(found['params']['a'], w['params']['a'])
