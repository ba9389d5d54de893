"""Simulated time: how long clients take, and the rounds that follow from it.

A client downloads the model, trains and uploads its update, one after another:

    seconds = bytes down / download + examples * seconds_per_example
              + bytes up / upload

The server itself takes no time. When updates arrive depends on these seconds
and the seed, never on values of models, so all rounds are planned on the host
before training: a `Timeline`. Plans of more rounds begin with those of fewer.
"""

from collections.abc import Sequence
import csv
import heapq
import itertools
import math
from typing import Annotated, NamedTuple

from annotated_types import Ge, Gt, Le
import numpy as np

from moon_jax.config.parts import checked, File, FromRun
from moon_jax.data import cohort as cohort_lib
from moon_jax.data.io import files
from moon_jax.errors import require, setting, UserError

DAY = 86400.  # seconds
_LEAST_WAIT = 1e-3  # seconds until the server looks again for clients
_ROUNDING = 1e-6  # seconds by which the start of a window may be missed
_MOST_SECONDS = 1e9  # of a trace: Unix times are larger
_TRIES = 64  # random clients that are tried before free ones are listed

# Separate random streams from other draws of the same seed.
_SPEEDS, _SELECTION, _TRACE = 0x636c6f63, 0x73656c65, 0x74726163

COLUMNS = 'seconds_per_example', 'download', 'upload'


class Trace(NamedTuple):
  """Windows of time in which C clients may start; they repeat.

  Attributes:
    begin: float [W], seconds; windows of a client follow each other.
    end: float [W], seconds, above `begin`.
    first: int [C], the first window of each client.
    stop: int [C], the index after that of its last window.
    period: seconds after which all windows repeat.
  """

  begin: np.ndarray
  end: np.ndarray
  first: np.ndarray
  stop: np.ndarray
  period: float

  def is_available(self, time: float, client=slice(None)) -> np.ndarray:
    """`Clock.is_available`."""
    first, stop = self.first[client], self.stop[client]
    least, at = np.min(first), (time + _ROUNDING) % self.period
    windows = slice(least, np.max(stop))
    is_open_W = (self.begin[windows] <= at) & (at < self.end[windows])
    count = np.concatenate([[0], np.cumsum(is_open_W)])
    return count[stop - least] > count[first - least]


class Clock(NamedTuple):
  """The speed of C clients, and when they are available.

  Attributes:
    seconds_per_example: float [C], of training, per example and epoch.
    download: float [C], bytes per second.
    upload: float [C], bytes per second.
    availability: fraction of each day in which a client may start, at most 1.
    phase: float [C], when that part of the day begins, 0 to 1.
    trace: when clients may start, instead of a part of each day; or None.
  """

  seconds_per_example: np.ndarray
  download: np.ndarray
  upload: np.ndarray
  availability: float = 1.0
  phase: np.ndarray | float = 0.0
  trace: Trace | None = None

  def seconds(self, examples: np.ndarray, download_bytes: float,
              upload_bytes: float) -> np.ndarray:
    """Returns how long each client takes, float [C].

    Args:
      examples: [C], that it trains on, counted again in each epoch.
      download_bytes: that it receives.
      upload_bytes: that it sends.
    """
    return (download_bytes / self.download + upload_bytes / self.upload
            + self.seconds_per_example * examples)

  def is_available(self, time: float, client=slice(None)) -> np.ndarray:
    """Returns which clients may start at a time in seconds, bool [C].

    `client` selects one of them, by its index, or some.
    """
    if self.trace is not None:
      return self.trace.is_available(time, client)
    phase = np.broadcast_to(self.phase, len(self.upload))[client]
    return (time / DAY - phase) % 1 < self.availability

  @property
  def period(self) -> float:
    """Seconds after which the times repeat at which clients are available."""
    return self.trace.period if self.trace else DAY

  def is_always_available(self) -> bool:
    """Returns whether all clients may start at any time."""
    return self.trace is None and self.availability == 1

  def next_start(self, time: float) -> float:
    """Returns a time after `time` at which a client becomes available."""
    period = self.period
    begin = self.trace.begin / period if self.trace else np.asarray(self.phase)
    wait = period * np.min((begin - time / period) % 1)
    return time + max(float(wait), _LEAST_WAIT)

  def first_start(self, time: float, least: int = 1,
                  group_C: np.ndarray | None = None) -> float:
    """Returns when `least` clients may start at once, at `time` or later.

    If `group_C` gives the group of each client, all must be of one group.

    Raises:
      UserError: if so many are never available at once.
    """
    start, end = time, time + 2 * self.period
    if group_C is None:
      group_C = np.zeros(len(self.upload), int)
    while np.bincount(group_C[self.is_available(time)]).max(initial=0) < least:
      if time > end or time == start and self._most_at_once() < least:
        has_tiers = bool(group_C.any())
        raise UserError(
            '', f'a round must have {least} clients{" of a tier" * has_tiers} '
            'that are available at the same time', 'fewer at all times',
            'Make clients available for longer'
            + f', or lower {setting("tiers")}' * has_tiers)
      time = self.next_start(time)
    return time

  def _most_at_once(self):
    """Returns an upper bound on the number of clients available at a time.

    It is too high if windows of a client overlap or touch.
    """
    if self.trace:
      begin, end, first, stop, _ = self.trace
      count = lambda window: np.bincount(window, minlength=len(begin) + 1)
      clients = np.cumsum(count(first) - count(stop))[:-1]  # of each window
    else:
      begin = np.broadcast_to(self.phase, len(self.upload)) * DAY
      end, clients = begin + self.availability * DAY, np.ones(len(begin), int)

    def until(at, times):
      """Counts the clients of windows whose time is at most `at`."""
      order = np.argsort(times)
      return np.append(0, np.cumsum(clients[order]))[
          np.searchsorted(times[order], at, 'right')]

    before = begin - _ROUNDING  # windows may last into the next period
    return np.max(until(begin + 2 * _ROUNDING, begin) - until(before, end)
                  + clients.sum() - until(before + self.period, end))


class Timeline(NamedTuple):
  """Planned rounds, or server steps, and the simulated time at their ends.

  Attributes:
    cohorts: for each round the clients whose updates the server gets.
    seconds: for each round the time since the start at its end.
    staleness: for each client in `cohorts` the server steps since it began; ()
      if all begin with the newest model, in synchronous rounds.
    too_stale: updates that arrived too late and are in no round.
    spans: for each client in `cohorts` when it began, and when its update
      arrived; () if not known. Only pictures use them.
    fractions: for each client in `cohorts` the fraction of its local steps that
      it takes, above 0 and at most 1; () if each takes all.
    cohort_size: the most clients of a round for which memory is planned, if
      further rounds may have more than those in `cohorts`; 0 if not.
  """

  cohorts: list[list[int]]
  seconds: list[float]
  staleness: Sequence[Sequence[int]] = ()
  too_stale: int = 0
  spans: Sequence[Sequence[tuple[float, float]]] = ()
  fractions: Sequence[Sequence[float]] = ()
  cohort_size: int = 0


def validated(name: str, clock: Clock, num_clients: int) -> Clock:
  """Returns the clock of your own function `name`, with arrays, if it is valid.

  Raises:
    UserError: naming the first field with an invalid number.
  """
  def fail(field, requirement, got):
    raise UserError(f'clock={name}', f'must return a clock whose {field} '
                    f'{requirement}', got, 'Change the function')

  made = {}
  is_above_0 = lambda x: x > 0
  for field, words, is_valid in zip(COLUMNS, (
      'of 0 or more', 'above 0', 'above 0'), (
          lambda x: (x >= 0) & (x < np.inf), is_above_0, is_above_0)):
    made[field] = values = np.asarray(getattr(clock, field))
    requirement = f'has {num_clients} numbers {words}, one per client'
    if values.shape != (num_clients,) or values.dtype.kind not in 'iuf':
      fail(field, requirement, f'{values.dtype} {list(values.shape)}')
    if not is_valid(values).all():
      fail(field, requirement, values[~is_valid(values)][0])
  if not 0 < clock.availability <= 1:
    fail('availability', 'is above 0 and at most 1', clock.availability)
  if np.shape(clock.phase) not in ((), (num_clients,)):
    fail('phase', f'is a number, or has {num_clients}',
         list(np.shape(clock.phase)))
  if not np.isfinite(clock.phase).all():
    fail('phase', 'has finite numbers', clock.phase)
  return clock._replace(**made)


@checked
def lognormal(num_clients: FromRun[int], seed: FromRun[int],
              seconds_per_example: Annotated[float, Gt(0)] = 0.01,
              download: Annotated[float, Gt(0)] = 1e7,
              upload: Annotated[float, Gt(0)] = 2e6,
              spread: Annotated[float, Ge(0), Le(5)] = 1.0,
              availability: Annotated[float, Ge(0.001), Le(1)] = 1.0,
              groups: Annotated[int, Ge(0)] = 0) -> Clock:
  """Draws speeds of clients, independently of each other.

  Args:
    num_clients: C.
    seed: of the draws.
    seconds_per_example: median over clients.
    download: median, bytes per second.
    upload: median, bytes per second.
    spread: standard deviation of the logarithm of each; 0 makes clients equal.
    availability: fraction of each day in which a client may start; the part of
      the day is drawn uniformly.
    groups: number of groups whose clients are available at the same time, as in
      a time zone; 0 draws the part of the day of each client.

  Raises:
    UserError: if a number is out of range.
  """
  require(groups <= (num_clients if availability < 1 else 0), 'groups',
          f'must be at most {setting("num_clients", num_clients)}, and 0 '
          f'without {setting("availability")}', groups, 'Lower it')
  medians = seconds_per_example, download, upload
  random = np.random.default_rng([seed, _SPEEDS])
  factors = np.exp(spread * random.standard_normal((3, num_clients)))
  phase = random.random(groups or num_clients)
  if groups:
    phase = phase[random.integers(groups, size=num_clients)]
  return Clock(*(median * factor for median, factor in zip(medians, factors)),
               availability, phase)


def read(path: File, num_clients: FromRun[int], seed: FromRun[int]) -> Clock:
  """Reads the speeds of clients from a text file.

  Its first line names columns: seconds_per_example, download and upload, which
  are those of `Clock`, and others, which are not read. Each further line is a
  device. If there are not as many devices as clients, each client draws one.

  Args:
    path: the text file.

  Raises:
    UserError: if the file cannot be read, or a number is not above 0.
  """
  speeds = np.array([
      [_number(place, name, cell, 'above 0', math.ulp(0.))
       for name, cell in zip(COLUMNS, cells)]
      for place, cells in _rows(path, COLUMNS, 'a device')])
  return Clock(*speeds[_devices(len(speeds), num_clients, [seed, _SPEEDS])].T)


def read_trace(path: str, num_clients: int, seed: int) -> Trace:
  """Reads when clients are available from a text file.

  Its first line names columns: device, begin and end, and others, which are not
  read. Each further line is a window in which the clients of a device may
  start, from begin up to end, in seconds since the start of the run. Windows of
  all devices repeat after the whole days up to the latest end. If there are as
  many devices as clients, they are those of the clients in the order of the
  file; otherwise each client draws one.

  Raises:
    UserError: if the file cannot be read, or a window is invalid.
  """
  windows: dict[str, list[tuple[float, float]]] = {}
  for place, (device, *cells) in _rows(
      path, ('device', 'begin', 'end'), 'a window'):
    begin = _number(place, 'begin', cells[0], '0 or more', 0.)
    end = _number(
        place, 'end', cells[1], f'at least {_LEAST_WAIT} above begin={cells[0]}'
        f', and at most {_MOST_SECONDS:.0e} (seconds since the start of the '
        'run)', begin + _LEAST_WAIT, _MOST_SECONDS)
    windows.setdefault(device, []).append((begin, end))
  first = np.cumsum([0, *map(len, windows.values())])
  device = _devices(len(windows), num_clients, [seed, _TRACE])
  begin_W, end_W = np.array([*itertools.chain(*windows.values())]).T
  return Trace(begin_W, end_W, first[device], first[device + 1],
               DAY * math.ceil(end_W.max() / DAY))


def _rows(path, columns, row):
  """Returns the place of each line of a text file, and its cells of columns."""
  text = files.read_text(path, row)
  lines = csv.reader(text.splitlines(), skipinitialspace=True)
  (_, names), *rows = [
      (f'{setting("path", path)}, line {lines.line_num}',
       list(map(str.strip, cells)))
      for cells in lines if any(cells)] or [('', [])]
  if not set(columns) <= set(names) or not rows:
    raise UserError(
        'path', f'must name a file with the columns {",".join(columns)} in its '
        f'first line, and {row} on each further line', f'{path} with '
        f'{",".join(names)!r} and {len(rows)} further lines',
        'Add what is missing')
  for place, cells in rows:
    require(len(cells) == len(names), '', f'{place} must have {len(names)} '
            'cells, as the first line', len(cells),
            'Separate cells by commas, and write decimals with a point')
  at = [names.index(column) for column in columns]
  return [(place, [cells[index] for index in at]) for place, cells in rows]


def _number(place, name, cell, limits, least, most=math.inf):
  """Returns the number in a cell, finite and within limits."""
  try:
    value = float(cell)
  except ValueError:
    value = math.nan
  require(least <= value <= most and math.isfinite(value), '',
          f'{place}: {name} must be a number {limits}', repr(cell),
          'Correct it')
  return value


def _devices(num_devices, num_clients, seed):
  """Returns the device of each client, int [C]."""
  if num_devices == num_clients:
    return np.arange(num_clients)
  return np.random.default_rng(seed).integers(num_devices, size=num_clients)


def synchronous(clock: Clock, seconds: np.ndarray, cohort_size: int,
                num_rounds: int, seed: int, over_selection: float = 1.0,
                deadline: float = 0.0,
                cohorts: Sequence[Sequence[int]] | None = None,
                partial: tuple[np.ndarray, np.ndarray] | None = None,
                tiers: int = 1, least: int = 1) -> Timeline:
  """Plans rounds that wait for the clients of a cohort.

  Over-selection and deadlines as in Bonawitz et al., Towards Federated Learning
  at Scale, MLSys 2019, https://arxiv.org/abs/1902.01046: the server starts more
  clients than it needs, takes the first ones and aborts the others. If fewer
  have arrived at the deadline it continues with them, but waits for one.

  Args:
    clock: speeds of clients.
    seconds: float [C], how long each takes (`Clock.seconds`).
    cohort_size: updates that a round needs.
    num_rounds: rounds to plan.
    seed: of the selection, which is that of `moon_jax.cohort.sample` if all
      clients are always available.
    over_selection: clients started per update that is needed, at least 1.
    deadline: seconds from the start of a round to its end; 0 has none.
    cohorts: the clients that start in each round, instead of a selection; all
      must always be available.
    partial: the part of `seconds` for download and upload, and the numbers of
      local steps, both [C]. With them clients that would miss the deadline take
      only the steps for which there is time, and those without time for one are
      left out; if all are, the fastest is waited for and takes all its steps.
    tiers: number of groups of equal size of clients with similar `seconds`.
      Each round draws one of them, and its clients from it: the static, uniform
      policy of Chai et al., TiFL, HPDC 2020, https://arxiv.org/abs/2001.09249.
    least: available clients, of a tier, for which a round waits.

  Raises:
    UserError: if a number is out of range, more clients start than there are,
      in all or in a tier, or cohorts are given for clients that are not always
      available.
  """
  num_clients = _checked_count(seconds)
  for name, value, low, high in (
      ('cohort_size', cohort_size, 1, num_clients),
      ('over_selection', over_selection, 1, num_clients),
      ('deadline', deadline, 0, math.inf)):
    require(low <= value <= high, name, f'must be at least {low}'
            + f' and at most {high}' * (high < math.inf), value,
            f'{setting(name, low)} is valid')
  # Rounded first: 1.1 of 10 clients is above 11 in floating point.
  selected = math.ceil(round(cohort_size * over_selection, 6))
  remedy = f'Lower it, or the clients per round ({setting("participation")})'
  require(selected <= num_clients, 'over_selection', 'must start at most all '
          f'{num_clients} clients',
          f'{over_selection}, which starts {selected} per round', remedy)
  require(1 <= tiers <= num_clients // selected, 'tiers',
          f'must be 1 to {num_clients // selected}, so that each of them has '
          f'the {selected} clients that start per round', tiers, remedy)
  require(cohorts is None or clock.is_always_available(), 'cohorts',
          'must not be given with times at which clients are available: they '
          'list the clients that start, available or not', 'both',
          'Remove one of them')
  tier = np.empty(num_clients, int)
  tier[np.argsort(seconds, kind='stable')] = (
      np.arange(num_clients) * tiers // num_clients)
  if cohorts is None and clock.is_always_available() and tiers == 1:
    cohorts = cohort_lib.sample(num_clients, selected, num_rounds, seed)
  random = np.random.default_rng([seed, _SELECTION])
  fraction = _in_time(seconds, deadline or math.inf, partial)
  ends = np.where((0 < fraction) & (fraction < 1), deadline, seconds)
  time, timeline, spans, fractions = 0., Timeline([], []), [], []
  for index in range(num_rounds):
    if cohorts is None:
      time = clock.first_start(time, least, tier)
      free = np.flatnonzero(clock.is_available(time))
      if tiers > 1:
        has_least = np.bincount(tier[free]) >= least
        free = free[tier[free] == random.choice(np.flatnonzero(has_least))]
      started = random.permutation(free)[:selected].tolist()
    else:
      started = list(cohorts[index])
    # Of equals those drawn first, so that numbers of clients do not matter.
    order = sorted(started, key=lambda i: (fraction[i] == 0, ends[i]))
    arrived = order[:cohort_size] if over_selection > 1 else order
    in_time = [i for i in arrived if fraction[i] > 0] or order[:1]
    is_late, kept = len(in_time) < len(arrived), set(in_time)
    cohort = [i for i in started if i in kept]
    spans.append([(time, time + float(ends[i])) for i in cohort])
    fractions.append([float(fraction[i]) or 1. for i in cohort])
    time += max(ends[in_time[-1]], deadline if is_late else 0.)
    timeline.cohorts.append(cohort)
    timeline.seconds.append(float(time))
  return timeline._replace(
      spans=spans, fractions=fractions if partial else ())


def _checked_count(seconds):
  """Returns C, if the seconds of clients are numbers of 0 or more."""
  wrong = np.flatnonzero(~(np.asarray(seconds) >= 0))
  require(not wrong.size, 'seconds', 'must be 0 or more for each client',
          f'{seconds[wrong[0]]} for client {wrong[0]}' if wrong.size else '',
          'Clock.seconds computes them')
  return len(seconds)


def _in_time(seconds, deadline, partial):
  """Returns the fraction of its work that each client does by the deadline."""
  is_in_time = seconds <= deadline
  if partial is None:
    return is_in_time.astype(float)
  transfer, steps = partial
  share = (deadline - transfer) / np.maximum(seconds - transfer, 1e-9)
  # Rounded first: 0.29 of 100 steps is below 29 in floating point.
  fits = np.floor(np.round(np.clip(share, 0, 1) * steps, 6))
  return np.where(is_in_time, 1., fits / steps)


def asynchronous(clock: Clock, seconds: np.ndarray, concurrency: int,
                 buffer_size: int, num_rounds: int, seed: int,
                 max_staleness: int = 20) -> Timeline:
  """Plans the steps of a server that waits for the next updates of any client.

  At most `concurrency` clients train at a time, each from the model that is the
  newest when it starts. Whenever an update arrives, clients start until there
  are as many, drawn uniformly from those that are available, do not train, and
  have no update that waits for the server. So a client has at most one update
  in a step. Updates that arrive at the same time are taken in the order of
  their starts, before clients start.

  Args:
    clock: when clients are available.
    seconds: float [C], how long each takes (`Clock.seconds`).
    concurrency: clients that train at the same time.
    buffer_size: updates per server step.
    num_rounds: server steps to plan.
    seed: of the selection.
    max_staleness: older updates are discarded.

  Raises:
    UserError: if a number is out of range.
  """
  num_clients = _checked_count(seconds)
  require(max_staleness >= 0, 'max_staleness', 'must be 0 or more',
          max_staleness, '20 is usual')
  for name, value in (('concurrency', concurrency),
                      ('buffer_size', buffer_size)):
    require(1 <= value <= num_clients, name,
            f'must be 1 to {num_clients}, the number of clients', value,
            f'{setting(name, max(1, num_clients // 2))} is valid')
  random = np.random.default_rng([seed, _SELECTION])
  is_idle = np.ones(num_clients, bool)
  time, too_stale, order = 0., 0, itertools.count()
  training: list[tuple[float, int, int, int]] = []  # a heap
  waiting: list[tuple] = []  # clients, their staleness and their spans
  cohorts, ends, staleness, spans = [], [], [], []
  while len(cohorts) < num_rounds:
    while len(training) < concurrency and not (
        training and training[0][0] <= time):
      client = _drawn(random, clock, is_idle, time)
      if client is None:
        break
      is_idle[client] = False
      heapq.heappush(training, (
          time + float(seconds[client]), next(order), client, len(cohorts)))
    if not training:
      time = clock.next_start(time)
      continue
    time, _, client, begun = heapq.heappop(training)
    if len(cohorts) - begun > max_staleness:
      is_idle[client], too_stale = True, too_stale + 1
      continue
    waiting.append((client, len(cohorts) - begun,
                    (time - float(seconds[client]), time)))
    if len(waiting) == buffer_size:
      clients, steps, times = map(list, zip(*waiting))
      cohorts.append(clients)
      staleness.append(steps)
      spans.append(times)
      ends.append(time)
      is_idle[clients] = True
      waiting = []
  return Timeline(cohorts, ends, staleness, too_stale, spans)


def _drawn(random, clock, is_idle, time):
  """Returns a client that is idle and available; None if there is none."""
  for client in random.integers(len(is_idle), size=_TRIES).tolist():
    if is_idle[client] and clock.is_available(time, client):
      return client
  free = np.flatnonzero(is_idle & clock.is_available(time))
  return int(random.choice(free)) if free.size else None
