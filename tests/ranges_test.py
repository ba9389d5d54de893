"""Every range is enforced at its exact ends.

Its ends are accepted, and the next values beyond them are errors that name the
value. `config/limits_test.py` has single settings of a configuration.
"""

import functools
import math
import re

import annotated_types
import numpy as np
import pytest

import moon_jax as mj
from moon_jax import errors
from moon_jax.config import Config, FACTS, KINDS, limits, Part, parts
from moon_jax.data import client_tests, clock, cohort, partition, selection
from moon_jax.data.clock import Timeline
from moon_jax.errors import UserError
from support import tiny_federation

pytestmark = pytest.mark.usefixtures('of_command')

TINY = math.ulp(0.)
above = lambda x: math.nextafter(x, math.inf)
below = lambda x: math.nextafter(x, -math.inf)
LABELS = np.arange(40) % 4
SECONDS = np.arange(1., 9.)
ALWAYS = clock.lognormal(8, seed=0)


@pytest.mark.parametrize('name', [
    name for name, facts in FACTS.items() if any(
        facts[limit] is not None for limit in ('at_least', 'above', 'below'))])
def test_limits_of_a_setting(name):
  """Floating-point settings must also be 0, or at least 1e-30 in size."""
  facts, default = FACTS[name], getattr(Config, name)
  check = functools.partial(limits.check_value, Config, name)
  is_int = type(default) is int
  accepted, refused = [default], []
  if (least := facts['at_least']) is not None:
    accepted.append(least if is_int else float(least))
    refused.append(least - 1 if is_int else below(float(least)))
  if (least := facts['above']) is not None:
    accepted.append(max(above(float(least)), 1e-30))
    refused.append(float(least))
  if (most := facts['below']) is not None:
    accepted.append(below(float(most)))
    refused.append(float(most))
  for value in accepted:
    check(value)
  for value in refused:
    with pytest.raises(UserError, match=f'^--{name} must be .*; got {value}'):
      check(value)


ARGUMENTS = [(kind, name, argument) for kind in KINDS
             for name in KINDS[kind].functions
             for argument, x in parts.schema(kind, name).items() if x.limits]


@pytest.mark.parametrize('kind, name, argument', ARGUMENTS)
def test_limits_of_an_argument_of_a_part(kind, name, argument):
  known = parts.schema(kind, name)
  needed = {key: 2 for key, x in known.items() if x.is_required}
  call = lambda value: parts.normal(
      kind, Part(name).replace(**needed | {argument: value}))
  is_int = known[argument].kind is int
  accepted, refused = [], []
  for limit in known[argument].limits:
    match limit:
      case annotated_types.Ge(ge=end):
        accepted.append(end)
        refused.append(end - 1 if is_int else below(float(end)))
      case annotated_types.Gt(gt=end):
        accepted.append(max(above(float(end)), 1e-30))
        refused.append(end)
      case annotated_types.Le(le=end):
        accepted.append(end)
        refused.append(end + 1 if is_int else above(float(end)))
      case annotated_types.Lt(lt=end):
        accepted.append(below(float(end)))
        refused.append(end)
  assert accepted
  if known[argument].kind is tuple:  # of numbers
    accepted, refused = ([(x,) for x in some] for some in (accepted, refused))
  for value in accepted:
    call(value)
  for value in refused:
    is_nested = kind in ('dataset', 'staleness', 'graph', 'tune')
    shown = rf'{kind}={name}\(.*\): ' if is_nested else rf'{kind}\.'
    if kind == 'staleness':
      shown = rf'rounds\.{shown}'
    with pytest.raises(UserError, match=(
        f'^--{shown}{argument} must be .*; got {re.escape(str(value))}')):
      call(value)


def lognormal(name):
  return lambda value: clock.lognormal(
      8, 0, **{'availability': .5} | {name: value})


def selected(make):
  """Returns a function that makes a selection and selects 2 of 6 clients."""
  return lambda value: selection.choose(
      make(value), selection.begin(6), 2, np.ones(6, int), 0)


# name: a function of a value, values in the range, and values beyond it.
RANGES = {
    'spread': (lognormal('spread'), (0., 5.), (-TINY, above(5.))),
    'availability': (lognormal('availability'), (.001, 1.),
                     (below(.001), above(1.))),
    'groups': (lognormal('groups'), (0, 8), (-1, 9)),
    'seconds_per_example': (
        lognormal('seconds_per_example'), (1e-30,), (0., math.inf)),
    'download': (lognormal('download'), (1e-30,), (0., math.inf)),
    'upload': (lognormal('upload'), (1e-30,), (0., math.inf)),
    'over_selection': (
        lambda x: clock.synchronous(ALWAYS, SECONDS, 4, 2, 0, x),
        (1., 2.), (2.01,)),
    'tiers': (lambda x: clock.synchronous(
        ALWAYS, SECONDS, 2, 2, 0, tiers=x), (1, 4), (0, 5)),
    'concurrency': (lambda x: clock.asynchronous(
        ALWAYS, SECONDS, x, 1, 2, 0), (1, 8), (0, 9)),
    'buffer_size': (lambda x: clock.asynchronous(
        ALWAYS, SECONDS, 8, x, 2, 0), (1, 8), (0, 9)),
    'max_staleness': (lambda x: clock.asynchronous(
        ALWAYS, SECONDS, 2, 1, 2, 0, x), (0,), (-1,)),
    **{name: (lambda x, name=name: selection.oort(**{name: x}), (0., most),
              (-TINY, above(most)))
       for name, most in (('exploration', 1.), ('decay', 1.),
                          ('least_exploration', 1.), ('cutoff', 1.),
                          ('preferred', 1.), ('penalty', 100.))},
    'candidates': (selected(selection.power_of_choice), (0, 2, 6), (1, 7)),
    'cohort_size': (lambda x: cohort.sample(8, x, 2, 0), (1, 8), (0, 9)),
    'fraction': (
        lambda x: client_tests.hold_out([np.arange(9)], x, 0),
        (0., below(1.)), (-TINY, 1.)),
    'seed': (lambda x: partition.iid(8, 2, x), (0, 2**32 - 1), (-1, 2**32)),
    'num_clients': (lambda x: partition.iid(8, x, 0), (1, 8), (0, 9)),
    'num_clients of shards': (
        lambda x: partition.shards(LABELS, x, 2, 0), (1, 20), (0, 21)),
    'shards_per_client': (
        lambda x: partition.shards(LABELS, 4, x, 0), (1, 10), (0, 11)),
    'num_clients of natural': (
        lambda x: partition.natural(LABELS, x, 0), (1, 4), (0, 5)),
    # Each client needs 10 examples.
    'num_examples of dirichlet': (
        lambda x: partition.dirichlet(LABELS[:x], 1, .5, 0), (10,), (9,)),
    'num_examples of quantity': (
        lambda x: partition.quantity(x, 1, .5, 0), (10,), (9,)),
    'beta of dirichlet': (
        lambda x: partition.dirichlet(LABELS, 1, x, 0), (1e-3,), (0.,)),
    'beta of quantity': (
        lambda x: partition.quantity(40, 1, x, 0), (1e-3,), (0.,)),
    'eval_examples': (lambda x: tiny_federation.make(eval_examples=x),
                      (0, 5), (-1, 6)),
}


@pytest.mark.parametrize('name', RANGES)
def test_ranges_of_arguments(name):
  function, accepted, refused = RANGES[name]
  for value in accepted:
    function(value)
  for value in refused:
    with pytest.raises(UserError):
      function(value)


def timeline(**fields):
  """A plan of two rounds, with a field whose last number is given."""
  plan = Timeline([[0, 1, 2], [2, 0, 1]], [1., 2.])
  return lambda x: mj.rounds.timed(plan._replace(
      **{name: [[first] * 3, [first, first, x]]
         for name, first in fields.items()}))


def stale(x):
  return tiny_federation.make(
      rounds=mj.rounds.timed(Timeline(
          [[0], [1], [2], [0, 1, 2]], [1., 2., 3., 4.],
          [[0], [1], [2], [0, 0, x]])),
      algorithm=mj.asynchronous.with_staleness(mj.fedavg(), 2))


def with_selection(**fields):
  return tiny_federation.make(
      rounds=mj.rounds.selected(mj.selection.oort(), **fields))


def array(x, first=1., size=3):
  """An array of which only the last number is given."""
  return np.array([first] * (size - 1) + [x])


NUM_TRAIN = sum(tiny_federation.SIZES)

# As `RANGES`, of which every value is one of many: the others are valid.
ONE_OF_MANY = {
    'timeline.fractions': (
        timeline(fractions=.5), (TINY, 1.), (0., above(1.), math.nan)),
    'timeline.staleness': (stale, (0, 2), (-1, 3)),
    'cohorts': (
        lambda x: tiny_federation.make(rounds=mj.rounds.listed(
            [[0, 1], [1, x]])), (0, 2), (-1, 3, 1)),
    'cohort_size': (
        lambda x: with_selection(cohort_size=x), (1, 3), (0, 4)),
    'rate': (
        lambda x: mj.rounds.with_dropout(mj.rounds.all_clients(), x),
        (0., below(1.)), (-TINY, 1., math.nan)),
    'client_seconds': (
        lambda x: with_selection(cohort_size=2, client_seconds=array(x)),
        (0., 1e30), (-TINY, math.nan, math.inf)),
    'input_noise_std': (
        lambda x: tiny_federation.make(
            input_noise_std=array(x, size=NUM_TRAIN)),
        (0., 2.), (-TINY, math.nan, math.inf)),
    'validation': (
        lambda x: tiny_federation.make(
            clients=[np.arange(1, 9)], validation=np.array([0, x])),
        (9, NUM_TRAIN - 1), (-1, NUM_TRAIN, 1, 8)),
    'clients': (
        lambda x: tiny_federation.make(clients=[np.arange(3), [5, x]]),
        (0, NUM_TRAIN - 1), (-1, NUM_TRAIN)),
}


@pytest.mark.parametrize('name', ONE_OF_MANY)
def test_one_value_of_many_is_checked(name):
  function, accepted, refused = ONE_OF_MANY[name]
  with errors.of_command(False):  # no command has these arguments
    for value in accepted:
      function(value)
    for value in refused:
      with pytest.raises(UserError, match=f'^{name}'):
        function(value)
