"""The tuned comparison of AMENDMENT_4.md, part 3: its searches and its tests.

python -m experiments.full.tuned --data_dir=DIR --out=OUT --code=CLONE
                                 [--jobs=2] [--match=REGEX]
python -m experiments.full.tuned --out=OUT --collect
python -m experiments.full.tuned

A search is a method with one Dirichlet parameter. The first command trains
those that OUT and experiments/results/tuned_comparison lack, as
`experiments.full.run` trains runs: CLONE is a clone at COMMIT. A search that is
stopped continues with the same command. The second adds the trials and the runs
with new seeds of finished searches to the tables. The last one prints the
results.
"""

import argparse
from collections.abc import Mapping
import functools
import json
import math
import os
import pathlib
import re
import statistics
import tempfile
import tomllib
from typing import NamedTuple

import pandas as pd

from experiments import keep, kept
from experiments.full import run as run_lib
from experiments.full.analysis import CHANCE
from experiments.full.questions import Run
from experiments.full.report import markdown
from moon_jax.config import parts
from moon_jax.config.methods import METHODS
from moon_jax.results import paired, read, stats
from moon_jax.results.paired import Comparison
from moon_jax.tuning import search as search_lib
from moon_jax.view.text import fixed

FILE = pathlib.Path(__file__).parent.parent / 'tuned_comparison.toml'
TABLES = kept.RESULTS / 'tuned_comparison'
COMMIT = 'c98889b4b897ad6cc0e2d95330b83b8f839b61f5'  # of the code
SEEDS = 1, 2, 3  # of what is tested; trials have seed 0
_PERSONAL_BASELINE = 'FedAvg-FT'
_ENDPOINTS = 'test_accuracy', 'personal_heldout_accuracy'  # personal: second
_TITLES = {
    'fedavg': 'FedAvg', 'fedprox': 'FedProx', 'scaffold': 'SCAFFOLD',
    'moon': 'MOON', 'feddyn': 'FedDyn', 'fedntd': 'FedNTD', 'fedsam': 'FedSAM',
    'fedexp': 'FedExP', 'fedadam': 'FedAdam', 'fedrs': 'FedRS',
    'fedlc': 'FedLC', 'fedavg_ft': _PERSONAL_BASELINE, 'fedper': 'FedPer',
    'fedrep': 'FedRep', 'ditto': 'Ditto', 'fedbabu': 'FedBABU', 'apfl': 'APFL'}


class Search(NamedTuple):
  """A method that is tuned with one Dirichlet parameter."""

  name: str  # such as 'fedavg-beta0.5'; of its work directory, too
  method: str
  beta: str
  is_personal: bool
  ranges: dict[str, str]  # by setting
  run: Run  # its command

  @property
  def title(self) -> str:
    return _TITLES[self.method]


class Result(NamedTuple):
  """What a search has chosen, and how good that is on test data."""

  search: Search
  chosen: dict[str, float]  # by setting; {} if all trials diverged
  accuracies: tuple[float, ...]  # percent, by SEEDS; () if nothing is chosen
  diverged: int  # how many of them are of diverged runs
  trials: tuple[int, int]  # how many there were, and how many diverged

  @property
  def mean(self) -> float:
    """The mean accuracy; NaN without one."""
    return statistics.fmean(self.accuracies) if self.accuracies else math.nan


class Tested(NamedTuple):
  """A method against the tuned baseline of its family."""

  result: Result
  comparison: Comparison  # in points
  holm_p: float  # NaN of the baseline
  verdict: str  # "higher", "lower" or "open"; "" of the baseline


@functools.cache
def searches() -> tuple[Search, ...]:
  """Returns the searches of the file, those of Dirichlet 0.5 first."""
  common = tomllib.loads(FILE.read_text(encoding='utf-8'))
  blocks = common.pop('runs')
  shared, splits = common.pop('search'), common.pop('partition')
  for name in 'title', 'flagfile':  # `run.start` gives the flag file
    del common[name]
  found = []
  for split in reversed(splits):
    beta = f'{parts.parse("partition", split).arguments[0][1]:g}'
    for block in blocks:
      algorithm = parts.parse('algorithm', block['algorithm'])
      method = 'fedadam' if block.get('server') == 'adam' else algorithm.name
      ranges = {**shared, **block.get('search', {})}
      settings = {**common, 'partition': split, **{
          name: x for name, x in block.items() if name != 'search'}}
      found.append(Search(
          f'{method}-beta{beta}', method, beta,
          METHODS[algorithm.name].kind == 'personal', ranges, Run(
              f'{method}-beta{beta}', (
                  *(f'--{name}={str(x).lower() if isinstance(x, bool) else x}'
                    for name, x in settings.items()),
                  *(f'--search={name}={x}' for name, x in ranges.items()),
                  '--checkpoint_every=10'), common['num_rounds'], COMMIT)))
  return tuple(found)


def collect(out: pathlib.Path, to: pathlib.Path) -> None:
  """Adds all runs of the finished searches in `out` to the tables in `to`."""
  with tempfile.TemporaryDirectory() as copies:
    made, commits = {}, {}
    for search in searches():
      for table in (out / search.name).glob('tuning/*/tune.csv'):
        trials = pd.read_csv(table)
        trials['count'] = trials.groupby('is_trial').cumcount() + 1
        for row in trials.to_dict('records'):
          name = f'{search.name}-' + (f'trial{row["count"]}' if row['is_trial']
                                      else f'seed{row["seed"]}')
          made[name] = pathlib.Path(copies, name)
          keep.copy(out / search.name / pathlib.Path(row['workdir']).name,
                    made[name])
          commits[name] = search.run.commit
        print(f'{search.name}: {len(trials)} runs')
    kept.add(made, to, commits)


def results(runs: Mapping[str, read.Run]) -> list[Result]:
  """Returns the results of the searches that `runs`, by name, has."""
  return [_result(search, of_search) for search in searches()
          if (of_search := {
              name.removeprefix(f'{search.name}-'): run
              for name, run in runs.items()
              if name.startswith(f'{search.name}-')})]


def _result(search, runs):
  trials = [run for name, run in runs.items() if name.startswith('trial')]
  ended = len(trials), sum(run.state.kind == 'diverged' for run in trials)
  tested = [runs[f'seed{seed}'] for seed in SEEDS if f'seed{seed}' in runs]
  if not tested:
    if ended[1] < ended[0]:
      raise ValueError(f'{search.name} has trials that did not diverge, but no '
                       'run with a new seed')
    return Result(search, {}, (), 0, ended)
  if len(tested) < len(SEEDS):
    raise ValueError(f'{search.name} lacks runs of the seeds {SEEDS}')
  settings = [{name: _value(run, name) for name in search.ranges}
              for run in tested]
  if any(other != settings[0] for other in settings):
    raise ValueError(f'{search.name} was tested with different settings: '
                     f'{settings}')
  values = [_accuracy(run, _ENDPOINTS[search.is_personal]) for run in tested]
  return Result(search, settings[0],
                tuple(CHANCE if x is None else x for x in values),
                sum(x is None for x in values), ended)


def _value(run, name):
  kind, _, argument = name.partition('.')
  value = getattr(run.config, kind)
  return run.config.args(kind)[argument] if argument else value


def _accuracy(run, metric):
  """Returns the accuracy after the last round, in percent; None if diverged.

  It is null in a line, too, if the loss of a client's model is not finite.
  """
  if run.state.kind == 'diverged':
    return None
  if len(run.lines) < run.config.num_rounds:
    raise ValueError(f'{run.path} has {len(run.lines)} of '
                     f'{run.config.num_rounds} rounds')
  value = run.lines[-1][metric]
  return None if value is None else 100 * value


def family(found: list[Result], beta: str, is_personal: bool) -> list[Tested]:
  """Returns the tests of a family, the baseline first; [] if a search lacks.

  A method without a result and a difference without a p-value, as of equal
  accuracies, count as p = 1.
  """
  members = [x for x in found if x.search.beta == beta
             and x.search.is_personal == is_personal]
  planned = [x for x in searches() if x.beta == beta
             and x.is_personal == is_personal]
  if len(members) < len(planned):
    return []
  baseline, *others = members
  of_pairs = [
      paired.compare(x.accuracies, baseline.accuracies)
      if x.accuracies and baseline.accuracies else Comparison() for x in others]
  holm = paired.holm([1. if math.isnan(c.p_value) else c.p_value
                      for c in of_pairs])
  return [Tested(baseline, Comparison(), math.nan, ''), *(
      Tested(x, c, p, 'open' if p >= paired.LEVEL else
             'higher' if c.mean > 0 else 'lower')
      for x, c, p in zip(others, of_pairs, holm))]


def table(tested: list[Tested]) -> str:
  """Returns a family as a Markdown table: the baseline, then by accuracy."""
  baseline, *others = tested
  rows = [['method', 'chosen', 'trials that diverged', 'accuracy, %',
           f'minus {baseline.result.search.title}, points',
           '95% interval, unadjusted', 'p, Holm', 'verdict']]
  for (search, chosen, accuracies, diverged, trials), c, p, verdict in [
      baseline, *sorted(others, key=lambda x: (
          not x.result.accuracies, -x.result.mean))]:
    rows.append([
        search.title, ', '.join(
            f'{name.removeprefix("algorithm.").replace("_", " ")} {value:g}'
            + ' (at the edge)' * _is_edge(search, name, value)
            for name, value in chosen.items()) or 'nothing',
        f'{trials[1]} of {trials[0]}',
        stats.mean_and_std(accuracies, 1, missing='no result')
        + f' ({diverged} diverged)' * bool(diverged),
        fixed(c.mean, 1, '+') if c.differences else '',
        stats.interval_text(c.low, c.high), stats.p_text(p), verdict])
  return markdown(rows)


def _is_edge(search, name, value):
  return search_lib.axis(name, search.ranges[name], name).is_edge(value)


def kept_results() -> list[Result]:
  """Returns the results of the tables."""
  return results(kept.runs(TABLES.name)) if TABLES.exists() else []


def report() -> str:
  """Returns the tables of the families that have all their searches."""
  found = kept_results()
  texts = [f'{len(found)} of {len(searches())} searches have ended. A family '
           'is shown when all its searches have.']
  for beta in dict.fromkeys(x.beta for x in searches()):
    for is_personal, words in enumerate((
        'accuracy of the global model on the test images',
        "mean accuracy of the clients' models on their test images")):
      if tested := family(found, beta, bool(is_personal)):
        texts += [f'Dirichlet {beta}, {words}:', table(tested)]
  return '\n\n'.join(texts)


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--data_dir', help='directory that contains CIFAR-10')
  parser.add_argument('--out', type=pathlib.Path, help='directory of the runs')
  parser.add_argument('--code', type=pathlib.Path,
                      help='clone whose moon_jax is run')
  parser.add_argument('--jobs', type=int, default=1,
                      help='number of searches at a time')
  parser.add_argument('--match', default='',
                      help='regular expression of names of searches')
  parser.add_argument('--collect', action='store_true',
                      help='add finished searches to the tables')
  args = parser.parse_args()
  if args.collect and args.out:
    collect(args.out, TABLES)
  elif args.data_dir and args.out and args.code:
    known = [x.search.name for x in kept_results()]
    runs = run_lib.of_commit(args.code, [
        x.run for x in searches()
        if x.name not in known and re.match(args.match, x.name)])
    args.out.mkdir(parents=True, exist_ok=True)
    os.nice(19)
    run_lib.train_all(runs, functools.partial(
        run_lib.start, args.code, args.data_dir, args.out), args.out, args.jobs)
  elif args.out or args.data_dir or args.code:
    parser.error('--data_dir, --out and --code, or --out and --collect, are '
                 'required')
  else:
    print(report())


if __name__ == '__main__':
  main()
