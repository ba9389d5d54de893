import dataclasses
import math

import jax
import numpy as np
import optax
import pytest

from moon_jax import learning_rates, optimizers
from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.methods.fedavg import fedavg
from moon_jax.methods.fedavg import loss as fedavg_loss
from moon_jax.simulation import checks
from moon_jax.simulation.simulation import Simulation
from support import tiny_federation
from support.docs_pages import execute, page, programs


@pytest.mark.parametrize('schedule, expected', [
    ('constant', lambda t: .4),
    ('cosine', lambda t: .2 * (1 + math.cos(math.pi * t / 10))),
    ('cosine(warmup=4)',
     lambda t: .1 * (t + 1) if t < 4
     else .2 * (1 + math.cos(math.pi * (t - 4) / 6))),
    ('step(every=3, decay=0.5)', lambda t: .4 * .5 ** (t // 3)),
    ('constant(warmup=1)', lambda t: .4),
    ('step(every=3, warmup=2)',
     lambda t: .2 * (t + 1) if t < 2 else .4 * .1 ** ((t - 2) // 3)),
])
def test_schedules_equal_their_formulas(schedule, expected):
  config = checks.validate(Config(
      learning_rate=.4, num_rounds=10, schedule=schedule))
  rate = learning_rates.make(config)
  np.testing.assert_allclose(
      [learning_rates.at_round(rate, t) for t in range(10)],
      [expected(t) for t in range(10)], rtol=1e-5)


def test_algorithms_see_the_round_and_rates_follow_the_schedule():
  """One program for all rounds; a rate that becomes negative is an error."""
  def loss(model, trained, batch, view):
    ce, aux = fedavg_loss(model, trained, batch, view)
    seen = {'seen_round': view.round.astype('float32'),
            'step': batch.step.astype('float32'),
            'rate': view.hparams['learning_rate'],
            'num_rounds': view.hparams['num_rounds']}
    return ce, aux._replace(metrics=seen)

  simulation = Simulation(tiny_federation.make(
      algorithm=fedavg()._replace(loss=loss), planned_rounds=7, local_epochs=2,
      learning_rate=lambda t: .35 - .1 * t))
  for t in range(3):
    metrics = simulation.run_round().metrics
    assert metrics['seen_round'] == t and metrics['num_rounds'] == 7
    assert metrics['learning_rate'] == pytest.approx(.35 - .1 * t)
    assert metrics['rate'] == pytest.approx(metrics['learning_rate'], abs=1e-6)
    assert metrics['step'] > 0
  with pytest.raises(UserError, match='learning_rate must be .*round 5'):
    for _ in range(2):
      simulation.run_round()
  with pytest.raises(UserError, match='learning_rate must be .*round 1'):
    dataclasses.replace(simulation.federation, learning_rate=lambda t: math.nan)


def test_gradients_are_clipped_before_weight_decay():
  """As in PyTorch: clip_grad_norm_, then SGD with weight decay."""
  params = {'a': np.float32([3., 4.]), 'b': np.float32([0.])}
  hparams = dict(learning_rate=.1, momentum=0., weight_decay=.5)
  for bound, scale in ((20., 1.), (1., 1 / 13)):
    optimizer = optimizers.make(
        optimizers.sgd(), hparams | {'gradient_clip': bound}, True)
    grads = {'a': np.float32([3., 4.]), 'b': np.float32([12.])}  # norm 13
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    jax.tree.map(
        lambda u, g, w, scale=scale: np.testing.assert_allclose(
            u, -.1 * (scale * g + .5 * w), rtol=1e-5), updates, grads, params)


def test_clipping_limits_the_drift_of_a_simulation():
  """One step of plain SGD moves at most learning rate times bound."""
  simulation = Simulation(tiny_federation.make(
      gradient_clip=1e-3, local_epochs=1, batch_size=10**4, learning_rate=.5,
      optimizer='sgd(momentum=0, weight_decay=0)'))
  assert simulation.run_round().metrics['drift'] == pytest.approx(
      .5e-3, rel=1e-3)


@pytest.mark.parametrize('unused', [('momentum',), ('weight_decay',)])
def test_hyperparameters_of_0_can_be_left_out(unused):
  """With the same bits, in a smaller program."""
  hparams = dict(learning_rate=.1, momentum=.7, weight_decay=.3)
  hparams |= dict.fromkeys(unused, 0.)
  params, states = np.float32([3., -4.]), []
  for left_out in (), unused:
    optimizer = optimizers.make(optimizers.sgd(), hparams, unused=left_out)
    w = params
    state = optimizer.init(w)
    for t in range(4):
      updates, state = optimizer.update(np.float32([t - 2., 1e-3]), state, w)
      w = optax.apply_updates(w, updates)
    states.append((np.asarray(w).tobytes(), len(jax.tree.leaves(state))))
  (with_all, full), (without, small) = states
  assert with_all == without and small == full - ('momentum' in unused)


@pytest.mark.docs
def test_the_example_of_the_flags_page_runs(capsys):
  example, = programs(page('flags'))
  execute(example, 'flags.md')
  rates = [float(line.split()[1]) for line in
           capsys.readouterr().out.splitlines()]
  np.testing.assert_allclose(rates, [.01, .03, .05], rtol=1e-5)
