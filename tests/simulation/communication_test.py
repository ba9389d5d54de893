"""Bytes per round, against counts by hand."""

import numpy as np
import pytest
import tiny_federation

from federation import (
  fedavg,
  fednova,
  linear_model,
  moon,
  NUM_CLASSES,
  scaffold,
  solo,
)
from moon_jax.algorithms.server import momentum, with_optimizer
from moon_jax.simulation.simulation import Simulation

_PARAMS = 4 * (4 * NUM_CLASSES + NUM_CLASSES)  # bytes of weights and biases
_STATE = 4 * 4  # bytes of the running means of four inputs


def bytes_per_round(num_rounds=1, has_state=False, **changes):
  data = tiny_federation.make().data._replace(class_names=('a', 'b', 'c'))
  simulation = Simulation(tiny_federation.make(
      data=data, model=linear_model(has_state), **changes))
  simulation._program._rounds_done[:] = num_rounds
  return simulation.bytes_per_round()


@pytest.mark.parametrize('algorithm, per_client', [
    (fedavg(), 2 * _PARAMS),
    (moon(num_negatives=3), 2 * _PARAMS),  # previous models stay with clients
    (scaffold(3), 4 * _PARAMS),  # c down, c_i+ - c_i up
    (fednova(), 2 * _PARAMS + 4),  # the effective steps
    (solo(), 0),
    (with_optimizer(fedavg(), momentum(1., .9, 'hsu')), 2 * _PARAMS)])
def test_three_clients(algorithm, per_client):
  assert bytes_per_round(
      algorithm=algorithm, momentum=0.) == 3 * per_client


def test_mutable_state_is_sent_but_has_no_control_variate():
  assert bytes_per_round(has_state=True) == 3 * 2 * (_PARAMS + _STATE)
  assert bytes_per_round(
      has_state=True, algorithm=scaffold(3), momentum=0.) == 3 * (
      4 * _PARAMS + 2 * _STATE)


def test_the_mean_over_rounds():
  assert bytes_per_round(2, cohorts=[[0], [1, 2], [0, 1, 2]]) == (
      1.5 * 2 * _PARAMS)


def test_lost_messages_are_not_uploaded():
  dropout = dict(dropout_rate=.5, num_rounds=20)
  federation = tiny_federation.make(dropout_rate=.5)
  received = np.mean([
      len(federation.trained(index)[0]) for index in range(20)])
  assert 0 < received < 3
  assert bytes_per_round(**dropout) == round(received * 2 * _PARAMS)
  assert bytes_per_round(**dropout, dropout_stage='after_training') == round(
      (3 + received) * _PARAMS)
