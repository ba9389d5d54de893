"""What was tried, what was chosen, and how good it is on test data."""

from collections.abc import Sequence
import pathlib
import statistics
import typing

from moon_jax.errors import UserError
from moon_jax.results import stats, trials
from moon_jax.runs import directory as directory_lib
from moon_jax.runs import values
from moon_jax.tuning import search
from moon_jax.tuning.train import Arm, ties, Tried
from moon_jax.tuning.tuner import sign_of
from moon_jax.view.text import metric as shown

if typing.TYPE_CHECKING:
  import pandas as pd

_WIDTH = 100  # columns of a table, also in a file


def text(arms: Sequence[Arm], tried: Sequence[Tried], again: Sequence[Tried]
         ) -> str:
  """Returns the report of a tuning: a few lines per arm, and differences."""
  lines = []
  for arm in arms:
    of_arm = [x for x in tried if x.arm.name == arm.name]
    lines.append(f'{arm.name}: {len(of_arm)} trials of up to '
                 f'{arm.config.num_rounds} rounds, '
                 f'{sum(x.seconds for x in of_arm):.0f} s of training and '
                 'evaluation')
    best = arm.tuner.best
    if best is None:
      lines.append('  all trials diverged; nothing is chosen')
      continue
    metric = of_arm[0].metric
    rounds = next(x.rounds for x in of_arm if x.trial == best)
    listed = ', '.join(f'{name}={values.show(x)}'
                       for name, x in best.settings.items())
    lines.append(f'  chosen by {metric.replace("_", " ")} after round '
                 f'{rounds}, {shown(metric, sign_of(metric) * best.rank)}:'
                 f' {listed}')
    lines += [f'  {line}' for line in ties(arm, metric)]
    lines += [f'  {name}={values.show(best.settings[name])} lies at the edge '
              f'of {arm.tuner.space.axes[name]}: a better value may lie beyond'
              for name in arm.tuner.edges(best.settings)]
    if runs := [x for x in again if x.arm.name == arm.name]:
      seeds = ', '.join(str(x.trial.settings['seed']) for x in runs)
      lines.append(f'  trained again with the new seeds {seeds}, tested once: '
                   + _tested(runs))
  return '\n'.join(lines + [
      line for metric in dict.fromkeys(x.tested for x in _measured(again))
      for line in _differences(arms, again, metric)])


def _measured(runs):
  """Returns the runs that did not diverge."""
  return [x for x in runs if x.test is not None]


def _tested(runs):
  measured = _measured(runs)
  diverged = len(runs) - len(measured)
  note = f'; {diverged} diverged' * bool(diverged)
  if not measured:
    return f'no result{note}'
  name, numbers = measured[0].tested, [x.test for x in measured]
  spread = f' ± {shown(name, statistics.stdev(numbers))}' if (
      len(numbers) > 1) else ''
  return (f'{name.replace("_", " ")} {shown(name, statistics.fmean(numbers))}'
          f'{spread} (n={len(numbers)}){note}')


def _differences(arms, again, metric):
  """Returns lines that compare arms in a metric with `baseline`."""
  from moon_jax.results import arms as arms_lib
  from moon_jax.results import compare, read

  made = {arm.name: arms_lib.Arm({}, arm.config, {
      seed: run for x in _measured(again) if x.arm.name == arm.name
      for run in [read.read(pathlib.Path(x.result['workdir']))]
      for seed in [(run.config.seed, run.config.split_seed())]
  }, [], arm.name) for arm in arms}
  compared, bases = [], []
  for arm in arms:
    base = baseline(arm, arms, metric)
    if arm is not base and any(
        x.tested == metric for x in again if x.arm.name == arm.name):
      compared.append(made[arm.name])
      bases.append(made[base.name])
  table = compare.differences(compare.Compared(
      [], compared, metric, bases, [])) if compared else None
  return ['', stats.words(metric), *table.text(_WIDTH)] if table else []


def baseline(arm: Arm, arms: Sequence[Arm], metric: str) -> Arm:
  """Returns the arm of the same task that an arm is compared with in a metric.

  It is FedAvg; for personal models FedAvg-FT, if it is among the arms. Without
  either it is the first one.
  """
  same = [other for other in arms
          if search.task(other.config) == search.task(arm.config)]
  names = ['fedavg_ft'] * metric.startswith('personal') + ['fedavg']
  return next((other for name in names for other in same
               if other.config.algorithm.name == name), same[0])


def frame(tried: Sequence[Tried], again: Sequence[Tried]) -> 'pd.DataFrame':
  """Returns a row per trial, for each arm the best of most rounds first.

  Rows of what was trained again follow, which are no trials.
  """
  import pandas as pd

  names = dict.fromkeys(name for x in tried for name in x.trial.settings)
  arms = [*dict.fromkeys(x.arm.name for x in tried)]
  ordered = sorted(tried, key=lambda x: (
      arms.index(x.arm.name), -x.trial.rounds, -x.trial.rank))
  return pd.DataFrame([{
      'method': x.arm.name,
      **{name: value if isinstance(value, int | float | str) else str(value)
         for name in names for value in [x.trial.settings.get(name, '')]},
      'seed': x.trial.settings.get('seed', x.arm.config.seed),
      'rounds_done': x.rounds,
      'metric': x.metric,
      'value': None if x.trial.value is None else (
          sign_of(x.metric) * x.trial.value),
      'test': None if is_trial else x.test,
      'seconds': round(x.seconds, 2),
      'is_trial': is_trial,
      'chosen': x.trial == x.arm.tuner.best,
      'workdir': x.result.get('workdir', '')}
      for rows, is_trial in ((ordered, True), (again, False)) for x in rows])


def begin(path: pathlib.Path, directories: Sequence[pathlib.Path]) -> None:
  """Adds the directories of trials to trials.txt, before they train."""
  names = {*trials.begun(path), *(one.name for one in directories)}
  _write(path, {'trials.txt': ''.join(f'{name}\n' for name in sorted(names))})


def write(path: pathlib.Path, table: 'pd.DataFrame', report: str) -> None:
  """Writes tune.csv, a row per trial, and tune.txt, the report."""
  _write(path, {'tune.csv': table.to_csv(index=False),
                'tune.txt': f'{report}\n'})


def _write(path, contents):
  try:
    path.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
      directory_lib.write_atomically(path / name, content.encode())
  except OSError as error:
    raise UserError(f'workdir={path.parent.parent}', 'must be writable',
                    f'{error.strerror or error} for {path}', 'The same command '
                    'writes it again and repeats no run') from error
