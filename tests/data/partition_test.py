"""Partitions: published ones index for index, and properties of all."""

import dataclasses
import importlib
import json
import pathlib

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import partition
from moon_jax.errors import UserError
from moon_jax.simulation import build
from support import golden

LABELS = np.repeat(np.arange(10), 100)


def test_equals_published_partitions(golden_partitions):
  for labels, case, sizes, indices_digest in golden_partitions:
    if case['partition'] == 'iid':
      actual = partition.iid(len(labels), case['clients'], case['seed'])
    else:
      actual = partition.dirichlet(
          labels, case['clients'], case['beta'], case['seed'])
    np.testing.assert_array_equal([len(i) for i in actual], sizes)
    assert golden.indices_digest(np.concatenate(actual)) == indices_digest


@pytest.mark.parametrize('dataset, deviation', [
    ('cifar10', 1165), ('cifar100', 181), ('tiny_imagenet', 99)])
def test_paper_partition(golden_dir, dataset, deviation):
  """Supplement, Table 1: 10 clients, beta 0.5."""
  labels = (np.load(golden_dir / 'partitions.npz')[f'{dataset}/labels']
            if 'cifar' in dataset else np.repeat(np.arange(200), 500))
  sizes = [len(i) for i in partition.dirichlet(labels, 10, .5, 0)]
  assert np.mean(sizes) == len(labels) / 10
  assert round(np.std(sizes)) == deviation


def released_dirichlet(labels, num_clients, beta, seed):
  """partition_data of the released code."""
  random, least = np.random.RandomState(seed), 0
  while least < 10:
    clients = [[] for _ in range(num_clients)]
    for k in range(labels.max() + 1):
      indices = np.where(labels == k)[0]
      random.shuffle(indices)
      p = random.dirichlet(np.repeat(beta, num_clients))
      p = np.array([share * (len(client) < len(labels) / num_clients)
                    for share, client in zip(p, clients)])
      p = p / p.sum()
      cuts = (np.cumsum(p) * len(indices)).astype(int)[:-1]
      clients = [client + piece.tolist() for client, piece in zip(
          clients, np.split(indices, cuts))]
      least = min(map(len, clients))
  for client in clients:
    random.shuffle(client)
  return clients


@pytest.mark.parametrize('counts, num_clients, beta', [
    ((30, 20, 10), 2, .3),  # small, so a client can reach its limit exactly
    ((20, 20), 2, .1), ((15, 15, 15), 3, .5), ((40, 7, 30), 4, 1.)])
def test_dirichlet_equals_the_released_code(counts, num_clients, beta):
  labels = np.repeat(np.arange(len(counts)), counts)
  for seed in range(40):
    actual = partition.dirichlet(labels, num_clients, beta, seed)
    assert [list(i) for i in actual] == released_dirichlet(
        labels, num_clients, beta, seed)


def released_exdir(labels, num_clients, num_classes, c, alpha, seed):
  """ExDirPartitioner of liyipeng00/convergence, commit 5972d5c."""
  random = np.random.RandomState(seed)
  least = 0
  while least < max(c * num_clients // num_classes // 5, 1):
    owners = [[] for _ in range(num_classes)]
    for i in range(num_clients):
      for k in random.choice(range(num_classes), c, replace=False):
        owners[k].append(i)
    least = min(map(len, owners))
  least = 0
  while least < 10:
    clients = [[] for _ in range(num_clients)]
    for k in range(num_classes):
      indices = np.where(labels == k)[0]
      random.shuffle(indices)
      p = random.dirichlet(np.repeat(alpha, num_clients))
      p = np.array([
          share * (len(client) < len(labels) / num_clients and i in owners[k])
          for i, (share, client) in enumerate(zip(p, clients))])
      if not p.sum():  # it goes on with NaN
        break
      cuts = (np.cumsum(p / p.sum()) * len(indices)).astype(int)[:-1]
      cuts[owners[k][-1]:] = len(indices)
      clients = [client + piece.tolist() for client, piece in zip(
          clients, np.split(indices, cuts))]
      least = min(map(len, clients))
    else:
      continue
    least = 0
  for client in clients:
    random.shuffle(client)
  return clients


@pytest.mark.parametrize('num_clients, c, alpha', [
    (6, 2, .5), (8, 3, 1.), (5, 4, 10.)])
def test_extended_dirichlet_equals_the_released_code(num_clients, c, alpha):
  labels = np.random.RandomState(1).permutation(np.repeat(np.arange(5), 90))
  for seed in range(8):
    actual = partition.extended_dirichlet(labels, num_clients, c, alpha, seed)
    assert [i.tolist() for i in actual] == released_exdir(
        labels, num_clients, 5, c, alpha, seed)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 10), st.integers(0, 2**31 - 1))
def test_pathological_clients_have_the_same_number_of_classes(
    num_clients, per_client, seed):
  if num_clients * per_client < 10:
    with pytest.raises(UserError, match='classes_per_client'):
      partition.pathological(LABELS, num_clients, per_client, seed)
    return
  clients = partition.pathological(LABELS, num_clients, per_client, seed)
  assert {len(set(LABELS[i])) for i in clients} == {per_client}
  owners = np.bincount(
      np.concatenate([np.unique(LABELS[i]) for i in clients]))
  assert np.ptp(owners) <= 1  # of a class
  counts = np.stack([np.bincount(LABELS[i], minlength=10) for i in clients])
  for k in range(10):  # who has a class has an equal share of it
    assert np.ptp(counts[counts[:, k] > 0, k]) <= 1
  np.testing.assert_array_equal(
      np.sort(np.concatenate(clients)), np.arange(1000))


@pytest.mark.parametrize('function', [
    partition.pathological, partition.extended_dirichlet])
def test_classes_without_training_examples_do_not_count(function):
  """As in a part of the data; the others may have any numbers."""
  labels = LABELS[(LABELS != 4) & (LABELS != 7)]
  found = function(labels, 16, 2, seed=0)
  numbered = np.unique(labels, return_inverse=True)[1]
  for own, expected in zip(
      found, function(numbered, 16, 2, seed=0), strict=True):
    np.testing.assert_array_equal(own, expected)
    assert len({*labels[own]}) <= 2


def test_a_class_with_too_few_examples_has_its_own_number():
  labels = np.append(np.repeat([0, 1, 2], 100), [9])
  with pytest.raises(UserError, match='clients of class 9 gets one of its 1 '):
    partition.pathological(labels, 6, 2)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 900), st.sampled_from([1e-30, 1e-3, .1, 1., 1e3]),
       st.integers(0, 2**31 - 1))
def test_client_dirichlet_always_has_a_split(num_clients, beta, seed):
  labels = LABELS[LABELS != 4]  # a class without examples
  clients = partition.client_dirichlet(labels, num_clients, beta, seed)
  assert np.ptp(clients.sizes) <= 1
  np.testing.assert_array_equal(
      np.sort(clients.indices), np.arange(len(labels)))


def concentration(mix_CK):
  """Returns the mean over clients of the sum of squared shares of classes."""
  mix_CK = mix_CK / mix_CK.sum(1, keepdims=True)
  return (mix_CK**2).sum(1).mean()


def test_the_first_examples_have_the_mix_of_a_dirichlet():
  """While no class has run out, in closed form: of n draws of K classes with
  q ~ Dir(beta), E sum_k (n_k / n)^2 = 1/n + (1 - 1/n) (beta + 1)/(K beta + 1).
  """
  q = np.random.RandomState(0).dirichlet([.5] * 4, 4000)
  takers = np.repeat(np.arange(4000), 10)
  classes = partition._drawn_classes(
      q, np.full(4, 10**6), takers.tolist(),
      np.random.RandomState(1).random_sample(len(takers)).tolist())
  counts = np.stack([np.bincount(x, minlength=4)
                     for x in classes.reshape(-1, 10)])
  expected = .1 + .9 * 1.5 / 3
  assert abs(concentration(counts) - expected) < .008  # 3 standard errors


def test_the_mix_of_clients_is_that_of_flwr_datasets():
  """Of its InnerDirichletPartitioner, means over seeds that golden/ keeps."""
  golden_file = pathlib.Path(__file__).parent / 'golden/flwr_datasets.json'
  for case in json.loads(golden_file.read_text())['inner_dirichlet']:
    values = [concentration(np.stack([
        np.bincount(LABELS[i], minlength=10)
        for i in partition.client_dirichlet(
            LABELS, case['clients'], case['alpha'], seed)]))
              for seed in range(100)]
    error = np.hypot(np.std(values) / 10, case['standard_error'])
    assert abs(np.mean(values) - case['mean']) < 4 * error


def test_partitioners_of_flwr_datasets():
  """Its classes make the splits, index for index."""
  library = pytest.importorskip('flwr_datasets.partitioner')
  import datasets

  for call, made in (
      ('PathologicalPartitioner(num_classes_per_partition=2)',
       library.PathologicalPartitioner(6, 'label', 2, seed=5)),
      ('DirichletPartitioner(alpha=0.5, min_partition_size=3)',
       library.DirichletPartitioner(6, 'label', .5, 3, seed=5)),
      ('InnerDirichletPartitioner(alpha=0.5)',
       library.InnerDirichletPartitioner(
           [167] * 4 + [166] * 2, 'label', .5, seed=5)),
      ('IidPartitioner', library.IidPartitioner(6)),
      ('NaturalIdPartitioner', library.NaturalIdPartitioner('owner'))):
    owners = np.arange(1000) % 6
    made.dataset = datasets.Dataset.from_dict({
        'label': LABELS, 'owner': owners, 'index': np.arange(1000)})
    actual = partition.flower(LABELS, 6, call, 5, owners)
    for i, indices in enumerate(actual):
      assert indices.tolist() == list(made.load_partition(i)['index'])
  for call, words in (('NoPartitioner', 'DirichletPartitioner'),
                      ('DirichletPartitioner(alpha=-1)', 'Alpha'),
                      ('NaturalIdPartitioner', 'num_clients must be the 6')):
    with pytest.raises(UserError, match=words):
      partition.flower(LABELS, 5, call, 5, np.arange(1000) % 6)


def test_flower_names_its_package(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(UserError, match=r"flwr_datasets.*'moon_jax\[flower\]'"):
    partition.flower(LABELS, 5, 'IidPartitioner', 0)


def test_clients_of_a_domain_share_it():
  domain = np.repeat([0, 1, 2], [30, 20, 10])
  clients = partition.domains(domain, 7, 0, ['mnist', 'usps', 'svhn'])
  assert clients.names == ('mnist 0', 'mnist 1', 'mnist 2', 'usps 0', 'usps 1',
                           'svhn 0', 'svhn 1')
  assert clients.sizes.tolist() == [10, 10, 10, 10, 10, 5, 5]
  assert [set(domain[i]) for i in clients] == [{0}] * 3 + [{1}] * 2 + [{2}] * 2
  assert sorted(clients.indices) == list(range(60))
  for actual, expected in zip(partition.domains(domain, 3, 0),
                              partition.natural(domain, 3, 0)):
    np.testing.assert_array_equal(actual, expected)
  with pytest.raises(UserError, match='at least the 3 domains.*got 2'):
    partition.domains(domain, 2, 0)


def test_periods_are_in_the_order_of_the_data_set():
  clients = partition.temporal(11, 3)
  assert [i.tolist() for i in clients] == [
      [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


PARTITIONS = {
    'iid': lambda clients, beta, seed: partition.iid(1000, clients, seed),
    'dirichlet': lambda *args: partition.dirichlet(LABELS, *args),
    'quantity': lambda *args: partition.quantity(1000, *args)}


@pytest.mark.parametrize('name', PARTITIONS)
@settings(max_examples=50, deadline=None)
@given(st.integers(1, 50), st.floats(.1, 100), st.integers(0, 2**32 - 1))
def test_each_example_is_assigned_once(name, clients, beta, seed):
  try:
    actual = PARTITIONS[name](clients, beta, seed)
  except UserError as error:
    assert name != 'iid' and 'seed' not in str(error)
    return  # some settings have no split; see below
  sizes = [len(i) for i in actual]
  assert len(sizes) == clients and min(sizes) >= partition.MIN_EXAMPLES
  assert name != 'iid' or max(sizes) - min(sizes) <= 1
  np.testing.assert_array_equal(
      np.sort(np.concatenate(actual)), np.arange(1000))


def test_two_shards_per_client():
  """With 2 shards of 5 examples, 100 clients have one or two classes."""
  labels = LABELS[::-1].copy()
  actual, other = (partition.shards(labels, 100, 2, seed) for seed in (0, 1))
  assert {len(i) for i in actual} == {10}
  classes = [len(set(labels[i])) for i in actual]
  assert set(classes) == {1, 2} and np.mean(classes) > 1.8
  assert any((a != b).any() for a, b in zip(actual, other))
  with pytest.raises(UserError, match=(
      'num_clients=100 times it is at most .*got 11')):
    partition.shards(LABELS, 100, 11, 0)


def test_clients_may_have_the_minimum_number_of_examples():
  """The released code accepts a split whose smallest client has 10 examples."""
  minimum = partition.MIN_EXAMPLES
  assert minimum == 10
  smallest = lambda clients: min(map(len, clients))
  assert smallest(partition.iid(7, 7, 0)) == 1
  assert smallest(partition.quantity(minimum, 1, .5, 0)) == minimum
  skewed = [len(i) for i in partition.quantity(10_000, 10, .5, 0)]
  assert max(skewed) > 4 * min(skewed)
  assert smallest(
      partition.dirichlet(np.zeros(minimum, int), 1, .5, 0)) == minimum
  drawn = {smallest(partition.dirichlet(LABELS, 40, .5, seed))
           for seed in range(20)}
  assert min(drawn) == minimum


def test_natural_uses_the_clients_of_the_data_set():
  clients = np.array([3, 1, 3, 0, 1, 3, 2])
  actual = partition.natural(clients, 4, 0)
  assert [list(i) for i in actual] == [[3], [1, 4], [6], [0, 2, 5]]
  some = [tuple(i) for i in partition.natural(clients, 2, 0)]
  assert set(some) < {(3,), (1, 4), (6,), (0, 2, 5)}
  draws = {tuple(map(tuple, partition.natural(clients, 2, seed)))
           for seed in range(20)}
  assert len(draws) > 3
  with pytest.raises(UserError, match=(
      'num_clients must be at most the 4 clients')):
    partition.natural(clients, 5, 0)
  with pytest.raises(UserError, match='=natural needs .*got one without'):
    partition.natural(None, 2, 0)


def test_noise_increases_with_the_client_index():
  clients = [np.array([0, 3]), np.array([1]), np.array([5])]
  std = partition.noise_std(clients, .4, 6)
  np.testing.assert_allclose(std, [0, .2, 0, 0, 0, .4], rtol=1e-6)
  assert not partition.noise_std([np.arange(4)], .4, 4).any()


@pytest.mark.parametrize('clients, beta, words', [
    (101, .5, 'num_clients must be at most 100, so that .*got 101. Lower it'),
    (1.5, .5, 'num_clients must be an integer; got 1.5'),
    (10, -1, 'beta must be above 0; got -1'),
    (100, .1,
     'beta must give a split in 1000 .*got 0.1'),  # each would need exactly 10
    (10, 1e-6, 'beta must give a split .*got 1e-06'),  # proportions underflow
])
def test_impossible_splits_raise(clients, beta, words):
  """The released code never returns."""
  with pytest.raises(UserError, match=words):
    partition.dirichlet(LABELS, clients, beta, 0)
  with pytest.raises(UserError, match='beta must give a split .*got 1e-06'):
    partition.quantity(1000, 10, 1e-6, 0)


def test_sorting_by_class_is_stable():
  labels = np.array([2, 0, 1, 0, 2, 1])
  clients = [np.array([4, 3, 0, 1]), np.array([5, 2]), np.array([], int)]
  actual = partition.sorted_by_class(clients, labels)
  assert [indices.tolist() for indices in actual] == [[3, 1, 4, 0], [5, 2], []]


@pytest.mark.parametrize('kind', ['u1', 'i2', 'u8'])
def test_labels_of_any_integer_type_give_the_same_split(kind):
  """The largest class, and the numbers of all clients, fit in one byte."""
  classes = np.repeat(np.arange(256), 20)
  small, forty = classes.astype(kind), np.array(40, kind)[()]
  for make in (lambda y, n: partition.dirichlet(y, n, beta=.5, seed=0),
               lambda y, n: partition.shards(y, n, 100, seed=0),
               lambda y, n: partition.natural(y, n, seed=0),
               lambda y, n: partition.iid(len(y), n, seed=0),
               lambda y, n: partition.quantity(len(y), n, beta=9., seed=0)):
    for found, expected in zip(make(small, forty), make(classes, 40),
                               strict=True):
      np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize('make', [
    partition.dirichlet, partition.client_dirichlet])
def test_classes_below_0_are_refused(make):
  """Examples of class -1 would be in no client."""
  with pytest.raises(UserError, match='number the classes from 0; got -1'):
    make(LABELS - 1, 5, .5, 0)


@pytest.mark.parametrize('groups', [1, 3, 5])
def test_images_are_turned_in_two_or_four_groups(groups):
  with pytest.raises(UserError, match=f'must be 2 or 4.*got {groups}'):
    partition.turned(np.zeros((6, 8, 8, 1)), [np.arange(6)], groups)


def test_images_of_groups_are_turned(digits):
  """Held-out examples too, and nothing else."""
  config = Config(
      dataset='digits', model='mlp', algorithm='fedavg', num_clients=6,
      partition='rotated', client_test_fraction=.2, client_eval_every=1,
      validation_fraction=.1)
  made = build.federation(config, digits)
  assert made.groups.tolist() == [0, 1, 2, 3, 0, 1]
  seen = np.zeros(len(digits.train_labels), int)
  for client in range(6):
    for at in [*made.clients[client], *made.client_tests.indices[client]]:
      image = digits.train_inputs[at]
      for _ in range(client % 4):  # counterclockwise
        image = image.swapaxes(0, 1)[::-1]
      np.testing.assert_array_equal(made.data.train_inputs[at], image)
      seen[at] += 1
  assert seen.max() == 1
  assert (seen == 0).sum() == len(made.validation)
  for name in 'train_inputs', 'test_inputs':
    one, other = getattr(made.data, name), getattr(digits, name)
    kept = seen == 0 if name == 'train_inputs' else slice(None)
    np.testing.assert_array_equal(one[kept], other[kept])
  both = dataclasses.replace(
      config, labels='shift(groups=3)', partition='rotated(groups=2)')
  assert build.federation(both, digits).groups.tolist() == [*range(6)]
  for changes, words in (
      ({'partition': 'rotated(groups=3)'}, 'groups must be 2 or 4'),
      ({'dataset': 'breast_cancer'}, 'needs square images .* got inputs')):
    with pytest.raises(UserError, match=words):
      build.federation(dataclasses.replace(config, **changes))
