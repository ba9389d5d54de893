"""Selection of clients by what is known of them after each round.

A selection is a function from a `View` to the clients of a round;
`moon_jax.rounds.selected` takes it. It runs on the host between two rounds, and
sees what clients have reported with their updates, how often they have trained,
and what is known in advance: numbers of examples and simulated seconds. Its
results depend on nothing else, so that a run that was stopped resumes with the
same clients.
"""

from collections.abc import Callable, Iterable, Mapping
import itertools
from typing import Annotated, Any, NamedTuple, SupportsIndex

from annotated_types import Ge, Le
import numpy as np

from moon_jax import user_code
from moon_jax.config.parts import checked
from moon_jax.errors import require, UserError

_SELECTION = 2  # separates this random stream from others of a round
_Fraction = Annotated[float, Ge(0), Le(1)]


class History(NamedTuple):
  """What is known of the C clients of a run after some rounds."""

  num_rounds: np.ndarray  # int64, those rounds
  loss: np.ndarray  # float64 [C]
  last_round: np.ndarray  # int64 [C]
  times_trained: np.ndarray  # int64 [C]
  times_received: np.ndarray  # int64 [C]
  time: np.ndarray  # float64, simulated seconds since the start


class View(NamedTuple):
  """What a selection sees before a round.

  Attributes:
    round: the round, from 0.
    cohort_size: the most clients that may be selected, of those that are
      available.
    num_examples: int [C], training examples of each client.
    loss: float [C], mean loss over the local steps of the last update that the
      server received of each client; NaN before the first one. It leaves out
      penalties that the method records, such as MOON's contrastive loss; of
      other methods it is the whole local objective.
    last_round: int [C], the round of that update; -1 before the first one.
    times_trained: int [C], rounds in which each client has trained, with those
      whose updates were lost.
    times_received: int [C], updates that the server has received, with those of
      clients that diverged.
    is_available: bool [C], the clients that may be selected; all without a
      clock.
    seconds: float [C], simulated seconds that each client takes in a round,
      with download and upload; None without a clock.
    time: simulated seconds since the start; 0 without a clock.
    random: the generator of the round, seeded by the run's seed.
  """

  round: int
  cohort_size: int
  num_examples: np.ndarray
  loss: np.ndarray
  last_round: np.ndarray
  times_trained: np.ndarray
  times_received: np.ndarray
  is_available: np.ndarray
  seconds: np.ndarray | None
  time: float
  random: np.random.Generator


Selection = Callable[[View], Iterable[int]]


def power_of_choice(candidates: Annotated[int, Ge(0)] = 0) -> Selection:
  """Returns a selection of the clients with the highest loss among candidates.

  Cho, Wang and Joshi, Towards Understanding Biased Client Selection in
  Federated Learning, AISTATS 2022,
  https://proceedings.mlr.press/v151/jee-cho22a.html, in the variant rpow-d: the
  loss of a client is the mean over its local steps when it last trained, and
  infinite before. Ties go to the clients drawn first, which tend to be the
  larger ones. (In pow-d and cpow-d candidates evaluate the current model in
  each round.)

  The paper averages the models of a round with equal weights: pass
  weighting="uniform".

  Args:
    candidates: number of clients that are drawn for a round, without
      replacement and with probabilities proportional to their numbers of
      examples; from the clients per round to all. 0 draws twice as many as the
      round has. If fewer are available, all of them are candidates.

  Raises:
    UserError: when a round is planned, if there are too few or too many, or it
      is no integer.

  Examples:
    >>> moon_jax.Federation(
    ...     data=data, clients=clients, model=model,
    ...     algorithm=moon_jax.fedavg(),
    ...     weighting='uniform', rounds=moon_jax.rounds.selected(
    ...         moon_jax.selection.power_of_choice(candidates=30),
    ...         cohort_size=10))
  """
  def select(view):
    least, most = view.cohort_size, len(view.loss)
    count = candidates or min(2 * least, most)
    require(isinstance(count, SupportsIndex) and least <= count <= most,
            'candidates', f'must be {least} to {most}, from the clients of a '
            'round to all', repr(candidates),
            '0 takes twice the clients of a round')
    weight = view.num_examples * view.is_available
    drawn = view.random.choice(
        most, min(count, np.count_nonzero(weight)), replace=False,
        p=weight / sum(weight))
    loss = np.where(np.isnan(view.loss), np.inf, view.loss)[drawn]
    # The sort is stable: equals keep the order of the draw.
    return drawn[np.argsort(-loss, kind='stable')][:least]

  return select


@checked
def oort(exploration: _Fraction = 0.9, decay: _Fraction = 0.98,
         least_exploration: _Fraction = 0.2, cutoff: _Fraction = 0.95,
         preferred: _Fraction = 0.3,
         penalty: Annotated[float, Ge(0), Le(100)] = 2.0) -> Selection:
  """Returns a selection of clients that are useful, and fast.

  After Lai et al., Oort: Efficient Federated Learning via Guided Participant
  Selection, OSDI 2021, https://www.usenix.org/conference/osdi21/presentation/lai.
  Clients that have reported a loss are drawn in proportion to their utility,
  among those with at least `cutoff` times the utility of the k-th best, if k
  are drawn. The utility of a client is

      (u + sqrt(0.1 log(round) / last round)) * min(1, T / t)^penalty

  where u is its number of examples times its loss, clipped at the
  95th percentile over clients with a loss and scaled to about 0 to 1, as in
  the released code; t its seconds, and T the quantile `preferred` of those of
  all clients. A fraction of each round, which decays, goes to clients that have
  not reported a loss. They are drawn in proportion to their speed, or without a
  clock to their numbers of examples.

  Differences: Oort takes the root of the mean square of the losses of examples,
  and moon_jax their mean; it adapts T, and learns t when clients train.

  Args:
    exploration: the fraction of a round's clients that is drawn from those
      without a loss, before it decays.
    decay: what multiplies it after each round.
    least_exploration: the least it decays to.
    cutoff: the least utility, relative to that of the k-th best client.
    preferred: the fraction of clients that are not slow.
    penalty: exponent; 0 ignores time.

  Raises:
    UserError: if a number is out of range.
  """
  def select(view):
    is_known = np.isfinite(view.loss)
    known = np.flatnonzero(is_known & view.is_available)
    new = np.flatnonzero(~is_known & view.is_available)
    explored = max(
        exploration * decay ** view.round, least_exploration)
    count = min(len(new), max(  # rounded at random
        int(explored * view.cohort_size + view.random.random()),
        view.cohort_size - len(known)))
    if view.seconds is None:
      speed, slowness = view.num_examples, np.ones(len(view.loss))
    else:
      # Clients may take no time at all.
      seconds = np.maximum(
          view.seconds, 1e-6 * np.max(view.seconds) or 1.)
      slowness = np.maximum(seconds / np.quantile(seconds, preferred), 1.)
      speed = 1 / seconds
    first = _drawn(view.random, new, speed[new], count)
    if not known.size:
      return first
    gain = (view.num_examples * view.loss)[known]
    clip = np.sort(gain)[int(.95 * len(gain))]
    low = gain.min() - .001 * abs(gain.min())  # objectives may be negative
    utility = (np.minimum(gain, clip) - low) / (gain.max() - low or 1.)
    utility += np.sqrt(
        .1 * np.log(view.round + 1) / (view.last_round[known] + 1))
    utility *= slowness[known] ** -penalty
    count = min(view.cohort_size - count, len(known))
    least = cutoff * np.sort(utility)[-max(count, 1)]
    is_useful = utility >= least
    return np.append(first, _drawn(
        view.random, known[is_useful], utility[is_useful], count))

  return select


def _drawn(random, clients, weights, count):
  """Returns clients drawn without replacement, in proportion to weights."""
  # Those with the least exponential variables are such a draw.
  most = np.max(weights, initial=0.)
  weights = np.maximum(weights / (most or 1.), 1e-9)
  times = random.exponential(size=len(clients)) / weights
  return clients[np.argsort(times, kind='stable')[:count]]


def guarded(name: str, selection: Selection) -> Selection:
  """Returns your own selection, whose errors name their line.

  Args:
    name: of its function, MODULE:FUNCTION.
    selection: what the function returned.
  """
  return lambda view: user_code.call('cohort', name, lambda: _listed(
      selection(view), view.cohort_size))


def _listed(chosen, most):
  """Returns an iterable as a list of at most `most` + 1; others as they are."""
  is_list = isinstance(chosen, Iterable) and getattr(chosen, 'ndim', 1) and (
      not isinstance(chosen, str | bytes | Mapping))
  return list(itertools.islice(chosen, most + 1)) if is_list else chosen


def begin(num_clients: int, num_rounds: int = 0) -> History:
  """Returns what is known of clients before the first round.

  `num_rounds` is for rounds that read nothing else of a history.
  """
  return History(
      np.array(num_rounds, np.int64), np.full(num_clients, np.nan),
      np.full(num_clients, -1), *np.zeros((2, num_clients), np.int64),
      np.zeros(()))


def after(history: History, trained: np.ndarray, received: np.ndarray,
          loss: np.ndarray, seconds: float | None = None) -> History:
  """Returns what is known after a round.

  Args:
    history: what was known before it.
    trained: the clients that trained, int [J].
    received: those whose updates the server received, int [K].
    loss: float [K], the loss that each of them reports; NaN of clients that
      diverged, whose last loss stays.
    seconds: simulated seconds from the start of the run to the end of the
      round; None without simulated time.
  """
  known = History(*map(np.copy, history))
  loss, is_known = np.asarray(loss), np.isfinite(loss)
  at = np.asarray(received)[is_known]
  known.loss[at], known.last_round[at] = loss[is_known], history.num_rounds
  known.times_trained[trained] += 1
  known.times_received[received] += 1
  return known._replace(
      num_rounds=known.num_rounds + 1,
      time=known.time if seconds is None else np.float64(seconds))


def choose(selection: Selection, history: History, cohort_size: int,
           num_examples: np.ndarray, seed: int,
           seconds: np.ndarray | None = None, least: int = 1,
           time: float | None = None,
           is_available: np.ndarray | None = None) -> list[int]:
  """Returns the clients of the next round, in the order of the selection.

  Args:
    selection: the function.
    history: what is known of the clients.
    cohort_size: the most clients that it may select.
    num_examples: int [C], of each client.
    seed: of the run.
    seconds: float [C], simulated seconds that each takes; None without a clock.
    least: the fewest clients that the server's rule needs.
    time: simulated seconds at which the round starts; None for the end of the
      last one.
    is_available: bool [C], clients that it may select; None for all.

  Raises:
    UserError: if it does not return clients, each once.
  """
  index, *known, ended = map(np.copy, history)
  num_clients = len(num_examples)
  may = np.full(num_clients, True) if is_available is None else is_available
  cohort_size = min(cohort_size, np.count_nonzero(may))
  view = View(
      int(index), cohort_size, np.copy(num_examples), *known, np.copy(may),
      None if seconds is None else np.copy(seconds),
      float(ended) if time is None else time,
      np.random.default_rng([seed, int(index), _SELECTION]))
  chosen: Any = _listed(selection(view), cohort_size)
  are_clients = isinstance(chosen, list) and all(
      isinstance(i, SupportsIndex) and not isinstance(i, bool)
      and 0 <= int(i) < num_clients and may[int(i)] for i in chosen)
  if not are_clients or not (
      least <= len(set(map(int, chosen))) == len(chosen) <= cohort_size):
    raise UserError(
        'selection', f'must return {least} to {cohort_size} different clients, '
        f'integers from 0 to {num_clients - 1}'
        f'{"" if all(may) else ", all of them available"}',
        f'{repr(chosen)[:80]} in round {index + 1} (view.round={index})',
        'Call it, since it returns a function' if callable(chosen)
        else 'Correct the function')
  return list(map(int, chosen))
