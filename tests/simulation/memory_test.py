"""What a run keeps is counted, and what does not fit is refused with advice."""

import dataclasses
import re

import jax
import numpy as np
import pytest
import tiny_federation

from moon_jax.config import Config
from moon_jax.data import cohort
from moon_jax.distributed import host
from moon_jax.errors import UserError
from moon_jax.simulation import build, round_spec
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.simulation import Simulation

CONFIG = Config(
    dataset='digits', model='mlp', partition='iid', num_clients=100,
    algorithm='moon', num_rounds=3, local_epochs=1, batch_size=4,
    projection_dim=8, lanes=2, checkpoint_every=0)


@pytest.fixture(scope='module')
def made(digits):
  """Returns the RoundSpec of a changed configuration."""
  return lambda **changes: round_spec.alone(build.federation(
      dataclasses.replace(CONFIG, **changes), digits))


def sizes(parts):
  return {part.name: part.size for part in parts if part.size}


def nbytes(tree):
  return sum(x.nbytes for x in jax.tree.leaves(tree))


def test_parts_are_as_large_as_the_arrays(made, digits):
  run = made()
  simulation = Simulation(run.federation)
  table = simulation.planner.plan(0)
  train = nbytes([digits.train_inputs, digits.train_labels])
  test = nbytes([digits.test_inputs, digits.test_labels])
  assert sizes(memory_lib.on_host(run)) == {
      'client state of 100 sampled clients': nbytes(simulation.state.clients),
      'training examples': train, 'test examples': test}
  on_device = sizes(memory_lib.on_device(run))
  assert on_device['models'] == nbytes(simulation.state.variables)
  assert on_device["the round's table"] == table.examples_TLB.nbytes // 2
  assert on_device['client state of a round, before and after it'] == (
      2 * run.client_bytes * len(table.jobs.run) // 2)
  of_device = sizes(memory_lib.data_on_device(run))
  assert of_device['training examples'] == train
  # The batches that devices share are padded.
  batches = nbytes(simulation._evaluator._placed['test'][:2])
  assert test <= 2 * of_device['test examples'] + 1 <= batches + 1
  # Cores share one copy of the training examples, which the host has.
  assert sizes(memory_lib.data_of_cores(run, 2)) == {
      'test examples in batches': test}


def test_data_are_counted_where_they_are_copied(made, digits, tmp_path):
  run = made(shard_data=True, participation=.1, client_eval_every=1)
  share = run.shard_size / len(digits.train_labels)
  assert 0 < share < .5
  train = nbytes([digits.train_inputs, digits.train_labels])
  test = nbytes([digits.test_inputs, digits.test_labels])
  assert sizes(memory_lib.data_on_device(run)) == {
      'training examples': int(share * train), 'test examples': test}
  np.save(tmp_path / 'x.npy', digits.train_inputs)
  run_in_file = run._replace(federation=dataclasses.replace(
      run.federation, data=digits._replace(
          train_inputs=np.load(tmp_path / 'x.npy', mmap_mode='r'))))
  on_host, in_file = (sizes(memory_lib.on_host(r)) for r in (run, run_in_file))
  assert 'training examples' not in in_file
  assert on_host == in_file | {'training examples': train}
  for each in run, run_in_file:
    assert sizes(memory_lib.data_of_cores(each, 3)) == {
        "examples of a round's clients": 3 * int(share * train),
        'test examples in batches': 4 * test}


def test_all_examples_that_the_model_is_tested_on_are_counted(made, digits):
  train = nbytes([digits.train_inputs, digits.train_labels])
  for changes in dict(validation_fraction=.2), dict(
      attack='backdoor', validation_fraction=.2):
    run = made(**changes)
    federation = run.federation
    count = len(federation.validation)
    size = train * count // len(digits.train_labels) + nbytes(
        federation.test_sets)
    assert count > 200 and sizes(memory_lib.data_on_device(run))[
        'validation examples and further test sets'] == size // 2
    assert sizes(memory_lib.data_of_cores(run, 2))[
        'validation examples and further test sets'] == size


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


def flags_in(message):
  """Returns changes of settings by the alternatives that a message names."""
  text = re.search('Give (.*)$', message)[1]

  def change(word):
    name, _, text = word.removeprefix('--').partition('=')
    kind = type(getattr(Config, name))
    return name, text == 'True' if kind is bool else kind(text)

  return [dict(map(change, words.split())) for words in text.split(', or ')]


@pytest.mark.parametrize('changes, part, flags', [
    (dict(), 'client state of a round, before and after it',
     {'num_clients', 'participation'}),
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
    (dict(algorithm='fedavg', client_eval_every=1, save_local_models=True,
          client_test_fraction=.1), 'models',
     {'client_eval_every client_test_fraction save_local_models',
      'participation', 'num_clients'}),
    (dict(algorithm='fedavg', local_epochs=600), "the round's table",
     {'local_epochs'}),
])
def test_flags_that_are_enough_are_found(changes, part, flags, made,
                                         monkeypatch):
  """A machine has a little more than half of what the largest part takes."""
  run = made(**changes)
  need, = memory_lib.needs(run)
  largest = max(need.parts, key=lambda part: part.size)
  assert largest.name == part
  have = need.size - .45 * largest.size
  monkeypatch.setattr(host, 'machine_bytes', lambda: have)
  with pytest.raises(UserError, match='GB of memory, but the machine') as error:
    memory_lib.check(run)
  found = flags_in(str(error.value))
  assert {' '.join(option) for option in found} >= flags
  for option in found:
    memory_lib.check(made(**changes | option))
    for name, value in option.items():  # the mildest
      before = getattr(run.federation.config, name)
      if type(value) is int and 1 < value < before // 2 and len(option) == 1:
        assert memory_lib.excess(made(**changes | {name: 2 * value + 1}))


def test_arguments_that_are_enough_are_found_in_python(monkeypatch):
  federation = tiny_federation.make(
      evaluate_clients=True, keep_local_models=True)
  need, = memory_lib.needs(round_spec.alone(federation))
  monkeypatch.setattr(host, 'machine_bytes', lambda: need.size // 2)
  with pytest.raises(UserError, match=(
      'Give evaluate_clients=False keep_local_models=False$')):
    Simulation(federation)


def test_flags_that_are_not_enough_alone_are_not_sought_long(
    made, monkeypatch):
  run = made(algorithm='fedavg', projection_dim=20_000, local_epochs=2000)
  need, = memory_lib.needs(run)
  monkeypatch.setattr(host, 'machine_bytes', lambda: need.size / 4)
  with pytest.raises(UserError, match='No flag alone.* lower several'):
    memory_lib.check(run)
  tried, excess = [], memory_lib.excess
  monkeypatch.setattr(
      memory_lib, 'excess', lambda *runs: tried.append(runs) or excess(*runs))
  monkeypatch.setattr(host, 'machine_bytes', lambda: 10**3)
  with pytest.raises(UserError, match='No flags lower.* more memory'):
    memory_lib.check(run)
  assert len(tried) < 20


def test_held_out_examples_and_local_models_are_counted(made, digits):
  run = made(client_eval_every=1, client_test_fraction=.5)
  index = np.concatenate(run.federation.client_tests.indices)
  need, = memory_lib.needs(run)
  assert sizes(need.parts)['held-out examples of clients'] == nbytes(
      [digits.train_inputs[index], digits.train_labels[index]])
  kept, both, plain = (
      sizes(memory_lib.on_device(r))['models']
      for r in (made(save_local_models=True), run, made()))
  assert kept == both == plain * (1 + run.shape.jobs_per_device)


def test_devices_with_memory_of_their_own(made, monkeypatch):
  """What they need is lowered by other flags; the host is checked, too."""
  run = made(participation=.1, algorithm='fedavg')
  need = sum(part.size for part in [
      *memory_lib.on_device(run), *memory_lib.data_on_device(run)])
  monkeypatch.setattr(memory_lib, '_device', lambda: need)
  memory_lib.check(run)
  monkeypatch.setattr(memory_lib, '_device', lambda: .7 * need)
  with pytest.raises(UserError, match=(
      'each device has .*: training examples.* Give --shard_data=True$')):
    memory_lib.check(run)
  monkeypatch.setattr(memory_lib, '_device', lambda: need)
  monkeypatch.setattr(host, 'machine_bytes', lambda: need / 10)
  with pytest.raises(UserError, match='the host has'):
    memory_lib.check(run)


def test_a_control_group_limits_the_memory(made, monkeypatch):
  run = made()
  need, = memory_lib.needs(run)
  monkeypatch.setattr(host, 'cgroup_bytes', lambda: need.size)
  memory_lib.check(run)
  monkeypatch.setattr(host, 'cgroup_bytes', lambda: need.size - 1)
  with pytest.raises(UserError, match=r'the machine \(limited by its cgroup\)'):
    memory_lib.check(run)


def test_examples_that_each_run_has_are_counted_for_each(made):
  """Runs share training and test examples, but not validation examples."""
  run, other = (made(validation_fraction=fraction, client_eval_every=1)
                for fraction in (.1, .2))
  one, two, both = (sizes(memory_lib.needs(*runs)[0].parts)
                    for runs in ((run,), (other,), (run, other)))
  assert {name for name in both if both[name] == one.get(name, 0) + (
      two.get(name, 0))} >= {
          'validation examples and further test sets', 'models'}
  assert both['test examples in batches'] == one['test examples in batches']
  assert both['training examples'] == one['training examples']


def test_advice_keeps_what_is_given_beside_a_configuration(
    digits, monkeypatch):
  """Fewer clients, or a smaller part of them, would not be those given."""
  config = dataclasses.replace(CONFIG, algorithm='fedavg', projection_dim=2000)
  split = [np.arange(i, 1438, 100) for i in range(100)]
  rounds = [list(range(100))] * 3
  given = dataclasses.replace(build.federation(
      config, digits, clients=split, cohorts=rounds), local_epochs=60)
  made = build.federation(config, digits)
  need, = memory_lib.needs(round_spec.alone(given))
  monkeypatch.setattr(host, 'machine_bytes', lambda: need.size - 10**4)
  with pytest.raises(UserError, match='GB of memory') as error:
    Simulation(given)
  found = flags_in(str(error.value))
  assert {'local_epochs', 'projection_dim'} <= {*map(' '.join, found)}
  assert {'num_clients', 'participation'}.isdisjoint(map(' '.join, found))
  assert [option['local_epochs'] for option in found
          if 'local_epochs' in option][0] <= 30
  monkeypatch.undo()
  need, = memory_lib.needs(round_spec.alone(made))
  monkeypatch.setattr(host, 'machine_bytes', lambda: need.size - 10**4)
  with pytest.raises(UserError, match='GB of memory') as error:
    Simulation(made)
  assert 'num_clients' in map(' '.join, flags_in(str(error.value)))
