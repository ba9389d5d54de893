"""What to try next: the functions of `--tune`.

Each is called when all that it has asked for has been trained, with the whole
history, and returns what to train next; an empty list ends the search. It keeps
no state: the same history gives the same answer, so that a command that was
killed takes the same decisions again. Your own function is called in the same
way, and returns settings, or a list of them, which train together:

    def search(history):
      if len(history) == 20:
        return []
      return {'learning_rate': 0.1 / (1 + len(history))}
"""

from collections.abc import Sequence
import math
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge

from moon_jax.errors import require, require_package, setting
from moon_jax.tuning.search import Space


class Trial(NamedTuple):
  """Settings that are trained up to a round, and how good they were.

  Attributes:
    settings: values by name.
    rounds: trained from the beginning.
    value: of the metric, the greater the better; None before it is known, or
      if the run diverged.
  """

  settings: dict[str, Any]
  rounds: int
  value: float | None = None

  @property
  def rank(self) -> float:
    """The value, below all others for a run that diverged."""
    return -math.inf if self.value is None else self.value


def halving(history: Sequence[Trial], space: Space,
            eta: Annotated[int, Ge(2)] = 3, rungs: Annotated[int, Ge(1)] = 4,
            trials: Annotated[int, Ge(0)] = 0) -> list[Trial]:
  """Successive halving: all begin, and the best continue at each rung.

  Jamieson and Talwalkar, AISTATS 2016, https://arxiv.org/abs/1502.07943.

  Args:
    eta: the best 1 / eta of the trials of a rung continue, to eta times as many
      rounds.
    rungs: number of rungs; the last one ends with --num_rounds.
    trials: number of trials that begin; 0 are all of --grid, or with --search
      as many as leave one on the last rung.
  """
  least = eta ** (rungs - 1)
  count = trials or space.size or least
  given = f'tune=halving(eta={eta}, rungs={rungs})'
  require(count >= least, given, f'needs {least} trials or more, since its '
          'last rung has none otherwise', count, 'Give fewer rungs, or search '
          'more values')
  require(space.num_rounds >= least, given, f'needs {setting("num_rounds")} of '
          f'{least} or more, since its first rung has num_rounds / {least}',
          space.num_rounds, 'Give fewer rungs, or more rounds')
  chosen = space.grid() if count == space.size else space.draws(count)
  for rung in range(rungs):
    rounds = math.ceil(space.num_rounds / eta ** (rungs - 1 - rung))
    known = [trial for trial in history if trial.rounds == rounds]
    if new := _unknown(chosen, known):
      return [Trial(settings, rounds) for settings in new]
    chosen = sorted(  # the first of equals continues
        chosen, key=lambda settings: -_of(known, settings).rank)[
            :count // eta ** (rung + 1)]
  return []


def random(history: Sequence[Trial], space: Space,
           trials: Annotated[int, Ge(1)] = 30) -> list[Trial]:
  """Random search: draws of all ranges, trained to the end.

  Bergstra and Bengio, JMLR 2012, https://jmlr.org/papers/v13/bergstra12a.html.

  Args:
    trials: number of trials.
  """
  return [Trial(settings, space.num_rounds)
          for settings in _unknown(space.draws(trials), history)]


def optuna(history: Sequence[Trial], space: Space,
           trials: Annotated[int, Ge(1)] = 50,
           batch: Annotated[int, Ge(1)] = 10) -> list[Trial]:
  """Optuna's sampler, the tree-structured Parzen estimator, by ask and tell.

  It needs the package optuna (moon_jax[optuna]).

  Args:
    trials: number of trials.
    batch: number of trials that are suggested at a time, and train together.
  """
  require_package('optuna', f'{setting("tune")}=optuna', 'optuna')
  import optuna as library

  library.logging.set_verbosity(library.logging.WARNING)
  study = library.create_study(
      direction='maximize',
      sampler=library.samplers.TPESampler(seed=space.seed))
  # The same seed and answers give the same suggestions.
  for start in range(0, trials, batch):
    asked = [study.ask() for _ in range(min(batch, trials - start))]
    wanted = [{name: _suggest(trial, name, axis)
               for name, axis in space.axes.items()} for trial in asked]
    if new := _unknown(wanted, history):
      return [Trial(settings, space.num_rounds) for settings in new]
    for trial, settings in zip(asked, wanted):
      value = _of(history, settings).value
      study.tell(trial, value, state=library.trial.TrialState.FAIL
                 if value is None else None)
  return []


def _suggest(trial, name, axis):
  if axis.kind == 'choice':  # of any values
    return axis.values[trial.suggest_categorical(
        name, [*range(len(axis.values))])]
  if axis.kind == 'integer':
    return trial.suggest_int(name, axis.lower, axis.upper)
  return axis.rounded(trial.suggest_float(
      name, axis.lower, axis.upper, log=axis.kind == 'log'))


def _of(history, settings):
  """Returns the trial of settings."""
  return next(trial for trial in history if trial.settings == settings)


def _unknown(wanted, history):
  """Returns the settings that no trial has, each once."""
  known = [trial.settings for trial in history]
  return [settings for i, settings in enumerate(wanted)
          if settings not in known + wanted[:i]]
