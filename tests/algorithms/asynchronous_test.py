"""Asynchronous rounds: an event loop in plain NumPy, limits, errors."""

import jax
import numpy as np
import optax
import pytest

import moon_jax as mj
from moon_jax import asynchronous, clock
from moon_jax.algorithms.asynchronous import with_staleness
from moon_jax.errors import UserError
from support import federation as fed
from support import tiny_federation

SECONDS = np.array([3., 1., 7.25, 2.5, 11.75, 4.5, .875, 5.])
ALWAYS = clock.lognormal(len(SECONDS), seed=0)
LEARNING_RATE = .8  # of the server


def event_loop(w, draws, concurrency, buffer, steps, weight, form):
  """Trains one client at a time, in the order of their arrivals.

  Returns the models after each server step, and for each step the clients,
  their staleness, and the time.
  """
  draws, time, training, models = iter(draws), 0., [], [w]
  arrived, log = [], []
  while len(log) < steps:
    while len(training) < concurrency and all(
        end > time for end, *_ in training):
      client = next(draws)
      if client is None:
        break
      training.append((time + SECONDS[client], client, len(log), models[-1]))
    job = min(training, key=lambda job: job[0])  # of equals the earliest start
    training.remove(job)
    time, client, version, begun = job
    arrived.append((client, len(log) - version, begun))
    if len(arrived) == buffer:
      total = sum(fed.SIZES[client] for client, *_ in arrived)
      step = 0
      for client, staleness, begun in arrived:
        local, _ = fed.local_steps(len(log), client, begun)
        origin = begun if form == 'fedbuff' else models[-1]
        step += (fed.SIZES[client] / total * weight(staleness)
                 * (local - origin))
      log.append(([client for client, *_ in arrived],
                  [staleness for _, staleness, _ in arrived], time))
      models.append(models[-1] + LEARNING_RATE * step)
      arrived = []
  return models[1:], log


@pytest.mark.parametrize('form, concurrency, buffer, weight, plain', [
    ('fedbuff', 6, 3, asynchronous.polynomial(), lambda s: (1 + s) ** -.5),
    ('fedasync', 8, 1, asynchronous.hinge(2., 3.),
     lambda s: 1. if s <= 3 else 1 / (2 * (s - 3) + 1))])
def test_two_hundred_steps_equal_an_event_loop(
    monkeypatch, form, concurrency, buffer, weight, plain):
  draws, drawn = [], clock._drawn
  monkeypatch.setattr(clock, '_drawn', lambda *arguments: (
      draws.append(drawn(*arguments)) or draws[-1]))
  timeline = clock.asynchronous(
      ALWAYS, SECONDS, concurrency, buffer, 200, seed=3, max_staleness=50)
  federated = fed.Federation(with_staleness(
      mj.with_server_optimizer(fed.fedavg(), optax.sgd(LEARNING_RATE)),
      50, weight, form), num_lanes=2)
  expected, log = event_loop(
      fed.matrix(federated.state.variables['params'], 0), draws, concurrency,
      buffer, 200, plain, form)
  assert log == [*zip(
      timeline.cohorts, timeline.staleness, timeline.seconds)]
  assert max(map(max, timeline.staleness)) > 2 and not timeline.too_stale
  for t in range(200):
    federated.round(timeline.cohorts[t], staleness=timeline.staleness[t])
    np.testing.assert_allclose(
        fed.matrix(federated.state.variables['params'], 0), expected[t],
        atol=1e-5)


@pytest.mark.parametrize('algorithm', [
    fed.fedavg, pytest.param(fed.moon, marks=pytest.mark.long)])
def test_equal_speeds_are_rounds(algorithm):
  """With as many updates in a step as clients that train."""
  timeline = clock.asynchronous(ALWAYS, np.ones(8), 4, 4, 4, seed=0)
  assert not np.any(timeline.staleness) and timeline.seconds == [1, 2, 3, 4]
  found, expected = (
      fed.Federation(made, model=fed.linear_model(has_state=True))
      for made in (with_staleness(algorithm(), 0), algorithm()))
  for cohort, staleness in zip(timeline.cohorts, timeline.staleness):
    found.round(cohort, staleness=staleness)
    expected.round(cohort)
  fed.assert_trees_close(found.state.variables, expected.state.variables)


def test_clients_train_as_if_the_older_model_were_the_global_one():
  """MOON's global model is the one that the client began with.

  The oldest one that the server keeps, of the largest staleness.
  Statistics stay between those of models: a sum of differences of variances
  could be negative.
  """
  moon = with_staleness(fed.moon(), 2, asynchronous.polynomial(2.))
  federated, alone = (fed.Federation(
      algorithm, model=fed.linear_model(has_state=True), hparams={'mu': 2.})
                      for algorithm in (moon, fed.moon()))
  federated.train(fed.COHORTS[:1])
  begun = fed.copied(federated.state.variables)  # w^1
  federated.train(fed.COHORTS[1:])
  before = fed.copied(federated.state)
  federated.round((7,), staleness=[2])
  alone.state = alone.state._replace(
      variables=fed.copied(begun), clients=before.clients, round=before.round)
  alone.round((7,))
  fed.assert_trees_close(alone.state.clients, federated.state.clients)
  origin = {**before.variables, 'params': begun['params']}
  fed.assert_trees_close(federated.state.variables, jax.tree.map(
      lambda now, new, old: now + (new - old) / 9, before.variables,
      alone.state.variables, origin))


@pytest.mark.parametrize('algorithm, message', [
    (mj.fedgkd(), 'a server that sends its model and nothing else'),
    (mj.feddyn(8), 'clients that send their model and nothing else')])
def test_methods_that_send_more_are_refused(algorithm, message):
  with pytest.raises(UserError, match=message):
    fed.Federation(with_staleness(algorithm, 2)).round()


def test_timelines_must_fit():
  timeline = clock.asynchronous(ALWAYS, SECONDS[:3], 3, 1, 9, seed=0)
  algorithm = with_staleness(mj.fedavg(), 20)
  make = tiny_federation.make
  rounds = mj.rounds.timed(timeline)
  make(rounds=rounds, algorithm=algorithm)
  for changes, message in (
      ({'algorithm': with_staleness(mj.fedavg(), 0)}, 'from 0 to .*=0 of '),
      ({'algorithm': mj.fedavg()}, 'got only the rounds'),
      ({'rounds': mj.rounds.all_clients()}, 'got only the algorithm'),
      ({'on_nan': 'skip_client'}, 'on_nan must be stop'),
      ({'learning_rate': lambda index: .1}, 'learning_rate must be a number')):
    with pytest.raises(UserError, match=message):
      make(**{'rounds': rounds, 'algorithm': algorithm, **changes})


@pytest.mark.long
def test_a_part_of_the_work_is_its_first_steps():
  """Half of two epochs is the first one."""
  def trained(local_epochs, fractions):
    made = tiny_federation.make(
        local_epochs=local_epochs, batch_size=2, algorithm=mj.moon(),
        rounds=mj.rounds.timed(clock.Timeline(
            [[2, 0, 1]] * 2, [1., 2.], fractions=fractions)))
    simulation = mj.Simulation(made)
    for _ in range(2):
      simulation.run_round()
    return simulation

  equal = lambda a, b: jax.tree.map(np.testing.assert_array_equal, a, b)
  one, half = trained(1, ()), trained(2, [[.5] * 3] * 2)
  equal(one.state.variables, half.state.variables)


def test_a_constant_weight_is_1():
  assert asynchronous.constant()(np.float32(7)) == 1


def test_arguments_are_checked():
  for call, message in (
      (lambda: with_staleness(mj.fedavg(), -1), 'max_staleness must be.*-1'),
      (lambda: with_staleness(mj.fedavg(), 1, form='x'), "of fedbuff.*'x'"),
      (lambda: asynchronous.polynomial(-1.), 'exponent must be.*-1'),
      (lambda: asynchronous.hinge(delay=float('nan')), 'delay must be.*nan')):
    with pytest.raises(UserError, match=message):
      call()
