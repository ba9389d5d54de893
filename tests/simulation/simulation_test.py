"""A simulation's own bookkeeping: rounds, bytes, restoring, determinism."""

import copy
import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import moon_jax as mj
from moon_jax.algorithms.server import with_server_optimizer
from moon_jax.data import augment, rounds
from moon_jax.errors import DivergedError, UserError
from moon_jax.methods.feddisco import feddisco
from moon_jax.simulation import program as program_lib
from moon_jax.simulation.simulation import Simulation
from support import federation as fed
from support import tiny_federation

THREE = tiny_federation.make().data._replace(class_names=('a', 'b', 'c'))
_PARAMS = 4 * (4 + 1) * fed.NUM_CLASSES  # bytes of weights and biases
_STATE = 4 * 4  # bytes of the running means of four inputs


def bytes_per_round(num_rounds=1, has_state=False, **changes):
  """Bytes per round, to compare with counts by hand."""
  simulation = Simulation(tiny_federation.make(
      data=THREE, model=fed.linear_model(has_state), **changes))
  simulation.program.runs[0].rounds_done = num_rounds
  return simulation.bytes_per_round()


@pytest.mark.parametrize('algorithm, per_client', [
    (fed.fedavg(), 2 * _PARAMS),
    (fed.moon(3), 2 * _PARAMS),  # previous models stay with clients
    (fed.scaffold(3), 4 * _PARAMS),  # c down, c_i+ - c_i up
    (fed.fednova(), 2 * _PARAMS + 4),  # the effective steps
    (fed.solo(), 0),
    # A model of its own down, but no global model.
    (mj.fedcross(3), 2 * _PARAMS),
    (mj.fedamp(3), 2 * _PARAMS),
    # Two models with a bool each down, a model and three numbers up.
    (mj.fedfomo(3), 3 * _PARAMS + 2 + 3 * 4),
    (feddisco(), 2 * _PARAMS + 4),  # a model, which the server sees twice; d_i
    (with_server_optimizer(fed.fedavg(), optax.sgd(1., momentum=.9)),
     2 * _PARAMS)])
def test_bytes_of_three_clients(algorithm, per_client):
  assert bytes_per_round(
      algorithm=algorithm, optimizer='sgd(momentum=0)') == 3 * per_client


def test_mutable_state_is_sent_but_has_no_control_variate():
  assert bytes_per_round(has_state=True) == 3 * 2 * (_PARAMS + _STATE)
  assert bytes_per_round(
      has_state=True, algorithm=fed.scaffold(3), optimizer='sgd(momentum=0)'
  ) == 3 * (4 * _PARAMS + 2 * _STATE)


def test_bytes_are_means_over_rounds_and_lost_messages_are_not_uploaded():
  assert bytes_per_round(2, rounds=rounds.listed(
      [[0], [1, 2], [0, 1, 2]])) == 1.5 * 2 * _PARAMS
  before, after = (rounds.with_dropout(rounds.all_clients(), .5, stage)
                   for stage in rounds.STAGES)
  received = np.mean([
      len(cohort.trained)
      for cohort in tiny_federation.make(rounds=before).first_cohorts(20)])
  assert 0 < received < 3
  assert bytes_per_round(20, rounds=before) == round(received * 2 * _PARAMS)
  assert bytes_per_round(20, rounds=after) == round((3 + received) * _PARAMS)


def test_noise_is_on_training_inputs_alone():
  def simulated(std):
    simulation = Simulation(tiny_federation.make(
        data=THREE, model=fed.linear_model(), local_epochs=1,
        input_noise_std=std))
    tested = simulation.evaluate()  # of the initial model
    return simulation.run_round().metrics['train_loss'], tested

  clean, zero, noisy = map(simulated, (None, np.zeros(19), np.full(19, 2.)))
  assert zero == clean
  assert noisy[0] != clean[0] and noisy[1] == clean[1]


def test_a_loss_that_takes_one_label_of_mixed_inputs_is_warned_of():
  def of_labels(model, variables, batch, view):
    outputs, variables = model.apply(
        variables, batch.inputs, batch.mask, train=True)
    loss_B = mj.losses.cross_entropy_B(outputs.logits, batch.labels)
    return mj.losses.masked_mean(loss_B, batch.mask), mj.LossAux(variables, {})

  def made(algorithm, augmentation):
    Simulation(tiny_federation.make(
        algorithm=algorithm, augmentation=augmentation))

  one_label = mj.fedavg()._replace(loss=of_labels)
  with pytest.warns(UserWarning, match='does not read batch.mixed'):
    made(one_label, augment.mixup(1.))
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    made(one_label, None)
    for algorithm in mj.fedavg(), mj.moon(), mj.fedntd(), mj.ditto():
      made(algorithm, augment.mixup(1.))


def test_a_loss_that_counts_padding_is_warned_of():
  """Clients have 3, 10 and 6 examples; networks get the mask in any case."""
  def mean(model, variables, batch, view):
    outputs, variables = model.apply(
        variables, batch.inputs, batch.mask, train=True)
    loss_B = mj.losses.cross_entropy_B(outputs.logits, batch.labels)
    return jnp.mean(loss_B), mj.LossAux(
        variables, {'examples': batch.mask.sum()})

  algorithm = mj.fedavg()._replace(loss=mean)
  make = functools.partial(tiny_federation.make, algorithm=algorithm)
  with pytest.warns(UserWarning, match=(
      'with 3 examples is padded to 10, and the loss .*simulation_test.py, '
      'line .* does not depend on batch.mask')):
    Simulation(make())
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    Simulation(make(batch_size=1))  # without padding
    Simulation(make(algorithm=mj.moon()))
    Simulation(make(algorithm=mj.fedavg()._replace(
        loss=lambda *arguments: mj.fedavg().loss(*arguments))))


def test_a_state_can_be_restored_again_and_again():
  """Later rounds do not write into it."""
  make = lambda **changes: tiny_federation.make(
      algorithm=mj.scaffold(3), optimizer='sgd(momentum=0, weight_decay=0)',
      **changes)
  simulation = Simulation(make())
  simulation.run(1)
  state = simulation.state_on_host()
  before = copy.deepcopy(state)
  simulation.run(1)
  jax.tree.map(np.testing.assert_array_equal, state, before)
  lines = []
  for _ in range(3):
    simulation.restore(state)
    lines.append([record.metrics for record in simulation.run(2)])
  assert lines[0] == lines[1] == lines[2]
  assert simulation.rounds_done == 3
  others = Simulation(tiny_federation.make(algorithm=mj.ditto()))
  with pytest.raises(UserError, match='the same clients, method'):
    others.restore(state)
  with pytest.raises(UserError, match='the same clients, method'):
    Simulation(make(client_state='disk')).restore(state)


def test_the_last_round_of_own_rounds_needs_no_next_one():
  """Rounds that do not say how many they are; the one after it is an error."""
  cohorts = [[0, 1], [1, 2], [0, 2]]
  simulation = Simulation(tiny_federation.make(rounds=rounds.Rounds(
      lambda history, run: rounds.Cohort.of(
          cohorts[int(history.num_rounds)]), cohort_size=2)))
  simulation.run(3)
  assert simulation.rounds_done == 3
  with pytest.raises(IndexError):
    simulation.run_round()


def test_a_restored_run_has_no_local_models():
  """Those of the last round are not those of the restored state."""
  simulation = Simulation(tiny_federation.make(
      evaluate_clients=True, keep_local_models=True))
  state = jax.tree.map(np.array, simulation.state_on_host())
  simulation.run_round()
  assert simulation.local_models() and simulation.evaluate_clients()
  simulation.restore(state)
  with pytest.raises(UserError, match='after a round of this run'):
    simulation.evaluate_clients()
  with pytest.raises(UserError, match='a round that this simulation trained'):
    simulation.local_models()
  simulation.run_round()
  assert simulation.local_models() and simulation.evaluate_clients()


def test_rounds_train_when_they_are_taken_and_the_first_one_compiles(
    caplog, monkeypatch):
  """It logs so, unless the program has been compiled before."""
  caplog.set_level('INFO', 'moon_jax')
  monkeypatch.setattr(program_lib, '_PATIENCE', 0.)
  simulation = Simulation(tiny_federation.make())
  with pytest.warns(UserWarning, match=r'nothing was trained.*run\(2\)'):
    simulation.rounds(2)
  with warnings.catch_warnings(action='always', record=True) as caught:
    simulation.rounds(0)
  assert not caught
  assert 'rounds done: 0; run(n) trains' in repr(simulation)
  assert [record.round for record in simulation.run(2)] == [1, 2]
  begun, compiled = [r.getMessage() for r in caplog.records]
  assert begun.startswith('compiling the round; ')
  assert compiled.startswith('compiled in ')
  caplog.clear()
  simulation = Simulation(tiny_federation.make())
  simulation.compile()
  simulation.run(1)
  assert not caplog.records


def test_errors_of_rounds_name_arguments():
  simulation = Simulation(tiny_federation.make(learning_rate=1e30))
  with pytest.raises(DivergedError, match=(
      r'\(learning_rate=1e\+30\). Lower learning_rate, or check your algorithm,'
      ' or leave diverged clients out with on_nan=skip_client')):
    simulation.run(3)


