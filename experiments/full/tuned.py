"""The tuned comparison of AMENDMENT_4.md, part 3: its searches and its tests.

python -m experiments.full.tuned --data_dir=DIR --out=OUT --code=CLONE
                                 [--jobs=2] [--match=REGEX]
python -m experiments.full.tuned --out=OUT --collect
python -m experiments.full.tuned

A search is a method with one Dirichlet parameter. The first command trains
those that OUT and experiments/results/tuned_comparison lack, as
`experiments.full.run` trains runs: CLONE is a clone at one of the COMMITS, of
which it trains the methods. A search that is stopped continues with the same
command. The second adds the trials and the runs
with new seeds of finished searches to the tables. The last one prints the
results, for each Dirichlet parameter when all its searches have ended.
"""

from collections.abc import Mapping
import functools
import math
import os
import pathlib
import re
import statistics
import tempfile
import tomllib
from typing import Any, NamedTuple

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
from moon_jax.runs import values
from moon_jax.tuning import search as search_lib
from moon_jax.view.text import fixed

FILE = pathlib.Path(__file__).parent.parent / 'tuned_comparison.toml'
TABLES = kept.RESULTS / 'tuned_comparison'
# Of the code, for methods with one model and for personal ones.
COMMITS = ('c98889b4b897ad6cc0e2d95330b83b8f839b61f5',
           '21bfa607905d4e72b305801f4843e975984df896')
SEEDS = 1, 2, 3, 4, 5  # of what is tested; trials have seed 0
NUM_TRIALS = 9  # of a search
LAST = 3  # evaluations whose mean accuracy is the endpoint
# What chooses and what is tested, of methods with one model and personal ones.
_CHOOSES = 'validation_accuracy', 'validation_personal_accuracy'
_LEARNED = 15.  # percent of validation images; one class has up to 10.8
_ENDPOINTS = 'test_accuracy', 'personal_heldout_accuracy'


class Search(NamedTuple):
  """A method that is tuned with one Dirichlet parameter."""

  name: str  # such as 'fedavg-beta0.5'; of its work directory, too
  method: str
  title: str  # of the method
  beta: str
  is_personal: bool
  settings: dict[str, Any]  # that are not tuned
  ranges: dict[str, str]  # by setting
  run: Run  # its command


class Result(NamedTuple):
  """What a search has chosen, and how good that is on test data."""

  search: Search
  chosen: dict[str, float]  # by setting; {} if all trials diverged
  accuracies: tuple[float, ...]  # percent, by SEEDS; () if nothing is chosen
  failed: int  # how many of them have an evaluation that counts as chance
  trials_failed: int  # how many trials have no value that could be chosen
  # Highest validation accuracy by trial, percent; 0 of those without a value.
  best: tuple[float, ...]

  @property
  def num_learned(self) -> int:
    """The trials that learned; without one the choice is an accident."""
    return sum(best >= _LEARNED for best in self.best)


class Tested(NamedTuple):
  """A method against the tuned baseline of its family."""

  result: Result
  comparison: Comparison  # in points
  holm_p: float  # NaN of the baseline
  verdict: str  # "higher", "lower" or "open"; "" of the baseline

  @property
  def by_interval(self) -> str:
    """What the unadjusted interval says of a method that is open; or ''."""
    c = self.comparison
    return '' if self.verdict != 'open' else (
        'higher' if c.low > 0 else 'lower' if c.high < 0 else '')


@functools.cache
def searches() -> tuple[Search, ...]:
  """Returns the searches of the file, those of Dirichlet 0.5 first."""
  common = tomllib.loads(FILE.read_text(encoding='utf-8'))
  blocks, shared = common.pop('runs'), common.pop('search')
  splits, commands = common.pop('partition'), [
      f'--{name}={common.pop(name)}' for name in ('tune', 'tune_seeds')]
  for name in 'title', 'flagfile':  # `run.start` gives the flag file
    del common[name]
  found = []
  for split in reversed(splits):
    beta = f'{parts.parse("partition", split).arguments[0][1]:g}'
    for block in blocks:
      algorithm = parts.parse('algorithm', block['algorithm']).name
      method, title = algorithm, METHODS[algorithm].title
      if block.get('server') == 'adam':
        method, title = 'fedadam', 'FedAdam'
      ranges = {**shared, **block.get('search', {})}
      settings = {**common, 'partition': split, **{
          name: x for name, x in block.items() if name != 'search'}}
      is_personal = METHODS[algorithm].kind == 'personal'
      found.append(Search(
          f'{method}-beta{beta}', method, title, beta, is_personal, settings,
          ranges, Run(
              f'{method}-beta{beta}', (
                  *(f'--{name}={str(x).lower() if isinstance(x, bool) else x}'
                    for name, x in settings.items()), *commands,
                  *(f'--search={name}={x}' for name, x in ranges.items()),
                  f'--checkpoint_every={common["eval_every"]}'),
              common['num_rounds'], COMMITS[is_personal])))
  return tuple(found)


def collect(out: pathlib.Path, to: pathlib.Path) -> None:
  """Adds all runs of the finished searches in `out` to the tables in `to`."""
  with tempfile.TemporaryDirectory() as copies:
    made, commits = {}, {}
    for search in searches():
      if run_lib.is_finished(out / search.name, search.run):
        copied = _copied(search, out, pathlib.Path(copies))
        made |= copied
        commits |= dict.fromkeys(copied, search.run.commit)
        print(search.name)
    results({name: read.read(path) for name, path in made.items()})  # checks
    kept.add(made, to, commits)


def _copied(search, out, to):
  """Copies the runs of a finished search; returns their places by name."""
  commit = (out / f'{search.name}.commit').read_text().strip()
  if commit != search.run.commit:
    raise ValueError(f'{search.name} was trained at {commit}')
  table, = (out / search.name).glob('tuning/*/tune.csv')
  made: dict[str, pathlib.Path] = {}
  for row in pd.read_csv(table).to_dict('records'):
    name = f'seed{row["seed"]}'
    if row['is_trial']:
      name = f'trial{sum("-trial" in other for other in made) + 1}'
    made[f'{search.name}-{name}'] = to / f'{search.name}-{name}'
    keep.copy(out / search.name / pathlib.Path(row['workdir']).name,
              to / f'{search.name}-{name}')
  return made


def results(runs: Mapping[str, read.Run]) -> list[Result]:
  """Returns the results of the searches that `runs`, by name, has."""
  return [_result(search, of_search) for search in searches()
          if (of_search := {
              name.removeprefix(f'{search.name}-'): run
              for name, run in runs.items()
              if name.startswith(f'{search.name}-')})]


def _result(search, runs):
  trials = [run for name, run in runs.items() if name.startswith('trial')]
  tested = [runs[f'seed{seed}'] for seed in SEEDS if f'seed{seed}' in runs]
  for run in runs.values():
    for name, given in search.settings.items():
      if not values.is_value(run.config, name, given):
        raise ValueError(f'{run.path} has {name}='
                         f'{getattr(run.config, name)} instead of {given}')
  metric = _CHOOSES[search.is_personal]
  failed = sum(_last(run, metric) is None for run in trials)
  if len(trials) != NUM_TRIALS or len(tested) != (
      0 if failed == NUM_TRIALS else len(SEEDS)):
    raise ValueError(f'{search.name} has {len(trials)} trials, of which '
                     f'{failed} diverged, and {len(tested)} runs of new seeds')
  chosen = [{name: values.get(run.config, name) for name in search.ranges}
            for run in tested]
  if any(other != chosen[0] for other in chosen):
    raise ValueError(f'{search.name} was tested with several settings: '
                     f'{chosen}')
  accuracies = [endpoint(run, _ENDPOINTS[search.is_personal])
                for run in tested]
  best = [max((100 * line[metric] for line in run.lines
               if line.get(metric) is not None), default=0)
          if _last(run, metric) is not None else 0. for run in trials]
  return Result(search, chosen[0] if chosen else {},
                tuple(mean for mean, _ in accuracies),
                sum(has_failed for _, has_failed in accuracies), failed,
                tuple(best))


def _last(run, metric):
  """Returns a metric after the last round; None if there is no number."""
  return None if run.state.kind == 'diverged' else run.lines[-1][metric]


def endpoint(run, metric):
  """Returns the mean of the last evaluations, in percent, and if one failed.

  An evaluation without a number, of a loss that is not finite, counts as
  chance, and so does a run that diverged.
  """
  if run.state.kind == 'diverged':
    return CHANCE, True
  if len(run.lines) < run.config.num_rounds:
    raise ValueError(f'{run.path} has {len(run.lines)} of '
                     f'{run.config.num_rounds} rounds')
  last = [line[metric] for line in run.lines if metric in line][-LAST:]
  return (statistics.fmean(CHANCE if x is None else 100 * x for x in last),
          None in last)


def tests(found: list[Result], beta: str) -> list[Tested]:
  """Returns the Holm family of a Dirichlet parameter; [] if one is missing.

  Methods with one model are compared with FedAvg, personal ones with FedAvg-FT.
  These two come first, without a test. A method without a result and a
  difference without a p-value, as of equal accuracies, count as p = 1.
  """
  members = [x for x in found if x.search.beta == beta]
  if len(members) < sum(x.beta == beta for x in searches()):
    return []
  is_baseline = lambda x: x.search.method in ('fedavg', 'fedavg_ft')
  baselines = {x.search.is_personal: x for x in members if is_baseline(x)}
  others = [x for x in members if not is_baseline(x)]
  differences = [_difference(x, baselines[x.search.is_personal])
                 for x in others]
  holm = paired.holm([1. if math.isnan(c.p_value) else c.p_value
                      for c in differences])
  return [*(Tested(x, Comparison(), math.nan, '') for x in baselines.values()),
          *(Tested(x, c, p, 'open' if p >= paired.LEVEL else
                   'higher' if c.mean > 0 else 'lower')
            for x, c, p in zip(others, differences, holm))]


def _difference(new, baseline):
  if not (new.accuracies and baseline.accuracies):
    return Comparison()
  return paired.compare(new.accuracies, baseline.accuracies)


def table(tested: list[Tested]) -> str:
  """Returns methods of a family as a Markdown table, in the order of the file.

  The first one is the baseline. Personal models of one class have accuracies
  far above chance, so that these say nothing about their trials.
  """
  is_global = not tested[0].result.search.is_personal
  rows = [['method', 'chosen', 'trials without a value',
           *[f'trials that reached {_LEARNED:g}%'] * is_global,
           'best validation accuracy of a trial, %',
           'accuracy, %',
           f'minus {tested[0].result.search.title}, points',
           '95% interval, unadjusted', 'p, Holm', 'verdict']]
  for one in tested:
    result, c, p, verdict = one
    search, chosen, accuracies, failed, trials_failed, best = result
    rows.append([
        search.title, ', '.join(
            f'{name.removeprefix("algorithm.").replace("_", " ")} {value:g}'
            + ' (at the edge)' * _is_edge(search, name, value)
            for name, value in chosen.items()) or 'nothing',
        f'{trials_failed} of {NUM_TRIALS}',
        *[f'{result.num_learned} of {NUM_TRIALS}'] * is_global,
        f'{max(best):.1f}' if max(best) else 'none',
        stats.mean_and_std(accuracies, 1, missing='no result')
        + f' ({failed} with a loss that is not finite)' * bool(failed),
        fixed(c.mean, 1, '+') if c.differences else '',
        stats.interval_text(c.low, c.high), stats.p_text(p), verdict
        + f' (unadjusted: {one.by_interval})' * bool(one.by_interval)])
  return markdown(rows)


def _is_edge(search, name, value):
  return search_lib.axis(name, search.ranges[name], name).is_edge(value)


def kept_results() -> list[Result]:
  """Returns the results of the tables."""
  return results(kept.runs(TABLES.name)) if TABLES.exists() else []


def report() -> str:
  """Returns the tables of the Dirichlet parameters that are complete."""
  found = kept_results()
  texts = [f'{len(found)} of {len(searches())} searches have ended. Results of '
           'a Dirichlet parameter are shown when all its searches have.']
  for beta in dict.fromkeys(x.beta for x in searches()):
    tested = tests(found, beta)
    for is_personal, words in enumerate((
        'accuracy of the global model on the test images',
        "mean accuracy of the clients' models on their test images")):
      if rows := [x for x in tested
                  if x.result.search.is_personal == is_personal]:
        texts += [f'Dirichlet {beta}, {words}:', table(rows),
                  *_untuned(rows, '', '')]
  return '\n\n'.join(texts)


def _untuned(tested, prefix, page):
  """Returns sentences about searches in which no trial learned, if any.

  `page` is the path of experiments/results/README.md.
  """
  names = [x.result.search.title for x in tested if not x.result.num_learned]
  if not names:
    return []
  first = tested[0].result
  text = (f'{prefix}No trial of {", ".join(names)} reached a validation '
          f'accuracy of {_LEARNED:g}% (chance is 10%; the limit was set after '
          'the results). Six of nine trials end after 8 rounds, when nothing '
          'has been learned yet, so the choice of these settings is an '
          'accident.')
  if not first.num_learned:
    end = stats.mean_and_std(first.accuracies, 1, missing='no accuracy')
    text += (f' {first.search.title}, the baseline, is among them; it has '
             f'{end} (%) with the new seeds. '
             'The tests and verdicts are as registered, but they say nothing '
             f'about {first.search.title} with a learning rate that works'
             + ('' if first.search.method != 'fedavg' else
                f' ([some rates do]({page}#fedavg_dirichlet_01): one reaches '
                f'{_best_ended():.1f}% in one run)') + '.')
  return [text]


def _best_ended():
  """Returns the accuracy of FedAvg with the best rate that a rung ended."""
  return max(100 * run.last('test_accuracy')
             for run in kept.runs('fedavg_dirichlet_01').values())


def summary() -> str:
  """Returns the verdicts of the families, or how many searches have ended."""
  found, lines = kept_results(), []
  for beta in dict.fromkeys(x.beta for x in searches()):
    if not (family := tests(found, beta)):
      lines.append(
          f'- Dirichlet {beta}: {sum(x.search.beta == beta for x in found)} of '
          f'{sum(x.beta == beta for x in searches())} searches have ended.')
      continue
    for is_personal in False, True:
      tested = [x for x in family if x.result.search.is_personal == is_personal]
      baseline = tested[0].result
      if not baseline.num_learned:
        means = sorted(((statistics.fmean(x.result.accuracies), x.result)
                        for x in tested if x.result.num_learned),
                       key=lambda found: -found[0])
        lines += _untuned(tested, f'- Dirichlet {beta}: **no comparison with '
                          f'{baseline.search.title}.** ',
                          'experiments/results/README.md')
        lines.append(
            '  Accuracies of the other methods with the new seeds (in '
            f'parentheses: how many of nine trials reached {_LEARNED:g}%): '
            + ', '.join(
                f'{result.search.title} {mean:.1f}% ({result.num_learned})'
                for mean, result in means) + '. They do not show that these '
            f'methods are better than {baseline.search.title}.')
        continue
      names = {key: ', '.join(
          x.result.search.title + (
              f' ({x.result.failed} of {len(SEEDS)} runs failed; failed runs '
              f'count as {CHANCE:g}%)') * bool(x.result.failed)
          for x in tested if (x.verdict, x.by_interval) == of)
               for key, of in (
                   ('higher', ('higher', '')), ('lower', ('lower', '')),
                   ('open, but higher by the unadjusted interval',
                    ('open', 'higher')),
                   ('open, but lower by the unadjusted interval',
                    ('open', 'lower')), ('open', ('open', '')))}
      texts = '; '.join(f'*{key}*: {text or "none"}'
                        for key, text in names.items()
                        if text or key in ('higher', 'lower'))
      lines.append(f'- Dirichlet {beta}, against tuned '
                   f'{baseline.search.title}: {texts}.')
  return '\n'.join(lines)


def moon() -> str:
  """Returns what the complete families say about MOON, as an item of a list."""
  texts, found = [], kept_results()
  for beta in dict.fromkeys(x.beta for x in searches()):
    family = {x.result.search.method: x for x in tests(found, beta)}
    if not family:
      continue
    result, c, p, verdict = family['moon']
    untuned = [x.search.title for x in (result, family['fedavg'].result)
               if not x.num_learned]
    if untuned:
      texts.append(f'Dirichlet {beta}: no comparison, since no trial of '
                   f'{" and none of ".join(untuned)} reached a validation '
                   f'accuracy of {_LEARNED:g}%')
      continue
    mu = result.chosen.get('algorithm.mu', math.nan)
    texts.append(
        f'Dirichlet {beta}, mu {mu:.2g}: {fixed(c.mean, 1, "+")} points (95% '
        f'interval, unadjusted, {stats.interval_text(c.low, c.high)}), '
        f'{verdict} by Holm\'s p ({stats.p_text(p)})')
  return ('- **Another setting, both tuned** (20 clients, 5 per round, 72 '
          'rounds of 2 epochs, five pairs; registered). MOON - FedAvg, '
          f'{"; ".join(texts) or "not all searches have ended"}.')


def main() -> None:
  parser = run_lib.parser(__doc__)
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
