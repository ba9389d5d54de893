"""The status follows the events of a run."""

import math

import pytest

from moon_jax.view import progress
from moon_jax.view.progress import Progress


def line(number, accuracy=None, seconds=2., **others):
  found = {'round': number, 'seconds': seconds, 'examples_per_second': 1000.,
           **others}
  return found if accuracy is None else found | {'test_accuracy': accuracy}


def trained(num_runs=1, num_rounds=10, rounds_done=0, lines=()):
  shown = Progress('digits', num_runs)
  shown.training(num_rounds, rounds_done, lines)
  return shown


def test_a_round_adds_to_the_series():
  shown = trained(rounds_done=1, lines=[line(1, .5)])
  shown.rounds([line(2, .4, train_loss=2., clients={}, note=None, big=math.inf,
                     train_loss_std=1.)], .93)
  shown.rounds([line(3, train_loss=1.)], .93)
  status = shown.status
  assert status.series == {'test_accuracy': (.5, .4), 'train_loss': (2., 1.)}
  assert status.rounds_done == 3
  assert status.note == 'best 50.00% after round 1'
  assert status.speed == (
      '1,000 examples/s', '2.0 s per round', 'lanes 93% used')


def test_the_test_loss_is_shown_if_there_is_no_accuracy():
  shown = trained()
  shown.rounds([line(1, train_loss=2., test_loss=3.)])
  assert shown.status.series == {'train_loss': (2.,), 'test_loss': (3.,)}
  shown = trained()
  shown.rounds([line(1, .5, test_loss=3.)])
  shown.rounds([line(2, test_loss=2.)])
  assert shown.status.series == {'test_accuracy': (.5,)}


def test_several_runs_have_means_and_a_range():
  shown = trained(2)
  shown.rounds([line(1, .2), line(1, .4)])
  assert shown.status.series['test_accuracy'] == pytest.approx((.3,))
  assert shown.status.note == '20.00% to 40.00%'
  assert shown.status.rounds_done == 2
  assert shown.status.speed == ('1,000 examples/s', '4.0 s per round')


@pytest.mark.parametrize('done, rounds, now, left', [
    (0, 0, 105., None), (0, 2, 110., 40.), (6, 2, 110., 10.), (0, 2, 112., 38.),
    (0, 2, 999., 35.), (8, 2, 110., None)])
def test_the_time_left(done, rounds, now, left, monkeypatch):
  """A round that takes longer than others leaves the time of later rounds."""
  clock = [100.]
  monkeypatch.setattr(progress.time, 'monotonic', lambda: clock[0])
  shown = trained(rounds_done=done)
  for number in range(rounds):
    clock[0] = 105. + 5. * number
    shown.rounds([line(number)])
  assert shown.status.seconds_left(now) == left


@pytest.mark.parametrize('now, left', [(105., 10.), (113., 2.), (130., 0.)])
def test_the_time_left_of_the_last_rounds_of_several_runs(
    now, left, monkeypatch):
  """Two of three runs have a round left, of 5 seconds each."""
  clock = [100.]
  monkeypatch.setattr(progress.time, 'monotonic', lambda: clock[0])
  shown = trained(3, num_rounds=5)
  clock[0] = 115.
  shown.rounds([line(1)] * 3)
  assert shown.status.seconds_left(now + 10.) == left
