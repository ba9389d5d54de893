"""The shapes of rounds, their programs, and what is planned when."""

import dataclasses
import itertools
import types
from unittest import mock

import jax
import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import clients as clients_lib
from moon_jax.data import rounds
from moon_jax.distributed import devices
from moon_jax.errors import UserError
from moon_jax.simulation import build, round_spec
from moon_jax.simulation.round_spec import Planner
from support import tiny_federation

CONFIG = Config(
    dataset='digits', num_clients=6, participation=.5, algorithm='fedavg',
    num_rounds=2, local_epochs=1, batch_size=16, learning_rate=.02,
    client_eval_every=1, model='mlp')


def planner_of(digits, **changes):
  config = dataclasses.replace(CONFIG, **changes)
  return Planner([round_spec.alone(build.federation(config, digits))])


def test_without_shuffling_batches_are_the_same_and_sorted_by_class(digits):
  def epochs(**changes):
    planner = planner_of(
        digits, participation=1., num_clients=1, local_epochs=2, **changes)
    tables = [planner.plan(r) for r in range(2)]
    return [table.examples_TLB[table.job_TL[:, 0] >= 0, 0].reshape(2, -1)
            for table in tables]

  one, two = epochs(shuffle=False)
  labels = digits.train_labels
  assert (np.diff(labels[one[0]]) >= 0).all() and labels[one[0]][0] == 0
  np.testing.assert_array_equal(one[0], one[1])
  np.testing.assert_array_equal(one, two)
  shuffled, _ = epochs()
  assert (np.diff(labels[shuffled[0]]) < 0).any()
  assert (shuffled[0] != shuffled[1]).any()


def test_weighting_reaches_the_plan(digits):
  uniform = planner_of(digits, weighting='uniform').plan(0).jobs
  np.testing.assert_allclose(uniform.weight, 1 / 3, rtol=1e-6)
  by_size = planner_of(digits).plan(0).jobs
  np.testing.assert_allclose(
      by_size.weight, by_size.num_examples / by_size.num_examples.sum(),
      rtol=1e-6)
  for local in ({}, {'local_steps': 3}):  # batches per epoch, not of the round
    planner = planner_of(digits, weighting='batches', batch_size=4, **local)
    jobs = planner.plan(0).jobs
    batches = np.maximum(jobs.num_examples // 4, 1) * (jobs.num_steps > 0)
    assert len({*batches[jobs.num_steps > 0]}) > 1
    np.testing.assert_allclose(
        jobs.weight, batches / batches.sum(), rtol=1e-6)


@pytest.mark.parametrize('local', [
    {'last_batch': 'drop'}, {'last_batch': 'keep'}, {'local_steps': 5}])
def test_a_round_counts_the_batches_and_examples_that_it_trains_on(local):
  """For weights by batches per epoch, and for simulated seconds.

  Clients have 3, 10 and 6 examples.
  """
  federation = tiny_federation.make(
      batch_size=4, local_epochs=2, weighting='batches', **local)
  work = Planner([round_spec.make(federation, 1, 1)]).work(0, 0)
  owner = np.repeat(np.arange(3), work.num_steps)
  examples = np.bincount(owner, (work.batches >= 0).sum(1))
  epochs = 2 if 'last_batch' in local else work.num_steps / work.share
  np.testing.assert_array_equal(work.share * epochs, work.num_steps)
  np.testing.assert_array_equal(round_spec.local_examples(
      federation, clients_lib.sizes(federation.clients)), examples)


def test_a_round_is_planned_for_the_devices_that_run_it(digits, monkeypatch):
  """Two processes may have different numbers of devices."""
  federation = build.federation(dataclasses.replace(
      CONFIG, num_clients=12, participation=1.), digits)
  traced = round_spec.make(federation, 1, 1)
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  for counts in itertools.product(range(1, 9), repeat=2):
    parts = [[mock.Mock(process_index=i)] * count
             for i, count in enumerate(counts)]
    monkeypatch.setattr(jax, 'devices', lambda parts=parts: sum(parts, []))
    for lanes in 2, 6, 8, 12:
      shape = round_spec.alone(
          dataclasses.replace(federation, lanes=lanes), traced).shape
      assert shape.num_lanes == lanes
      assert shape.num_devices == devices.mesh(lanes, shape.num_devices).size


def test_shapes_are_of_all_listed_rounds(digits, tmp_path):
  """A run that is extended uses the same program."""
  path = tmp_path / 'cohorts.txt'
  path.write_text('0 1\n2 3\n0 1 2 3 4\n')
  changes = dict(participation=1., cohort=f'file(path={str(path)!r})')
  short = planner_of(digits, **changes)
  long = planner_of(digits, **changes, num_rounds=3)
  plans = [jax.tree.leaves(s.plan(0)) for s in (short, long)]
  for x, y in zip(*plans):
    np.testing.assert_array_equal(x, y)
  assert short.plan(0).jobs.weight.shape == (5,)


def test_noise_is_as_of_images_in_0_to_1(digits):
  config = dataclasses.replace(
      CONFIG, partition='feature_noise(noise_std=0.3)', num_clients=2)
  federation = build.federation(config, digits)
  clients = federation.clients
  std = round_spec.make(federation, 1, 1).noise_std
  assert std.shape == (len(digits.train_labels), 1)
  assert not std[clients[0]].any()
  np.testing.assert_allclose(std[clients[1]], .3 / .376, rtol=1e-6)


def test_frozen_models_are_asked_once_where_that_is_the_same(
    digits, monkeypatch):
  def asked_once(dataset=digits, clients=None, **changes):
    config = dataclasses.replace(CONFIG, **{
        'algorithm': 'moon(mu=1)', 'local_epochs': 2, **changes})
    return round_spec.alone(
        build.federation(config, dataset, clients)).program.freeze_once

  assert asked_once()
  assert not asked_once(local_epochs=1)
  # Inputs that are drawn in each step are other ones in each epoch.
  flipped = digits._replace(augmentation='reflect_crop_flip')
  assert not asked_once(flipped)
  assert asked_once(flipped, augment=False)
  assert not asked_once(partition='feature_noise')
  assert not asked_once(algorithm='fedavg')
  # Each example is that of all clients.
  assert not asked_once(clients=[np.arange(40)] * CONFIG.num_clients)
  # Their outputs for all examples must fit.
  monkeypatch.setattr(round_spec, '_MAX_FROZEN', 2**20)
  assert not asked_once()


class Counting(Planner):
  """A planner that records the rounds that it plans."""

  def __init__(self, federation):
    super().__init__([round_spec.make(federation, 1, 1)], training=(
        types.SimpleNamespace(for_round=lambda table: (table, None))))
    self.planned = []

  def work(self, run, round_index):
    self.planned.append(round_index)
    return super().work(run, round_index)


def test_rounds_are_planned_once_and_none_after_the_last():
  planner = Counting(tiny_federation.make(rounds=rounds.listed([[0], [1, 2]])))
  first = planner.prepared([0])[0]
  for round_index in range(1, 4):
    planner.prepare([round_index])
  second = planner.prepared([1])[0]
  assert planner.planned == [0, 1]
  assert sorted(set(second.jobs.client[second.jobs.num_steps > 0])) == [1, 2]
  again = planner.prepared([0])[0]
  np.testing.assert_array_equal(again.examples_TLB, first.examples_TLB)
  with pytest.raises(UserError, match='that have a cohort; got round 3'):
    planner.prepared([2])
  endless = Counting(tiny_federation.make())
  endless.prepare([1000])
  assert endless.planned == [1000]


def test_shortened_clients_are_planned_again():
  planner = Counting(tiny_federation.make(local_epochs=1, batch_size=2))
  long = planner.prepared([0])[0]
  planner.clients = [clients_lib.shortened(planner.clients[0], 2)]
  short = planner.prepared([0])[0]
  assert long.num_rows > short.num_rows


@pytest.mark.parametrize('batch_size, last_batch, expected, steps', [
    (4, 'drop', 4, [1, 2, 1]),  # only clients with fewer examples pad batches
    (4, 'keep', 4, [1, 3, 2]),  # short batches are steps
    (64, 'drop', 10, [1, 1, 1]),  # no more than the largest client has
])
def test_batches_are_at_most_the_largest_client(
    batch_size, last_batch, expected, steps):
  federation = tiny_federation.make(
      batch_size=batch_size, last_batch=last_batch, local_epochs=2)
  found = round_spec.make(federation, num_lanes=1, num_devices=1)
  assert found.shape.batch_size == expected
  np.testing.assert_array_equal(found.steps_C, 2 * np.array(steps))


@pytest.mark.parametrize('is_partial, expected', [(False, 2 * (1 + 2)), (
    True, 0)])
def test_steps_that_results_decide_are_counted_or_not_known(
    is_partial, expected):
  """A history has the rounds of a client, not the part that it did of them."""
  federation = tiny_federation.make(
      batch_size=4, local_epochs=2, rounds=rounds.Rounds(
          lambda history, run: rounds.Cohort.of([0, 1]), cohort_size=2,
          needs_history=True, has_partial_work=is_partial))
  planner = Planner([round_spec.make(federation, 1, 1)])
  assert planner.mean_steps(0, 0) == 2 * (1 + 2)
  planner.histories[0] = planner.histories[0]._replace(
      times_trained=np.array([2, 2, 0]))
  assert planner.mean_steps(0, 2) == expected


def test_local_steps_replace_epochs():
  """On clients of whole batches they are the same rounds."""
  clients = [np.arange(8), np.arange(8, 16)]
  epochs, steps = (tiny_federation.make(
      clients=clients, batch_size=4, shard_data=True, **kwargs)
      for kwargs in ({'local_epochs': 2}, {'local_steps': 4}))
  planners = [Planner([round_spec.make(federation, 2, 1)])
              for federation in (epochs, steps)]
  work = [planner.work(0, 1) for planner in planners]
  np.testing.assert_array_equal(work[0].batches, work[1].batches)
  # A client with one example repeats it; one with more uses a part of them.
  unequal = dataclasses.replace(
      steps, clients=[np.arange(1), np.arange(1, 19)])
  spec = round_spec.make(unequal, 1, 1)
  assert spec.steps_C.tolist() == [4, 4]
  found = Planner([spec]).work(0, 0)
  np.testing.assert_array_equal(found.num_examples, [1, 18])
  assert found.batches[:4, 0].tolist() == [0] * 4
  assert len(np.unique(found.batches[4:])) == 16
  # All examples of the largest clients fit, for passes over them.
  assert spec.shard_size == 19
