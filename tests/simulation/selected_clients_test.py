"""Rounds whose clients follow from the rounds before."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from moon_jax.data import clock, rounds, selection
from moon_jax.errors import UserError
from moon_jax.methods.fedavg import fedavg
from moon_jax.methods.fedcross import fedcross
from moon_jax.methods.moon import moon
from moon_jax.runs import run
from moon_jax.runs.directory import Workdir
from moon_jax.simulation import round_spec
from moon_jax.simulation.program import Program
from moon_jax.simulation.simulation import Simulation
from support import small_runs, tiny_federation
from support.small_runs import lines_of

SECONDS = np.array([1., 2., 4.])


def least_trained(view):
  """Returns clients that have trained least, of equal ones those before."""
  return np.argsort(view.times_trained, kind='stable')[:view.cohort_size]


def selecting(select=least_trained, seconds=SECONDS, size=2, clock=None):
  return rounds.selected(select, size, seconds, clock)


def federation(select=least_trained, **changes):
  return tiny_federation.make(**{
      'rounds': selecting(select), 'batch_size': 2, 'local_epochs': 2,
      'learning_rate': .1, **changes})


REMEMBERING = moon(mu=2.)  # clients have state


@functools.cache
def whole():
  """Returns a simulation that has trained, its records, and what it saw."""
  seen = []
  simulation = Simulation(federation(
      lambda view: seen.append(view) or least_trained(view),
      algorithm=REMEMBERING))
  return simulation, simulation.run(5), seen


def test_each_round_sees_the_rounds_before():
  simulation, records, seen = whole()
  selected = [record.metrics['clients_selected'] for record in records]
  assert selected == [[0, 1], [0, 2], [1, 2], [0, 1], [0, 2]]
  assert [view.round for view in seen] == list(range(5))  # once per round
  assert [view.times_trained.tolist() for view in seen[:4]] == [
      [0, 0, 0], [1, 1, 0], [2, 1, 1], [2, 2, 2]]
  assert seen[3].last_round.tolist() == [1, 2, 2]
  assert seen[0].num_examples.tolist() == list(tiny_federation.SIZES)
  assert [view.time for view in seen] == [0, 2, 6, 10, 12]
  assert [record.metrics['simulated_seconds'] for record in records] == [
      2, 6, 10, 12, 16]
  assert np.isnan(seen[1].loss).tolist() == [False, False, True]
  assert simulation.state.history.times_received.sum() == 10


def test_the_loss_is_that_of_the_task():
  """Without local progress it is the mean over examples, by hand."""
  made = federation(
      learning_rate=1e-12, batch_size=3, algorithm=REMEMBERING)
  simulation = Simulation(made)
  simulation.run(2)  # MOON's contrastive loss is there in all rounds
  variables = simulation.global_model()
  data = made.data
  mean, std = np.float32(data.mean), np.float32(data.std)
  for client in 0, 2:  # of whole batches; of client 1 examples are dropped
    rows = made.clients[client]
    outputs, _ = made.model.apply(
        variables, (data.train_inputs[rows] - mean) / std,
        mask_B=np.ones(len(rows), bool), train=False)
    logits = np.asarray(outputs.logits, np.float64)
    logits -= logits.max(1, keepdims=True)
    entropy = np.log(np.exp(logits).sum(1)) - logits[
        np.arange(len(rows)), data.train_labels[rows]]
    assert simulation.state.history.loss[client] == pytest.approx(
        entropy.mean(), rel=1e-5)


def test_only_received_updates_tell_the_loss():
  simulation = Simulation(federation(rounds=rounds.with_dropout(
      selecting(), .5, 'after_training'), seed=1))
  simulation.run(4)
  history = simulation.state.history
  assert history.times_trained.sum() == 8 > history.times_received.sum() > 0
  assert (np.isnan(history.loss) == (history.times_received == 0)).all()
  one = simulation.num_parameters * 4
  assert simulation.bytes_per_round() == round(
      one * (8 + history.times_received.sum()) / 4)
  before = Simulation(federation(
      rounds=rounds.with_dropout(selecting(), .5), seed=1))
  before.run(4)
  counts = before.state.history
  assert (counts.times_trained == counts.times_received).all()
  assert counts.times_trained.sum() < 8


def test_a_restored_run_goes_on_with_the_same_clients():
  simulation, records, _ = whole()
  first = Simulation(federation(algorithm=REMEMBERING))
  first.run(2)
  state = jax.tree.map(np.copy, first.state_on_host())
  first.run(1)  # its history is another one
  second = Simulation(first.federation)
  second.restore(state)
  rest = second.run(3)
  assert [record.metrics for record in rest] == [
      record.metrics for record in records[2:]]
  jax.tree.map(np.testing.assert_array_equal,
               second.state_on_host(), simulation.state_on_host())


def test_only_a_state_with_a_history_can_be_restored():
  simulation = whole()[0]
  planned = Simulation(dataclasses.replace(
      simulation.federation, rounds=rounds.sampled(3, 2, 6, seed=0)))
  with pytest.raises(UserError, match='a history of None and not 3 clients'):
    simulation.restore(planned.state_on_host())
  with pytest.raises(UserError, match='a history of 3 and not None clients'):
    planned.restore(simulation.state_on_host())
  assert simulation.state.history.num_rounds == 5


def test_a_client_that_diverges_keeps_its_loss():
  """It has sent an update, and bytes count."""
  made = federation(
      rounds=selecting(lambda view: [0, 1], None), on_nan='skip_client')
  simulation = Simulation(made)
  simulation.run(1)
  before = simulation.state.history
  # The second round diverges for the client whose examples overflow.
  data = made.data.train_inputs.copy()
  data[made.clients[1]] = 1e30
  bad = Simulation(dataclasses.replace(
      made, data=made.data._replace(train_inputs=data)))
  bad.restore(simulation.state_on_host())
  record, = bad.run(1)
  assert record.metrics['clients_left_out'] == [1]
  after = bad.state.history
  assert after.times_received.tolist() == [2, 2, 0]
  assert after.loss[1] == before.loss[1] and after.last_round[1] == 0
  assert bad.bytes_per_round() == 2 * 2 * 4 * bad.num_parameters


def test_rounds_wait_for_available_clients():
  """Client 0 is available from 3 to 5 s, 1 from 4 to 9, and 2 from 19."""
  seen = []
  trace = clock.Trace(
      np.array([3., 4., 19.]), np.array([5., 9., 20.]), np.arange(3),
      np.arange(3) + 1, 20.)
  made = federation(rounds=selecting(
      lambda view: seen.append(view) or np.flatnonzero(view.is_available)[:2],
      clock=clock.lognormal(3, 0)._replace(trace=trace)))
  records = Simulation(made).run(5)
  assert [record.metrics['clients_selected'] for record in records] == [
      [0], [0, 1], [1], [1], [2]]
  assert [view.time for view in seen] == [3, 4, 6, 8, 19]
  assert [record.metrics['simulated_seconds'] for record in records] == [
      4, 6, 8, 10, 23]


@pytest.mark.long
def test_runs_of_one_program_select_as_alone():
  first = whole()[0].federation
  others = dataclasses.replace(
      first, rounds=selecting(selection.power_of_choice(2), None), seed=5)
  together = Program([first, others])
  lines = [[], []]
  for _ in range(3):
    for run_lines, record in zip(lines, together.run_round([0, 1])):
      run_lines.append(record.metrics['clients_selected'])
  alone = Simulation(others)
  assert lines == [
      [record.metrics['clients_selected'] for record in records]
      for records in (whole()[1][:3], alone.run(3))]
  np.testing.assert_allclose(
      together.state(1).history.loss, alone.state.history.loss, rtol=1e-5)


@pytest.mark.parametrize('changes, words', [
    (dict(rounds=selecting(size=4)), 'at most the 3 clients; got 4'),
    (dict(algorithm=fedcross(3), rounds=selecting(size=3)),
     'algorithm needs all 3 clients.*selections of'),
])
def test_what_does_not_fit_together(changes, words):
  with pytest.raises(UserError, match=words):
    federation(**changes)


def test_visits_of_the_most_frequent_client():
  assert selecting(lambda view: [0]).most_visits(9) == 9  # any may be selected
  assert rounds.listed([[0, 1], [1, 2], [2]]).most_visits(2) == 2
  assert rounds.listed([[0, 1], [1, 2], [2]]).most_visits(1) == 1
  assert rounds.all_clients().most_visits(7) == 7


@pytest.mark.long
def test_a_stopped_run_selects_the_same_clients(
    tmp_path, monkeypatch, run_command):
  at = functools.partial(
      small_runs.at, cohort='oort', clock='lognormal(availability=0.4)',
      num_rounds=5, checkpoint_every=1)
  run.run(at(tmp_path / 'whole'))
  stopped = at(tmp_path / 'stopped')
  small_runs.at_call(
      monkeypatch, Workdir, 'append_metrics', 4, KeyboardInterrupt())
  with pytest.raises(KeyboardInterrupt):
    run.run(dataclasses.replace(stopped, num_rounds=4))
  monkeypatch.undo()
  run.run(stopped)
  lines = lines_of(tmp_path / 'whole')
  assert lines_of(tmp_path / 'stopped') == lines
  assert {len(line['clients_selected']) for line in lines} <= {1, 2, 3, 4}
  assert not (tmp_path / 'whole' / 'cohorts.txt').exists()


def test_a_plan_is_that_of_what_is_known_now(monkeypatch):
  """Also if it is where an earlier history was in memory."""
  monkeypatch.setattr(round_spec, 'id', lambda _: 0, raising=False)
  made = federation(rounds=selecting(
      lambda view: np.nanargmax(view.loss)[None], None, size=1))
  planner = round_spec.Planner([round_spec.alone(made)], training=Tables())
  for client in range(3):
    planner.histories = [selection.begin(3)]
    planner.histories[0].loss[:] = np.arange(3) == client
    jobs = planner.prepared([0]).jobs
    assert {*jobs.client[jobs.num_steps > 0]} == {client}


class Tables:
  """A training set that only returns the table of a round."""

  def for_round(self, table):
    return table


def test_the_loss_of_a_client_whose_message_is_not_finite_is_not_known():
  """Its losses are finite, but it is left out of the round."""
  def finish(trained, view):
    client, message = fedavg().finish(trained, view)
    bad = jnp.where(view.client_id == 1, jnp.nan, 1)
    return client, jax.tree.map(lambda x: x * bad, message)

  simulation = Simulation(federation(
      algorithm=fedavg()._replace(finish=finish), on_nan='skip_client',
      rounds=selecting(lambda view: [0, 1], None)))
  record, = simulation.run(1)
  assert record.metrics['clients_left_out'] == [1]
  assert np.isfinite(simulation.state.history.loss).tolist() == [
      True, False, False]


def test_a_run_that_replaces_another_begins_without_its_history():
  algorithm, make = fedavg(), tiny_federation.make()
  runs = [federation(data=make.data, model=make.model, algorithm=algorithm,
                     seed=seed) for seed in (0, 1)]
  program = Program(runs)
  for _ in range(2):
    program.run_round([0, 1])
  program.replace(0, runs[0])
  selected = [program.run_round([0])[0].metrics['clients_selected']
              for _ in range(3)]
  assert selected == [[0, 1], [0, 2], [1, 2]]
