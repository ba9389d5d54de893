"""Who takes part in each round: cohorts, selections, simulated time, dropout.

A `Rounds` is a value, as an `Algorithm` is: its function `next` returns the
`Cohort` of the next round from what is known of the clients, and its attributes
declare what the plan of a run depends on. The functions of this module return
such values; `with_dropout` returns a changed one.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
import itertools
from numbers import Real
import reprlib
from typing import Any, NamedTuple, Self, SupportsIndex

import numpy as np

from moon_jax.data import cohort as cohort_lib
from moon_jax.data import selection as selection_lib
from moon_jax.data.clock import Clock, Timeline
from moon_jax.data.selection import History, Selection
from moon_jax.errors import require

STAGES = 'before_training', 'after_training'


class Run(NamedTuple):
  """What rounds read of the federation that they belong to."""

  num_examples: np.ndarray  # int [C], training examples of each client
  seed: int
  min_received: int = 1  # updates that the server's rule needs

  @property
  def num_clients(self) -> int:
    """C."""
    return len(self.num_examples)


class Cohort(NamedTuple):
  """The clients of a round; lists have one Python number for each.

  Attributes:
    clients: their numbers.
    lost: whether the server does not receive the update.
    steps_fraction: the fraction of its local steps that each takes, at most 1;
      0 if it fails before training, so that its state does not change.
    staleness: how many server steps before this one each began.
    seconds: simulated seconds from the start of the run to the end of the
      round; None without simulated time.
  """

  clients: list[int]
  lost: list[bool]
  steps_fraction: list[float]
  staleness: list[int]
  seconds: float | None = None

  @classmethod
  def of(cls, clients: Iterable[SupportsIndex],
         seconds: float | None = None) -> Self:
    """Returns a cohort in which no client fails or takes fewer steps."""
    numbers = list(map(int, clients))
    count = len(numbers)
    return cls(numbers, [False] * count, [1.] * count, [0] * count, seconds)

  @property
  def trained(self) -> list[int]:
    """The clients that do not fail before training."""
    return [client for client, fraction in zip(
        self.clients, self.steps_fraction) if fraction > 0]


class Rounds(NamedTuple):
  """Who takes part in each round of a run.

  Attributes:
    next: `(history, run) -> Cohort`. Returns the next cohort; the number of
      rounds done is `history.num_rounds`. It is called on the host, more than
      once for a round, and depends on nothing else.
    cohort_size: the most clients of a round, for which memory is planned; None
      if all clients take part in each round.
    num_rounds: the most rounds that there are; None if there is no limit.
    cohorts: for each round its clients, if they are known before training, with
      those that fail; None if all take part, or if results decide.
    needs_history: whether `next` reads more of the history than `num_rounds`.
      Then rounds are planned one by one, by the first process.
    loses_updates: whether the server may not receive the update of a client.
    skips_clients: whether a client of a round may fail before it trains.
    num_dropouts: how often `with_dropout` was applied.
    has_partial_work: whether clients may take a part of their local steps.
    max_staleness: the largest staleness of an update; the algorithm must be one
      of `moon_jax.asynchronous`; None if all begin with the newest model.
    timeline: the plan of simulated time, for pictures and summaries; or None.
    check: `(run) -> None`. Raises a UserError if rounds do not fit the run.
  """

  next: Callable[[History, Run], Cohort]
  cohort_size: int | None = None
  num_rounds: int | None = None
  cohorts: Sequence[Sequence[int]] | None = None
  needs_history: bool = False
  loses_updates: bool = False
  skips_clients: bool = False
  num_dropouts: int = 0
  has_partial_work: bool = False
  max_staleness: int | None = None
  timeline: Timeline | None = None
  check: Callable[[Run], None] = lambda run: None

  def misses_clients(self, num_clients: int) -> bool:
    """Returns whether a client may have no part in a round."""
    if self.cohorts is None:
      return self.cohort_size is not None
    return any(len(clients) < num_clients for clients in self.cohorts)

  def sizes(self, num_rounds: int | None, num_clients: int) -> list[int]:
    """Returns the numbers of clients of the first rounds, None for all.

    If they are not known, returns only the largest number of a round.
    """
    if self.cohorts is None:
      return [num_clients if self.cohort_size is None else self.cohort_size]
    return [len(clients) for clients in self.cohorts[:num_rounds]]

  def most_visits(self, num_rounds: int) -> int:
    """Returns in how many rounds the most frequent client takes part.

    Of the first `num_rounds`: all, if results decide who takes part.
    """
    if self.cohorts is None:
      return num_rounds
    visits = Counter(itertools.chain.from_iterable(self.cohorts[:num_rounds]))
    return max(visits.values(), default=0)

  def check_has(self, num_rounds: int) -> None:
    """Checks that there are at least `num_rounds` rounds.

    Raises:
      UserError: if there are fewer.
    """
    require(self.num_rounds is None or num_rounds <= self.num_rounds, '',
            f'a round must be one of the {self.num_rounds} that have a cohort',
            f'round {num_rounds}', 'List more, or take rounds without a limit, '
            'such as moon_jax.rounds.all_clients()')

  def cohort(self, history: History, run: Run) -> Cohort:
    """Returns the cohort of the next round.

    Raises:
      UserError: if there is none, or it does not fit the run or what the rounds
        declare.
    """
    number = int(history.num_rounds) + 1
    self.check_has(number)
    cohort = self.next(history, run)
    require(isinstance(cohort, Cohort), 'rounds', 'must have a function next '
            'that returns a moon_jax.rounds.Cohort', reprlib.repr(cohort),
            'Cohort.of(clients) makes one')
    name = f'clients in round {number}'
    _check_clients(name, cohort.clients, run.num_clients)
    count = len(cohort.clients)
    most = count if self.cohort_size is None else self.cohort_size
    require(count <= most, '', f'round {number} must have at most {most} '
            'clients, cohort_size of the Rounds', count, 'Raise cohort_size')
    for field, limit in {'lost': 1, 'steps_fraction': 1,
                         'staleness': self.max_staleness or 0}.items():
      values = getattr(cohort, field)
      require(len(values) == count and all(0 <= x <= limit for x in values), '',
              f'{field} in round {number} must have a number from 0 to {limit} '
              f'for each of {count} clients', reprlib.repr(values),
              'Cohort.of(clients) has such lists')
    return cohort


def all_clients() -> Rounds:
  """Returns rounds in which all clients take part, without a limit."""
  return Rounds(lambda history, run: Cohort.of(range(run.num_clients)))


def listed(cohorts: Sequence[Sequence[int]]) -> Rounds:
  """Returns rounds whose clients are listed.

  Args:
    cohorts: for each round the clients that take part, from 0.

  Raises:
    UserError: if they are no lists of clients.

  Examples:
    >>> moon_jax.Federation(
    ...     data=data, clients=clients, model=model,
    ...     algorithm=moon_jax.fedavg(),
    ...     rounds=moon_jax.rounds.listed([[0, 1], [2, 3]]))
  """
  _check_are_lists(cohorts)
  cohorts = list(cohorts)  # rows of an array, too
  return Rounds(
      lambda history, run: Cohort.of(cohorts[int(history.num_rounds)]),
      cohort_size=max(map(len, cohorts)), num_rounds=len(cohorts),
      cohorts=cohorts, check=lambda run: _check_cohorts(
          cohorts, run.num_clients))


def sampled(num_clients: int, cohort_size: int, num_rounds: int,
            seed: int) -> Rounds:
  """Returns `listed` rounds of `moon_jax.cohort.sample`.

  Raises:
    UserError: if there are not as many clients, or a number is no integer.
  """
  return listed(cohort_lib.sample(num_clients, cohort_size, num_rounds, seed))


def selected(selection: Selection, cohort_size: int,
             client_seconds: np.ndarray | None = None,
             availability: Clock | None = None) -> Rounds:
  """Returns rounds that choose clients by what is known of them.

  With simulated time a round waits for available clients, and for the slowest
  one of its cohort, even if it fails.

  Args:
    selection: the function, such as `moon_jax.selection.oort()`.
    cohort_size: the most clients that it may select for a round.
    client_seconds: float [C], simulated seconds that each client takes; None
      has no simulated time.
    availability: the clock with the times at which clients may start; None if
      they always may.

  Raises:
    UserError: if a value is invalid, or when a round is planned, if `selection`
      does not return clients or too few for the algorithm.
  """
  require(callable(selection), 'selection', 'must be a function of a '
          'moon_jax.selection.View', reprlib.repr(selection),
          'moon_jax.selection.power_of_choice() is one')
  require(isinstance(cohort_size, SupportsIndex) and cohort_size is not True
          and cohort_size >= 1, 'cohort_size',
          'must be an integer of at least 1, the most clients of a round',
          reprlib.repr(cohort_size), 'cohort_size=1 selects one client')
  require(
      client_seconds is None or isinstance(client_seconds, np.ndarray)
      and client_seconds.dtype.kind in 'fiu' and client_seconds.ndim == 1
      and np.isfinite(client_seconds).all()
      and np.min(client_seconds, initial=0) >= 0,
      'client_seconds', 'must be an array of a finite number of 0 or more for '
      'each client', reprlib.repr(client_seconds), 'moon_jax.clock makes them')
  require(
      availability is None or (
          isinstance(availability, Clock) and client_seconds is not None),
      'availability', 'must be a moon_jax.clock.Clock, with client_seconds',
      reprlib.repr(availability), 'None has clients that are always available')

  def next_(history, run):
    start = time = float(history.time)
    is_available = None
    if availability is not None:
      start = availability.first_start(time, run.min_received)
      is_available = availability.is_available(start)
    clients = selection_lib.choose(
        selection, history, cohort_size, run.num_examples, run.seed,
        client_seconds, run.min_received, start, is_available)
    if client_seconds is None:
      return Cohort.of(clients)
    return Cohort.of(clients, time + (
        start - time + float(np.max(client_seconds[clients]))))

  def check(run):
    count = run.num_clients
    require(cohort_size <= count, 'cohort_size',
            f'must be at most the {count} clients', cohort_size, 'Lower it')
    lengths = {
        'client_seconds': count if client_seconds is None else len(
            client_seconds),
        'availability': count if availability is None else len(
            availability.is_available(0.))}
    for name, length in lengths.items():
      require(length == count, name, f'must be of all {count} clients', length,
              'moon_jax.clock.lognormal makes a clock of them')

  return Rounds(next_, cohort_size=int(cohort_size), needs_history=True,
                check=check)


def timed(timeline: Timeline) -> Rounds:
  """Returns rounds, or server steps, whose simulated time is planned.

  Args:
    timeline: the result of `moon_jax.clock.synchronous` or `asynchronous`.

  Raises:
    UserError: if its lists do not fit together.
  """
  _check_timeline(timeline)
  rounds = listed(timeline.cohorts)

  def next_(history, run):
    index, cohort = int(history.num_rounds), rounds.next(history, run)
    if len(timeline.fractions):
      cohort = cohort._replace(steps_fraction=list(timeline.fractions[index]))
    if len(timeline.staleness):
      cohort = cohort._replace(staleness=list(timeline.staleness[index]))
    return cohort._replace(seconds=timeline.seconds[index])

  return rounds._replace(
      next=next_, timeline=timeline,
      cohort_size=max(*map(len, timeline.cohorts), timeline.cohort_size),
      has_partial_work=len(timeline.fractions) > 0,
      max_staleness=max(map(max, timeline.staleness), default=None))


def with_dropout(rounds: Rounds, rate: float,
                 stage: str = 'before_training') -> Rounds:
  """Returns rounds in which clients fail at random.

  Which clients fail depends on the seed of the run and the round alone. Applied
  again, such as for the other stage, it draws independently.

  Args:
    rounds: the rounds.
    rate: probability that a client fails in a round, so that the server does
      not receive its update.
    stage: when: "before_training", so that its state does not change, or
      "after_training", so that it does.

  Raises:
    UserError: if a value is out of range, or updates are asynchronous: the
      server counts those that arrive.
  """
  require(isinstance(rate, Real) and 0 <= rate < 1, 'rate',
          'must be at least 0 and below 1', repr(rate), 'rate=0 has no dropout')
  require(stage in STAGES, 'stage', f'must be one of {", ".join(STAGES)}',
          repr(stage), f'The default is {STAGES[0]!r}')
  require(rate == 0 or rounds.max_staleness is None, 'rate', 'must be 0 with '
          'asynchronous training, which counts updates that arrive', rate,
          'rate=0 has no dropout')
  if rate == 0:
    return rounds

  def next_(history, run):
    cohort = rounds.next(history, run)
    fails = [cohort_lib.is_lost(
        rate, run.seed, int(history.num_rounds), i, rounds.num_dropouts)
             for i in cohort.clients]
    if stage == 'before_training':
      cohort = cohort._replace(steps_fraction=[
          0. if fail else part
          for fail, part in zip(fails, cohort.steps_fraction)])
    return cohort._replace(lost=[
        fail or lost for fail, lost in zip(fails, cohort.lost)])

  return rounds._replace(
      next=next_, loses_updates=True, num_dropouts=rounds.num_dropouts + 1,
      skips_clients=rounds.skips_clients or stage == 'before_training')


def _check_are_lists(cohorts):
  """Checks the types of cohorts."""
  rows = cohorts if isinstance(cohorts, list | tuple | np.ndarray) else ()
  are_lists = hasattr(cohorts, '__len__') and not isinstance(
      cohorts, str | Mapping) and not any(
          isinstance(row, str) or not isinstance(row, Iterable) for row in rows)
  message = ('cohorts', 'must list the clients of each round, such as '
             '[[0, 3], [1, 2]]')
  remedy = 'moon_jax.rounds.all_clients() takes all clients in each round'
  require(are_lists, *message, reprlib.repr(cohorts), remedy)
  require(any(map(len, cohorts)), *message, 'none', remedy)


def _check_cohorts(cohorts, num_clients):
  """Checks that cohorts have clients of a run, each once."""
  last: Any = None
  for index, clients in enumerate(cohorts):
    if clients is last:  # with full participation all are the same long list
      continue
    last = clients
    _check_clients(f'cohorts[{index}]', clients, num_clients)


def _check_clients(name, clients, num_clients):
  """Checks that a list has clients of a run, each once."""
  got = reprlib.repr(list(clients))
  # A check of the protocol takes 7 us; int comes first.
  require(all(isinstance(x, (int, SupportsIndex)) for x in clients), '',
          f'{name} must be integers, the numbers of clients', got,
          'Convert them with int')
  least, most = min(clients, default=0), max(clients, default=0)
  require(0 <= least and most < num_clients, '',
          f'{name} must be clients from 0 to {num_clients - 1}',
          f'{least} to {most}', 'Clients are numbered from 0')
  require(len(set(clients)) == len(clients), '',
          f'{name} must list each client once', got, 'Remove the others')


def _check_timeline(timeline):
  """Checks that the lists of a timeline fit together."""
  require(isinstance(timeline, Timeline), 'timeline', 'must be the result of '
          'moon_jax.clock.synchronous or asynchronous', reprlib.repr(timeline),
          'Other rounds have no simulated time')
  cohorts = timeline.cohorts
  _check_are_lists(cohorts)
  for name in 'seconds', 'staleness', 'fractions':
    lines = getattr(timeline, name)
    require(len(lines) == len(cohorts) or name != 'seconds' and not len(lines),
            '', f'timeline.{name} must have an entry for each of the '
            f'{len(cohorts)} cohorts', len(lines), 'moon_jax.clock makes them')
  ends = np.asarray(timeline.seconds, float)
  require((np.diff(ends, prepend=0.) >= 0).all(), '', 'timeline.seconds must '
          'be 0 or more, each at least the one before',
          reprlib.repr(list(timeline.seconds)), 'They are ends of rounds')
  for index, (cohort, taus) in enumerate(zip(cohorts, timeline.staleness)):
    require(len(taus) == len(cohort) > 0 and (
        0 <= min(taus) <= max(taus) <= index), '',
            f'timeline.staleness[{index}] must have a number from 0 to {index} '
            f'for each of {len(cohort)} clients', reprlib.repr(list(taus)),
            'The limit is the step')
  for index, (cohort, parts) in enumerate(zip(cohorts, timeline.fractions)):
    require(len(parts) == len(cohort) and all(0 < x <= 1 for x in parts), '',
            f'timeline.fractions[{index}] must have a number above 0 and at '
            f'most 1 for each of {len(cohort)} clients',
            reprlib.repr(list(parts)), 'Remove the clients that do not train')
