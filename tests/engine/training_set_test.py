"""Sharded and replicated training examples give the same results."""

import dataclasses

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax import models
from moon_jax.config import Config
from moon_jax.data import rounds as rounds_lib
from moon_jax.data import sources
from moon_jax.data.clock import Timeline
from moon_jax.data.dataset import Dataset
from moon_jax.data.mapped import aligned
from moon_jax.distributed import devices
from moon_jax.engine import schedule, segments, training_set
from moon_jax.engine.local import TrainData
from moon_jax.errors import UserError
from moon_jax.methods.fedavg import fedavg
from moon_jax.runs import summary
from moon_jax.simulation import build
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.simulation import Simulation

CONFIG = Config(
    dataset='breast_cancer', model='mlp(projection_dim=8)', num_clients=12,
    partition='dirichlet(beta=5)', participation=.7, local_epochs=2,
    batch_size=8, num_rounds=3, lanes=2, client_eval_every=1)


def rounds(config):
  dataset = sources.load_dataset(config.dataset, config.data_dir)
  simulation = Simulation(build.federation(config, dataset))
  lines = []
  for _ in range(config.num_rounds):
    lines.append(simulation.run_round().metrics | simulation.evaluate())
    if config.client_eval_every:
      lines[-1] |= simulation.evaluate_clients()
  return simulation, lines


@pytest.mark.long
@pytest.mark.parametrize('setting', [
    dict(algorithm='moon'),  # freezes once per round
    pytest.param(
        dict(algorithm='scaffold', optimizer='sgd(momentum=0)',
             partition='feature_noise'),
        marks=pytest.mark.slow),
])
def test_sharding_changes_no_bit(setting, two_devices):
  config = dataclasses.replace(CONFIG, **setting)
  whole, lines = rounds(config)
  sharded, sharded_lines = rounds(dataclasses.replace(config, shard_data=True))
  assert sharded_lines == lines
  jax.tree.map(np.testing.assert_array_equal,
               sharded.state_on_host(), whole.state_on_host())
  assert sharded.num_devices == 2
  shard_size = sharded.program.spec.shard_size
  assert 0 < shard_size < len(sharded.federation.data.train_labels)


@pytest.mark.long
def test_clients_with_partial_work_have_all_their_examples(two_devices):
  """One device trains three clients in the rows of one."""
  rng = np.random.default_rng(0)
  data = Dataset('tiny', rng.normal(size=(500, 3)).astype(np.float32),
                 np.arange(500, dtype=np.int32) % 2,
                 np.zeros((2, 3), np.float32), np.arange(2, dtype=np.int32),
                 class_names=('a', 'b'))
  trained = []
  for shard_data in False, True:
    simulation = Simulation(Federation(
        data=data, clients=np.split(np.arange(400), 4), algorithm=fedavg(),
        model=models.make('mlp', 2, None), local_epochs=1, batch_size=2,
        lanes=2, shard_data=shard_data, rounds=rounds_lib.timed(Timeline(
            [[0, 1, 2, 3]], [1.], fractions=[[1., .2, .2, .2]]))))
    simulation.run_round()
    trained.append(simulation.state.variables)
  jax.tree.map(np.testing.assert_array_equal, *trained)


def test_padding_is_zero_wherever_examples_are():
  """A batch norm without mask would see which example padding holds."""
  data = TrainData(np.full((2, 3), 7, np.uint8), np.array([5, 6], np.int32))
  found, mask = segments._examples(data, jnp.array([1, -1]))
  np.testing.assert_array_equal(found.inputs, [[7] * 3, [0] * 3])
  np.testing.assert_array_equal(found.labels, [6, 0])
  assert found.inputs.dtype == np.uint8 and mask.tolist() == [1, 0]


@pytest.mark.long
def test_examples_in_a_file_change_no_bit(tmp_path):
  data = sources.load_dataset('breast_cancer')
  arrays = {'x_train': data.train_inputs, 'y_train': data.train_labels,
            'x_test': data.test_inputs, 'y_test': data.test_labels,
            'mean': data.mean, 'std': data.std}
  np.savez(tmp_path / 'mine.npz', **arrays)
  for name, x in arrays.items():
    np.save(tmp_path / f'{name}.npy', x)
  config = dataclasses.replace(
      CONFIG, algorithm='fedavg', num_rounds=2, client_eval_every=0)
  config = dataclasses.replace(
      config, dataset='npz', data_dir=str(tmp_path / 'mine.npz'))
  whole, lines = rounds(config)
  mapped, mapped_lines = rounds(dataclasses.replace(
      config, dataset='npy', data_dir=str(tmp_path)))
  assert mapped_lines == lines
  jax.tree.map(np.testing.assert_array_equal,
               mapped.state_on_host(), whole.state_on_host())
  assert mapped.federation.shard_data and not whole.federation.shard_data
  assert 'stay in their file' in summary.header(config, mapped)
  assert 'stay in their file' not in summary.header(config, whole)
  with pytest.raises(UserError, match='shard_data must be True'):
    dataclasses.replace(mapped.federation, shard_data=False)


def test_devices_of_a_cpu_share_one_copy(two_devices):
  """Even if each process places only its own parts."""
  mesh = devices.mesh(2)
  stored = TrainData(aligned(np.zeros((30, 7), np.uint8)),
                     aligned(np.arange(30, dtype=np.int32)))
  whole = training_set.TrainingSet(stored, mesh).for_round(None)[1]
  sharding = jax.NamedSharding(mesh, devices.WHOLE)
  mine = jax.tree.map(lambda x: devices._put_local(x, sharding), stored)
  for placed in whole, mine, devices.put(whole, mesh):
    for x, host_array in zip(placed[:2], stored):
      assert [shard.data.unsafe_buffer_pointer()
              for shard in x.addressable_shards] == 2 * [host_array.ctypes.data]
      np.testing.assert_array_equal(x, host_array)


@pytest.mark.usefixtures('two_devices')
@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=2, max_size=20),
       st.integers(1, 2), st.integers(1, 3), st.integers(1, 9), st.data())
def test_each_device_has_the_examples_of_its_table(
    sizes, lanes_of_device, epochs, batch, data):
  mesh = devices.mesh(2 * lanes_of_device)
  assert mesh.size == 2
  num_train = sum(sizes)
  clients = np.split(np.random.RandomState(0).permutation(num_train),
                     np.cumsum(sizes)[:-1])
  num_clients = data.draw(st.integers(1, len(sizes)))
  sampled = data.draw(st.permutations(range(len(sizes))))[:num_clients]
  steps = epochs * schedule.steps_per_epoch(np.array(sizes), batch)
  shape = schedule.shape(
      steps, num_clients, mesh.size * lanes_of_device, batch, 2)
  batches, num_steps = schedule.local_batches(
      [clients[c] for c in sampled], epochs, batch, num_train,
      np.random.default_rng(0))
  table = schedule.plan(schedule.Work(
      np.zeros(num_clients, int), np.array(sampled),
      np.array(sizes)[list(sampled)], num_steps, batches,
      np.ones(num_clients, bool)), shape)
  table = table._replace(own=schedule.own_examples(
      [clients[c] if n else [] for c, n in zip(
          table.jobs.client, table.jobs.num_steps)], max(sizes)))
  stored = TrainData(np.arange(num_train)[:, None], np.arange(num_train))
  size = training_set.shard_size(shape, epochs, num_train)
  assert size <= num_train
  local, shards = training_set.TrainingSet(stored, mesh, size).for_round(table)
  for axis, name in ((1, 'examples_TLB'), (0, 'own')):
    get = lambda table, name=name: (
        table.own.index_JSB if name == 'own' else table.examples_TLB)
    for d, (all_, mine) in enumerate(zip(
        np.split(get(table), 2, axis), np.split(get(local), 2, axis))):
      assert ((all_ < 0) == (mine < 0)).all()
      at = d * size + mine[mine >= 0]
      assert (shards.labels[at] == all_[all_ >= 0]).all()
      assert (shards.inputs[at, 0] == all_[all_ >= 0]).all()
