"""What a run keeps is counted, and what does not fit is refused with advice."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import cohort
from moon_jax.data import sources
from moon_jax.distributed import host
from moon_jax.errors import UserError
from moon_jax.simulation import build
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.simulation import Simulation

CONFIG = Config(
    dataset='digits', model='mlp', partition='iid', num_clients=100,
    algorithm='moon', num_rounds=3, local_epochs=1, batch_size=4,
    projection_dim=8, lanes=2, checkpoint_every=0)


@pytest.fixture(scope='module')
def dataset():
  return sources.load('digits', '')


@pytest.fixture
def simulate(dataset):
  """Returns the simulation of a changed configuration."""
  def make(**changes):
    config = dataclasses.replace(CONFIG, **changes)
    return Simulation(build.federation(config, dataset))

  return make


class Checked(Exception):
  """Ends a simulation before it takes memory."""


@pytest.fixture
def made(simulate, monkeypatch):
  """Returns the RoundSpec of a changed configuration."""
  def check(run):
    raise Checked(run)

  def make(**changes):
    with monkeypatch.context() as patch, pytest.raises(Checked) as found:
      patch.setattr(memory_lib, 'check', check)
      simulate(**changes)
    return found.value.args[0]

  return make


def sizes(parts):
  return {part.name: part.size for part in parts}


def nbytes(tree):
  return sum(x.nbytes for x in jax.tree.leaves(tree))


def test_parts_are_as_large_as_the_arrays(made, simulate, dataset):
  simulation, run = simulate(), made()
  table = simulation.planner.plan(0)
  train = nbytes([dataset.train_inputs, dataset.train_labels])
  test = nbytes([dataset.test_inputs, dataset.test_labels])
  assert sizes(memory_lib.on_host(run)) == {
      'client state of 100 sampled clients': nbytes(simulation.state.clients),
      'client state of 100 clients copied for a checkpoint': 0,
      'training examples': train, 'test examples': test}
  on_device = sizes(memory_lib.on_device(run))
  assert on_device['models'] == nbytes(simulation.state.variables)
  assert on_device["the round's table"] == table.examples_TLB.nbytes // 2
  assert on_device['client state of a round, before and after it'] == (
      2 * run.client_bytes * len(table.jobs.run) // 2)
  of_device = sizes(memory_lib.data_on_device(run))
  assert of_device['training examples'] == train
  # The batches that devices share are padded.
  batches = nbytes(simulation._evaluator.test_data[:2])
  assert test <= 2 * of_device['test examples'] + 1 <= batches + 1
  # Cores share one copy of the training examples, which the host has.
  assert sizes(memory_lib.data_of_cores(run, 2)) == {
      "examples of a round's clients": 0, 'test examples in batches': test}


def test_data_are_counted_where_they_are_copied(made, dataset):
  run = made(shard_data=True, participation=.1, client_eval_every=1)
  share = run.shard_size / len(dataset.train_labels)
  assert 0 < share < .5
  train = nbytes([dataset.train_inputs, dataset.train_labels])
  test = nbytes([dataset.test_inputs, dataset.test_labels])
  assert sizes(memory_lib.data_on_device(run)) == {
      'training examples': int(share * train), 'test examples': test}
  assert sizes(memory_lib.data_of_cores(run, 3)) == {
      "examples of a round's clients": 3 * int(share * train),
      'test examples in batches': 4 * test}


def test_examples_in_a_file_take_no_memory(made, dataset, tmp_path):
  np.save(tmp_path / 'x.npy', dataset.train_inputs)
  run = made(shard_data=True, participation=.1)
  in_file = dataset._replace(
      train_inputs=np.load(tmp_path / 'x.npy', mmap_mode='r'))
  run_in_file = run._replace(
      federation=dataclasses.replace(run.federation, data=in_file))
  host, host_in_file = (sizes(memory_lib.on_host(r))
                        for r in (run, run_in_file))
  assert host.pop('training examples') > 10**6
  assert host_in_file.pop('training examples') == 0 and host == host_in_file
  cores, cores_in_file = (memory_lib.data_of_cores(r, 2)
                          for r in (run, run_in_file))
  assert sizes(cores) == sizes(cores_in_file)
  assert cores[0].remedies(.5) == ['give --noshard_data']
  assert cores_in_file[0].remedies(.5) == []


def test_only_clients_that_are_sampled_need_memory(made):
  config = dataclasses.replace(CONFIG, participation=.1)
  cohorts = cohort.make(config)
  sampled = len(set().union(*cohorts))
  assert 10 < sampled < 31
  run = made(participation=.1)
  assert run.num_stateful == sampled
  # More rounds are listed than are run.
  listed = dataclasses.replace(
      run.federation, cohorts=cohorts + [[98, 99]])
  assert run._replace(federation=listed).num_stateful == sampled
  first = dataclasses.replace(
      listed, config=dataclasses.replace(config, num_rounds=1))
  assert run._replace(federation=first).num_stateful == 10
  # Models of their own take memory from the start.
  assert made(participation=.1, algorithm='solo').num_stateful == 100


def largest(parts):
  return max(parts, key=lambda part: part.size)


@pytest.mark.parametrize('changes, part, flags', [
    (dict(), 'client state of a round, before and after it',
     {'num_clients', 'participation'}),
    (dict(participation=.1, num_rounds=80),
     'client state of 100 sampled clients',
     {'client_state', 'num_clients', 'participation', 'num_rounds'}),
    (dict(participation=.1, num_rounds=80, num_negatives=9),
     'client state of 100 sampled clients',
     {'client_state', 'num_clients', 'participation', 'num_rounds',
      'num_negatives'}),
    (dict(participation=.1, checkpoint_every=1),
     'client state of 100 clients copied for a checkpoint',
     {'client_state', 'checkpoint_every', 'num_clients'}),
    (dict(participation=.1, algorithm='solo', mu=0.),
     'client state of 100 clients', {'num_clients'}),
    (dict(algorithm='fedavg', projection_dim=20_000), 'models',
     {'projection_dim'}),
    (dict(algorithm='fedavg', client_eval_every=1), 'models',
     {'client_eval_every'}),
    (dict(algorithm='fedavg', local_epochs=600), "the round's table",
     {'local_epochs'}),
])
def test_a_remedy_names_flags_that_are_enough(changes, part, flags, made,
                                              monkeypatch):
  """A machine has a little more than half of what the largest part takes."""
  run = made(**changes)
  needs = [*memory_lib.on_host(run),
           *memory_lib.data_of_cores(run, 2),
           *[p._replace(size=2 * p.size)
             for p in memory_lib.on_device(run)]]
  assert largest(needs).name == part
  have = sum(p.size for p in needs) - .45 * largest(needs).size
  monkeypatch.setattr(host, 'machine_bytes', lambda: have)
  with pytest.raises(UserError) as error:
    memory_lib.check(run)
  said = str(error.value)
  assert said.count('\n') == 0 and f' GB of {part}: ' in said
  found = dict(re.findall(r'--(\w+)=[\d.]+ to (\d+)', said))
  found |= dict(re.findall(r'give --(\w+)=(\d+)', said))
  assert set(re.findall(r'--(\w+)', said)) == flags
  if so_many := re.search(r'so that (?:at most )?(\d+) clients', said):
    found['num_clients'] = so_many[1]
  assert found
  found |= dict(re.findall(r'--(client_state)=(\w+)', said))
  for name, value in found.items():
    monkeypatch.setattr(host, 'machine_bytes', lambda: have)
    smaller = made(**changes | {name: value if value == 'disk' else int(value)})
    memory_lib.check(smaller)


def test_held_out_examples_are_counted(made, dataset, monkeypatch):
  """The remedy is enough."""
  assert not memory_lib.held_out(made())
  changes = dict(algorithm='fedavg', client_eval_every=1,
                 client_test_fraction=.5)
  run = made(**changes)
  tests = run.federation.client_tests
  index = np.concatenate(tests.indices)
  (part,) = memory_lib.held_out(run)
  assert part.size == nbytes(
      [dataset.train_inputs[index], dataset.train_labels[index]])
  advice = part.remedies(.6)
  assert advice == ['lower --client_test_fraction=0.5 to 0.3']
  (less,) = memory_lib.held_out(made(**changes | {'client_test_fraction': .3}))
  assert less.size <= .6 * part.size
  for clear in True, False:
    needs = [*memory_lib.on_host(run), *memory_lib.data_of_cores(run, 2)]
    have = sum(p.size for p in needs) + 2 * sum(
        p.size for p in memory_lib.on_device(run))
    monkeypatch.setattr(host, 'machine_bytes', lambda: have - (not clear))
    if clear:
      memory_lib.check(run)
    else:
      with pytest.raises(UserError, match='held-out examples of clients 0.0'):
        memory_lib.check(run)


def test_local_models_are_counted(made):
  models = lambda **changes: next(
      part for part in memory_lib.on_device(made(**changes))
      if part.name == 'models')
  kept = models(save_local_models=True)
  assert kept.size == models(client_eval_every=1).size > models().size
  assert 'give --nosave_local_models' in kept.remedies(.9)
  both = models(save_local_models=True, client_eval_every=1)
  assert 'give --client_eval_every=0 --nosave_local_models' in (
      both.remedies(.9))


def test_clients_that_can_be_sampled_are_counted(made, monkeypatch):
  """Lowering any of three flags helps; how many clients fit is said."""
  run = made(participation=.1, num_rounds=20)
  needs = sum(part.size for part in [
      *memory_lib.on_host(run),
      *memory_lib.data_of_cores(run, 2)]) + 2 * sum(
          part.size for part in memory_lib.on_device(run))
  most = run.num_stateful - 5
  monkeypatch.setattr(
      host, 'machine_bytes', lambda: needs - 4.5 * run.client_bytes)
  with pytest.raises(UserError, match=(
      r'lower --num_clients=100, --participation=0.1 or --num_rounds=20, so '
      rf'that at most {most} clients are sampled')):
    memory_lib.check(run)
  monkeypatch.setattr(host, 'machine_bytes', lambda: needs)
  memory_lib.check(run)


def test_a_device_is_advised_of_its_own(made, monkeypatch):
  """Where devices have memory of their own; of what the host has nothing."""
  run = made(participation=.1, local_epochs=1, algorithm='fedavg')
  parts = [*memory_lib.on_device(run),
           *memory_lib.data_on_device(run)]
  assert largest(parts).name == 'training examples'
  need = sum(part.size for part in parts)
  monkeypatch.setattr(memory_lib, '_device', lambda: need)
  memory_lib.check(run)
  monkeypatch.setattr(
      memory_lib, '_device', lambda: need - .5 * largest(parts).size)
  with pytest.raises(UserError, match='each device has .*: training examples'
                     ) as error:
    memory_lib.check(run)
  assert set(re.findall(r'--(\w+)', str(error.value))) == {'shard_data'}
  # So little that two parts must shrink.
  monkeypatch.setattr(memory_lib, '_device', lambda: need / 100)
  with pytest.raises(UserError, match='of training .* of models: '):
    memory_lib.check(run)
  monkeypatch.setattr(memory_lib, '_device', lambda: need)
  monkeypatch.setattr(host, 'machine_bytes', lambda: need / 10)
  with pytest.raises(UserError, match='the host has'):
    memory_lib.check(run)


def test_a_control_group_limits_the_memory(made, monkeypatch):
  """A container has less memory than the machine."""
  run = made()
  need, = memory_lib.needs(run)
  monkeypatch.setattr(host, 'cgroup_bytes', lambda: need.size)
  memory_lib.check(run)
  monkeypatch.setattr(host, 'cgroup_bytes', lambda: need.size - 1)
  with pytest.raises(UserError, match=r'the machine \(limited by its cgroup\)'):
    memory_lib.check(run)


def test_test_examples_can_be_fewer(made, monkeypatch):
  run = made(algorithm='fedavg')
  data = run.federation.data
  inputs = data.test_inputs
  many = run._replace(federation=dataclasses.replace(
      run.federation, data=data._replace(
          test_inputs=inputs.repeat(100, 0),
          test_labels=data.test_labels.repeat(100))))
  monkeypatch.setattr(host, 'machine_bytes', lambda: inputs.nbytes * 120)
  with pytest.raises(UserError, match='give --eval_examples=([0-9]+)') as error:
    memory_lib.check(many)
  most = int(re.search(r'eval_examples=(\d+)', str(error.value))[1])
  memory_lib.check(many._replace(federation=dataclasses.replace(
      many.federation, eval_examples=most)))


def test_examples_that_each_run_has_are_counted_for_each(made):
  """Runs share training and test examples, but not validation examples."""
  run, other = (made(validation_fraction=fraction, client_eval_every=1)
                for fraction in (.1, .2))
  one, two, both = (sizes(memory_lib.needs(*runs)[0].parts)
                    for runs in ((run,), (other,), (run, other)))
  assert {name for name in both if both[name] == one.get(name, 0) + (
      two.get(name, 0))} >= {'validation examples', 'models'}
  assert both['test examples in batches'] == one['test examples in batches']
  assert both['training examples'] == one['training examples']
