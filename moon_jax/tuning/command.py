"""Tuning from the command line: `moon-jax train --tune=...`."""

from collections.abc import Callable, Sequence
import functools
import hashlib
import itertools
import pathlib
import time

from moon_jax.cli.grids import Blocks
from moon_jax.config import Config, parts
from moon_jax.data.io.files import HASH_DIGITS
from moon_jax.errors import require, UserError
from moon_jax.runs import identity, values
from moon_jax.simulation import checks
from moon_jax.tuning import report, search
from moon_jax.tuning import train as train_lib
from moon_jax.tuning.train import Arm
from moon_jax.tuning.tuner import Tuner


class Tuning:
  """The tuning of a command line, or of a file.

  Attributes:
    arms: one for each block of the file and each task.
  """

  def __init__(self, blocks: Blocks, tune: str, given: Sequence[str],
               num_seeds: int, root: str):
    """Checks them, in seconds; `given` are the values of --search.

    Raises:
      UserError: if they cannot be tuned.
    """
    self._part = parts.normal('tune', parts.parse('tune', tune))
    self._metric = parts.arguments('tune', self._part)['metric']
    self._num_seeds, self._root = num_seeds, root
    self._file, common = blocks.file, _searched(given)
    arms = []
    for block, keys in zip(blocks.settings, self._file.block_keys):
      ranges = {
          name: (x, f'{self._file.name}.toml: search.{name}') for name, x in {
              **self._file.keys.get('search', {}), **keys.get('search', {})
          }.items()} | common
      tasks = {name: x for name, x in block.items()
               if isinstance(x, tuple) and search.is_task(name)}
      for task in itertools.product(*tasks.values()):
        arms.append(self._arm(
            blocks.base, block | dict(zip(tasks, task)), ranges))
      _check_given(blocks.given, ranges)
    self.arms = _named(arms)
    train_lib.check(self.arms, self._metric)

  def _arm(self, base, block, ranges):
    given = {name: (x, f'the values of {name}') for name, x in block.items()
             if isinstance(x, tuple)} | ranges
    axes = {name: search.axis(name, *x) for name, x in given.items()}
    fixed = {name: x for name, x in block.items() if name not in axes}
    config = values.replace(base, fixed)
    first = {name: axis.ends[0] for name, axis in axes.items()}
    for name, (_, where) in given.items():
      for end in axes[name].ends:
        try:
          checks.validate(values.replace(config, {**first, name: end}))
        except UserError as error:
          advice = '. Write integer(A, B)' * (
              error.requirement == 'must be an integer')
          error.args = f'{where}: {error}{advice}',
          raise
    return Arm('', config, Tuner(
        axes, self._part, config.num_rounds, config.seed))

  def plan(self, plan_fn: Callable) -> str:
    """Returns what is trained, and the plan of the first trials.

    `plan_fn` makes it of `Runs`, and of how many of their rounds are trained.
    """
    asked = [(arm, trial) for arm in self.arms for trial in arm.tuner.ask()]
    runs, total = train_lib.Trials(asked, self._root), 0
    names: dict[str, list[str]] = {}  # of arms, by what they train
    for arm in self.arms:
      counts, last, rounds = arm.tuner.forecast(), 0, 0
      for end, count in counts.items():
        rounds, last = rounds + count * (end - last), end
      rounds = rounds or sum(trial.rounds for trial in arm.tuner.ask())
      again = self._num_seeds * arm.config.num_rounds
      total += rounds + again
      words = ', '.join(f'{count} up to round {end}'
                        for end, count in counts.items())
      names.setdefault((
          f'trials: {words}, {rounds} rounds' if counts else
          f'trials: {len(arm.tuner.ask())}, and those that {self._part.name} '
          'asks for later') + f'; new seeds: {self._num_seeds} up to round '
          f'{arm.config.num_rounds}, {again} rounds', []).append(arm.name)
    trained = total / sum(arm.config.num_rounds for arm, _ in asked)
    lines = [f'{shown}: {words}' for words, known in names.items()
             for shown in [', '.join(known) if len(known) < 4 else
                           f'each of {len(known)}, {known[0]} to {known[-1]}']]
    return '\n'.join([
        f'{self._part}: rounds in all: {total:,}', *lines,
        f'The first {len(asked)} trials need the most memory. The times '
        f'below are for all {total:,} rounds.', plan_fn(runs, trained=trained)])

  def run(self, max_runs: int) -> None:
    """Tunes, prints the trials and the report, and writes them."""
    start = time.perf_counter()
    path = self._path()
    found = train_lib.train(
        self.arms, self._metric, self._num_seeds, self._root, max_runs,
        functools.partial(report.begin, path))
    trials = report.frame(*found)
    text = (f'{report.text(self.arms, *found)}\n'
            f'this command took {time.perf_counter() - start:.0f} s')
    report.write(path, trials, text)
    shown = trials.drop(columns=['is_trial', 'chosen', 'workdir']).to_string(
        index=False, na_rep='', float_format='{:.4g}'.format)
    print(f'{shown}\n{text}\ntrials: {path}/tune.csv')

  def _path(self):
    """Returns the directory of what was tried."""
    text = repr([self._part, *(
        (identity.contents(arm.config), arm.tuner.space)
        for arm in self.arms)])
    return pathlib.Path(self._root, 'tuning', '-'.join([
        self._file.name or identity.dataset_in_names(self.arms[0].config),
        self._part.name.replace(':', '.'),
        hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]]))


def _searched(given):
  """Returns the range of each name of --search, and how messages begin."""
  common: dict[str, tuple[str, str]] = {}
  for text in given:
    name, sign, words = text.partition('=')
    require(sign, '', '--search must be NAME=RANGE', repr(text),
            "Write --search 'learning_rate=log(0.001,0.3)'")
    require(name not in common, '', '--search must name each flag once',
            f'{name} twice', 'Remove one of them')
    common[name] = words, f'--search {text}'
  return common


def _check_given(given, ranges):
  """Checks that the command line gives no value of what has a range.

  A file may: the range replaces it.
  """
  flags = {f'{kind}.{name}': kind for kind, call in given.items()
           if isinstance(call, parts.Part) for name, _ in call.arguments}
  flags |= {name: name for name in given}
  for name, (_, where) in ranges.items():
    if flag := flags.get(name):
      value = given[flag]
      shown = f'--grid {flag}' if isinstance(value, tuple) else (
          f'--{flag}={values.show(value)}')
      raise UserError('', f'{where} and {shown} exclude each other', 'both',
                      'Remove one of them')


def _named(arms):
  """Returns arms with names: the method, and settings in which they differ.

  Arguments that are tuned are left out.
  """
  columns = values.columns([arm.config for arm in arms], ())
  named: list[Arm] = []
  for arm in arms:
    axes = arm.tuner.space.axes
    shown = [' or '.join(map(str, axes['algorithm'].values))
             if 'algorithm' in axes else
             values.shown(arm.config, ['algorithm', *axes])[0]]
    shown += [f'{name}={value}' for name, value in zip(
        columns, values.shown(arm.config, [*columns, *axes]))
              if name.partition('.')[0] != 'algorithm' and name not in axes
              and (search.is_task(name) or values.get(arm.config, name) !=
                   getattr(Config, name, None))]
    name = ' '.join(shown)
    count = sum(other.name.partition(' #')[0] == name for other in named)
    named.append(arm._replace(name=name + f' #{count + 1}' * bool(count)))
  return named
