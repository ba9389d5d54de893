"""Accuracy on held-out data, against plain loops over clients."""

import dataclasses
import pathlib
import runpy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from federation import linear_model
import moon_jax as mj
from moon_jax.data import augment
from moon_jax.simulation import evaluation
from moon_jax.simulation.evaluation import Outcomes
from moon_jax.simulation.simulation import Simulation

NUM_CLIENTS = 5  # clients 0 to 4; client 3 has no held-out examples
SIZES = (3, 17, 8, 1, 12)
HELD_OUT = (1, 6, 3, 0, 4)


def make(part='train', **changes):
  """Returns a federation with held-out examples, and noise in the labels."""
  rng = np.random.default_rng(0)
  x = rng.normal(size=(90, 4)).astype(np.float32)
  y = (x @ rng.normal(size=4) + rng.normal(size=90) > 0).astype(np.int32)
  data = mj.Dataset('tiny', x[:60], y[:60], x[60:], y[60:], tuple('abc'))
  order = rng.permutation(60)
  clients = np.split(order[:sum(SIZES)], np.cumsum(SIZES)[:-1])
  rest = order[sum(SIZES):] if part == 'train' else rng.permutation(30)
  held_out = np.split(rest[:sum(HELD_OUT)], np.cumsum(HELD_OUT)[:-1])
  return mj.Federation(**{
      'data': data, 'clients': clients, 'evaluate_clients': True,
      'client_tests': mj.ClientTests(held_out, part),
      'model': linear_model(), 'algorithm': mj.fedavg(),
      'batch_size': 4, 'local_epochs': 1, 'learning_rate': .1,
      'lanes': 2, **changes})


def outcome(federation, variables, index, part='train'):
  """Accuracy and loss of a model on examples of a part of the data set."""
  data = federation.data
  x, y = (getattr(data, f'{part}_{name}')[index]
          for name in ('inputs', 'labels'))
  outputs, _ = federation.model.apply(
      variables, augment.normalize(jnp.asarray(x), data.mean, data.std),
      jnp.ones(len(x)), train=False)
  logits = np.asarray(outputs.logits, np.float64)
  log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
  return ((logits.argmax(1) == y).mean(),
          -log_p[np.arange(len(y)), y].mean())


def evaluated(federation, rounds=1):
  simulation = Simulation(federation)
  for _ in range(rounds):
    simulation.run_round()
  return simulation, simulation.evaluate_clients()


@pytest.mark.parametrize('part, changes', [
    ('train', dict()), ('test', dict(shard_data=True, eval_examples=2)),
    ('train', dict(cohorts=[[4, 2, 3, 0]], on_nan='skip_client'))])
def test_accuracies_equal_a_loop_over_clients(part, changes, monkeypatch):
  """Client 0 diverges in the last case, and its model does not count."""
  monkeypatch.setattr(evaluation, '_BATCH', 4)
  monkeypatch.setattr('moon_jax.engine.schedule._OWN_BATCH', 4)
  federation = make(part, **changes)
  cohort = federation.cohort(0)
  if 'on_nan' in changes:
    federation.data.train_inputs[federation.clients[0]] = 3e38  # sums overflow
    cohort = [4, 2, 3]
  simulation, line = evaluated(federation)
  last = simulation._last_round()
  jobs, columns = last.table.jobs, line['clients']
  assert sorted(columns['client']) == sorted(cohort)
  assert {len(column) for column in columns.values()} == {len(cohort)}
  tests, test = federation.client_tests, np.arange(30)
  if 'eval_examples' in changes:
    assert line['test_examples'] == 2
    labels = federation.data.with_test_examples(2).test_inputs
    test = [federation.data.test_inputs.tolist().index(x)
            for x in labels.tolist()]
  global_model = simulation.global_model()
  local_models = {c: jax.tree.map(lambda x: np.asarray(x[j]), last.models_J)
                  for j, c in enumerate(jobs.client) if jobs.num_steps[j]}
  held_out = lambda model, c: outcome(
      federation, model, tests.indices[c], tests.part)
  of_global = {c: held_out(global_model, c)
               for c in range(NUM_CLIENTS) if HELD_OUT[c]}
  of_local = {c: held_out(local_models[c], c) for c in cohort if HELD_OUT[c]}
  for j, c in enumerate(columns['client']):
    own, local = federation.clients[c], local_models[c]
    assert columns['global_own_accuracy'][j] == pytest.approx(
        outcome(federation, global_model, own)[0])
    assert columns['local_own_accuracy'][j] == pytest.approx(
        outcome(federation, local, own)[0])
    assert columns['local_test_accuracy'][j] == pytest.approx(
        outcome(federation, local, test, 'test')[0])
  assert columns['num_heldout'] == [HELD_OUT[c] for c in columns['client']]
  for name, found in ('global', of_global), ('local', of_local):
    sizes = [HELD_OUT[c] for c in found]
    accuracies, loss = np.array(list(found.values())).T
    assert line[f'{name}_heldout_accuracy'] == pytest.approx(accuracies.mean())
    assert line[f'{name}_heldout_accuracy_weighted'] == pytest.approx(
        np.average(accuracies, weights=sizes))
    assert line[f'{name}_heldout_accuracy_std'] == pytest.approx(
        accuracies.std())
    assert line[f'{name}_heldout_accuracy_worst_tenth'] == accuracies.min()
    assert line[f'{name}_heldout_loss'] == pytest.approx(loss.mean(), rel=1e-5)
    for client, value in zip(columns['client'],
                             columns[f'{name}_heldout_accuracy']):
      assert value == (pytest.approx(found[client][0])
                       if HELD_OUT[client] else None)
  # The models differ, and so do the clients: neither is mistaken.
  assert of_local != {c: of_global[c] for c in of_local}


def test_a_personalized_method_is_evaluated_with_its_personal_models():
  """Ditto's, which are its client state."""
  path = pathlib.Path(__file__).parents[2] / 'docs' / 'ditto.py'
  ditto = runpy.run_path(str(path))['ditto']
  federation = make(algorithm=ditto(lam=.01), local_epochs=3)
  simulation, line = evaluated(federation, rounds=2)
  found = line['clients']
  for client, accuracy in zip(found['client'], found['local_heldout_accuracy']):
    if HELD_OUT[client]:
      personal = jax.tree.map(
          lambda x: x[0, client], simulation.state_on_host().clients)
      assert accuracy == pytest.approx(outcome(
          federation, personal, federation.client_tests.indices[client])[0])
  assert found['local_heldout_accuracy'] != found['global_heldout_accuracy']


def test_lanes_devices_and_shards_change_nothing(two_devices):
  """Two lanes are on two devices; one is on one."""
  federation = make()
  lines = [evaluated(dataclasses.replace(federation, **changes), rounds=2)[1]
           for changes in (dict(lanes=1), dict(lanes=2),
                           dict(lanes=2, shard_data=True))]
  for line in lines:
    order = np.argsort(line['clients']['client'])
    line['clients'] = {name: np.array(column)[order].tolist()
                       for name, column in line['clients'].items()
                       if 'heldout' in name}
  first = {k: v for k, v in lines[0].items() if 'heldout' in k}
  assert len(first) == 10
  for line in lines[1:]:
    assert {k: line[k] for k in first} == pytest.approx(first, rel=1e-5)
    assert line['clients'] == lines[0]['clients']


def test_without_held_out_examples_the_line_is_unchanged():
  federation = dataclasses.replace(make(), client_tests=None)
  line = evaluated(federation)[1]
  assert not any('heldout' in name for name in [*line, *line['clients']])
  with_ = evaluated(make())[1]
  assert {name: with_[name] for name in line if name != 'clients'} == {
      name: line[name] for name in line if name != 'clients'}
  assert line['clients'] == {
      name: with_['clients'][name] for name in line['clients']}


def test_a_round_without_clients_evaluates_the_global_model():
  _, line = evaluated(make(dropout_rate=.999))
  assert line['clients']['client'] == []
  assert line['global_heldout_accuracy'] >= 0
  assert 'local_heldout_accuracy' not in line


def test_metrics_by_hand():
  """Accuracies 0.5, 1, 0 and none."""
  found = evaluation.over_clients('x', Outcomes(
      np.array([1, 2, 0, 0]), np.array([2., 1., 10., 0.]),
      np.array([2, 2, 4, 0])))
  assert found == {
      'x_accuracy': .5, 'x_accuracy_weighted': 3 / 8,
      'x_accuracy_std': pytest.approx((1 / 6)**.5),
      'x_accuracy_worst_tenth': 0., 'x_loss': pytest.approx(4 / 3)}


@pytest.mark.parametrize('num_clients, num_worst', [
    (1, 1), (9, 1), (19, 1), (20, 2), (100, 10)])
def test_the_worst_tenth(num_clients, num_worst):
  """Of the clients with held-out examples: as many others do not count."""
  correct = np.random.RandomState(0).permutation(num_clients)
  found = evaluation.over_clients('x', Outcomes(
      np.pad(correct, (0, num_clients)), np.zeros(2 * num_clients),
      np.repeat([100, 0], num_clients)))
  assert found['x_accuracy_worst_tenth'] == pytest.approx(
      np.arange(num_worst).mean() / 100)


def test_values_that_do_not_exist():
  nothing = Outcomes(*np.zeros((3, 4)))
  assert evaluation.over_clients('x', nothing) == {}
  assert nothing.accuracies == [None] * 4
  found = evaluation.over_clients('x', Outcomes(
      np.array([1, 1]), np.array([1., np.inf]), np.array([1, 2])))
  assert found['x_loss'] is None and found['x_accuracy'] == .75


def test_examples_are_counted_per_client():
  found = evaluation.per_client(
      np.array([0, 0, 2, 2, 2]), np.array([True, False, True, True, False]),
      np.array([1, 2, 3, 4, 5], np.float32), num_clients=4)
  assert found.num_correct.tolist() == [1, 0, 2, 0]
  assert found.loss_sum.tolist() == [3, 0, 12, 0]
  assert found.num_examples.tolist() == [2, 0, 3, 0]
