"""The status follows the events of a run."""

import math

import pytest

from moon_jax.view.status import Status


def line(number, accuracy=None, seconds=2., **others):
  found = {'round': number, 'seconds': seconds, 'examples_per_second': 1000.,
           **others}
  return found if accuracy is None else found | {'test_accuracy': accuracy}


def trained(num_runs=1, num_rounds=10, rounds_done=0, lines=()):
  return Status('digits', 0., num_runs=num_runs).training(
      num_rounds, rounds_done, lines, 100.)


def test_a_round_adds_to_the_series():
  status = trained().after_rounds(
      [line(1, .5, train_loss=2., clients={}, note=None, big=math.inf,
            train_loss_std=1.)], 103.)
  status = status.after_rounds([line(2, train_loss=1.)], 106.)
  assert status.series == {'test_accuracy': (.5,), 'train_loss': (2., 1.)}
  assert status.rounds_done == 2 and status.best == (.5, 1)
  assert status.examples_per_second == pytest.approx(1000.)


def test_several_runs_have_means_and_a_range():
  status = trained(2).after_rounds([line(1, .2), line(1, .4)], 103.)
  assert status.series['test_accuracy'] == pytest.approx((.3,))
  assert status.accuracies == (.2, .4) and status.best is None
  assert status.rounds_done == 2 and status.seconds == 4.


def test_the_rounds_of_an_earlier_command_are_shown():
  status = trained(rounds_done=2, lines=[line(1, .5), line(2, .4)])
  assert status.series['test_accuracy'] == (.5, .4)
  assert status.best == (.5, 1) and status.rounds_done == 2


@pytest.mark.parametrize('done, rounds, now, left', [
    (0, 0, 105., None), (0, 2, 110., 40.), (6, 2, 110., 10.), (0, 2, 120., 30.),
    (0, 2, 999., 0.), (8, 2, 110., None)])
def test_the_time_left(done, rounds, now, left):
  status = trained(rounds_done=done)
  for number in range(rounds):
    status = status.after_rounds([line(number)], 105. + 5. * number)
  assert status.seconds_left(now) == left
