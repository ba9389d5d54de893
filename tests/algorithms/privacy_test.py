"""The clipped, noised aggregate, and what it costs, against closed forms."""

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from moon_jax.algorithms import base, privacy
from moon_jax.algorithms.base import Batch, LossAux, Message
from moon_jax.config import Config
from moon_jax.data import cohort
from moon_jax.data import rounds as rounds_lib
from moon_jax.data.sources import load_dataset
from moon_jax.errors import UserError
from moon_jax.methods import registry
from moon_jax.methods.mimelite import mimelite
from moon_jax.simulation import accounting, build, checks
from moon_jax.simulation.simulation import Simulation
from support import federation, tiny_federation
from support.federation import fedavg, Federation, fednova, scaffold

COHORT = (0, 1, 4, 5)


def epsilon(config, cohorts):
  """Returns the privacy loss of rounds with these cohorts."""
  num_rounds = len(cohorts)
  return accounting.epsilon(
      config, rounds_lib.listed(cohorts).most_visits(num_rounds), num_rounds)


def vector(tree):
  return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


@pytest.mark.parametrize('lost', [(), (1, 4)])
def test_updates_are_clipped_one_by_one(lost):
  updates = federation.local_updates(COHORT, Federation(fedavg()).state)
  clip = float(np.median([np.linalg.norm(u) for u in updates.values()]))
  federated = Federation(privacy.with_clipping(fedavg(), clip, 5), num_lanes=2)
  start = federation.vector(federated.state.variables)
  federated.round(COHORT, lost=lost)
  moved = federation.vector(federated.state.variables) - start
  expected = sum(u * min(1, clip / np.linalg.norm(u))
                 for c, u in updates.items() if c not in lost)
  np.testing.assert_allclose(moved, expected / 5, atol=1e-6)


@pytest.mark.parametrize('wrap, words', [
    (lambda: privacy.with_clipping(fedavg(), -.1, 4), 'clip must be above 0'),
    (lambda: privacy.with_clipping(fedavg(), .1, 0), 'cohort_size must be'),
    (lambda: privacy.with_local_noise(fedavg(), 1., -1), 'multiplier must be'),
    (lambda: privacy.with_adaptive_clipping(fedavg(), 1., 5, quantile=2),
     'quantile must be below 1; got 2'),
    (lambda: privacy.with_private_gradients(fedavg(), 0), 'clip must be')])
def test_arguments_of_wrappers_are_checked(wrap, words):
  """A negative clip would train uphill."""
  with pytest.raises(UserError, match=words):
    wrap()


@pytest.mark.parametrize('cohorts, words', [
    ([[0, 1], [1, 2], [0, 1, 2]], 'needs 2 clients in each .* round of 3'),
    ([[0], [1]], 'needs 2 clients in each round.* a round of 1'),
    ([[0, 1], [1, 2]], '')])
def test_rounds_have_the_clients_that_divide_a_sum(cohorts, words):
  """Also lines of a file that are not trained: a run may be extended."""
  with pytest.raises(UserError, match=words) if words else (
      contextlib.nullcontext()):
    tiny_federation.make(
        algorithm=privacy.with_clipping(fedavg(), 1., 2), weighting='uniform',
        rounds=rounds_lib.listed(cohorts))


def test_local_noise_is_that_of_each_client():
  """Around a clipped update, drawn again for each client and round."""
  variables = {'params': {'w': jnp.zeros((100, 100)), 'b': jnp.ones(10_000)}}
  trained = jax.tree.map(lambda w: w + .01, variables)  # its norm is 1.41

  def sent(multiplier, key):
    algorithm = privacy.with_local_noise(fedavg(), .5, multiplier)
    view = base.first_view(fedavg(), variables, 3)._replace(key=key)
    message = algorithm.finish(trained, view)[1]
    return vector(jax.tree.map(
        lambda new, w: new - w, message.mean, variables))

  keys = jax.random.split(jax.random.key(0), 3)
  np.testing.assert_allclose(sent(0., keys[0]), .5 / 2e4**.5, rtol=1e-4)
  draws = [sent(3., key) - .5 / 2e4**.5 for key in keys]
  for draw in draws:
    assert stats.kstest(draw / 1.5, 'norm').pvalue > 1e-4
  correlation = np.corrcoef(draws)[np.triu_indices(3, 1)]
  assert np.abs(correlation).max() < .05
  assert abs(np.corrcoef(draws[0][:10_000], draws[0][10_000:])[0, 1]) < .05


def test_noise_of_clients_costs_what_they_send_and_is_compressed_after():
  config = Config(
      algorithm='fedavg', num_clients=20, participation=.5,
      privacy='client(clip=0.5, noise_multiplier=3, noise_by=clients)',
      weighting='uniform', num_rounds=4)
  by_server = config.privacy.replace(noise_by='server')
  cohorts = [[0, 1], [1, 2], [1, 3], [4, 5]]  # client 1 three times
  three = epsilon(dataclasses.replace(
      config, privacy=by_server, cohort='file(path=x)'), cohorts)
  assert epsilon(config, cohorts) == pytest.approx(three)
  assert epsilon(dataclasses.replace(
      config, privacy=by_server), cohorts) < three  # amplified
  algorithm = registry.make(dataclasses.replace(config, compress='sign'))
  variables = {'params': {'w': jnp.zeros((40, 40))}}
  view = base.first_view(algorithm, variables, 3)
  message = algorithm.finish(variables, view)[1]
  (size,) = np.unique(np.abs(vector(message.mean)))
  assert size > 0  # that of noise, in signs


def draws_of_noise(config, cohort_size=None):
  """What three rounds without updates add to 20,000 parameters, in pieces."""
  algorithm = registry.make(config, cohort_size)
  variables = {'params': {'w': jnp.zeros((100, 100)), 'b': jnp.zeros(10_000)}}
  state, draws = algorithm.init_server(variables), []
  aggregate = jax.jit(algorithm.aggregate)
  for t in range(3):
    message = Message((), jax.tree.map(jnp.zeros_like, variables))
    moved, state, _ = aggregate(
        variables, state, message, federation.server_call(
            algorithm.hparams,
            jax.random.fold_in(jax.random.key(config.seed), t)))
    draws += [np.ravel(x) for x in jax.tree.leaves(moved)]
  return draws


@pytest.mark.parametrize('changes, cohort_size, deviation', [
    ({}, None, 3 * .5 / 20),
    ({'participation': .5}, None, 3 * .5 / 10),  # over the cohort, not all
    ({'cohort': 'file(path=x)'}, 4, 3 * .5 / 4),
    # Before the server's optimizer, which scales it as it scales updates.
    ({'server': 'sgd(learning_rate=0.5)'}, None, .5 * 3 * .5 / 20),
    # Before the algorithm's own aggregation, too, which doubles updates.
    ({'algorithm': 'pfedme(server_beta=2)'}, None, 2 * 3 * .5 / 20),
])
def test_noise_has_its_deviation_and_is_drawn_again_each_round(
    changes, cohort_size, deviation):
  config = Config(**{
      'algorithm': 'fedavg', 'weighting': 'uniform', 'num_clients': 20,
      'privacy': 'client(clip=0.5, noise_multiplier=3)', **changes})
  draws = draws_of_noise(config, cohort_size)
  for draw in draws:
    assert abs(draw.std() / deviation - 1) < .04  # 5 standard errors
    assert abs(draw.mean()) < .05 * deviation
    assert stats.kstest(draw / deviation, 'norm').pvalue > 1e-4
  correlation = np.corrcoef(draws)[np.triu_indices(len(draws), 1)]
  assert np.abs(correlation).max() < .05
  other = draws_of_noise(dataclasses.replace(config, seed=1), cohort_size)
  assert abs(np.corrcoef(draws[0], other[0])[0, 1]) < .05


@pytest.mark.parametrize('algorithm, has_state, message', [
    (scaffold(8), False, 'exclude each other, since control variates are sent'),
    (fednova(), False, 'exclude each other, since FedNova sends'),
    (mimelite(), False, 'privacy.clip=1.*got another message'),
    (fedavg(), True, 'privacy.clip=1.*got another message')])
def test_what_sends_more_than_parameters_is_refused(
    algorithm, has_state, message):
  model = federation.linear_model(has_state)
  with pytest.raises(UserError, match=message):
    Federation(
        privacy.with_clipping(algorithm, 1., 4), model=model).round(COHORT)


def test_the_norm_adapts_as_in_a_numpy_loop():
  """Without noise, and with a lost message."""
  norm, quantile = .05, .7
  federated = Federation(privacy.with_adaptive_clipping(
      fedavg(), norm, 5, quantile=quantile))
  for lost in [(), COHORT[:1], ()]:
    start = federation.vector(federated.state.variables)
    updates = federation.local_updates(COHORT, federated.state)
    federated.round(COHORT, lost=lost)
    received = [u for c, u in updates.items() if c not in lost]
    moved = federation.vector(federated.state.variables) - start
    np.testing.assert_allclose(moved, sum(
        u * min(1, norm / np.linalg.norm(u)) for u in received) / 5, atol=1e-6)
    norm *= math.exp(-.2 / 5 * sum(
        (np.linalg.norm(u) <= norm) - quantile for u in received))
    np.testing.assert_allclose(federated.state.server[1][0], norm, rtol=1e-5)


def test_noise_with_an_adaptive_norm():
  """Of updates and of the fraction; together they cost what one does."""
  algorithm = privacy.with_adaptive_clipping(fedavg(), .5, 40, 2., .5)
  variables = {'params': {'w': jnp.zeros((100, 100)), 'b': jnp.zeros(10_000)}}
  zeros = jax.tree.map(jnp.zeros_like, variables)
  moved, (_, norm_N), _ = jax.jit(jax.vmap(lambda key: algorithm.aggregate(
      variables, algorithm.init_server(variables), Message((), (
          zeros, jnp.float32(0))), federation.server_call(key=key))))(
              jax.random.split(jax.random.key(0), 400))
  of_updates = vector(moved).std() * 40 / .5
  of_bits = np.log(np.asarray(norm_N) / .5).std() / .2 * 40
  assert abs(of_bits / 2 - 1) < .15  # m / 20; 4 standard errors
  exact = (2.**-2 - (2 * 2)**-2)**-.5
  assert abs(of_updates / exact - 1) < .01
  with pytest.raises(UserError, match='must be below 2, .*of the 20 clients'):
    privacy.with_adaptive_clipping(fedavg(), .5, 20, 2., .5)


def exact_epsilon(mu, delta):
  """Of a Gaussian mechanism of sensitivity mu deviations.

  Balle and Wang, ICML 2018, https://arxiv.org/abs/1805.06530, theorem 8.
  """
  def excess(eps):
    return (stats.norm.cdf(mu / 2 - eps / mu)
            - math.exp(eps) * stats.norm.cdf(-mu / 2 - eps / mu) - delta)

  return optimize.brentq(excess, 0, 200)


@pytest.mark.parametrize('multiplier, rounds, delta', [
    (2., 1, 1e-5), (40., 30, 1e-7)])
def test_epsilon_of_full_participation(multiplier, rounds, delta):
  """Above the exact value of the composed Gaussian, and near it."""
  config = Config(privacy=(
      f'client(clip=1, noise_multiplier={multiplier}, delta={delta})'))
  found = epsilon(config, [list(range(10))] * rounds)
  exact = exact_epsilon(2 * math.sqrt(rounds) / multiplier, delta)
  assert exact < found < 1.25 * exact


def private_gradient(clip, multiplier=0., seed=0):
  """Of (w - x)^2 / 2, at w = 0, of three examples and one of padding."""
  inputs = jnp.array([[3., 4.], [.3, .4], [0., -2.], [9., 9.]])
  batch = Batch(inputs, jnp.zeros(4, int), jnp.array([1., 1., 1., 0.]),
                key=jax.random.key(seed))

  def objective(params, batch):
    loss_B = ((params['w'][None] - batch.inputs)**2).sum(1) / 2
    return (loss_B * batch.mask).sum() / batch.mask.sum(), LossAux(
        {}, {'first': (batch.inputs[:, 0] * batch.mask).sum()})

  algorithm = privacy.with_private_gradients(fedavg(), clip, multiplier)
  params = {'w': jnp.zeros(2), 'unused': jnp.zeros(4000)}
  view = base.first_view(algorithm, {'params': params}, 0)
  (loss, aux), grads = jax.jit(functools.partial(
      algorithm.gradient, objective))(params, batch, view)
  return loss, aux.metrics['first'], grads


def test_gradients_of_examples_are_clipped_one_by_one():
  loss, metric, grads = private_gradient(1.)
  np.testing.assert_allclose(
      grads['w'], -np.array([.6 + .3, .8 + .4 - 1]) / 3, atol=1e-6)
  assert loss == pytest.approx((25 + .25 + 4) / 6)  # without padding
  assert metric == pytest.approx(3.3 / 3)
  np.testing.assert_allclose(  # plain
      private_gradient(1e6)[2]['w'], -np.array([3.3, 2.4]) / 3, atol=1e-6)


def test_noise_is_that_of_the_sum_of_gradients():
  draws = [np.asarray(private_gradient(2., 5., seed)[2]['unused'])
           for seed in (0, 1)]
  for draw in draws:
    assert abs(draw.mean()) < 4 * (2 * 5 / 3) / 4000**.5
    assert abs(draw.std() / (2 * 5 / 3) - 1) < .05
  assert abs(np.corrcoef(draws)[0, 1]) < .06


@pytest.mark.long
def test_private_steps_without_a_limit_are_plain_steps():
  config = Config(
      dataset='digits', model='mlp', algorithm='moon', num_clients=3,
      train_examples=90, num_rounds=2, local_epochs=2, batch_size=16,
      last_batch='keep', lanes=2)
  data = load_dataset('digits')

  def trained(**changes):
    simulation = Simulation(build.federation(
        checks.validate(dataclasses.replace(config, **changes)), data))
    for _ in range(2):
      simulation.run_round()
    return vector(simulation.state.variables)

  plain = trained()
  np.testing.assert_allclose(
      trained(privacy='example(clip=1e6)'), plain, atol=2e-6)
  noisy = [trained(privacy='example(clip=1, noise_multiplier=0.1)', seed=seed)
           for seed in (0, 0, 1)]
  np.testing.assert_array_equal(noisy[0], noisy[1])
  assert np.abs(noisy[0] - plain).max() > 1e-3 < np.abs(
      noisy[0] - noisy[2]).max()


def test_private_examples_are_in_one_client(tmp_path):
  data = load_dataset('digits')
  np.savez(tmp_path / 'split.npz', sizes=[2, 2], indices=[0, 1, 1, 2])
  config = checks.validate(Config(
      dataset='digits', model='mlp', algorithm='fedavg', num_clients=2,
      partition=f'file(path={tmp_path}/split.npz)',
      privacy='example(clip=1)'))
  with pytest.raises(UserError, match='share no examples; got .*split.npz'):
    build.federation(config, data)


def test_running_statistics_are_no_gradients():
  algorithm = privacy.with_private_gradients(federation.fedavg(), 1.)
  with pytest.raises(UserError, match='privacy=example needs a network'):
    Federation(algorithm, model=federation.linear_model(has_state=True)).round()
  view = base.View(*[()] * len(base.View._fields))._replace(
      variables={'params': {}})
  with pytest.raises(UserError, match='single examples; got .*mixup'):
    algorithm.gradient(None, {}, Batch((), (), np.ones(2), mixed=((), 1.)),
                       view)


def test_epsilon_of_examples_counts_epochs():
  """Of the client that takes part most often: 2 rounds of 5 epochs."""
  config = Config(privacy='example(clip=1, noise_multiplier=9)',
                  local_epochs=5, algorithm='fedavg')
  cohorts = [[0, 1], [1, 2], [3]]
  found = epsilon(config, cohorts)
  exact = exact_epsilon(2 * math.sqrt(2 * 5) / 9., 1e-5)
  assert exact < found < 1.25 * exact
  assert found == epsilon(
      dataclasses.replace(config, local_epochs=1, local_steps=5), cohorts)


@pytest.mark.parametrize('num_clients, size, multiplier, rounds, delta, eps', [
    (1000, 10, 2., 100, 1e-5, 1.4825256706130143),
    (1000, 10, 2., 1000, 1e-5, 3.576111485176614),
    (10_000, 100, 4., 500, 1e-6, 1.13537193800455),
    (100, 10, 4., 50, 1e-5, 3.680296617998141),
    (1000, 50, 8., 200, 1e-6, 1.7557663336520428)])
def test_epsilon_with_sampling_is_that_of_autodp(
    num_clients, size, multiplier, rounds, delta, eps):
  """Autodp 0.2.3.1, by the authors of the bound: Composition()([

  AmplificationBySampling(PoissonSampling=False)(GaussianMechanism(sigma=
  multiplier / 2), size / num_clients, improved_bound_flag=True)], [rounds]) of
  neighboring "replace_one".
  """
  config = Config(
      num_clients=num_clients, participation=size / num_clients, privacy=(
          f'client(clip=1, noise_multiplier={multiplier}, delta={delta})'),
      algorithm='fedavg')
  in_turn = np.arange(rounds * size).reshape(rounds, size) % num_clients
  # Whoever was drawn: that is the secret.
  for cohorts in in_turn.tolist(), [[*range(size)]] * rounds:
    assert epsilon(config, cohorts) == pytest.approx(eps, rel=1e-6)


def test_clients_that_remember_or_are_listed_are_not_amplified():
  """The message of MOON's client reveals when it last took part."""
  config = Config(num_clients=1000, participation=.01, algorithm='moon',
                  privacy='client(clip=1, noise_multiplier=2)')
  cohorts = [[0, 1], [1, 2], [1, 3]]
  exact = exact_epsilon(2 * math.sqrt(3) / 2., 1e-5)  # client 1, three times
  moon, own, listed, fedavg_ = (
      epsilon(dataclasses.replace(config, **changes), cohorts)
      for changes in ({}, {'algorithm': 'mine:mine'},
                      {'algorithm': 'fedavg', 'cohort': 'file(path=x)'},
                      {'algorithm': 'fedavg'}))
  assert exact < moon < 1.25 * exact and own == listed == moon
  assert fedavg_ < moon / 2
  l2 = dataclasses.replace(config, algorithm='moon_l2')
  assert epsilon(l2, cohorts) == fedavg_


@pytest.mark.parametrize('multiplier', [1e-6, 1.])
def test_sampling_never_costs(multiplier):
  """Where the bound of amplification is the larger one, the other counts."""
  config = Config(participation=.5, algorithm='fedavg', privacy=(
      f'client(clip=1, noise_multiplier={multiplier})'))
  cohorts = [[0, 1, 2, 3, 4]] * 20
  assert epsilon(config, cohorts) <= epsilon(
      dataclasses.replace(config, cohort='file(path=x)'), cohorts)


@pytest.mark.parametrize('changes', [
    dict(privacy='client(clip=1, epsilon=8)'),
    pytest.param(dict(privacy='client(clip=1, epsilon=3, delta=1e-3)',
                      participation=.2), marks=pytest.mark.long),
    dict(privacy='example(clip=1, epsilon=2)', local_epochs=2)])
def test_the_least_noise_for_an_epsilon(changes):
  """A little less noise spends more, and what is found is stable."""
  config = checks.validate(Config(**{
      'algorithm': 'fedavg', 'weighting': 'uniform', 'num_clients': 50,
      'num_rounds': 20, **changes}))
  private = config.args('privacy')
  visits = collections.Counter(itertools.chain(*cohort.make(config)))
  spent = lambda factor: accounting.epsilon(
      config, max(visits.values()), 20, private['noise_multiplier'] * factor)
  assert spent(1) <= private['epsilon'] < spent(.998)
  if config.privacy.name == 'example':  # each of these takes a search
    assert checks.validate(config) == config
    with pytest.raises(UserError, match='Remove one of them'):
      checks.validate(dataclasses.replace(config, privacy=str(
          config.privacy).replace('noise_multiplier=', 'noise_multiplier=1')))


def test_an_epsilon_that_no_noise_reaches_is_refused():
  config = Config(algorithm='fedavg', weighting='uniform', num_rounds=100,
                  privacy='client(clip=1)')
  least = accounting.epsilon(config, 100, 100, 1e4)
  of = lambda epsilon: dataclasses.replace(
      config, privacy=f'client(clip=1, epsilon={epsilon})')
  checks.validate(of(1.01 * least))
  with pytest.raises(UserError, match='epsilon must be at least'):
    checks.validate(of(.99 * least))


def test_the_noise_for_an_epsilon_is_within_the_limit_of_adaptive_clipping():
  """So the least epsilon, which the message names, can be trained."""
  config = Config(
      algorithm='fedavg', weighting='uniform', num_rounds=3,
      privacy='client(clip=1, quantile=0.5, epsilon=5)')
  with pytest.raises(UserError, match='privacy.quantile') as error:
    checks.validate(config)
  least = re.search('at least ([0-9.]+) for 3', str(error.value))[1]
  valid = checks.validate(dataclasses.replace(
      config, privacy=config.privacy.replace(epsilon=float(least))))
  assert .9 < valid.args('privacy')['noise_multiplier'] < 1
  registry.make(valid)
