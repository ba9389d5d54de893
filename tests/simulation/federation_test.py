"""Tests the checks, cohorts and hyperparameters of federations."""

import contextlib
import dataclasses
import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import moon_jax as mj
from moon_jax import errors
from moon_jax.algorithms.base import Message
from moon_jax.config import Config, parts
from moon_jax.data import rounds, selection
from moon_jax.data.client_tests import ClientTests
from moon_jax.data.sources import arrays as arrays_lib
from moon_jax.errors import DivergedError, UserError
from moon_jax.methods.fedavg import fedavg
from moon_jax.methods.fedprox import fedprox
from moon_jax.methods.moon import moon
from moon_jax.simulation import build, federation_checks, round_spec
from moon_jax.simulation.simulation import Simulation
from support import tiny_federation


def test_rounds_are_those_of_the_federation():
  plain = tiny_federation.make()
  assert (plain.cohort_size, plain.num_rounds) == (3, None)
  assert [cohort.clients for cohort in plain.first_cohorts(2)] == [
      [0, 1, 2]] * 2
  listed = tiny_federation.make(rounds=rounds.listed([[0, 2], [1]]))
  assert (listed.cohort_size, listed.num_rounds) == (2, 2)
  assert [cohort.clients for cohort in listed.first_cohorts(9)] == [
      [0, 2], [1]]
  with pytest.raises(UserError, match='that have a cohort; got round 3'):
    listed.cohort(selection.begin(3, num_rounds=2))
  with pytest.raises(UserError, match='rounds must be a value of moon_jax.rou'):
    tiny_federation.make(rounds=[[0, 1], [2]])
  # Only the first cohort is known before training.
  select = rounds.selected(lambda view: [view.round], 1)
  assert tiny_federation.make(rounds=select).first_cohorts(9) == [
      rounds.Cohort.of([0])]


def test_dropout_has_the_seed_of_the_federation():
  made = tiny_federation.make(rounds=rounds.with_dropout(
      rounds.all_clients(), .5))
  lost = [[cohort.lost for cohort in dataclasses.replace(
      made, seed=seed).first_cohorts(9)] for seed in (0, 1, 0)]
  assert lost[0] == lost[2] != lost[1]


@pytest.mark.parametrize('indices, part, message', [
    ([[17], [], []], 'train', 'got 1 of them, such as 17. Partition'),
    ([[], [18], [], []], 'train', 'of each of the 3 clients.* 1 examples of 4'),
    ([[], [], []], 'train', 'at least one in all; got 0 examples of 3'),
    ([[], [4], [5]], 'test', 'from 0 to 4, .* of the test .* from 4 to 5'),
    ([[], [-1], [2]], 'test', 'integers from 0 to 4.*from -1 to 2'),
    ([[], [1.], [2.]], 'test', 'got float64 from 1.0 to 2.0'),
    ([[1], [], []], 'valid', "part must be one of train, test; got 'valid'"),
])
def test_invalid_held_out_examples_raise(indices, part, message):
  tests = ClientTests([np.array(i) for i in indices], part)
  clients = [np.arange(3), np.arange(3, 13), np.arange(13, 18)]
  with pytest.raises(UserError, match=message):
    tiny_federation.make(
        clients=clients, client_tests=tests, evaluate_clients=True)


def test_defaults_are_those_of_the_flags():
  federation, config = tiny_federation.make(), Config()
  names = [name for name in config.to_dict() if name in vars(federation)
           and name not in ('algorithm', 'model', 'metrics', 'optimizer',
                            'rounds', 'topology', 'new_clients',
                            'augmentation')]
  assert len(names) >= 15
  for name in names:
    assert getattr(federation, name) == getattr(config, name), name
  parameters = inspect.signature(rounds.with_dropout).parameters
  assert parameters['stage'].default == config.args('rounds')['dropout_stage']
  assert federation.augmentation == parts.make(
      'augmentation', config.augmentation)
  assert federation.optimizer.name == config.optimizer.name
  assert federation.optimizer.hparams == config.args('optimizer')


def test_hyperparameters_are_those_of_settings_and_algorithm():
  settings = dict(
      learning_rate=.3, optimizer='sgd(momentum=0, weight_decay=0.2)')
  named = {'learning_rate': .3, 'momentum': 0., 'weight_decay': .2,
           'gradient_clip': 0., 'num_rounds': np.inf}
  with_alpha = fedavg()._replace(hparams={'alpha': .4})
  for algorithm, expected in (
      (fedavg(), named), (fedprox(.7), named | {'mu': .7}),
      (moon(3, mu=2., temperature=.1),
       named | {'mu': 2., 'temperature': .1}),
      (with_alpha, named | {'alpha': .4})):
    federation = tiny_federation.make(algorithm=algorithm, **settings)
    assert federation.hparams() == expected


def test_pixels_in_floating_point_are_features():
  """They are not normalized or augmented, under any network; users hear it."""
  pixels = np.random.RandomState(0).randint(0, 256, (6, 16, 16, 3))
  arrays = {'x_train': pixels, 'y_train': [0, 1] * 3, 'x_test': pixels,
            'y_test': [0, 1] * 3}
  arrays |= {name: np.float32(arrays[name]) for name in ('x_train', 'x_test')}

  def example(**given):
    federation = mj.Federation(
        data=arrays_lib.to_dataset('mine', 'mine', arrays | given),
        clients=[range(6)], model=mj.simple_cnn(2), algorithm=mj.fedavg())
    return round_spec.alone(federation).example

  with pytest.warns(UserWarning, match=(
      'mine: train_inputs are not normalized: .*Give mean=.*, std=')):
    found = example()
  np.testing.assert_array_equal(found, pixels[:1])
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    found = example(mean=127.5, std=[50., 60., 70.])
  np.testing.assert_allclose(
      found, (pixels[:1] - 127.5) / [50., 60., 70.], rtol=1e-6)


@pytest.mark.parametrize('algorithm', [mj.fedrep(), mj.fedpac(3)])
def test_clients_with_one_step_train_a_head_alone(algorithm, digits):
  """Users hear it from Python and from the command alike."""
  clients = [range(10), range(10, 40), range(40, 45)]
  settings = {'local_epochs': 1, 'batch_size': 10}

  def warned(federation):
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter('always')
      round_spec.alone(federation)
    return [str(warning.message) for warning in caught
            if 'one local step' in str(warning.message)]

  def made(algorithm=algorithm, **changed):
    return mj.Federation(
        data=digits, clients=clients, model=mj.mlp(10),
        algorithm=algorithm, **settings | changed)

  message, = warned(made())
  assert message.startswith('2 of 3 clients') and 'or lower batch_size' in (
      message)
  assert not warned(made(local_epochs=2)) and not warned(made(mj.fedavg()))
  assert not warned(made(local_steps=2)) and len(warned(made(local_steps=1)))
  config = Config(dataset='digits', model='mlp', num_clients=3,
                  algorithm='fedpac' if algorithm.needs.get('num_clients') else
                  'fedrep', **settings)
  with errors.of_command():
    message, = warned(build.federation(config, digits, list(map(
        np.array, clients))))
  assert 'Raise --local_epochs' in message


@pytest.mark.parametrize('cohorts, is_met', [
    ([[0, 1, 2], [2, 0, 1]], True), ([[0, 1, 2], [2, 0]], False)])
def test_both_kinds_of_federations_are_checked_for_needs(cohorts, is_met):
  config = Config(dataset='digits', model='mlp', algorithm='fedcross',
                  num_clients=3)
  for make_fn in (
      lambda: build.federation(config, cohorts=cohorts),
      lambda: tiny_federation.make(
          algorithm=mj.fedcross(3), rounds=rounds.listed(cohorts))):
    with contextlib.nullcontext() if is_met else pytest.raises(
        UserError, match='needs all 3 clients in each round; got rounds that'):
      make_fn()


@pytest.mark.parametrize('algorithm', [
    mj.feddyn(4), mj.fedspeed(4, averaged='all')])
def test_the_number_of_clients_is_that_of_the_algorithm(algorithm):
  with pytest.raises(UserError, match='num_clients=3 of the federation'):
    tiny_federation.make(algorithm=algorithm)


@pytest.mark.parametrize('changes', [
    {}, {'cohort': 'oort'}, {'rounds': 'fedbuff(concurrency=3, buffer_size=2)',
                             'participation': 1.}])
def test_a_clock_builds_one_federation(changes, digits, monkeypatch):
  made = []
  check = federation_checks.check
  monkeypatch.setattr(federation_checks, 'check', lambda federation: (
      made.append(federation), check(federation)))
  federation = build.federation(dataclasses.replace(Config(
      dataset='digits', model='mlp', algorithm='fedavg', num_clients=4,
      partition='iid', participation=.5, clock='lognormal'), **changes), digits)
  assert made == [federation]


def test_a_rule_of_a_clock_does_not_depend_on_the_planned_rounds(digits):
  """Cohorts that a deadline cuts are larger in some rounds than in others."""
  config = Config(
      dataset='digits', model='mlp', algorithm='fedavg', num_clients=20,
      partition='iid', participation=.5, clock='lognormal', local_epochs=1,
      rounds='synchronous(deadline=2.5)',
      aggregation='trimmed_mean(byzantine=2)')
  made = [build.federation(dataclasses.replace(config, num_rounds=n), digits)
          for n in (2, 3)]
  sizes = [max(map(len, each.rounds.cohorts)) for each in made]
  assert sizes[0] < sizes[1] < 10
  assert {each.cohort_size for each in made} == {10}
  assert made[0].algorithm.min_received == made[1].algorithm.min_received


def test_rounds_wait_until_the_clients_that_a_rule_needs_are_available(digits):
  config = Config(
      dataset='digits', model='mlp', algorithm='fedavg', num_clients=20,
      partition='iid', participation=.5, num_rounds=20,
      clock='lognormal(availability=0.3)')
  plain, robust = (
      [len(cohort) for cohort in build.federation(dataclasses.replace(
          config, aggregation=rule), digits).rounds.cohorts]
      for rule in ('average', 'krum(byzantine=2)'))
  assert min(plain) < 7 <= min(robust)


@pytest.mark.parametrize('changes', [
    {'labels': 'noise'}, {'labels': 'shift'}, {'train_examples': 100},
    {'validation_fraction': .1}, {'attack': 'label_flip'},
    {'attack': 'backdoor'},
    {'client_test_fraction': .1, 'client_eval_every': 1}])
def test_given_clients_are_not_split_again(changes, digits):
  """What a configuration does to its own split would be lost."""
  config = Config(dataset='digits', model='mlp', algorithm='fedavg',
                  num_clients=5, **changes)
  name = next(iter(changes))
  with pytest.raises(UserError, match=f'{name}=.* changes a split'):
    build.federation(config, digits, clients=mj.partition.iid(100, 5, 0))


def test_all_sets_of_test_examples_are_cut(digits):
  federation = build.federation(Config(
      dataset='digits', model='mlp', algorithm='fedavg', attack='backdoor',
      eval_examples=30), digits)
  inputs, labels = federation.test_sets['backdoor']
  assert federation.num_test == 30 and 0 < len(inputs) == len(labels) <= 30


def test_clipped_updates_are_divided_by_the_listed_cohorts(
    digits, tmp_path):
  config = Config(
      dataset='digits', model='mlp', algorithm='fedavg', num_clients=8,
      weighting='uniform', privacy='client(clip=1)')
  algorithm = build.federation(
      config, digits, cohorts=[[0, 3], [1, 2]]).algorithm
  variables = {'params': {'w': jnp.zeros(3)}}
  message = Message((), jax.tree.map(jnp.ones_like, variables))
  following, *_ = algorithm.aggregate(
      variables, algorithm.init_server(variables), message, None)
  np.testing.assert_allclose(following['params']['w'], 1 / 2)
  noisy = dataclasses.replace(
      config, privacy='client(clip=1, noise_multiplier=1)')
  with pytest.raises(UserError, match='epsilon is computed for the cohorts'):
    build.federation(noisy, digits, cohorts=[[0, 3], [1, 2]])
  with pytest.raises(UserError, match='privacy needs 2 clients in each round'):
    build.federation(config, digits, cohorts=[[0], [1, 2]])
  build.federation(noisy, digits, cohorts=[np.arange(8)] * 3)
  (tmp_path / 'cohorts.txt').write_text('0 3\n1 2\n')  # the remedy
  assert build.federation(dataclasses.replace(
      noisy, cohort=f'file(path={tmp_path}/cohorts.txt)', num_rounds=2),
                          digits).rounds.cohorts == [[0, 3], [1, 2]]


def test_messages_have_the_values_that_replace_those_of_a_configuration():
  """The learning rate, the method and the network are others."""
  data = tiny_federation.make().data
  built = build.federation(Config(
      dataset='digits', model='mlp', partition='iid', num_clients=3,
      algorithm='fedavg', local_epochs=1, batch_size=2), data)
  with pytest.raises(DivergedError, match=(
      r'\(algorithm=fedavg learning_rate=1e\+30\)')):
    Simulation(dataclasses.replace(built, learning_rate=1e30)).run(3)
  with pytest.raises(UserError, match='^algorithm: finish must return '):
    Simulation(dataclasses.replace(
        built, algorithm=fedavg()._replace(finish=lambda trained, view: 0)))
  with pytest.raises(UserError, match=r'^model must return logits .* 3\]'):
    Simulation(dataclasses.replace(
        built, data=data._replace(class_names=('a', 'b', 'c')),
        model=mj.mlp(5)))


@pytest.mark.long
def test_labels_and_indices_of_small_types_train_the_same():
  """Those of one byte would overflow with more than 127 classes."""
  data = tiny_federation.make().data._replace(
      train_labels=100 + np.arange(19), test_labels=100 + np.arange(5),
      class_names=tuple(map(str, range(200))))
  found = []
  for kind in 'i1', 'u1', 'u8':
    labels = data._replace(train_labels=data.train_labels.astype(kind),
                           test_labels=data.test_labels.astype(kind))
    simulation = Simulation(tiny_federation.make(
        data=labels, model=mj.mlp(200), batch_size=3, local_epochs=1,
        metrics={'own': lambda logits, y: (2 * y).max()},
        clients=[np.arange(i, 19, 3).astype(kind) for i in range(3)],
        rounds=rounds.listed(np.array([[2, 0]], kind))))
    found.append(simulation.run(1)[0].metrics)
  assert found[0]['own'] == 208
  assert all(metrics == found[0] for metrics in found)


@pytest.mark.parametrize('algorithm, changes, message', [
    (moon(), dict(mu=-1.), 'mu of the algorithm must be 0 or more; got -1'),
    (moon(), dict(temperature=0.), 'temperature .* must be above 0; got 0'),
    (fedavg(), dict(proximal_mu=-.1), 'proximal_mu .* must be 0 or more')])
def test_numbers_of_an_algorithm_that_are_replaced_keep_their_limits(
    algorithm, changes, message):
  algorithm = algorithm._replace(hparams={**algorithm.hparams, **changes})
  with pytest.raises(UserError, match=message):
    tiny_federation.make(algorithm=algorithm)
