"""Client state in memory and on disk give the same bits."""

import collections
import dataclasses
import json

import jax
import numpy as np
import pytest

from moon_jax.algorithms.base import Message
from moon_jax.algorithms.compress import top_k, with_compression
from moon_jax.config import Config
from moon_jax.data import rounds
from moon_jax.distributed import host
from moon_jax.errors import UserError
from moon_jax.methods.fedavg import fedavg
from moon_jax.methods.moon import moon
from moon_jax.methods.scaffold import scaffold
from moon_jax.methods.solo import solo
from moon_jax.runs import run
from moon_jax.simulation import initial_state, round_spec
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.simulation import Simulation
from support import small_runs, tiny_federation
from support.small_runs import lines_of

COHORTS = [[0, 1], [2], [2, 0], [1, 0], [2, 1]]


def with_initial_model():
  """FedAvg whose clients keep their last model; it begins as the first one."""
  return fedavg()._replace(
      init_client=lambda variables: variables,
      finish=lambda variables, view: (variables, Message(variables)))


@pytest.mark.parametrize('algorithm', [
    pytest.param(moon(2), id='moon'),
    pytest.param(scaffold(num_clients=3), id='scaffold',
                 marks=pytest.mark.long),
    pytest.param(with_initial_model(), id='initial', marks=pytest.mark.long),
    pytest.param(with_compression(fedavg(), top_k(.3)), id='compressed',
                 marks=pytest.mark.long)])
def test_disk_and_memory_give_the_same_bits(algorithm, tmp_path):
  federation = tiny_federation.make(
      algorithm=algorithm, rounds=rounds.listed(COHORTS), lanes=2,
      batch_size=2, optimizer='sgd(momentum=0)', local_epochs=1)
  memory = Simulation(federation)
  disk = Simulation(dataclasses.replace(federation, client_state='disk'),
                    str(tmp_path))
  everyone = np.zeros(3, int), np.arange(3)
  for _ in COHORTS:
    ours, theirs = disk.run_round().metrics, memory.run_round().metrics
    assert json.dumps(ours) == json.dumps(theirs)
    assert disk.evaluate() == memory.evaluate()
    jax.tree.map(
        lambda x, y: np.testing.assert_array_equal(x, y[0]),
        disk.state.clients.read(*everyone), memory.state.clients)
  assert disk.client_bytes == memory.client_bytes > 0


@pytest.mark.parametrize('algorithm', [
    solo(), with_initial_model()._replace(
        evaluated=lambda variables, clients: clients)])
def test_algorithms_that_evaluate_all_clients_are_refused(algorithm):
  with pytest.raises(UserError, match='^client_state=disk is for algorithms'):
    Simulation(tiny_federation.make(algorithm=algorithm, client_state='disk'))


def test_state_that_is_drawn_takes_memory_for_all_clients(monkeypatch):
  """Also for clients that never train; and it cannot be on disk."""
  random = tiny_federation.make(
      algorithm=moon(1, first_negative='random'),
      rounds=rounds.listed([[0], [0]]))
  with pytest.raises(UserError, match='begin with the same state'):
    Simulation(dataclasses.replace(random, client_state='disk'))
  spec = round_spec.alone(random)
  assert memory_lib.on_host(spec)[0].size == 3 * spec.client_bytes
  monkeypatch.setattr(host, 'machine_bytes', lambda: 1)
  with pytest.raises(UserError, match='client state of 3 clients'):
    memory_lib.check(spec)


def test_several_processes_are_refused(monkeypatch):
  monkeypatch.setattr(initial_state.jax, 'process_count', lambda: 2)
  with pytest.raises(UserError, match='is for one process; got 2'):
    initial_state._check_algorithm(
        round_spec.alone(tiny_federation.make()))


def test_space_is_checked_for_the_clients_that_will_train(
    tmp_path, monkeypatch):
  federation = tiny_federation.make(
      algorithm=moon(1), rounds=rounds.listed([[0], [1], [0]]),
      client_state='disk')
  usage = collections.namedtuple('usage', 'free')
  memory = Simulation(dataclasses.replace(federation, client_state='memory'))
  client = memory.client_bytes // 3
  need = 3 * client  # clients 0 and 1, and the new row of a round
  monkeypatch.setattr(
      initial_state.shutil, 'disk_usage', lambda path: usage(need))
  Simulation(federation, str(tmp_path))
  monkeypatch.setattr(
      initial_state.shutil, 'disk_usage', lambda path: usage(need - 1))
  with pytest.raises(UserError, match='state of 2 clients'):
    Simulation(federation, str(tmp_path))
  # Files of an interrupted run are part of what this one needs.
  (tmp_path / 'client_state').mkdir()
  (tmp_path / 'client_state' / '1.rows').write_bytes(b'12')
  Simulation(federation, str(tmp_path))


MOON = Config(
    dataset='digits', partition='iid', num_clients=100, participation=.04,
    algorithm='moon', num_rounds=4, local_epochs=1, batch_size=8,
    model='mlp(projection_dim=8)', client_state='disk', checkpoint_every=2,
    learning_rate=.05)


@pytest.mark.long
def test_a_killed_run_resumes_with_the_same_bits(tmp_path):
  """Client state on disk is ahead of the checkpoint when the run ends.

  The rest of the run has client state in memory: that changes nothing.
  """
  ends = {}

  def keep_as(name):
    return lambda simulation, line: ends.update({
        name: simulation.state.clients})

  whole, killed = (dataclasses.replace(MOON, workdir=str(tmp_path / name))
                   for name in ('whole', 'killed'))
  run.run(whole, callbacks=[keep_as('whole')])
  small_runs.run_until(killed, 3)
  run.run(dataclasses.replace(killed, client_state='memory'),
          callbacks=[keep_as('killed')])
  assert lines_of(tmp_path / 'whole') == lines_of(tmp_path / 'killed')
  (at_run, at_client, rows), = ends['whole'].rows()
  jax.tree.map(lambda x, y: np.testing.assert_array_equal(
      x, y[at_run, at_client]), rows, ends['killed'])
