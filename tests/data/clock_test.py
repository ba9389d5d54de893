"""Simulated time: speeds, rounds, deadlines, and plans of arrivals."""

import collections
import functools
import math

import numpy as np
import pytest

from moon_jax.data import clock, cohort
from moon_jax.errors import UserError

SECONDS = np.array([3., 1., 7., 2., 11., 4., 9., 5.])
ALWAYS = clock.lognormal(len(SECONDS), seed=0)


def test_seconds_are_download_training_and_upload():
  made = clock.Clock(np.array([.5, .1]), np.array([10., 100.]),
                     np.array([5., 20.]))
  assert made.seconds(np.array([4, 8]), 30., 60.).tolist() == pytest.approx(
      [30 / 10 + 4 * .5 + 60 / 5, 30 / 100 + 8 * .1 + 60 / 20])


def test_speeds_have_their_median_and_spread():
  made = clock.lognormal(20_000, 3, seconds_per_example=.2, download=50.,
                         upload=7., spread=.6)
  for found, median in zip(made, (.2, 50., 7.)):
    logs = np.log(found)
    assert abs(logs.mean() - math.log(median)) < .02
    assert abs(logs.std() - .6) < .02
  logs = np.log(made[:3])
  assert np.abs(np.corrcoef(logs) - np.eye(3)).max() < .03
  equal = clock.lognormal(5, 3, spread=0.)
  assert (equal.upload == 2e6).all()
  # The first clients do not say which seed it is.
  assert not np.array_equal(made.upload[:5], clock.lognormal(5, 4).upload)


def test_a_day_has_its_part():
  made = clock.lognormal(5000, 0, availability=.25)
  hours = np.array([made.is_available(hour * 3600.) for hour in range(48)])
  assert abs(hours.mean() - .25) < .01
  assert (hours.sum(0) == 12).mean() > .99  # of two days
  np.testing.assert_array_equal(hours[:24], hours[24:])
  assert ALWAYS.is_available(5e6).all()


def test_rounds_without_a_choice_are_those_without_a_clock():
  """A round ends with its slowest client."""
  timeline = clock.synchronous(ALWAYS, SECONDS, 3, 5, seed=7)
  assert timeline.cohorts == cohort.sample(8, 3, 5, 7)
  ends = np.cumsum([SECONDS[c].max() for c in timeline.cohorts])
  assert timeline.seconds == ends.tolist() and not timeline.staleness
  infinite = clock.synchronous(
      ALWAYS, SECONDS, 3, 5, seed=7, deadline=math.inf)
  assert infinite == timeline


def test_over_selection_takes_the_first():
  timeline = clock.synchronous(
      ALWAYS, SECONDS, 3, 20, seed=1, over_selection=1.5)
  started = cohort.sample(8, 5, 20, 1)
  last = 0.
  for clients, begun, end in zip(timeline.cohorts, started, timeline.seconds):
    first = sorted(begun, key=SECONDS.__getitem__)[:3]
    assert clients == [c for c in begun if c in first]  # in their order
    assert end - last == pytest.approx(SECONDS[first[-1]])
    last = end


def test_a_deadline_ends_rounds_but_one_client_is_waited_for():
  timeline = clock.synchronous(
      ALWAYS, SECONDS, 4, 3, seed=0, deadline=4.,
      cohorts=[(0, 1, 2, 3), (4, 2, 6), (3, 5, 0, 1)])
  assert timeline.cohorts == [[0, 1, 3], [2], [3, 5, 0, 1]]
  assert timeline.seconds == [4., 4. + 7., 4. + 7. + 4.]


def test_only_available_clients_start():
  made = clock.lognormal(200, 0, availability=.2)
  seconds = np.full(200, 3600.)
  for timeline in (
      clock.synchronous(made, seconds, 10, 30, seed=0),
      clock.asynchronous(made, seconds, 10, 10, 30, seed=0)):
    for clients, end in zip(timeline.cohorts, timeline.seconds):
      assert made.is_available(end - 3600.)[clients].all()
  seldom = clock.Clock(*made[:3], availability=.001, phase=np.full(200, .5))
  late = clock.synchronous(seldom, seconds, 10, 1, seed=0)
  assert late.seconds == [clock.DAY / 2 + 3600.]


def test_equal_clients_take_part_equally():
  timeline = clock.synchronous(
      ALWAYS, np.ones(8), 2, 2000, seed=0, over_selection=2.)
  counts = np.bincount(np.concatenate(timeline.cohorts), minlength=8)
  assert abs(counts / 500 - 1).max() < .2


def test_short_parts_of_a_day_are_found():
  for seed in range(4):
    made = clock.lognormal(10, seed, availability=.001)
    timeline = clock.synchronous(made, SECONDS.repeat(2)[:10], 2, 20, seed)
    assert len(timeline.cohorts) == 20
    assert clock.asynchronous(
        made, SECONDS.repeat(2)[:10], 3, 2, 20, seed).seconds


def test_a_late_client_is_waited_for_until_the_deadline():
  timeline = clock.synchronous(
      ALWAYS, SECONDS, 2, 1, 0, 2., deadline=6., cohorts=[(6, 4, 0, 2)])
  assert timeline.cohorts == [[0]] and timeline.seconds == [6.]
  enough = clock.synchronous(
      ALWAYS, SECONDS, 2, 1, 0, 2., deadline=8., cohorts=[(6, 4, 0, 2)])
  assert enough.cohorts == [[0, 2]] and enough.seconds == [7.]


def test_tiers_have_clients_of_similar_speed():
  """The four fast clients, or the four slow ones, in half of the rounds."""
  timeline = clock.synchronous(ALWAYS, SECONDS, 2, 600, seed=0, tiers=2)
  fast = {0, 1, 3, 5}  # 3, 1, 2 and 4 seconds
  is_fast = np.array([fast >= set(cohort) for cohort in timeline.cohorts])
  assert not any(fast & set(cohort) for cohort in np.array(
      timeline.cohorts)[~is_fast].tolist())
  assert abs(is_fast.mean() - .5) < .07
  counts = np.bincount(np.concatenate(timeline.cohorts))
  assert abs(counts / 150 - 1).max() < .25
  made = clock.lognormal(200, 0, availability=.05)  # some tiers have nobody
  free = clock.synchronous(made, np.arange(200.), 2, 30, seed=0, tiers=100)
  assert all(len({client // 2 for client in cohort}) == 1
             for cohort in free.cohorts)
  # A rule that needs two clients waits until they are in one tier.
  waits = clock.synchronous(
      made, np.arange(200.), 2, 30, seed=0, tiers=100, least=2)
  assert [{client // 2 for client in cohort} == {cohort[0] // 2}
          for cohort in waits.cohorts if len(cohort) == 2] == [True] * 30
  with pytest.raises(UserError, match='tiers must be 1 to 4.*got 5'):
    clock.synchronous(ALWAYS, SECONDS, 2, 5, seed=0, tiers=5)


@pytest.mark.parametrize('changes, words', [
    ({'cohort_size': 0}, 'cohort_size must be at least 1 and at most 8; got 0'),
    ({'cohort_size': 9}, 'cohort_size must .* got 9'),
    ({'over_selection': .5}, 'over_selection must be at least 1 .* got 0.5'),
    ({'over_selection': np.nan}, 'over_selection must .* got nan'),
    ({'deadline': -5.}, 'deadline must be at least 0; got -5'),
    ({'seconds': np.where(np.arange(8) == 3, np.nan, SECONDS)},
     'seconds must be 0 or more for each client; got nan for client 3')])
def test_numbers_of_a_plan_are_checked(changes, words):
  with pytest.raises(UserError, match=words):
    clock.synchronous(**{
        'clock': ALWAYS, 'seconds': SECONDS, 'cohort_size': 2, 'num_rounds': 2,
        'seed': 0, **changes})


def test_a_phase_without_a_value_is_refused():
  """Clients would be available at no time, and a plan never end."""
  with pytest.raises(UserError, match='phase has finite numbers'):
    clock.validated('a:b', clock.Clock(
        np.ones(2), np.ones(2), np.ones(2), .5, np.array([0., np.nan])), 2)


def test_late_clients_do_a_part_of_their_work():
  """Of 12 steps in 6 s client 2 has time for 10, and client 4 for 6."""
  def plan(cohort, deadline=6., transfer=(1,) * 8, steps=12, **changes):
    return clock.synchronous(
        ALWAYS, SECONDS, changes.pop('size', 4), 1, 0, deadline=deadline,
        cohorts=[cohort], partial=(np.array(transfer), np.full(8, steps)),
        **changes)

  timeline = plan((4, 0, 2))
  assert timeline.cohorts == [[4, 0, 2]] and timeline.seconds == [6.]
  assert timeline.fractions[0] == pytest.approx([.5, 1, 10 / 12])
  assert timeline.spans == [[(0, 6), (0, 3), (0, 6)]]
  assert plan((4, 0, 2), steps=7).fractions[0] == pytest.approx(
      [3 / 7, 1, 5 / 7])  # whole steps
  in_time = plan((0, 1))  # the round does not wait for the deadline
  assert in_time.fractions == [[1, 1]] and in_time.seconds == [3.]
  # Client 2 has no time for a step: it is left out.
  transfer = np.array([1, 1, 5.95, 1, 1, 1, 1, 1.])
  busy = plan((4, 0, 2), transfer=transfer)
  assert busy.cohorts == [[4, 0]] and busy.seconds == [6.]
  # Of those who start, it is not among the first either.
  first = plan((2, 4), transfer=transfer, size=1, over_selection=2.)
  assert first.cohorts == [[4]] and first.seconds == [6.]
  alone = plan((4,), deadline=.5)  # nobody has: the first is waited for
  assert alone.fractions == [[1]] and alone.seconds == [11.]


def test_plans_of_more_steps_begin_with_those_of_fewer():
  few, many = (clock.asynchronous(ALWAYS, SECONDS, 5, 2, n, seed=2)
               for n in (20, 50))
  for a, b in zip(few[:3], many[:3]):
    assert a == b[:20]
  other = clock.asynchronous(ALWAYS, SECONDS, 5, 2, 20, seed=3)
  assert other.cohorts != few.cohorts


@pytest.mark.parametrize('concurrency, buffer', [
    (1, 1), (3, 1), (6, 4), (8, 8)])
def test_arrivals_are_possible(concurrency, buffer):
  """Each takes its time, no client trains twice at once, and enough train."""
  timeline = clock.asynchronous(
      ALWAYS, SECONDS, concurrency, buffer, 300, seed=5, max_staleness=99)
  versions = [0., *timeline.seconds]
  ends = collections.defaultdict(float)
  for step, (clients, staleness, end, spans) in enumerate(zip(
      timeline.cohorts, timeline.staleness, timeline.seconds, timeline.spans)):
    assert len(set(clients)) == len(clients) == buffer
    for client, tau, (begun, arrived) in zip(clients, staleness, spans):
      # It began while the version was the newest one.
      assert versions[step - tau] <= begun + 1e-9
      assert begun <= versions[step - tau + 1] + 1e-9
      assert abs(begun + SECONDS[client] - arrived) < 1e-9
      assert versions[step] <= arrived + 1e-9 <= end + 2e-9
      assert begun >= ends[client] - 1e-9
      ends[client] = arrived
  busy = sum(SECONDS[clients].sum() for clients in timeline.cohorts)
  assert busy / timeline.seconds[-1] <= concurrency + 1e-9
  if buffer == 1:  # nobody waits
    assert busy / timeline.seconds[-1] > .97 * concurrency


def test_staleness_is_that_of_a_queue():
  """Equal speeds, one update per step: K - 1 others arrive meanwhile."""
  timeline = clock.asynchronous(
      ALWAYS, SECONDS.clip(5, 5) + np.linspace(0, .1, 8), 4, 1, 400, seed=0)
  assert abs(np.mean(timeline.staleness[50:]) - 3) < .05


def test_updates_of_the_largest_staleness_are_taken():
  """Three of the fast client arrive before each one of the slow client."""
  plan = lambda most: clock.asynchronous(
      clock.lognormal(2, seed=0), np.array([1., 3.5]), 2, 1, 12, seed=0,
      max_staleness=most)
  assert max(map(max, plan(3).staleness)) == 3 and not plan(3).too_stale
  assert plan(2).cohorts == [[0]] * 12 and plan(2).too_stale == 3


def test_a_hundred_thousand_clients_are_planned():
  made = clock.lognormal(100_000, 0, availability=.3)
  timeline = clock.asynchronous(
      made, made.seconds(np.full(100_000, 50.), 1e6, 1e6), 1000, 100, 20,
      seed=0)
  assert len(timeline.cohorts) == 20 and max(timeline.staleness[0]) == 0


def test_files_have_devices(tmp_path):
  path = tmp_path / 'devices.csv'
  path.write_text('name, upload,download,seconds_per_example\n'
                  'a,5,10,.1\nb,6,20,.2\n\n', encoding='utf-8')
  made = clock.read(str(path), 2, 0)
  assert [x.tolist() for x in made[:3]] == [[.1, .2], [10, 20], [5, 6]]
  drawn = clock.read(str(path), 1000, 0)
  assert set(zip(*(x.tolist() for x in drawn[:3]))) == {
      (.1, 10, 5), (.2, 20, 6)}
  assert abs((drawn.upload == 5).mean() - .5) < .06
  names = 'upload,download,seconds_per_example\n'
  for text, message in (
      ('upload,download\n1,2', 'columns seconds_per_example'),
      ('', "columns.*with '' and 0"), (names, '0 further lines'),
      (names + '1,2,x', "seconds_per_example must be.*'x'"),
      (names + '1,2', "line 2 must have 3 cells, as the first line; got 2"),
      (names + '\n1,0,1', "line 3: download must be.*above 0; got '0'")):
    path.write_text(text, encoding='utf-8')
    with pytest.raises(UserError, match=message):
      clock.read(str(path), 2, 0)
  with pytest.raises(UserError, match=(
      'path must name .*none.csv, which cannot be')):
    clock.read(str(tmp_path / 'none.csv'), 2, 0)


def test_clients_are_available_in_the_windows_of_their_device(tmp_path):
  path = tmp_path / 'trace.csv'
  windows = {'x': [(0, 5), (20, 30.5)], 'y': [(4, 6)], 'z': [(50, 100)]}
  path.write_text('end,device,begin\n' + ''.join(
      f'{end},{device},{begin}\n' for device, begin, end in (
          ('x', 0, 5), ('y', 4, 6), ('x', 20, 30.5), ('z', 50, 100))))
  trace = clock.read_trace(str(path), 3, 0)
  day = clock.DAY  # the whole days up to the latest end
  for time in (0., 4.5, 5., 6., 25., 31., 99.9, 100., day, 2 * day + 4.5,
               day + 20., 3 * day + 30., 3 * day + 60):
    expected = [any(begin <= time % day < end for begin, end in pairs)
                for pairs in windows.values()]
    assert trace.is_available(time).tolist() == expected
    assert [trace.is_available(time, i) for i in range(3)] == expected
  drawn = clock.read_trace(str(path), 900, 0)
  assert abs(drawn.is_available(4.5).mean() - 2 / 3) < .06
  shared = clock.lognormal(900, 0)._replace(trace=drawn)  # devices
  most = int(drawn.is_available(4.5).sum())
  assert shared.first_start(0., least=most) == pytest.approx(4, abs=2e-6)
  with pytest.raises(UserError, match=f'must have {most + 1} clients'):
    shared.first_start(0., least=most + 1)
  made = clock.lognormal(3, 0)._replace(trace=trace)
  near = functools.partial(pytest.approx, abs=2e-6)
  assert made.next_start(1.) == near(4) and made.next_start(60.) == near(day)
  assert [made.first_start(time) for time in (0, 7, 31, day + 7, day + 31)] == (
      near([0, 20, 50, day + 20, day + 50]))
  assert made.first_start(6., least=2) == near(day + 4)
  with pytest.raises(UserError, match='must have 3 clients.*at the same time'):
    made.first_start(0., least=3)
  plan = clock.synchronous(made, np.ones(3), 1, 4, 0)
  assert [end - 1 for end in plan.seconds] == [0, 1, 2, 3]
  late = clock.asynchronous(made, np.full(3, 40.), 1, 1, 4, 0)
  assert [begin for (begin, _), in late.spans] == near([0, 50, 90, day])
  pairs = clock.synchronous(made, np.ones(3), 2, 2, 0, least=2)
  assert pairs.seconds == near([5, day + 5]) and pairs.cohorts == [[0, 1]] * 2
  with pytest.raises(UserError, match='cohorts must not be given with times'):
    clock.synchronous(made, np.ones(3), 1, 1, 0, cohorts=[[0]])
  path.write_text('"device", "begin","end"\n"a",86000,86500\n')
  assert clock.read_trace(str(path), 1, 0).period == 2 * day
  for text, message in (
      ('a,1,2', 'the columns device,begin,end'),
      ('a,-1,2', 'line 2: begin must be a number 0 or more'),
      ('a,3,3', "line 2: end must be.*at least 0.001 above begin=3.*got '3'"),
      ('a,3,1600000000', r'at most 1e\+09 \(seconds since the start of'),
      ('a,3,inf', "'inf'"), ('a,3,4,5', 'line 2 must have 3 cells.*got 4'),
      ('a,3', 'line 2 must have 3 cells.*got 2')):
    head = '' if 'columns' in message else 'device,begin,end\n'
    path.write_text(head + text)
    with pytest.raises(UserError, match=message):
      clock.read_trace(str(path), 2, 0)


def test_clients_of_a_group_are_available_together():
  made = clock.lognormal(600, 0, availability=.25, groups=3)
  assert len(set(made.phase)) == 3
  assert np.bincount(np.unique(made.phase, return_inverse=True)[1]).min() > 150


def test_arguments_are_checked():
  for call, message in (
      (lambda: clock.lognormal(3, 0, groups=4), 'groups must be at most '
       'num_clients=3, and 0 without availability; got 4'),
      (lambda: clock.lognormal(3, 0, upload=0.), 'upload must be above 0.*0.0'),
      (lambda: clock.lognormal(3, 0, availability=1.1), 'at most 1; got 1.1'),
      (lambda: clock.lognormal(3, 0, spread=math.nan), 'spread must be.*nan'),
      (lambda: clock.synchronous(ALWAYS, SECONDS, 6, 1, 0, 1.5),
       'over_selection must start at most all 8 .*got 1.5, which starts 9'),
      (lambda: clock.asynchronous(ALWAYS, SECONDS, 9, 1, 1, 0),
       'concurrency must be 1 to 8, the number of clients; got 9'),
      (lambda: clock.asynchronous(ALWAYS, SECONDS, 1, 0, 1, 0),
       'buffer_size.*got 0')):
    with pytest.raises(UserError, match=message):
      call()
