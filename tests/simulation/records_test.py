"""What a round records."""

import types

import numpy as np
import pytest

from moon_jax import losses, models
from moon_jax.algorithms.asynchronous import with_staleness
from moon_jax.data import clock, rounds
from moon_jax.errors import DivergedError
from moon_jax.methods.fedavg import fedavg
from moon_jax.methods.fedprox import fedprox, with_proximal
from moon_jax.methods.moon import moon, moon_l2
from moon_jax.simulation import records, round_spec
from moon_jax.simulation.simulation import Simulation
from support import tiny_federation


def test_a_mean_that_is_no_number_is_none():
  """Of an algorithm's own scalars; JSON has no NaN.

  Without the metrics of its penalties there is no cross-entropy.
  """
  table = types.SimpleNamespace(
      job_TL=np.array([[0], [0], [-1]]),
      jobs=types.SimpleNamespace(
          run=np.zeros(2, int), num_steps=np.array([2, 0]),
          is_received=np.ones(2, bool)))
  federation = tiny_federation.make(algorithm=fedprox(1.))
  found = records.round_metrics(federation, 0, table, types.SimpleNamespace(
      finite_J=np.array([True, True]), loss_TL=np.array([[1.], [2.], [0.]]),
      extra_TL={'own': np.array([[1.], [np.nan], [0.]])},
      drift_J=np.array([.5, 0.]), cosine_R=np.array([np.nan]), server_R={},
      model_J=()))
  assert found == {'train_loss': 1.5, 'own': None, 'drift': .5}


def test_each_round_has_its_simulated_time_and_mean_staleness():
  plan = clock.Timeline([[0], [1], [2], [0, 1, 2]], [1., 2.5, 3., 7.],
                        [[0], [1], [0], [0, 3, 3]])
  planner = round_spec.Planner([round_spec.alone(tiny_federation.make(
      rounds=rounds.timed(plan), algorithm=with_staleness(fedavg(), 3)))])
  lines = [planner.metrics(0, t) for t in range(4)]
  assert [line['simulated_seconds'] for line in lines] == plan.seconds
  assert [line['staleness'] for line in lines] == [0, 1, 0, 2]


def test_the_first_loss_that_is_no_number_is_named():
  """Job 0 on the second lane, from its second step on."""
  table = types.SimpleNamespace(
      job_TL=np.array([[1, 0], [1, 0], [1, 0]]),
      step_TL=np.array([[0, 0], [1, 1], [2, 2]]),
      jobs=types.SimpleNamespace(
          run=np.zeros(2, int), num_steps=np.array([3, 3]),
          client=np.array([7, 4]), is_received=np.ones(2, bool)))
  loss_TL = np.array([[1., 1.], [1., np.inf], [1., np.nan]])
  found = types.SimpleNamespace(
      finite_J=np.array([False, True]), finite_R=np.array([True]),
      loss_TL=loss_TL, drift_J=np.array([np.nan, 1.]))
  stop, skip = (tiny_federation.make(on_nan=on_nan)
                for on_nan in ('stop', 'skip_client'))
  why = 'loss became inf at local step 2'
  assert records.left_out(skip, 0, table, found) == {7: why}
  with pytest.raises(DivergedError, match=f'round 5, client 7: its {why}'):
    records.left_out(stop, 4, table, found)


@pytest.mark.parametrize('algorithm, last_batch', [
    (with_proximal(moon(mu=.3), mu=.2), 'keep'),
    *(pytest.param(algorithm, 'drop', marks=pytest.mark.long)
      for algorithm in (moon(mu=.3), moon_l2(mu=.3), fedprox(mu=.3)))])
def test_losses_of_steps(algorithm, last_batch):
  """In the second round: means over the steps of all clients.

  The cross-entropy is the loss without the penalties, as a loss that records it
  has it.
  """
  def loss(model, trained, batch, view):
    total, aux = algorithm.loss(model, trained, batch, view)
    outputs, _ = model.apply(
        trained, batch.inputs, batch.mask, train=True)
    ce = losses.masked_mean(
        losses.cross_entropy_B(outputs.logits, batch.labels), batch.mask)
    return total, aux._replace(metrics={**aux.metrics, 'expected': ce})

  simulation = Simulation(tiny_federation.make(
      algorithm=algorithm._replace(loss=loss), model=models.make('mlp', 2, 8),
      batch_size=4, local_epochs=3, last_batch=last_batch, lanes=2))
  simulation.run_round()
  line = simulation.run_round().metrics
  assert line['cross_entropy'] == pytest.approx(line['expected'], rel=1e-5)
  assert line['train_loss'] > line['cross_entropy'] + 1e-6
  last = simulation.program.runs[0].last_round
  table, loss_TL = last.table, last.metrics.loss_TL
  of_steps = []
  for client, size in enumerate(tiny_federation.SIZES):
    steps = -(-size // 4) if last_batch == 'keep' else max(1, size // 4)
    slot = np.flatnonzero(
        (table.jobs.client == client) & (table.jobs.num_steps > 0))[0]
    losses_S = loss_TL[table.job_TL == slot]
    assert len(losses_S) == 3 * steps
    of_steps.extend(map(float, losses_S))
  assert line['train_loss'] == pytest.approx(np.mean(of_steps), rel=1e-12)
