"""Local and server optimizers compared with loops over one number."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from moon_jax import optimizers
from moon_jax.algorithms import server
from moon_jax.config import Part, parts
from moon_jax.errors import UserError
from moon_jax.methods.fedavg_ft import fedavg_ft
from moon_jax.methods.fednova import fednova
from moon_jax.simulation import records
from moon_jax.simulation.program import Program
from moon_jax.simulation.simulation import Simulation
from support import tiny_federation
from support.federation import assert_trees_close, linear_model

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
  actual = trajectory(optimizers.make(optimizers.resolve(name), {
      'learning_rate': RATE, 'momentum': RHO, 'weight_decay': DECAY}))
  np.testing.assert_allclose(actual, list(expected), rtol=1e-4)


@pytest.mark.parametrize('scale', [1., 1e-30, 1e25, np.inf])
def test_a_bound_of_0_does_not_clip(scale):
  """Not a bit, even if the norm is infinite."""
  grads = {'a': scale * np.float32([3., -4.]), 'b': scale * np.float32([.1])}
  hparams = dict(learning_rate=1., momentum=0., gradient_clip=0.)
  plain, clipping = (
      optimizers.make(optimizers.sgd(), hparams, clip,
                      unused=('momentum', 'weight_decay'))
      for clip in (False, True))
  expected, _ = plain.update(grads, plain.init(grads), grads)
  found, _ = clipping.update(grads, clipping.init(grads), grads)
  assert_trees_close(found, expected, atol=0)


def fed_adam(w=1., b1=.9, b2=.99, eps=1e-3):
  """Yields algorithm 1 of Reddi et al., with Adam's bias corrections."""
  m = v = 0
  for t, delta in enumerate(GRADIENTS, 1):
    m, v = b1 * m + (1 - b1) * delta, b2 * v + (1 - b2) * delta**2
    w -= RATE * m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
    yield w


def fed_yogi(w=1., b1=.9, b2=.99, eps=1e-3):
  """Yields FedYogi, with Adam's bias corrections."""
  m = v = 0
  for t, delta in enumerate(GRADIENTS, 1):
    m = b1 * m + (1 - b1) * delta
    v -= (1 - b2) * np.sign(v - delta**2) * delta**2
    w -= RATE * m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
    yield w


def fed_adagrad(w=1., eps=1e-3):
  """Yields FedAdagrad without momentum, algorithm 2 of Reddi et al."""
  v = eps**2
  for delta in GRADIENTS:
    v += delta**2
    w -= RATE * delta / (np.sqrt(v) + eps)
    yield w


OTHERS = {'b1': .5, 'b2': .7, 'eps': .2}


@pytest.mark.parametrize('name, given, expected', [
    ('adam', {}, fed_adam()), ('yogi', {}, fed_yogi()),
    ('adagrad', {}, fed_adagrad()), ('adam', OTHERS, fed_adam(**OTHERS)),
    ('yogi', OTHERS, fed_yogi(**OTHERS)),
    ('adagrad', {'eps': .2}, fed_adagrad(eps=.2))])
def test_server_optimizers(name, given, expected):
  made = parts.make('server', Part(
      name, (('learning_rate', RATE), *given.items())))
  actual = trajectory(made.optimizer_fn(made.hparams))
  np.testing.assert_allclose(actual, list(expected), rtol=1e-4)


@pytest.mark.parametrize('optimizer, divisor', [
    (server.yogi(.01), 2), (server.adagrad(.01), np.sqrt(2) + 1)])
def test_a_first_change_of_the_size_of_tau(optimizer, divisor):
  """Adagrad with tau in the root would divide it by 32 tau."""
  for change, expected in (1e-3, -.01 / divisor), (0., 0.):
    step = optimizer.optimizer_fn(optimizer.hparams)
    update, _ = step.update(jnp.float32(change), step.init(jnp.float32(0.)))
    np.testing.assert_allclose(update, expected, rtol=1e-4)


ALONE = dict(clients=[np.arange(8)], batch_size=8, local_epochs=3,
             learning_rate=.05)
THREE = tiny_federation.make().data._replace(class_names=('a', 'b', 'c'))


def trained(**changes):
  """Returns the model of a client after two rounds of three steps."""
  simulation = Simulation(tiny_federation.make(**{
      'data': THREE, 'model': linear_model(), **ALONE, **changes}))
  initial = jax.tree.map(np.copy, simulation.global_model()['params'])
  simulation.run(2)
  return initial, simulation.global_model()['params']


def plain_loop(params, optimizer):
  """Returns the same by optax alone; its state restarts in each round."""
  x, y = THREE.train_inputs[:8], THREE.train_labels[:8]

  @jax.jit
  def step(params, state):
    grads = jax.grad(lambda p: optax.softmax_cross_entropy_with_integer_labels(
        x @ p['w'] + p['b'][None], y).mean())(params)
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state

  for _ in range(2):
    state = optimizer.init(params)
    for _ in range(3):
      params, state = step(params, state)
  return params


@pytest.mark.parametrize('given', [
    {'optimizer': 'adamw(weight_decay=0.01)'},
    {'optimizer': optax.adamw(.05, weight_decay=.01), 'learning_rate': .01},
    {'optimizer': lambda rate: optax.adamw(rate, weight_decay=.01)}])
def test_optimizers_of_optax_train_as_in_a_plain_loop(given):
  """As a part, a transformation, and a function of the learning rate."""
  initial, found = trained(**given)
  expected = plain_loop(initial, optax.adamw(.05, weight_decay=.01))
  assert_trees_close(found, expected)
  without_decay = plain_loop(initial, optax.adamw(.05, weight_decay=0.))
  assert np.abs(found['w'] - without_decay['w']).max() > 1e-5


@pytest.mark.parametrize('make', [
    lambda i: {'optimizer': f'sgd(momentum={(.5, .9)[i]})'},
    *(pytest.param(make, marks=pytest.mark.long) for make in (
        lambda i: {'optimizer': f'sgd(weight_decay={i / 10})'},
        lambda i: {'optimizer': optax.adamw}))])
def test_runs_of_several_rates_share_a_program(make):
  """Each has the numbers that it has alone."""
  changes = [make(i) | {'learning_rate': (.05, .2)[i]} for i in range(2)]
  program = Program([tiny_federation.make(**{
      'data': THREE, 'model': linear_model(), **ALONE, **each})
                     for each in changes])
  for _ in range(2):
    program.run_round([0, 1])
  for run, each in enumerate(changes):
    assert_trees_close(
        program.global_model(run)['params'], trained(**each)[1])


def test_runs_of_several_optimizers_do_not():
  plain = tiny_federation.make()
  for one, other in (('sgd', 'adam'), ('adamw', 'adamw(weight_decay=0.01)'),
                     ('sgd', optax.sgd(.1))):
    with pytest.raises(UserError, match='must have the same optimizer'):
      Program([dataclasses.replace(plain, optimizer=each, learning_rate=.01)
               for each in (one, other)])


@pytest.mark.parametrize('rate, words', [
    (.05, '0.05'), (lambda t: .05, 'a schedule')])
def test_an_optimizer_with_its_own_rate_takes_no_other(rate, words):
  with pytest.raises(UserError, match=f'^learning_rate must not.* got {words}'):
    tiny_federation.make(optimizer=optax.sgd(.1), learning_rate=rate)
  tiny_federation.make(optimizer=optax.sgd, learning_rate=rate)
  # Its clients fine-tune with the rate of the run.
  tiny_federation.make(optimizer=optax.sgd(.1), learning_rate=rate,
                       algorithm=fedavg_ft())


def test_a_diverged_run_names_the_rate_that_its_optimizer_has():
  federation = tiny_federation.make(optimizer=optax.sgd(.1), learning_rate=.01)
  error = records.diverged('loss became nan', federation, 0)
  assert str(error).startswith(
      'loss became nan. Lower the learning rate of optimizer')


@pytest.mark.parametrize('value, words', [
    ('lbfgs', "one of sgd, adam, .*got 'lbfgs'"),
    ('adamw(b3=1)', 'has the arguments b1, b2, .*got b3=1'),
    ('sgd(momentum=1)', 'momentum must be below 1; got 1'),
    (3, 'a transformation of optax, or a function of the learning rate.*got 3'),
])
def test_other_optimizers_are_refused(value, words):
  with pytest.raises(UserError, match=words):
    tiny_federation.make(optimizer=value)


def test_methods_that_need_sgd_refuse_transformations():
  with pytest.raises(UserError, match="needs optimizer='sgd'; got optimizer="):
    tiny_federation.make(algorithm=fednova(), optimizer=optax.sgd(.1))
