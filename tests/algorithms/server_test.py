"""Server hyperparameters: arrays that runs of one program do not share."""

import jax
import numpy as np
import optax
import pytest

from moon_jax.algorithms import privacy, server
from moon_jax.algorithms.base import Message
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.methods import registry
from moon_jax.simulation.simulation import Simulation
from support import tiny_federation
from support.federation import (
  assert_trees_close,
  COHORTS,
  fedavg,
  Federation,
  server_call,
)

pytestmark = pytest.mark.usefixtures('promotion')

RATE = {'server_learning_rate': .01}
# Parts, and the optimizer with constants that they have always named.
SERVERS = {
    'hsu': ('sgd(momentum=0.7, learning_rate=0.3)',
            optax.sgd(.3, momentum=.7)),
    'ema': ('sgd(momentum=0.7, form=ema)',
            optax.chain(optax.ema(.7, debias=False), optax.scale(-1.))),
    'adam': ('adam(learning_rate=0.01)',
             optax.adam(.01, b1=.9, b2=.99, eps=1e-3)),
    'yogi': ('yogi(learning_rate=0.01)', server.yogi().optimizer_fn(RATE)),
    'adagrad': ('adagrad(learning_rate=0.01)',
                server.adagrad().optimizer_fn(RATE)),
}


def made(part):
  return registry.make(Config(algorithm='fedavg', server=part))


@pytest.mark.usefixtures('optimized')
def test_arrays_have_the_bits_and_the_state_of_constants():
  """In four steps, compiled as users compile them.

  Moving averages with other betas differ by the rounding of 1 - beta.
  """
  random = np.random.default_rng(0)
  draw = lambda: {'params': {
      'w': random.normal(size=(50, 7)).astype(np.float32)}}
  variables, messages = draw(), [Message(draw()) for _ in range(4)]
  for part, optimizer in SERVERS.values():
    algorithm, results = made(part), []
    call = server_call(jax.tree.map(np.float32, algorithm.hparams))
    for one in algorithm, server.with_server_optimizer(fedavg(), optimizer):
      step = jax.jit(one.aggregate)
      carry = variables, jax.jit(one.init_server)(variables)
      for message in messages:
        *carry, _ = step(*carry, message, call)
      results.append(carry)
    assert jax.tree.structure(results[0]) == jax.tree.structure(results[1])
    assert_trees_close(*results, atol=0)


@pytest.mark.parametrize('servers', [
    ('sgd(momentum=0.7)', 'sgd(learning_rate=0.5, momentum=0.2)'),
    pytest.param(('adam(learning_rate=0.1)', 'adam(learning_rate=0.02)'),
                 marks=pytest.mark.long)])
def test_runs_have_servers_of_their_own(servers):
  """Against runs whose algorithm is made with the numbers of the run."""
  of_runs = [made(part) for part in servers]
  values = {name: tuple(one.hparams[name] for one in of_runs)
            for name in of_runs[0].hparams if name.startswith('server_')}
  both = Federation(of_runs[0], num_lanes=3, seeds=(3, 4), hparams=values)
  both.train(runs=(0, 1))
  for r, algorithm in enumerate(of_runs):
    alone = Federation(algorithm, seeds=(3 + r,), hparams={
        name: value[r] for name, value in values.items()}).train()
    # An adaptive server divides by small numbers, so rounding grows.
    assert_trees_close(
        jax.tree.map(lambda x, r=r: x[r:r + 1],
                     (both.state.variables, both.state.server)),
        (alone.state.variables, alone.state.server), atol=5e-6)


def moving(variables, server, message, call):
  """Moves the fraction hparams['step'] of the way to the mean."""
  step = call.hparams['step']
  return jax.tree.map(lambda w, mean: w + step * (mean - w),
                      variables, message.mean), server, {}


def test_aggregates_see_the_hyperparameters_of_the_run():
  """Also inside a server optimizer and differential privacy."""
  wrap = lambda algorithm: server.with_server_optimizer(
      privacy.with_clipping(algorithm, 1e3, 4),
      lambda hparams: optax.sgd(hparams['rate']))
  algorithm = wrap(fedavg()._replace(
      aggregate=moving, hparams={'step': .25, 'rate': 1.}))
  plain = wrap(fedavg()._replace(hparams={'rate': 1.}))
  start = Federation(plain, seeds=(0, 0))
  before = np.array(start.state.variables['params']['w'])
  start.round(COHORTS[0], runs=(0, 1))
  moved = np.array(start.state.variables['params']['w']) - before
  federated = Federation(
      algorithm, seeds=(0, 0), hparams={'step': (.25, .5)})
  federated.round(COHORTS[0], runs=(0, 1))
  found = np.array(federated.state.variables['params']['w']) - before
  np.testing.assert_allclose(found[0], .25 * moved[0], atol=1e-6)
  np.testing.assert_allclose(found[1], .5 * moved[1], atol=1e-6)


def test_server_optimizers_see_what_the_run_sets():
  """And numbers that the algorithm gets after the optimizer."""
  def model(make, hparams):
    algorithm = server.with_server_optimizer(fedavg(), make)
    simulation = Simulation(tiny_federation.make(
        algorithm=algorithm._replace(hparams=hparams), learning_rate=.5))
    simulation.run(2)
    return simulation.global_model()

  found = model(lambda hparams: optax.sgd(
      hparams['learning_rate'] * hparams['step'], momentum=.5), {'step': .5})
  jax.tree.map(np.testing.assert_allclose, found, model(
      optax.sgd(.25, momentum=.5), {}))


def test_an_initial_state_must_not_depend_on_hyperparameters():
  """Runs of one program may differ in them, and begin with one state."""
  sgd = optax.inject_hyperparams(optax.sgd)
  for name in 'step', 'learning_rate':  # of the algorithm, and of the run
    algorithm = server.with_server_optimizer(
        fedavg()._replace(hparams={'step': .5}),
        lambda hparams, name=name: sgd(hparams[name]))
    with pytest.raises(UserError, match='NaN in own.*Write a number'):
      Simulation(tiny_federation.make(algorithm=algorithm))


def test_an_initial_state_may_hold_constants():
  def model(optimizer):
    simulation = Simulation(tiny_federation.make(
        algorithm=server.with_server_optimizer(fedavg(), optimizer)))
    simulation.run(1)
    return simulation.global_model()

  jax.tree.map(np.testing.assert_allclose, model(
      lambda hparams: optax.inject_hyperparams(optax.sgd)(.5)), model(
          optax.sgd(.5)))
