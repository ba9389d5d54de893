"""Local and server optimizers compared with loops over one number."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from federation import assert_trees_close
from moon_jax import optimizers
from moon_jax.algorithms import server
from moon_jax.config import Config

pytestmark = pytest.mark.usefixtures('promotion')
GRADIENTS = (3., -.5, .1, .2, -2., .05)  # the largest first, for AMSGrad
RATE, RHO, DECAY = .1, .9, .05


def trajectory(optimizer, start=1.):
  """Returns the values of a number after each step on `GRADIENTS`."""
  w, state, path = jnp.float32(start), optimizer.init(jnp.float32(start)), []
  for g in GRADIENTS:
    update, state = optimizer.update(jnp.float32(g), state, w)
    w = optax.apply_updates(w, update)
    path.append(float(w))
  return path


def sgd(w=1.):
  v = 0
  for g in GRADIENTS:
    v = RHO * v + g + DECAY * w
    w -= RATE * v
    yield w


def adam(w=1., is_amsgrad=False):
  m = v = max_second = 0
  for t, g in enumerate(GRADIENTS, 1):
    g += DECAY * w
    m, v = .9 * m + .1 * g, .999 * v + .001 * g**2
    second = v / (1 - .999**t)
    max_second = max(max_second, second)
    w -= RATE * m / (1 - .9**t) / (
        np.sqrt(max_second if is_amsgrad else second) + 1e-8)
    yield w


@pytest.mark.parametrize('name, expected', [
    ('sgd', sgd()), ('adam', adam()), ('amsgrad', adam(is_amsgrad=True))])
def test_local_optimizers(name, expected):
  actual = trajectory(optimizers.make(name, {
      'learning_rate': RATE, 'momentum': RHO, 'weight_decay': DECAY}))
  np.testing.assert_allclose(actual, list(expected), rtol=1e-4)


@pytest.mark.parametrize('scale', [1., 1e-30, 1e25, np.inf])
def test_a_bound_of_0_does_not_clip(scale):
  """Not a bit, even if the norm is infinite."""
  grads = {'a': scale * np.float32([3., -4.]), 'b': scale * np.float32([.1])}
  hparams = dict(learning_rate=1., momentum=0., gradient_clip=0.)
  plain, clipping = (
      optimizers.make('sgd', hparams, clip, unused=('momentum', 'weight_decay'))
      for clip in (False, True))
  expected, _ = plain.update(grads, plain.init(grads), grads)
  found, _ = clipping.update(grads, clipping.init(grads), grads)
  assert_trees_close(found, expected, atol=0)


def fed_adam(w=1.):
  """Yields algorithm 1 of Reddi et al., with Adam's bias corrections."""
  m = v = 0
  for t, delta in enumerate(GRADIENTS, 1):
    m, v = .9 * m + .1 * delta, .99 * v + .01 * delta**2
    w -= RATE * m / (1 - .9**t) / (np.sqrt(v / (1 - .99**t)) + 1e-3)
    yield w


def fed_yogi(w=1.):
  """Yields FedYogi, with Adam's bias corrections."""
  m = v = 0
  for t, delta in enumerate(GRADIENTS, 1):
    m = .9 * m + .1 * delta
    v -= .01 * np.sign(v - delta**2) * delta**2
    w -= RATE * m / (1 - .9**t) / (np.sqrt(v / (1 - .99**t)) + 1e-3)
    yield w


def fed_adagrad(w=1.):
  """Yields FedAdagrad without momentum, algorithm 2 of Reddi et al."""
  v = 1e-3**2
  for delta in GRADIENTS:
    v += delta**2
    w -= RATE * delta / (np.sqrt(v) + 1e-3)
    yield w


@pytest.mark.parametrize('name, expected', [
    ('adam', fed_adam()), ('yogi', fed_yogi()), ('adagrad', fed_adagrad())])
def test_server_optimizers(name, expected):
  config = Config(server_optimizer=name, server_learning_rate=RATE)
  actual = trajectory(server.make(config)(server.hparams(config)))
  np.testing.assert_allclose(actual, list(expected), rtol=1e-4)


@pytest.mark.parametrize('optimizer, divisor', [
    (server.yogi(.01), 2), (server.adagrad(.01), np.sqrt(2) + 1)])
def test_a_first_change_of_the_size_of_tau(optimizer, divisor):
  """Adagrad with tau in the root would divide it by 32 tau."""
  for change, expected in (1e-3, -.01 / divisor), (0., 0.):
    update, _ = optimizer.update(
        jnp.float32(change), optimizer.init(jnp.float32(0.)))
    np.testing.assert_allclose(update, expected, rtol=1e-4)
