"""Methods with a proximal term, FedNova's average or control variates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import moon_jax as mj
from moon_jax.algorithms import base
from moon_jax.algorithms.base import Message
from moon_jax.algorithms.server import with_server_optimizer
from moon_jax.errors import UserError
from moon_jax.methods.fednova import with_fednova
from moon_jax.methods.fedprox import with_proximal
from moon_jax.methods.scaffold import with_control_variates
from support import federation as fed

N = len(fed.SIZES)


def run(algorithm, **hparams):
  return fed.Federation(algorithm, num_lanes=2, hparams=hparams).train().state


def test_without_penalty_moon_with_variates_is_scaffold():
  found = run(with_control_variates(fed.moon(2), N), mu=0., momentum=0.)
  expected = run(fed.scaffold(N), momentum=0.)
  fed.assert_trees_close(found.variables, expected.variables)
  fed.assert_trees_close(found.server.own, expected.server.own, atol=5e-6)
  fed.assert_trees_close(found.clients.own, expected.clients.own,
                         atol=5e-6)
  visits = [sum(c in cohort for cohort in fed.COHORTS) for c in range(N)]
  np.testing.assert_array_equal(found.clients.inner.num_models[0], visits)


def test_loss_of_moon_with_a_proximal_term_equals_numpy():
  model = fed.linear_model()
  key = jax.random.split(jax.random.key(0), 5)
  global_, local, previous = (
      {'params': {'w': jax.random.normal(key[i], (4, 3)),
                  'b': jax.random.normal(key[i], (3,))}} for i in range(3))
  algorithm = with_control_variates(with_proximal(fed.moon(1), 3.), 5)
  view = base.first_view(algorithm, global_)
  view = view._replace(hparams=view.hparams | dict(
      mu=jnp.float32(2), temperature=jnp.float32(.25),
      proximal_mu=jnp.float32(3)))
  client, message = algorithm.finish(previous, view)
  view = view._replace(client=client)
  inputs = jax.random.normal(key[3], (6, 2, 2, 1))
  labels = jnp.array([0, 1, 2, 2, 1, 0])

  @jax.jit
  def loss(local, view):
    batch = base.Batch(inputs, labels, jnp.ones(6))
    batch = batch._replace(frozen=algorithm.frozen(model, batch, view))
    return algorithm.loss(model, local, batch, view)[0]

  found = loss(local, view)

  x = np.asarray(inputs, np.float64).reshape(6, 4)
  z, z_global, z_previous = (
      x @ np.asarray(v['params']['w'], np.float64)
      + np.asarray(v['params']['b']) for v in (local, global_, previous))
  cosine = lambda a, b: (a * b).sum(1) / (
      np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
  ce = np.log(np.exp(z).sum(1)) - z[np.arange(6), np.asarray(labels)]
  contrast = np.log(1 + np.exp(
      (cosine(z, z_previous) - cosine(z, z_global)) / .25))
  proximal = sum(
      ((np.asarray(local['params'][name], np.float64)
        - np.asarray(global_['params'][name]))**2).sum() for name in 'wb')
  expected = (ce + 2 * contrast).mean() + 3 / 2 * proximal
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  fed.assert_trees_close(message.mean, previous, atol=0)


def test_wrapped_methods_see_their_own_state():
  """Each function that gets a view, and those of states."""
  seen = {}

  def checked(name, function):
    def call(*arguments):
      view = arguments[-1]
      seen[name] = (set(view.client), set(view.server))
      return function(*arguments)

    return call

  plain = fed.fedavg()._replace(
      personal_model=lambda trained, view: trained,
      init_client=lambda variables: {'mine': jnp.float32(0)},
      init_server=lambda variables: {'ours': jnp.float32(0),
                                     'x': jnp.float32(0)},
      broadcast=lambda server, receiver: {'ours': server['ours']})
  spying = plain._replace(**{
      name: checked(name, getattr(plain, name)) for name in (
          'start', 'frozen', 'loss', 'transform_grads', 'transform_updates',
          'finish', 'local_model', 'personal_model')})
  federated = fed.Federation(with_control_variates(spying, N), keep_models=True)
  federated.round()
  assert len(seen) == 8
  assert all(names == ({'mine'}, {'ours'}) for names in seen.values())
  client, server = federated.state.clients, federated.state.server
  assert set(client.inner) == {'mine'} and set(client.own) == {'w', 'b'}
  assert set(server.inner) == {'ours', 'x'}


def test_metrics_inside_a_wrapper_are_recorded_with_its_own():
  inside = fed.fedavg()._replace(
      aggregate=lambda variables, server, message, call: (
          message.mean, server, {'inside': call.round}))
  algorithm = with_server_optimizer(
      mj.robust.with_rule(inside, mj.robust.secure_sum()), optax.sgd(1.))
  variables = {'params': {'w': jnp.zeros(3)}}
  message = Message((), each=base.Each(
      jnp.ones((2, 3)), jnp.full(2, .5), jnp.ones(2, bool), jnp.arange(2)))
  following, _, metrics = jax.jit(algorithm.aggregate)(
      variables, algorithm.init_server(variables), message, fed.server_call())
  assert metrics.keys() == {'inside', 'secure_error'}
  np.testing.assert_allclose(following['params']['w'], 1, rtol=1e-5)


def test_fednova_of_other_messages_is_refused():
  silent = fed.fedavg()._replace(
      finish=lambda trained, view: (view.client, Message(())))
  with pytest.raises(UserError, match='with_fednova needs clients whose'):
    run(with_fednova(silent))


@pytest.mark.parametrize('algorithm', [
    mj.fedala(head='b'), mj.fedamp(N), mj.fedper(head='b'), mj.ditto()])
def test_variates_of_clients_with_another_start_are_refused(algorithm):
  """Their change is not (w^t - w_i) / (K lr)."""
  with pytest.raises(UserError, match='needs clients that start from the gl'):
    run(with_control_variates(algorithm, N), momentum=0.)
