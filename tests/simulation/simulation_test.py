"""A simulation's own bookkeeping, on digits."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import models
from moon_jax.config import Config
from moon_jax.data import augment
from moon_jax.data import cohort
from moon_jax.data import sources
from moon_jax.data import split
from moon_jax.errors import UserError
from moon_jax.simulation import build
from moon_jax.simulation import round_spec
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


def accuracy(variables, dataset, images, labels):
  model = models.make('mlp', 10, 256)
  x = augment.normalize(jnp.asarray(images), dataset.mean, dataset.std)
  outputs, _ = model.apply(variables, x, jnp.ones(len(x)), train=False)
  return (np.asarray(outputs.logits).argmax(1) == labels).mean()


def test_clients_are_evaluated_on_their_own_examples(dataset):
  simulation = simulate(dataset)
  simulation.run_round()
  found = simulation.evaluate_clients()['clients']
  models_J = simulation._last_round().models_J
  clients = split.make(CONFIG, dataset).clients
  global_ = jax.tree.map(lambda x: x[0], simulation.state.variables)
  assert sorted(found['client']) == sorted(cohort.make(CONFIG)[0])
  for j, client in enumerate(found['client']):
    own = (dataset.train_inputs[clients[client]],
           dataset.train_labels[clients[client]])
    local = jax.tree.map(lambda x: x[j], models_J)
    assert found['global_own_accuracy'][j] == pytest.approx(
        accuracy(global_, dataset, *own))
    assert found['local_own_accuracy'][j] == pytest.approx(
        accuracy(local, dataset, *own))
    assert found['local_test_accuracy'][j] == pytest.approx(
        accuracy(local, dataset, dataset.test_inputs, dataset.test_labels))
  # Local models know their own classes better than all of them.
  assert np.mean(found['local_own_accuracy']) > np.mean(
      found['local_test_accuracy'])


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


def test_fewer_examples_are_evaluated_and_say_so(dataset):
  few = dataset.with_test_examples(75)
  found = []
  for seed in (0, 1):
    simulation = simulate(dataset, eval_examples=75, seed=seed)
    simulation.run_round()
    line, of_clients = simulation.evaluate(), simulation.evaluate_clients()
    variables = simulation.global_model()
    assert line['test_examples'] == of_clients['test_examples'] == 75
    assert line['test_accuracy'] == pytest.approx(
        accuracy(variables, dataset, few.test_inputs, few.test_labels))
    local = jax.tree.map(
        lambda x: x[0], simulation._last_round().models_J)
    assert of_clients['clients']['local_test_accuracy'][0] == pytest.approx(
        accuracy(local, dataset, few.test_inputs, few.test_labels))
    found.append(jax.device_get(simulation._evaluator.test_data))
  np.testing.assert_array_equal(found[0].inputs, found[1].inputs)
  every = simulate(dataset)
  every.run_round()
  assert 'test_examples' not in every.evaluate() | every.evaluate_clients()


@pytest.mark.parametrize('algorithm', ['fedavg', 'solo'])
def test_evaluation_is_of_the_whole_test_set(algorithm, dataset):
  """Means of the models that count; of several the accuracies' spread."""
  simulation = simulate(dataset, algorithm=algorithm, client_eval_every=0)
  found = simulation.evaluate()
  # [C, ...], or of the one global model.
  stacked = (jax.tree.map(lambda x: x[0], simulation.state.clients)
             if algorithm == 'solo' else simulation.state.variables)
  x = augment.normalize(
      jnp.asarray(dataset.test_inputs), dataset.mean, dataset.std)
  accuracies, all_losses = [], []
  for i in range(6 if algorithm == 'solo' else 1):
    outputs, _ = models.make('mlp', 10, 256).apply(
        jax.tree.map(lambda leaf, i=i: leaf[i], stacked), x,
        jnp.ones(len(x)), train=False)
    logits = np.asarray(outputs.logits, np.float64)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    all_losses.append(-log_p[np.arange(len(x)), dataset.test_labels].mean())
    accuracies.append((logits.argmax(1) == dataset.test_labels).mean())
  assert found['test_loss'] == pytest.approx(np.mean(all_losses), rel=1e-5)
  assert found['test_accuracy'] == pytest.approx(np.mean(accuracies))
  if algorithm == 'solo':
    assert found['test_accuracy_std'] == pytest.approx(np.std(accuracies))
  else:
    assert 'test_accuracy_std' not in found


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


def test_noise_is_on_training_inputs_alone(dataset):
  def simulated(**changes):
    simulation = simulate(
        dataset, model='mlp', num_clients=3, participation=1., batch_size=600,
        local_epochs=1, client_eval_every=0, **changes)
    tested = simulation.evaluate()  # of the initial model
    return simulation.run_round().metrics['train_loss'], tested

  clean = simulated(partition='iid')
  assert simulated(partition='feature_noise', noise_std=0.) == clean
  noisy = simulated(partition='feature_noise', noise_std=2.)
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


def test_splits_are_as_asked(dataset):
  whose = np.arange(len(dataset.train_labels), dtype=np.int32) % 9
  with_clients = dataset._replace(train_clients=whose)
  config = dataclasses.replace(CONFIG, partition='natural', num_clients=4)
  clients = split.make(config, with_clients).clients
  assert [set(whose[i]) for i in clients] == [
      {c} for c in sorted(set(np.concatenate([whose[i] for i in clients])))]
  seeds = {tuple(np.concatenate(split.make(
      dataclasses.replace(config, partition_seed=seed), with_clients).clients))
      for seed in range(5)}
  assert len(seeds) > 1
  iid, noisy = (split.make(
      dataclasses.replace(config, partition=name), dataset).clients
                for name in ('iid', 'feature_noise'))
  assert all((a == b).all() for a, b in zip(iid, noisy))
  with pytest.raises(UserError, match='feature_noise adds noise to inputs'):
    split.make(dataclasses.replace(config, partition='feature_noise'),
               dataset._replace(num_tokens=80))


def test_frozen_models_are_asked_once_where_that_is_the_same(dataset):
  changes = dict(algorithm='moon', mu=1., model='mlp', local_epochs=2)
  asked_once = lambda simulation: simulation._program._spec.program.freeze_once
  assert asked_once(simulate(dataset, **changes))
  assert not asked_once(simulate(dataset, **changes | {'local_epochs': 1}))
  # Inputs that are drawn in each step are other ones in each epoch.
  flipped = dataset._replace(augmentation='reflect_crop_flip')
  assert not asked_once(simulate(flipped, **changes))
  assert asked_once(simulate(flipped, **changes, augment=False))
  assert not asked_once(simulate(
      dataset, **changes, partition='feature_noise'))
  assert not asked_once(simulate(dataset, **changes | {'algorithm': 'fedavg'}))
  config = dataclasses.replace(CONFIG, **changes)
  shared = [np.arange(40)] * config.num_clients  # each example is all clients'
  assert not asked_once(
      Simulation(build.federation(config, dataset, shared)))


def test_local_models_are_evaluated_after_a_round(dataset):
  with pytest.raises(UserError, match='after a round of this run'):
    simulate(dataset).evaluate_clients()


def test_a_restored_run_has_no_local_models(dataset):
  """Those of the last round are not those of the restored state."""
  simulation = Simulation(dataclasses.replace(
      build.federation(CONFIG, dataset), keep_local_models=True))
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
