"""A simulation's own bookkeeping, on digits."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny_federation

from federation import linear_model
from moon_jax.config import Config
from moon_jax.data import sources
from moon_jax.errors import UserError
from moon_jax.simulation import build, round_spec
from moon_jax.simulation.simulation import Simulation

CONFIG = Config(
    dataset='digits', num_clients=6, participation=.5, algorithm='fedavg',
    num_rounds=2, local_epochs=1, batch_size=16, learning_rate=.02,
    client_eval_every=1, model='mlp')


@pytest.fixture(scope='module')
def dataset():
  return sources.load('digits', '')


def simulate(dataset, **changes):
  config = dataclasses.replace(CONFIG, **changes)
  return Simulation(build.federation(config, dataset))


def test_without_shuffling_batches_are_the_same_and_sorted_by_class(dataset):
  def epochs(**changes):
    simulation = simulate(
        dataset, participation=1., num_clients=1, local_epochs=2, **changes)
    tables = [simulation.planner.plan(r) for r in range(2)]
    return [table.examples_TLB[table.job_TL[:, 0] >= 0, 0].reshape(2, -1)
            for table in tables]

  one, two = epochs(shuffle=False)
  labels = dataset.train_labels
  assert (np.diff(labels[one[0]]) >= 0).all() and labels[one[0]][0] == 0
  np.testing.assert_array_equal(one[0], one[1])
  np.testing.assert_array_equal(one, two)
  shuffled, _ = epochs()
  assert (np.diff(labels[shuffled[0]]) < 0).any()
  assert (shuffled[0] != shuffled[1]).any()


def test_weighting_reaches_the_plan(dataset):
  uniform = simulate(dataset, weighting='uniform').planner.plan(0).jobs
  np.testing.assert_allclose(uniform.weight, 1 / 3, rtol=1e-6)
  by_size = simulate(dataset).planner.plan(0).jobs
  np.testing.assert_allclose(
      by_size.weight, by_size.num_examples / by_size.num_examples.sum(),
      rtol=1e-6)


def test_shapes_are_of_all_listed_rounds(dataset, tmp_path):
  """A run that is extended uses the same program."""
  path = tmp_path / 'cohorts.txt'
  path.write_text('0 1\n2 3\n0 1 2 3 4\n')
  changes = dict(participation=1., cohorts_file=str(path))
  short = simulate(dataset, **changes)
  long = simulate(dataset, **changes, num_rounds=3)
  plans = [jax.tree.leaves(s.planner.plan(0)) for s in (short, long)]
  for x, y in zip(*plans):
    np.testing.assert_array_equal(x, y)
  assert short.planner.plan(0).jobs.weight.shape == (5,)


def test_noise_is_on_training_inputs_alone():
  def simulated(std):
    simulation = Simulation(tiny_federation.make(
        model=linear_model(), local_epochs=1, input_noise_std=std,
        data=tiny_federation.make().data._replace(class_names=tuple('abc'))))
    tested = simulation.evaluate()  # of the initial model
    return simulation.run_round().metrics['train_loss'], tested

  clean, zero, noisy = map(simulated, (None, np.zeros(19), np.full(19, 2.)))
  assert zero == clean
  assert noisy[0] != clean[0] and noisy[1] == clean[1]


def test_noise_is_as_of_images_in_0_to_1(dataset):
  config = dataclasses.replace(
      CONFIG, partition='feature_noise', num_clients=2, noise_std=.3)
  federation = build.federation(config, dataset)
  clients = federation.clients
  std = round_spec.make(federation, 1, 1).noise_std
  assert std.shape == (len(dataset.train_labels), 1)
  assert not std[clients[0]].any()
  np.testing.assert_allclose(std[clients[1]], .3 / .376, rtol=1e-6)


def test_frozen_models_are_asked_once_where_that_is_the_same(dataset):
  def asked_once(dataset=dataset, clients=None, **changes):
    config = dataclasses.replace(CONFIG, **{
        'algorithm': 'moon', 'mu': 1., 'local_epochs': 2, **changes})
    return round_spec.alone(
        build.federation(config, dataset, clients)).program.freeze_once

  assert asked_once()
  assert not asked_once(local_epochs=1)
  # Inputs that are drawn in each step are other ones in each epoch.
  flipped = dataset._replace(augmentation='reflect_crop_flip')
  assert not asked_once(flipped)
  assert asked_once(flipped, augment=False)
  assert not asked_once(partition='feature_noise')
  assert not asked_once(algorithm='fedavg')
  # Each example is that of all clients.
  assert not asked_once(clients=[np.arange(40)] * CONFIG.num_clients)


def test_a_restored_run_has_no_local_models(dataset):
  """Those of the last round are not those of the restored state."""
  simulation = Simulation(dataclasses.replace(
      build.federation(CONFIG, dataset), keep_local_models=True))
  with pytest.raises(UserError, match='after a round of this run'):
    simulation.evaluate_clients()
  state = jax.tree.map(np.array, simulation.state_on_host())
  simulation.run_round()
  assert simulation.local_models() and simulation.evaluate_clients()
  simulation.restore(state)
  with pytest.raises(UserError, match='after a round of this run'):
    simulation.evaluate_clients()
  with pytest.raises(UserError, match='a round that this simulation trained'):
    simulation.local_models()
  simulation.run_round()
  assert simulation.local_models() and simulation.evaluate_clients()
