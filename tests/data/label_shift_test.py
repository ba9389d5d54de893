"""Label noise and concept shift."""

import dataclasses

import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import attackers, label_shift, partition, split
from moon_jax.errors import UserError
from moon_jax.methods import registry
from moon_jax.simulation import build

_N, _K, _C = 20_000, 5, 8
LABELS = np.random.RandomState(0).randint(0, _K, _N).astype(np.int32)
CLIENTS = partition.iid(_N, _C, 0)
CONFIG = Config(dataset='digits', model='mlp', algorithm='fedavg',
                num_clients=6)


def test_rates_are_equal_or_increase():
  for form, rates in (('globalized', [.4] * _C),
                      ('localized', np.linspace(0, .4, _C))):
    np.testing.assert_array_equal(
        label_shift.noise(LABELS, CLIENTS, _K, 1, .4, form),
        label_shift.noisy(LABELS, CLIENTS, rates, _K, 1))


@pytest.mark.parametrize('rates', [.2, [.2], [-.1] * _C, [1.2] * _C])
def test_rates_are_those_of_the_clients(rates):
  with pytest.raises(UserError, match='rates must be a number from 0 to 1'):
    label_shift.noisy(LABELS, CLIENTS, rates, _K, 1)


def test_noise_equals_a_plain_loop_and_depends_on_seed_and_client_only():
  rates = [.3] * _C
  noisy = label_shift.noisy(LABELS, CLIENTS, rates, _K, seed=1)
  client = 3
  random = np.random.default_rng([1, client, 0, 2])
  draws = random.random(len(CLIENTS[client]))
  offsets = random.integers(1, _K, len(draws))
  for index, draw, offset in zip(CLIENTS[client], draws, offsets):
    expected = (LABELS[index] + offset) % _K if draw < .3 else LABELS[index]
    assert noisy[index] == expected
  wrong = (noisy != LABELS)[CLIENTS[client]]
  assert abs(wrong.mean() - .3) < .05  # 5 standard deviations
  assert set((noisy - LABELS)[CLIENTS[client]][wrong] % _K) == {1, 2, 3, 4}
  fewer = label_shift.noisy(LABELS, CLIENTS[:4], rates[:4], _K, seed=1)
  for indices in CLIENTS[:4]:
    np.testing.assert_array_equal(fewer[indices], noisy[indices])
  rest = np.concatenate(CLIENTS[4:])
  np.testing.assert_array_equal(fewer[rest], LABELS[rest])
  again = label_shift.noisy(LABELS, CLIENTS, rates, _K, seed=2)
  assert (again != noisy).mean() > .3


def test_groups_permute_their_labels():
  found = label_shift.permutations(4, _K, seed=0)
  assert found[0].tolist() == list(range(_K))
  assert len({tuple(row) for row in found}) == 4
  assert (np.sort(found, 1) == np.arange(_K)).all()
  np.testing.assert_array_equal(found[:3], label_shift.permutations(3, _K, 0))
  assert (found != label_shift.permutations(4, _K, seed=1)).any()
  new = label_shift.permuted(LABELS, CLIENTS, 4, _K, seed=0)
  for client, indices in enumerate(CLIENTS):
    for index in indices[:50]:
      assert new[index] == found[client % 4][LABELS[index]]
  # All permutations of few classes are found, and no more.
  assert len({tuple(row) for row in label_shift.permutations(6, 3, 0)}) == 6
  with pytest.raises(UserError, match=(
      'num_groups must be at most 6, .*3 classes; got 7')):
    label_shift.permutations(7, 3, 0)
  with pytest.raises(UserError, match='at least 2 classes'):
    label_shift.noisy(LABELS, CLIENTS, [0] * _C, 1, 0)


def test_the_training_labels_of_a_federation_are_shifted(digits):
  config = dataclasses.replace(
      CONFIG, labels='shift(groups=2, noise_rate=.5, noise_form=localized)',
      seed=5, partition_seed=4)
  federation = build.federation(config, digits)
  plain = build.federation(dataclasses.replace(
      CONFIG, seed=7, partition_seed=4), digits)
  assert plain.data.train_labels is digits.train_labels
  for mine, theirs in zip(federation.clients, plain.clients, strict=True):
    np.testing.assert_array_equal(mine, theirs)
  expected = label_shift.noisy(
      label_shift.permuted(digits.train_labels, plain.clients, 2, 10, seed=4),
      plain.clients, np.linspace(0, .5, 6), 10, seed=4)
  np.testing.assert_array_equal(federation.data.train_labels, expected)
  np.testing.assert_array_equal(
      federation.data.test_labels, digits.test_labels)
  first = plain.clients[0]
  np.testing.assert_array_equal(expected[first], digits.train_labels[first])


def test_hostile_clients_flip_the_labels_that_they_have(digits):
  """After noise and shift; the seed of the split draws the clients."""
  config = dataclasses.replace(
      CONFIG, labels='shift(groups=2, noise_rate=.5)', partition_seed=4,
      attack='label_flip(attackers=.5)')
  honest = split.make(dataclasses.replace(config, attack='none'), digits)
  hostile = []
  for seed in 5, 7:
    found = build.federation(dataclasses.replace(config, seed=seed), digits)
    flips = [np.array_equal(labels, expected) for labels, expected in (
        (found.data.train_labels[i], 9 - honest.train_labels[i])
        for i in honest.clients)]
    keeps = [np.array_equal(
        found.data.train_labels[i], honest.train_labels[i])
             for i in honest.clients]
    assert sum(flips) == sum(keeps) == 3
    hostile.append(np.flatnonzero(flips).tolist())
  assert hostile[0] == hostile[1] == attackers.configured(config)
  # Those that send other updates are the same clients.
  sends = dataclasses.replace(
      config, attack='sign_flip(attackers=.5)', labels='shift', seed=9)
  attack = registry.attack_of(sends)
  np.testing.assert_array_equal(hostile[0], np.flatnonzero(attackers.drawn(
      attack.num_attackers, attack.num_clients,
      attack.hparams['attack_seed'])))


@pytest.mark.parametrize('flag', [
    {'labels': 'noise(rate=.1)'}, {'labels': 'shift'},
    {'attack': 'label_flip(attackers=.5)'}])
def test_shared_examples_are_refused(flag, digits, monkeypatch):
  monkeypatch.setattr(
      split, '_partition', lambda *_: [np.arange(9), np.arange(8, 20)])
  config = dataclasses.replace(CONFIG, num_clients=2, **flag)
  with pytest.raises(UserError, match=(
      'must not change labels of clients that share')):
    split.make(config, digits)


@pytest.mark.parametrize('flag', [
    {'labels': 'noise(rate=.1)'}, {'attack': 'label_flip(attackers=.5)'},
    {'partition': 'dirichlet'}])
def test_labels_that_are_no_classes_are_refused(flag, digits):
  """Another partition is a remedy only for a partition."""
  prices = digits._replace(
      train_labels=digits.train_labels / np.float32(3), task='regression')
  config = dataclasses.replace(CONFIG, **{'partition': 'iid', **flag})
  with pytest.raises(UserError, match='whose labels are no classes') as error:
    split.make(config, prices)
  is_named = 'partition=iid, quantity or natural' in str(error.value)
  assert is_named == ('partition' in flag)


@pytest.mark.parametrize('kind', ['i1', 'u1', 'i2'])
def test_new_labels_may_exceed_the_type_of_the_old_ones(kind):
  """The examples have the first classes of 300 only."""
  labels, clients = np.arange(100) % 90, [np.arange(50), np.arange(50, 100)]
  for change in (
      lambda y: label_shift.noisy(y, clients, [1., 1.], 300, seed=0),
      lambda y: label_shift.permuted(y, clients, 2, 300, seed=0),
      lambda y: label_shift.flipped(y, clients, [1], 300)):
    expected = change(labels)
    assert expected.max() > 255
    np.testing.assert_array_equal(change(labels.astype(kind)), expected)
