"""What a run keeps is counted, and what does not fit is refused with advice."""

import dataclasses

import jax
import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import cohort, rounds
from moon_jax.distributed import host
from moon_jax.errors import UserError
from moon_jax.methods.moon import moon
from moon_jax.simulation import build, round_spec
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.simulation import Simulation
from support import tiny_federation

CONFIG = Config(
    dataset='digits', model='mlp(projection_dim=8)', partition='iid',
    num_clients=100, algorithm='moon', num_rounds=3, local_epochs=1,
    batch_size=4, lanes=2, checkpoint_every=0)


@pytest.fixture(scope='module')
def made(digits):
  """Returns the RoundSpec of a changed configuration."""
  def make(**changes):
    config = dataclasses.replace(CONFIG, **changes)
    return round_spec.alone(build.federation(config, digits),
                            num_checkpoints=config.num_checkpoints())

  return make


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
  batches = nbytes(simulation.program.runs[0].evaluator._placed['test'][:2])
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
  run_in_file = dataclasses.replace(run, federation=dataclasses.replace(
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
      run.federation, rounds=rounds.listed(cohorts + [[98, 99]]))
  assert dataclasses.replace(run, federation=listed).num_stateful == sampled
  first = dataclasses.replace(listed, planned_rounds=1)
  assert dataclasses.replace(run, federation=first).num_stateful == 10
  # Models of their own take memory from the start.
  assert made(participation=.1, algorithm='solo').num_stateful == 100
  # So does a state that begins as the global model.
  assert made(participation=.1, algorithm='ditto').num_stateful == 100


_COHORT = 'fewer clients per round (participation)', {'participation': .1}
_DISK = 'client_state=disk', {'client_state': 'disk'}
_LANES = 'lanes=1', {'lanes': 1}


@pytest.mark.parametrize('changes, part, remedies', [
    (dict(), 'client state of a round, before and after it', [_COHORT]),
    (dict(participation=.1, num_rounds=80,
          algorithm='moon(num_negatives=9)'),
     'client state of 100 sampled clients',
     [_DISK, ('fewer num_clients', {'num_clients': 50})]),
    (dict(participation=.1, checkpoint_every=1),
     'client state of 100 clients copied for a checkpoint', [_DISK]),
    (dict(participation=.1, algorithm='solo'), 'client state of 100 clients',
     [('fewer num_clients', {'num_clients': 50})]),  # solo evaluates it
    (dict(algorithm='fedavg', model='mlp(projection_dim=20000)'), 'models',
     [_LANES]),
    (dict(algorithm='fedavg', client_eval_every=1, save_local_models=True,
          client_test_fraction=.1), 'models', [_COHORT, _LANES]),
    (dict(algorithm='fedavg', local_epochs=600), "the round's table",
     [_COHORT]),
])
def test_what_does_not_fit_is_refused_with_its_parts_and_remedies(
    changes, part, remedies, made, monkeypatch):
  """A machine has a little more than half of what the largest part takes."""
  run = made(**changes)
  need, = memory_lib.needs(run)
  largest = max(need.parts, key=lambda part: part.size)
  assert largest.name == part
  for _, change in remedies:
    other, = memory_lib.needs(made(**changes | change))
    assert sizes(other.parts).get(part, 0) < largest.size
  monkeypatch.setattr(
      host, 'machine_bytes', lambda: need.size - .45 * largest.size)
  with pytest.raises(UserError, match=(
      rf'GB of memory in the machine: {part} [\d.]+.*; got [\d.]+ GB. '
      'Give ')) as error:
    memory_lib.check(run)
  for text, _ in remedies:
    assert text in str(error.value)
  monkeypatch.setattr(host, 'machine_bytes', lambda: need.size)
  memory_lib.check(run)


def test_remedies_are_not_given_already(made, monkeypatch):
  """Nor would they raise the need: cores share the training examples."""
  monkeypatch.setattr(host, 'machine_bytes', lambda: 1)

  def remedies(**changes):
    with pytest.raises(UserError, match='machine') as error:
      memory_lib.check(made(**{'algorithm': 'fedavg', **changes}))
    return str(error.value).partition('GB. ')[2]

  assert remedies(lanes=1) == (
      'Give dataset=npy, which stays in its files, or fewer eval_examples')
  assert ' no shard_data' in remedies(shard_data=True, lanes=1)
  on_disk = remedies(algorithm='moon', client_state='disk', participation=.01)
  assert 'client' not in on_disk, on_disk


def test_errors_of_federations_in_python_name_arguments(monkeypatch):
  federation = tiny_federation.make(algorithm=moon())
  monkeypatch.setattr(host, 'machine_bytes', lambda: 1)
  with pytest.raises(UserError, match='client_state=disk, or fewer num_clien'):
    Simulation(federation)


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
  """They and the host are both checked."""
  run = made(participation=.1, algorithm='fedavg')
  need = sum(part.size for part in [
      *memory_lib.on_device(run), *memory_lib.data_on_device(run)])
  monkeypatch.setattr(memory_lib, '_device', lambda: need)
  memory_lib.check(run)
  monkeypatch.setattr(memory_lib, '_device', lambda: .7 * need)
  with pytest.raises(UserError, match=(
      'in each device: training examples .* Give shard_data$')):
    memory_lib.check(run)
  monkeypatch.setattr(memory_lib, '_device', lambda: need)
  monkeypatch.setattr(host, 'machine_bytes', lambda: need / 10)
  with pytest.raises(UserError, match='memory in the host'):
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
