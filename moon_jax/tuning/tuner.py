"""Tuners choose the settings to train next from the results so far."""

import collections
from collections.abc import Callable, Mapping, Sequence
import math
from typing import Any
import warnings

from moon_jax.config import parts
from moon_jax.errors import DivergedError, require, UserError
from moon_jax.simulation.federation import Federation
from moon_jax.simulation.metric_functions import is_better_lower
from moon_jax.simulation.program import Program
from moon_jax.tuning import search as search_lib
from moon_jax.tuning.methods import Trial
from moon_jax.tuning.search import Space

# Beginnings of metrics that no test data enter.
_METRICS = 'validation_', 'train_', 'global_train_'


class Tuner:
  """Chooses settings by their results on validation data.

  Attributes:
    space: what is searched.
    tune: what decides: a `moon_jax.Part`, or a function of the history.
    history: the trials with a value, in the order of `tell`.

  Examples:
    >>> tuner = moon_jax.Tuner(
    ...     {'learning_rate': 'log(0.001, 0.3)', 'mu': [1, 5]},
    ...     'halving(eta=3, rungs=3)', num_rounds=27)
    >>> while trials := tuner.ask():
    ...   for trial in trials:
    ...     tuner.tell(trial, accuracy_after(trial.settings, trial.rounds))
    >>> tuner.best.settings
  """

  def __init__(self, search: Mapping[str, Any],
               tune: Any = 'halving(eta=3, rungs=4)', num_rounds: int = 100,
               seed: int = 0):
    """Checks the arguments.

    Args:
      search: for each name a list of values, or a text such as 'log(0.1, 10)',
        'uniform(0, 1)' or 'integer(1, 10)'.
      tune: a call of halving, random, optuna or your own MODULE:FUNCTION; or a
        function of the history, which returns settings, a list of them, or []
        to end.
      num_rounds: rounds of a trial that is trained to its end.
      seed: of the draws.
    """
    self.space = Space(
        {name: search_lib.axis(name, given, f'search {name}', is_setting=False)
         for name, given in search.items()}, num_rounds, seed)
    self.tune = tune if callable(tune) else parts.normal(
        'tune', parts.parse('tune', tune))
    self.history: list[Trial] = []
    self._asked: list[Trial] = []

  def ask(self) -> list[Trial]:
    """Returns trials to train up to their round; none if the search ends.

    Trials are returned again until `tell` has taken their values.
    """
    if not self._asked:
      history = [*self.history]
      found = self.tune(history) if callable(self.tune) else parts.make(
          'tune', self.tune, history=history, space=self.space)
      found = [found] if isinstance(found, Mapping) and found else found
      if not isinstance(found, Sequence | Mapping) or not all(
          isinstance(x, Mapping | Trial) for x in found):
        raise UserError(
            'tune', 'must return settings, a dict of values by name, or a list '
            'of them; [] ends the search', repr(found))
      known = {(str(x.settings), x.rounds) for x in history}
      self._asked = [x for x in (
          x if isinstance(x, Trial) else Trial(dict(x), self.space.num_rounds)
          for x in found) if (str(x.settings), x.rounds) not in known]
      if found and not self._asked:
        warnings.warn('the search ends, since tune has returned only settings '
                      f'that were tried: {found}', stacklevel=2)
    return [*self._asked]

  def tell(self, trial: Trial, value: float | None) -> None:
    """Takes the value of a trial, the greater the better.

    None, or a number that is not finite, is that of a run that diverged.
    """
    if trial not in self._asked:
      raise UserError('trial', 'must be one that ask() has returned, and that '
                      'tell() has not taken yet', repr(trial))
    self._asked.remove(trial)
    self.history.append(trial._replace(
        value=None if value is None or not math.isfinite(value) else
        float(value)))

  def forecast(self) -> dict[int, int]:
    """Returns how many trials train up to which round, by round.

    {} if a function of your own decides.
    """
    counts: dict[int, int] = {}
    if not callable(self.tune) and not self.tune.is_own:
      other = Tuner(self.space.axes, self.tune, self.space.num_rounds,
                    self.space.seed)
      while trials := other.ask():
        for trial in trials:
          counts[trial.rounds] = counts.get(trial.rounds, 0) + 1
          other.tell(trial, 0.)
    return counts

  @property
  def best(self) -> Trial | None:
    """The best of the trials of most rounds; None if all have diverged.

    Settings that diverged after they continued are not chosen either.
    """
    diverged = [x.settings for x in self.history if x.value is None]
    return max((x for x in self.history if x.settings not in diverged),
               key=lambda trial: (trial.rounds, trial.rank), default=None)

  def ties(self) -> dict[int, list[Trial]]:
    """Returns trials of equal value that only their order has told apart.

    By round: some of them continued, or one is chosen, and others are not.
    """
    found: dict[int, list[Trial]] = {}
    best = self.best
    for rounds in sorted({trial.rounds for trial in self.history}):
      went_on = [x.settings for x in [*self.history, *self._asked]
                 if x.rounds > rounds] or (
                     [best.settings] if best and not self._asked else [])
      equal: dict[float, list[Trial]] = collections.defaultdict(list)
      for trial in self.history:
        if trial.rounds == rounds and trial.value is not None:
          equal[trial.value].append(trial)
      for trials in equal.values():
        if len({trial.settings in went_on for trial in trials}) == 2:
          found[rounds] = trials
    return found

  def edges(self, settings: Mapping[str, Any]) -> list[str]:
    """Returns the names of settings that lie at an edge of their range."""
    return [name for name, axis in self.space.axes.items()
            if name in settings and axis.is_edge(settings[name])]

  def train(self, program: Program, federation_of: Callable[
      [dict[str, Any]], Federation], metric: str = 'validation_accuracy'
            ) -> Trial | None:
    """Trains all trials as runs of a program; returns the best one.

    A new trial replaces the run of one that has stopped. Trials that continue
    have the numbers that they have alone. Nothing is compiled again.

    Args:
      program: of as many runs as are to train side by side.
      federation_of: returns the federation of settings, with `validation`.
      metric: of the evaluation of the global model.
    """
    sign = sign_of(metric)
    states: list[tuple[dict, Any]] = []  # of trials that may continue
    while trials := self.ask():
      known = [trial.settings for trial in trials]
      states = [x for x in states if x[0] in known]
      for start in range(0, len(trials), len(program.runs)):
        rows = dict(enumerate(trials[start:start + len(program.runs)]))
        for row, trial in rows.items():
          program.replace(row, federation_of(trial.settings))
          for settings, state in states:
            if settings == trial.settings and state.round[0] <= trial.rounds:
              program.restore(row, state)
        diverged: set[int] = set()
        while left := [row for row in rows.keys() - diverged if (
            program.runs[row].rounds_done < rows[row].rounds)]:
          diverged |= {row for row, outcome in zip(
              sorted(left), program.run_round(sorted(left)))
                       if isinstance(outcome, DivergedError)}
        for row, trial in rows.items():
          states.append((trial.settings, program.state_on_host(row)))
          value = None if row in diverged else _value(program, row, metric)
          self.tell(trial, None if value is None else sign * value)
    return self.best


def _value(program, row, metric):
  """Returns a metric of a run; None if it, or the loss, is not finite."""
  try:
    line = program.evaluate(row)
  except DivergedError:
    return None
  require(metric in line, 'metric', 'must be one of evaluations of the global '
          f'model, which are {", ".join(filter(_reads_no_test_data, line))}',
          metric, 'validation_... needs Federation(validation=...), and '
          "global_train_... eval_on='train'")
  return line[metric]


def _reads_no_test_data(metric):
  return metric.startswith(_METRICS)


def sign_of(metric: str) -> int:
  """Returns 1 for a metric that is the better the greater it is, else -1.

  Raises:
    UserError: if it may read test data, by which nothing is chosen.
  """
  if not _reads_no_test_data(metric):
    raise UserError('tune.metric', 'must be one that reads no test data: its '
                    f'name begins with {", ".join(_METRICS)}', metric,
                    'The default is validation_accuracy')
  return -1 if is_better_lower(metric) else 1
