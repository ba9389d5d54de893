"""Client state: which rows move, and that unused rows take no memory."""

import types

import jax
import numpy as np

from moon_jax.engine import client_store, schedule

JOBS = schedule.Jobs(
    run=np.array([0, 1, 1, 0]), client=np.array([2, 0, 4, 0]),
    num_examples=np.array([5, 5, 5, 0]), num_steps=np.array([1, 2, 1, 0]),
    is_received=np.ones(4, bool), weight=np.ones(4, np.float32),
    label_counts=np.zeros((4, 0), np.int32), staleness=np.zeros(4, np.int32))


def test_read_and_put_access_only_rows_of_jobs():
  clients = {'x': np.arange(20.).reshape(2, 5, 2), 'n': np.arange(10).reshape(
      2, 5)}
  rows = client_store.read(clients, JOBS.run, JOBS.client)
  assert rows['n'][:3].tolist() == [2, 5, 9]
  assert rows['x'][:3].tolist() == [[4, 5], [10, 11], [18, 19]]
  before = jax.tree.map(np.copy, clients)
  negated = jax.tree.map(lambda x: jax.device_put(-x), rows)
  client_store.put(clients, JOBS, negated)
  changed = before['n'] != clients['n']
  assert np.argwhere(changed).tolist() == [[0, 2], [1, 0], [1, 4]]
  np.testing.assert_array_equal(clients['x'][changed], -before['x'][changed])
  np.testing.assert_array_equal(clients['x'][~changed], before['x'][~changed])


def test_owners_are_processes_that_trained_the_clients(monkeypatch):
  """Two processes with one device each; padding jobs have no owner."""
  mesh = types.SimpleNamespace(devices=np.array(
      [types.SimpleNamespace(process_index=i) for i in range(2)]))
  moved = []
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  monkeypatch.setattr(
      client_store, '_move', lambda clients, run, client, source, to: (
          moved.extend(zip(run.tolist(), client.tolist(), source.tolist()))))
  clients = np.zeros((2, 5, 3))
  owners = client_store.Owners(clients, mesh)
  owners.trained(JOBS)
  owners.gather(clients, 3)
  assert sorted(moved) == [(0, 2, 0), (1, 0, 0), (1, 4, 1)]
  moved.clear()
  owners.gather(clients, 3)  # every process already has all rows
  assert not moved
