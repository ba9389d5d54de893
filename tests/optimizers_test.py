"""Local and server optimizers against plain loops over one number."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from moon_jax import optimizers
from moon_jax.algorithms import server
from moon_jax.config import Config

GRADIENTS = (3., -.5, .1, .2, -2., .05)  # a maximum, and then small ones
RATE, RHO, DECAY = .1, .9, .05


@pytest.fixture(autouse=True)
def promotion():
  """optax's adaptive optimizers promote types themselves."""
  with jax.numpy_dtype_promotion('standard'):
    yield


def walked(optimizer, start=1.):
  """Where a number goes by steps on `GRADIENTS`."""
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
  m = v = most = 0
  for t, g in enumerate(GRADIENTS, 1):
    g += DECAY * w
    m, v = .9 * m + .1 * g, .999 * v + .001 * g**2
    second = v / (1 - .999**t)
    most = max(most, second)
    w -= RATE * m / (1 - .9**t) / (
        np.sqrt(most if is_amsgrad else second) + 1e-8)
    yield w


@pytest.mark.parametrize('name, expected', [
    ('sgd', sgd()), ('adam', adam()), ('amsgrad', adam(is_amsgrad=True))])
def test_local_optimizers(name, expected):
  found = walked(optimizers.make(name, {
      'learning_rate': RATE, 'momentum': RHO, 'weight_decay': DECAY}))
  np.testing.assert_allclose(found, list(expected), rtol=1e-4)


def fed_adam(w=1.):
  """Reddi et al., algorithm 1, with the bias corrections of Adam."""
  m = v = 0
  for t, delta in enumerate(GRADIENTS, 1):
    m, v = .9 * m + .1 * delta, .99 * v + .01 * delta**2
    w -= RATE * m / (1 - .9**t) / (np.sqrt(v / (1 - .99**t)) + 1e-3)
    yield w


def fed_yogi(w=1.):
  """Likewise; optax begins both averages at 1e-6."""
  m = v = 1e-6
  for t, delta in enumerate(GRADIENTS, 1):
    m = .9 * m + .1 * delta
    v -= .01 * np.sign(v - delta**2) * delta**2
    w -= RATE * m / (1 - .9**t) / (np.sqrt(v / (1 - .99**t)) + 1e-3)
    yield w


def fed_adagrad(w=1.):
  """Without momentum, tau within the root as optax has it."""
  v = 0
  for delta in GRADIENTS:
    v += delta**2
    w -= RATE * delta / np.sqrt(v + 1e-3)
    yield w


@pytest.mark.parametrize('name, expected', [
    ('adam', fed_adam()), ('yogi', fed_yogi()), ('adagrad', fed_adagrad())])
def test_server_optimizers(name, expected):
  found = walked(server.make(Config(
      server_optimizer=name, server_learning_rate=RATE)))
  np.testing.assert_allclose(found, list(expected), rtol=1e-4)
