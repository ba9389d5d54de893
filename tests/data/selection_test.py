"""Selections of clients by what is known of them."""

import itertools

import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import selection
from moon_jax.errors import UserError
from moon_jax.methods import registry


def view(loss, cohort_size=2, num_examples=None, index=0, **known):
  """Returns what a selection sees of clients with these losses."""
  seen = []
  history = selection.begin(len(loss))._replace(
      loss=np.array(loss, float), num_rounds=np.int64(index))
  selection.choose(
      lambda view: seen.append(view) or [0], history, cohort_size,
      np.ones(len(loss), int) if num_examples is None else num_examples, seed=3)
  return seen[0]._replace(**known)


def test_power_of_choice_takes_the_highest_losses():
  select = selection.power_of_choice(candidates=5)
  assert list(select(view([.1, .5, np.nan, .3, .2]))) == [2, 1]
  first = {tuple(select(view([np.nan] * 5, index=i))) for i in range(400)}
  assert len(first) == 20  # ties in random order: all pairs


def test_candidates_are_drawn_by_their_numbers_of_examples():
  """As their first draw, one of 1, 2, 3 and 4 examples in 10."""
  select = selection.power_of_choice(candidates=1)
  drawn = [select(view([1.] * 4, 1, np.arange(1, 5), i))[0]
           for i in range(4000)]
  np.testing.assert_allclose(
      np.bincount(drawn) / 4000, [.1, .2, .3, .4], atol=.03)


def test_candidates_are_twice_the_clients_by_default():
  losses = [5., 4., 3., 2., 1., 0.]
  pairs = {tuple(selection.power_of_choice()(view(losses, index=i)))
           for i in range(200)}
  assert (0, 1) in pairs and (2, 3) in pairs and (3, 4) not in pairs
  assert list(selection.power_of_choice()(view(losses, 6))) == list(range(6))


def test_candidates_are_available():
  free = np.array([True, False, True, True, False, True])
  select = selection.power_of_choice(candidates=5)
  losses = [.1, .9, .2, .3, .8, np.nan]
  assert list(select(view(losses, is_available=free))) == [5, 3]


def shares(select, **known):
  """Returns how often each client is selected in 2,000 rounds."""
  seen = view(known.pop('loss'), **known)
  found = [select(seen._replace(random=np.random.default_rng(i)))
           for i in range(2000)]
  assert {len(set(clients)) for clients in found} == {seen.cohort_size}
  return np.bincount(np.concatenate(found), minlength=len(seen.loss)) / 2000


def test_oort_draws_by_utility():
  """The utility of each, by hand; one of four clients is drawn.

  Gains are 10, 20, 30 and 40.
  """
  known = dict(
      loss=[5., 2., 10., 4.], num_examples=np.array([2, 10, 3, 10]),
      cohort_size=1, index=4, last_round=np.array([0, 1, 2, 3]),
      seconds=np.array([.5, 1., 8., 4.]))
  unsure = np.sqrt(.1 * np.log(5) / np.arange(1, 5))
  utility = np.array([.01, 10.01, 20.01, 30.01]) / 30.01 + unsure
  select = selection.oort(
      exploration=0., least_exploration=0., cutoff=0., penalty=0.)
  np.testing.assert_allclose(
      shares(select, **known), utility / utility.sum(), atol=.03)
  slow = selection.oort(0., least_exploration=0., cutoff=0., penalty=1.,
                        preferred=1 / 3)  # 1 second; less gains nothing
  utility *= [1, 1, 1 / 8, 1 / 4]
  np.testing.assert_allclose(
      shares(slow, **known), utility / utility.sum(), atol=.03)
  best = selection.oort(0., least_exploration=0., penalty=0., cutoff=1.)
  assert shares(best, **known).tolist() == [0, 0, 0, 1]


def test_oort_clips_the_largest_utilities():
  """Of 100 clients the five with the largest gains have equal utilities."""
  gain = np.arange(1., 101.)
  share = shares(
      selection.oort(0., least_exploration=0., penalty=0., cutoff=1.),
      loss=gain, cohort_size=1, index=1, last_round=np.zeros(100, int))
  assert (share > 0).tolist() == [False] * 95 + [True] * 5


def test_oort_scales_utilities_by_the_largest_gain():
  """So that one client with a huge loss leaves the chances of others alike.

  Of 21 gains the clip is the second largest; by hand, all are drawn about
  equally often.
  """
  gain = np.append(np.arange(1., 21.), 1000.)
  utility = (np.minimum(gain, 20) - .999) / (1000 - .999) + np.sqrt(
      .1 * np.log(5))
  share = shares(
      selection.oort(0., least_exploration=0., penalty=0., cutoff=0.),
      loss=gain, cohort_size=1, index=4, last_round=np.zeros(21, int))
  np.testing.assert_allclose(share, utility / utility.sum(), atol=.015)


@pytest.mark.long
def test_oort_explores_fast_clients_first():
  """Half of the round, then 0.9 of it after each round, at least a quarter."""
  known = dict(loss=[1.] * 8 + [np.nan] * 8, cohort_size=4,
               seconds=np.tile([1., 3.], 8), last_round=np.zeros(16, int))
  select = selection.oort(.5, decay=.8, least_exploration=.25)
  for index, count in ((0, 2), (1, 1.6), (3, 1.024), (50, 1)):
    share = shares(select, index=index, **known)
    assert share[8:].sum() == pytest.approx(count, abs=.04)
  assert share[8::2].sum() / share[9::2].sum() == pytest.approx(3, abs=.6)
  new = shares(select, **known | {'loss': [np.nan] * 16})  # all are explored
  assert new.sum() == pytest.approx(4) and (new[::2] > new[1::2]).all()
  old = shares(select, **known | {'loss': [1.] * 16})  # none is
  assert old.sum() == pytest.approx(4)
  free = np.arange(16) % 5 == 0
  some = shares(select, is_available=free, **known)
  assert (some > 0).tolist() == free.tolist()
  without = shares(selection.oort(1.), num_examples=np.arange(1, 4), loss=[
      np.nan] * 3, cohort_size=1)
  np.testing.assert_allclose(without, np.arange(1, 4) / 6, atol=.03)
  with pytest.raises(UserError, match='cutoff must be at most 1; got 1.5'):
    selection.oort(cutoff=1.5)


@pytest.mark.parametrize('seconds', [
    [0.] * 6, [0, 0, 0, 0, 1, 2], [0, 1e-9, 1, 1e3, 1e6, 1e9], None])
@pytest.mark.parametrize('loss', [
    [.1, .2, .3, .4, .5, .6], [0.] * 6, [-1., -2, -3, -1e-3, -5, -6],
    [np.nan] * 6, [np.nan, 0, np.nan, 1e30, -1e30, 0]])
@pytest.mark.parametrize('penalty', [0., 2., 100.])
def test_oort_selects_as_many_as_there_are(seconds, loss, penalty):
  """Also of clients that take no time, or whose objective is negative."""
  select = selection.oort(penalty=penalty)
  for index, size in itertools.product((1, 3, 500), (1, 3, 6)):
    seen = view(loss, size, index=index, seconds=seconds and np.array(seconds),
                last_round=np.where(np.isnan(loss), -1, index - 1))
    with np.errstate(divide='raise', invalid='raise'):
      found = list(select(seen))
    assert len(found) == len(set(found)) == size


def test_a_client_that_is_not_available_is_refused():
  with pytest.raises(UserError, match='1 to 1 different clients.*0 to 2, all '
                     'of them available; got .0. in round 1'):
    selection.choose(lambda view: [0], selection.begin(3), 2, np.ones(3, int),
                     0, is_available=np.array([False, True, False]))


@pytest.mark.parametrize('count', [1, 7, 2.5, '3'])
def test_too_few_or_too_many_candidates(count):
  with pytest.raises(UserError, match=f'must be 2 to 6.*got {count!r}'):
    selection.power_of_choice(count)(view([1.] * 6))


@pytest.mark.parametrize('found', [
    [], [1, 1], [0, 1, 2], [5], [-1], [.5], None, '01', {0: 1}, [[0]], b'01',
    [True, False], np.array(1), itertools.count()])
def test_what_is_no_list_of_clients(found):
  with pytest.raises(UserError, match=(
      'selection must return 1 to 2 different .*0 to 4; got .* in round 1')):
    selection.choose(lambda view: found, selection.begin(5), 2,
                     np.ones(5, int), 0)


def test_a_rule_needs_enough_clients():
  with pytest.raises(UserError, match='must return 2 to 3 different'):
    selection.choose(lambda view: [0], selection.begin(5), 3, np.ones(5, int),
                     0, least=2)


def test_errors_in_a_generator_name_its_line(tmp_path, monkeypatch):
  monkeypatch.syspath_prepend(tmp_path)
  (tmp_path / 'generating.py').write_text(
      'def some(first: int = 0):\n  def select(view):\n    yield first\n'
      '    yield view.nothing\n  return select\n')
  select = registry.selection_of(Config(cohort='generating:some(first=3)'))
  with pytest.raises(UserError, match=(
      'cohort must name code that runs; got generating:some, .*line 4')):
    selection.choose(select, selection.begin(5), 2, np.ones(5, int), 0)


def test_a_selection_cannot_change_what_is_known():
  history, sizes, seconds = selection.begin(3), np.ones(3, int), np.ones(3)

  def select(view):
    for known in view.loss, view.num_examples, view.seconds:
      known[:] = 0
    return np.array([2, 0])

  assert selection.choose(
      select, history, 2, sizes, 0, seconds) == [2, 0]
  assert np.isnan(history.loss).all() and sizes.all() and seconds.all()


def test_history_counts_rounds_and_updates():
  known = selection.begin(4)
  known = selection.after(known, [0, 2], [2], [.7], 5.)
  known = selection.after(known, [0, 2, 3], [0, 2, 3], [.5, np.nan, .4], 7.)
  np.testing.assert_array_equal(known.loss, [.5, np.nan, .7, .4])
  assert known.last_round.tolist() == [1, -1, 0, 1]
  assert known.times_trained.tolist() == [2, 0, 2, 1]
  assert known.times_received.tolist() == [1, 0, 2, 1]
  assert known.time == 7. and known.num_rounds == 2
  assert selection.after(known, [0], [0], [.1]).time == 7.  # without a clock
