"""Metrics over clients, by hand."""

import numpy as np
import pytest

from moon_jax.simulation import heldout_metrics
from moon_jax.simulation.heldout_metrics import Outcomes


def test_metrics_by_hand():
  """Accuracies 0.5, 1, 0 and none; 1, 2, 5 and no examples correct of."""
  found = heldout_metrics.of_clients('x', Outcomes(
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
  found = heldout_metrics.of_clients('x', Outcomes(
      np.pad(correct, (0, num_clients)), np.zeros(2 * num_clients),
      np.repeat([100, 0], num_clients)))
  assert found['x_accuracy_worst_tenth'] == pytest.approx(
      np.arange(num_worst).mean() / 100)


def test_no_held_out_examples_have_no_metrics():
  nothing = Outcomes(*np.zeros((3, 4)))
  assert heldout_metrics.of_clients('x', nothing) == {}
  assert heldout_metrics.accuracies(nothing) == [None] * 4


def test_a_loss_that_is_no_number_is_none():
  found = heldout_metrics.of_clients('x', Outcomes(
      np.array([1, 1]), np.array([1., np.inf]), np.array([1, 2])))
  assert found['x_loss'] is None and found['x_accuracy'] == .75


def test_examples_are_counted_per_client():
  found = heldout_metrics.per_client(
      np.array([0, 0, 2, 2, 2]), np.array([True, False, True, True, False]),
      np.array([1, 2, 3, 4, 5], np.float32), num_clients=4)
  assert found.num_correct.tolist() == [1, 0, 2, 0]
  assert found.loss_sum.tolist() == [3, 0, 12, 0]
  assert found.num_examples.tolist() == [2, 0, 3, 0]
