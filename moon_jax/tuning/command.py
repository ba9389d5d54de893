"""Tuning from the command line: `moon-jax train --tune=...`."""

from collections.abc import Callable, Sequence
import hashlib
import pathlib
import time

from moon_jax.cli.grids import Blocks
from moon_jax.config import parts
from moon_jax.data.io.files import HASH_DIGITS
from moon_jax.errors import require, UserError
from moon_jax.runs import identity, values
from moon_jax.tuning import report, search
from moon_jax.tuning import train as train_lib
from moon_jax.tuning.train import Arm
from moon_jax.tuning.tuner import Tuner


class Tuning:
  """The arms of a command line: one, or one per block of a file."""

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
    self._arms: list[Arm] = []
    for block, keys in zip(blocks.settings, self._file.block_keys):
      self._arms.append(self._arm(blocks.base, block, keys, common))
    train_lib.check(self._arms, self._metric)

  def _arm(self, base, block, keys, common):
    ranges = {**self._file.keys.get('search', {}), **keys.get('search', {})}
    axes = {name: search.axis(name, x, f'the values of {name}')
            for name, x in block.items() if isinstance(x, tuple)} | {
        name: search.axis(name, x, f'{self._file.name}.toml: search.{name}')
        for name, x in ranges.items()} | common
    fixed = {name: x for name, x in block.items() if name not in axes}
    if both := [name for name, x in block.items()
                if name in common and isinstance(x, tuple)]:
      raise UserError('', f'--search {both[0]} and --grid {both[0]} exclude '
                      'each other', 'both', 'Remove one of them')
    config = values.replace(base, fixed)
    name = (' or '.join(map(str, axes['algorithm'].values))
            if 'algorithm' in axes else str(config.algorithm))
    count = sum(arm.name.partition(' #')[0] == name for arm in self._arms)
    return Arm(name + f' #{count + 1}' * bool(count), config, Tuner(
        axes, self._part, config.num_rounds, config.seed))

  def plan(self, plan_fn: Callable) -> str:
    """Returns the plan of the first trials, which `plan_fn` makes of `Runs`."""
    asked = [(arm, trial) for arm in self._arms for trial in arm.tuner.ask()]
    runs = train_lib.Trials(asked, self._root)
    return (f'{self._part}: the plan of the first {len(asked)} trials, if all '
            'had all rounds; they have '
            f'{min(trial.rounds for _, trial in asked)}\n{plan_fn(runs)}')

  def run(self, max_runs: int) -> None:
    """Tunes, prints the trials and the report, and writes them."""
    start = time.perf_counter()
    *found, metric = train_lib.train(
        self._arms, self._metric, self._num_seeds, self._root, max_runs)
    trials = report.frame(*found, metric)
    text = (f'{report.text(self._arms, *found, metric)}\n'
            f'this command took {time.perf_counter() - start:.0f} s')
    path = self._path()
    report.write(path, trials, text)
    shown = trials.drop(columns=['chosen', 'workdir']).to_string(
        index=False, na_rep='', float_format='{:.4g}'.format)
    print(f'{shown}\n{text}\ntrials: {path}/tune.csv')

  def _path(self):
    """Returns the directory of what was tried."""
    text = repr([self._part, *(
        (identity.contents(arm.config), arm.tuner.space)
        for arm in self._arms)])
    return pathlib.Path(self._root, 'tuning', '-'.join([
        self._file.name or identity.dataset_in_names(self._arms[0].config),
        self._part.name.replace(':', '.'),
        hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]]))


def _searched(given):
  """Returns the ranges of --search by name."""
  common: dict[str, search.Axis] = {}
  for text in given:
    name, sign, words = text.partition('=')
    require(sign, '', '--search must be NAME=RANGE', repr(text),
            'Write --search learning_rate=log(0.001,0.3)')
    require(name not in common, '', '--search must name each flag once',
            f'{name} twice', 'Remove one of them')
    common[name] = search.axis(name, words, f'--search {text}')
  return common
