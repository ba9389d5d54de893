"""Trains trials in their work directories, and what was chosen with new seeds.

A trial is a run: it has the directory and the numbers of the same run alone.
The values of trials depend only on metrics.jsonl, so a command that was killed
repeats its decisions and continues. Runs that can share a program train
together; a run that has stopped is replaced by another (`Program.replace`).
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import pathlib
from typing import Any, NamedTuple

from moon_jax.config import Config, parts
from moon_jax.config.methods import METHODS
from moon_jax.errors import require, setting, UserError, within
from moon_jax.runs import prepare, values
from moon_jax.runs.run import Runs
from moon_jax.runs.summary import measure
from moon_jax.simulation import agreement, checks
from moon_jax.simulation import memory as memory_lib
from moon_jax.simulation.program import Program
from moon_jax.tuning.methods import Trial
from moon_jax.tuning.tuner import sign_of, Tuner
from moon_jax.view import status
from moon_jax.view.text import metric as shown


class Arm(NamedTuple):
  """A configuration whose settings are tuned, such as that of a method."""

  name: str
  config: Config  # of what is not tuned
  tuner: Tuner

  @property
  def part(self) -> str:
    """The validation examples that choose: for personal models the clients'.

    Also where clients have one of several models of the server.
    """
    axes = self.tuner.space.axes
    calls = lambda kind: (axes[kind].values if kind in axes
                          else [getattr(self.config, kind)])
    is_personal = all(
        call.name in METHODS and METHODS[call.name].kind == 'personal'
        for call in calls('algorithm')) or all(
            call.name != 'star' for call in calls('topology'))
    return 'validation_personal' if is_personal and (
        self.config.client_eval != 'cohort'
        and self.config.client_test_fraction) else 'validation'

  def configured(self, settings: Mapping[str, Any]) -> Config:
    """Returns the valid configuration of a trial."""
    shown = ' '.join(f'{name}={values.show(x)}' for name, x in settings.items())
    with within(f'the trial {shown}'):
      return checks.validate(values.replace(self.config, settings))


class Tried(NamedTuple):
  """A trial and its run."""

  arm: Arm
  trial: Trial
  result: dict[str, Any]  # as of `moon_jax.run_sweep`; of a run that pauses,
  # its "workdir" alone
  seconds: float  # of its rounds
  metric: str  # which has chosen
  rounds: int  # trained; fewer than the trial's if it stopped early

  @property
  def tested(self) -> str | None:
    """The metric of test data that says how good it is; None without one."""
    return status.measure(self.result, 'personal_heldout' if (
        self.metric.startswith('validation_personal')) else 'test')

  @property
  def test(self) -> float | None:
    """Its value; None if the run, or the model of a client, has diverged."""
    return self.result.get(self.tested or '')


class Pool:
  """Programs that stay compiled, and whose places go from run to run."""

  def __init__(self, room_fn: Callable = tuple):
    """Stores what returns runs, alone, that programs shall have room for."""
    self._programs: list[Program] = []
    self._room_fn = functools.cache(room_fn)

  def program(self, federations: Sequence, directories: Sequence[str],
              specs: Sequence) -> Program:
    """Returns a program whose first runs are these, as `Program` does."""
    facts = agreement.shared_values(specs[0])
    for program in self._programs:
      if len(program.runs) >= len(specs) and (
          agreement.shared_values(program.runs[0].spec) == facts):
        try:
          for row, run in enumerate(zip(federations, directories, specs)):
            program.replace(row, *run)
          return program
        except UserError:  # its table is too small
          self._programs.remove(program)
          break
    needs = [memory_lib.needs(*(run.spec for run in program.runs))
             for program in self._programs] + [memory_lib.needs(*specs)]
    if any(sum(need.size for need in of_place) > of_place[0].have
           for of_place in zip(*needs)):
      self._programs.clear()
    room = [spec for spec in self._room_fn()
            if agreement.shared_values(spec) == facts]
    self._programs.append(Program(federations, directories, specs, room))
    return self._programs[-1]


class Trials(Runs):
  """Runs of trials, which pause after their rounds."""

  def __init__(self, trials: Sequence[tuple[Arm, Trial]], root: str,
               call: Callable | None = None, pool: Pool | None = None):
    """Checks the configurations; see `Runs`."""
    self._trials, self._pool, self._specs = trials, pool or Pool(), {}
    configs = [arm.configured(trial.settings) for arm, trial in trials]
    super().__init__(configs, [*dict.fromkeys([
        *values.columns(configs, ()),
        *(name for _, trial in trials for name in trial.settings)])],
                     root, call)

  def result(self, index: int) -> dict[str, Any] | None:
    """Returns the result of a run, also of one that pauses.

    A run that was stopped after its last round has none before it is finished.
    """
    found, rounds = super().result(index), self._trials[index][1].rounds
    run = self.runs[index]
    if found is None and rounds < run.config.num_rounds and (
        len(run.workdir.lines()) >= rounds):
      return {'workdir': str(run.workdir.path)}
    return found

  def rounds_left(self, index: int) -> int:
    """Returns the rounds until a run pauses."""
    return self._trials[index][1].rounds - len(self.runs[index].workdir.lines())

  def claim(self, unit: Sequence[int], in_parts: bool = False) -> list[int]:
    """Locks runs; those with the longest tables are first, as places are."""
    claimed = super().claim(unit, in_parts)
    self._specs = dict(zip(claimed, self.specs(claimed)))
    return sorted(
        claimed, key=lambda index: -self._specs[index].shape.num_rows)

  def _unit(self, claimed, callbacks, loggers):
    from moon_jax.runs.unit import Unit  # imports Orbax, a second

    return Unit([self.runs[index] for index in claimed],
                lambda: [self._specs[index] for index in claimed],
                callbacks, loggers,
                [self._trials[index][1].rounds for index in claimed],
                self._pool.program)

  def progress(self) -> str:
    """Returns how many trials need no training now."""
    return f'{len(self.ended)} of {len(self.runs)} trials have their rounds'

  def tried(self, metric: str) -> list[Tried]:
    """Returns the trials with their values.

    The metric is that of validation examples, unless one is given.
    """
    lines = [self.runs[index].workdir.lines()[:trial.rounds]
             for index, (_, trial) in enumerate(self._trials)]
    metrics = {arm.name: metric or next((
        name for (other, _), of_run in zip(self._trials, lines)
        for line in of_run if other.name == arm.name and (
            name := measure(line, arm.part))), f'{arm.part}_accuracy')
               for arm, _ in self._trials}
    found = []
    for index, (arm, trial) in enumerate(self._trials):
      result, value = self.result(index) or {}, None
      name = metrics[arm.name]
      # One that diverged later had a value, by which it continued.
      if 'diverged' not in result or len(lines[index]) == trial.rounds:
        last = lines[index][-1]
        require(name in last, f'tune.metric={name}', 'must be recorded in the '
                f'last round of a trial, {len(lines[index])}',
                f'the metrics {", ".join(last)}', 'Name one of them, or '
                f'evaluate in this round, as with {setting("eval_every", 1)}')
        # None is that of a number that is not finite.
        value = last[name] and sign_of(name) * last[name]
      found.append(Tried(arm, trial._replace(value=value), result, sum(
          line['seconds'] for line in lines[index]), name, len(lines[index])))
    return found


def check(arms: Sequence[Arm], metric: str) -> None:
  """Checks that arms can be tuned, in seconds.

  Raises:
    UserError: naming what is missing, such as validation examples.
  """
  sign_of(metric or 'validation_')
  for arm in arms:
    config, tuner = arm.config, arm.tuner
    chosen_by = metric or arm.part
    is_personal = chosen_by.startswith('validation_personal')
    require(config.validation_fraction or not chosen_by.startswith(
        'validation'), f'validation_fraction={config.validation_fraction}',
            'must be above 0, since settings are chosen by their accuracy on '
            'validation examples, and never on test data', '',
            f'Give {setting("validation_fraction", 0.1)}')
    require(not is_personal or config.client_eval != 'cohort' and (
        config.client_test_fraction), f'tune.metric={metric}',
            'needs held-out examples of all clients', '',
            f'Give {setting("client_eval", "all")} '
            f'{setting("client_eval_every", 1)} '
            f'{setting("client_test_fraction", 0.2)}')
    require(tuner.space.axes or tuner.tune.is_own, 'tune',
            'needs settings to choose from', 'none',
            'Give --grid learning_rate=0.01,0.1 or '
            "--search 'learning_rate=log(0.001,0.3)'")
    require(tuner.ask(), 'tune', 'must ask for a trial', '[]',
            f'Change {tuner.tune}')
    for trial in tuner.ask():
      arm.configured(trial.settings)
    name = 'client_eval_every' if is_personal else 'eval_every'
    every = getattr(config, name)
    first = min(x.rounds for x in tuner.ask())
    # A simulated search takes time, and those that stop no trial have one end.
    ends = {first, *(tuner.forecast() if first < config.num_rounds else ())}
    others = sorted(ends - {config.num_rounds})
    require(chosen_by.startswith('train_') or all(
        end % every == 0 for end in others),
            f'{name}={every}', 'must divide the rounds after which trials are '
            'compared', ', '.join(map(str, others)),
            f'Give {setting(name, 1)}')
    require(config.checkpoint_every or first == config.num_rounds,
            'checkpoint_every=0', 'must be above 0, since trials continue from '
            'checkpoints', '', 'Remove it')
  counts = {arm.name: len(arm.tuner.ask()) for arm in arms}
  require(len({*counts.values()}) < 2, '', 'all methods must have equally many '
          'trials', ', '.join(f'{n} of {name}' for name, n in counts.items()),
          _equal(arms[0].tuner.tune))


def _equal(tune):
  """Returns how all methods get equally many trials."""
  if tune.name != 'halving':
    return ('Lower trials to the smallest of these numbers, or give all '
            'methods as many combinations')
  given = parts.arguments('tune', tune)
  tune = tune.replace(trials=given['eta'] ** (given['rungs'] - 1))
  return (f"Give their number, as in --tune='{tune}', or lists of equal "
          'lengths')


def ties(arm: Arm, metric: str, stage: int = 0) -> list[str]:
  """Returns a line per stage in which the order of trials chose among equals.

  Of trials that have not learned yet, all have the accuracy of chance.

  Args:
    arm: its tuner has the values.
    metric: by which settings are chosen.
    stage: the rounds after which it ends; 0 for all stages.
  """
  return [
      f'{len(equal)} of {sum(x.rounds == rounds for x in arm.tuner.history)} '
      f'trials had {shown(metric, sign_of(metric) * equal[0].rank)} after '
      f'round {rounds}: only their order decided which of them '
      + ('was chosen' if rounds == arm.config.num_rounds else 'continued')
      for rounds, equal in arm.tuner.ties().items()
      if stage in (0, rounds)]


def train(arms: Sequence[Arm], metric: str = '', num_seeds: int = 3,
          root: str = 'runs', max_runs: int = 0,
          begin: Callable[[list[pathlib.Path]], None] = lambda _: None
          ) -> tuple[list[Tried], list[Tried]]:
  """Tunes arms, and trains what was chosen with new seeds.

  Arms with the same programs train side by side, and others after them: a
  process cannot hold the programs of many methods.

  Args:
    arms: `check` has accepted them.
    metric: by which settings are chosen; '' for the accuracy on validation
      examples (`Arm.part`), or their loss if the task has none.
    num_seeds: with which the chosen settings train again: those that follow the
      seed of the arm.
    root: directory of the work directories.
    max_runs: the most runs that train together; 0 for as many as fit.
    begin: called with the directories of trials before they train.

  Returns:
    What was tried, each with its most rounds; and what was trained again, whose
    settings have a seed.
  """
  groups: dict[frozenset, list[Arm]] = {}
  for arm in arms:
    groups.setdefault(frozenset(
        agreement.program_key(arm.configured(trial.settings))
        for trial in arm.tuner.ask()), []).append(arm)
  call, tried, again = prepare.once(), [], []
  for i, group in enumerate(groups.values(), 1):
    if len(groups) > 1:
      print(f'{i} of {len(groups)}: tunes '
            f'{", ".join(arm.name for arm in group)}', flush=True)
    found = _train(group, metric, num_seeds, root, max_runs, begin, call)
    tried, again = tried + found[0], again + found[1]
  return tried, again


def _train(arms, metric, num_seeds, root, max_runs, begin, call):
  tried: dict[tuple[str, str], Tried] = {}

  def again(arm, settings):
    return [(arm, Trial({**settings, 'seed': arm.config.seed + k},
                        arm.config.num_rounds))
            for k in range(1, num_seeds + 1)]

  def room():  # for other partitions of new seeds
    first = {agreement.program_key(arm.configured(trial.settings)): (arm, trial)
             for arm, trial in first_asked}
    runs = Trials([x for arm, trial in first.values()
                   for x in again(arm, trial.settings)], root, call)
    return list(runs.specs(range(len(runs.runs))))

  first_asked = [(arm, trial) for arm in arms for trial in arm.tuner.ask()]
  pool = Pool(room if num_seeds else tuple)

  def trained(trials, begin=lambda _: None):
    runs = Trials(trials, root, call, pool)
    begin([run.workdir.path for run in runs.runs])
    runs.train(max_runs=max_runs)
    return runs.tried(metric)

  stages: dict[str, tuple[str, int]] = {}  # the last one of each arm
  while batch := [(arm, trial) for arm in arms for trial in arm.tuner.ask()]:
    for arm in arms:  # long before the report
      for line in ties(arm, *stages[arm.name]) if arm.name in stages else ():
        print(f'{arm.name}: {line}', flush=True)
    stages = {}
    for (arm, trial), x in zip(batch, trained(batch, begin)):
      arm.tuner.tell(trial, x.trial.value)
      tried[arm.name, str(trial.settings)] = x
      stages[arm.name] = x.metric, trial.rounds
  chosen = [x for arm in arms if (best := arm.tuner.best)
            for x in again(arm, best.settings)]
  return [*tried.values()], trained(chosen) if chosen else []
