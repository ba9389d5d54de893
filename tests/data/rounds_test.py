"""Rounds: who takes part in each of them, and what they declare."""

import numpy as np
import pytest

from moon_jax.data import clock, cohort, rounds, selection
from moon_jax.errors import UserError

RUN = rounds.Run(np.array([3, 10, 6, 4]), seed=1)
SECONDS = np.array([1., 2., 4., 8.])
# Two rounds; the second client of the second one takes half of its steps.
TIMELINE = clock.Timeline(
    [[0, 2], [3, 1]], [4., 9.], fractions=[[1., 1.], [1., .5]])
STALE = clock.Timeline(
    [[0], [1], [2, 0]], [1., 2., 5.], staleness=[[0], [1], [2, 1]])


def at(num_rounds):
  """Returns all that rounds without results read of a history."""
  return selection.begin(0, num_rounds)


def clients_of(made, index, run=RUN):
  return made.next(at(index), run).clients


def test_all_clients_take_part_by_default_and_without_end():
  made = rounds.all_clients()
  assert made.next(at(10**6), RUN) == (
      [0, 1, 2, 3], [False] * 4, [1.] * 4, [0] * 4, None)
  assert made.num_rounds is made.cohort_size is made.max_staleness is None
  assert not made.misses_clients(4) and not made.needs_history
  made.check_has(10**9)


def test_listed_rounds_have_an_end():
  made = rounds.listed([[0, 2], [], (2, np.int8(1), 0)])
  assert (made.cohort_size, made.num_rounds) == (3, 3)
  assert [clients_of(made, index) for index in range(3)] == [
      [0, 2], [], [2, 1, 0]]
  made.check_has(3)
  with pytest.raises(UserError, match='one of the 3 that have a .*got round 4'):
    made.check_has(4)
  assert made.misses_clients(3)
  assert not rounds.listed([[1, 0], [0, 1]]).misses_clients(2)


def test_sampled_rounds_are_those_of_the_released_code():
  assert rounds.sampled(9, 3, 5, seed=2).cohorts == cohort.sample(9, 3, 5, 2)


def test_selected_rounds_see_the_run_and_wait_for_the_slowest():
  seen = []
  made = rounds.selected(
      lambda view: seen.append(view) or [2, 1], 2, SECONDS)
  history = selection.begin(4, 3)._replace(time=10.)
  assert made.next(history, RUN) == rounds.Cohort.of([2, 1], 14.)
  view, = seen
  assert (view.round, view.cohort_size, view.time) == (3, 2, 10.)
  assert view.num_examples.tolist() == RUN.num_examples.tolist()
  assert view.random.random() == np.random.default_rng([1, 3, 2]).random()
  assert made.needs_history and made.misses_clients(4)
  assert made.num_rounds is made.cohorts is None
  assert rounds.selected(lambda view: [0], 2).next(history, RUN).seconds is None


def test_selected_rounds_wait_until_clients_are_available():
  """Client 0 is available from 3 to 5 s, the others from 8 to 9 s."""
  trace = clock.Trace(np.array([3., 8.]), np.array([5., 9.]),
                      np.array([0, 1, 1, 1]), np.array([1, 2, 2, 2]), 20.)
  made = rounds.selected(
      lambda view: np.flatnonzero(view.is_available)[:2], 2, SECONDS,
      clock.lognormal(4, 0)._replace(trace=trace))
  begin = selection.begin(4)
  assert made.next(begin, RUN) == rounds.Cohort.of([0], 4.)
  # The rule needs two updates.
  assert made.next(begin, RUN._replace(min_received=2)) == (
      rounds.Cohort.of([1, 2], 12.))


def test_timed_rounds_are_those_of_the_timeline():
  made = rounds.timed(TIMELINE)
  assert made.next(at(1), RUN) == rounds.Cohort.of([3, 1], 9.)._replace(
      steps_fraction=[1., .5])
  assert made.has_partial_work and made.max_staleness is None
  assert (made.cohorts, made.num_rounds) == (TIMELINE.cohorts, 2)
  # More rounds may be larger than those of the plan.
  assert made.cohort_size == 2
  assert rounds.timed(TIMELINE._replace(cohort_size=3)).cohort_size == 3
  stale = rounds.timed(STALE)
  assert stale.next(at(2), RUN).staleness == [2, 1]
  assert stale.max_staleness == 2 and not stale.has_partial_work


def test_dropout_is_composed_around_rounds():
  """A lost update has trained; a client that fails before has not."""
  before, after = (rounds.with_dropout(rounds.timed(TIMELINE._replace(
      cohorts=[[0, 1, 2]] * 60, seconds=[1.] * 60, fractions=[[1., .5, 1.]] * 60
  )), .3, stage) for stage in rounds.STAGES)
  num_lost, found = 0, []
  for index in range(60):
    early, late = before.next(at(index), RUN), after.next(at(index), RUN)
    assert late.clients == early.clients == [0, 1, 2]
    assert late.lost == early.lost == [
        cohort.is_lost(.3, 1, index, client) for client in range(3)]
    assert late.steps_fraction == [1., .5, 1.]
    assert early.steps_fraction == [
        0. if lost else part for lost, part in zip(early.lost, (1., .5, 1.))]
    num_lost += sum(late.lost)
    found.append(late.lost)
  assert 30 < num_lost < 80  # of 180
  assert [after.next(at(i), RUN._replace(seed=2)).lost
          for i in range(60)] != found
  # Of those that do not fail before training, as many fail after it.
  both = rounds.with_dropout(before, .3, 'after_training')
  cohorts = [both.next(at(index), RUN) for index in range(60)]
  assert [cohort.steps_fraction for cohort in cohorts] == [
      before.next(at(index), RUN).steps_fraction for index in range(60)]
  lost_late = sum(lost and part > 0 for cohort in cohorts for lost, part in zip(
      cohort.lost, cohort.steps_fraction))
  assert 20 < lost_late < 60  # of about 126
  assert before.loses_updates and before.timeline and before.has_partial_work
  plain = rounds.all_clients()
  losing = plain._replace(next=lambda history, run: rounds.Cohort.of(
      range(3))._replace(lost=[True] * 3))
  assert rounds.with_dropout(losing, .5).next(at(0), RUN).lost == [True] * 3
  assert rounds.with_dropout(plain, 0.) is plain and not plain.loses_updates


@pytest.mark.parametrize('make_fn, words', [
    (lambda: rounds.listed([]), 'cohorts must list .*; got none'),
    (lambda: rounds.listed([[], []]), 'cohorts must list .*; got none'),
    (lambda: rounds.listed([0, 1]), r'cohorts must list .*got \[0, 1\]'),
    (lambda: rounds.listed('01'), "cohorts must list .*got '01'"),
    (lambda: rounds.listed(np.arange(3)), 'cohorts must list'),
    (lambda: rounds.listed([[0], [1, -1]]), r'cohorts\[1\].*got -1 to 1'),
    (lambda: rounds.listed([[0, 4]]), r'cohorts\[0\].*0 to 3; got 0 to 4'),
    (lambda: rounds.listed([[0.]]), r'cohorts\[0\] must be integers'),
    (lambda: rounds.listed([[0, 1], [2, 0, 2]]),
     'must list each client once; got .2, 0, 2'),
    (lambda: rounds.sampled(3, 4, 2, 0), 'cohort_size must be an integer'),
    (lambda: rounds.selected(3, 1), 'selection must be a function.*got 3'),
    (lambda: rounds.selected(len, 0), 'cohort_size must be .*got 0'),
    (lambda: rounds.selected(len, 1.), 'cohort_size must be an integer'),
    (lambda: rounds.selected(len, 5), 'at most the 4 clients; got 5'),
    (lambda: rounds.selected(len, 1, [1., 2.]), 'must be an array'),
    (lambda: rounds.selected(len, 1, np.ones(3)), 'of all 4 clients; got 3'),
    (lambda: rounds.selected(len, 1, np.array([1., np.nan, 2., 3.])),
     'a finite number of 0'),
    (lambda: rounds.selected(len, 1, -SECONDS), 'a finite number of 0'),
    (lambda: rounds.selected(len, 1, SECONDS, 3), 'availability must be'),
    (lambda: rounds.selected(len, 1, None, clock.lognormal(4, 0)),
     'availability must be a .*with client_seconds'),
    (lambda: rounds.selected(len, 1, SECONDS, clock.lognormal(3, 0)),
     'availability must be of all 4 clients; got 3'),
    (lambda: rounds.timed(3), 'timeline must be .*got 3'),
    (lambda: rounds.timed(TIMELINE._replace(seconds=[1.])), '2 coh.*got 1'),
    (lambda: rounds.timed(TIMELINE._replace(seconds=[1., np.nan])), 'be 0 or'),
    (lambda: rounds.timed(TIMELINE._replace(seconds=[2., 1.])), 'one before'),
    (lambda: rounds.timed(TIMELINE._replace(fractions=[[1.]])), '2 coh.*got 1'),
    (lambda: rounds.timed(TIMELINE._replace(fractions=[[1.], [1., 1.]])),
     r'fractions\[0\] .*for each of 2 clients; got \[1.0\]'),
    (lambda: rounds.timed(TIMELINE._replace(fractions=[[1., 1.1], [0., 1.]])),
     r'fractions\[0\] .*got \[1.0, 1.1\]'),
    (lambda: rounds.timed(TIMELINE._replace(fractions=[[1., 1.], [0., 1.]])),
     r'fractions\[1\] .*got \[0.0, 1.0\]'),
    (lambda: rounds.timed(STALE._replace(staleness=[[0], [2], [2, 1]])),
     r'staleness\[1\] .*0 to 1 .*got \[2\]'),
    (lambda: rounds.timed(STALE._replace(staleness=[[0], [-1], [2, 1]])),
     r'staleness\[1\] .*got \[-1\]'),
    (lambda: rounds.timed(STALE._replace(staleness=[[0], [1], [2]])),
     'each of 2 clients'),
    (lambda: rounds.timed(STALE._replace(cohorts=[[0], [4], [2, 0]])),
     r'cohorts\[1\].*got 4 to 4'),
    (lambda: rounds.with_dropout(rounds.all_clients(), 1.), 'rate must be'),
    (lambda: rounds.with_dropout(rounds.all_clients(), -.1), 'rate must be'),
    (lambda: rounds.with_dropout(rounds.all_clients(), '0'), "got '0'"),
    (lambda: rounds.with_dropout(rounds.all_clients(), .1, 'late'),
     "stage must be one of before_training, .*got 'late'"),
    (lambda: rounds.with_dropout(rounds.timed(STALE), .1),
     'rate must be 0 with asynchronous'),
])
def test_what_does_not_fit_is_refused(make_fn, words):
  with pytest.raises(UserError, match=words):
    make_fn().check(RUN)


@pytest.mark.parametrize('cohort_fn, words', [
    (lambda of: [0], r'rounds must have .* returns .*Cohort; got \[0\]'),
    (lambda of: of([-1]), 'clients in round 3 must be .*0 to 3; got -1 to -1'),
    (lambda of: of([4]), 'clients in round 3 .* got 4 to 4'),
    (lambda of: of([1, 1]), r'list each client once; got \[1, 1\]'),
    (lambda of: of([0, 1, 2]), 'at most 2 clients, cohort_size.*; got 3'),
    (lambda of: of([0])._replace(clients=[.5]), 'must be integers'),
    (lambda of: of([0])._replace(lost=[]), r'lost in round 3 .*; got \[\]'),
    (lambda of: of([0])._replace(steps_fraction=[1.5]),
     r'steps_fraction in round 3 must have .*0 to 1 .*; got \[1.5\]'),
    (lambda of: of([0])._replace(steps_fraction=[-.5]), r'got \[-0.5\]'),
    (lambda of: of([0])._replace(staleness=[1]), r'0 to 0 .* got \[1\]'),
])
def test_cohorts_of_your_own_rounds_are_checked(cohort_fn, words):
  make = lambda fn: rounds.Rounds(
      lambda history, run: fn(rounds.Cohort.of), cohort_size=2)
  with pytest.raises(UserError, match=words):
    make(cohort_fn).cohort(at(2), RUN)
  valid = rounds.Cohort([3, 0], [True, False], [0., .5], [0, 0])
  assert make(lambda of: valid).cohort(at(2), RUN) == valid
