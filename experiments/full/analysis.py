"""Computes the endpoints, comparisons and verdicts of PROTOCOL.md."""

from collections.abc import Sequence
import json
import math
import pathlib
from typing import NamedTuple

import numpy as np
from scipy import stats as scipy_stats

from experiments.full import questions
from experiments.full.questions import Arm, Question
from moon_jax.results import paired, read, stats
from moon_jax.results.paired import Comparison

CHANCE = 10.  # percent; counts as the accuracy of a diverged run
_AT_CHANCE = 12.  # percent; a run below it is at chance
_PAPER_SIZE = 2.8  # the paper's difference of MOON and FedAvg, in points
MIN_PERMUTED = 12  # fewest pairs for the sign-flip test
MIN_PAIRS = 3  # for a primary question to enter Holm's adjustment
SPREAD_ROUNDS = 50  # last rounds whose spreads over pairs are compared
_UNUSUAL = 5  # a spread among so few of the smallest or largest is unusual
_ORDINALS = '', 'second ', 'third ', 'fourth ', 'fifth '


class Block(NamedTuple):
  """Test accuracies in percent by round, of both arms with one seed.

  From the round in which an arm diverged, its accuracy is that of chance.
  """

  seed: int
  baseline: np.ndarray
  new: np.ndarray
  diverged: tuple[int, int] = (0, 0)  # the round of each arm; 0 for none
  on_gpu: tuple[int, int] = (0, 0)  # how many first rounds of each arm


def read_blocks(directory: pathlib.Path, question: Question) -> list[Block]:
  """Returns the blocks of a question whose arms both finished or diverged."""
  blocks = []
  for seed in range(question.num_blocks):
    arms = question.baseline, question.new
    workdirs = [directory / arm.workdir(seed) for arm in arms]
    runs = [_curve(workdir, arm.num_rounds or question.num_rounds)
            for workdir, arm in zip(workdirs, arms)]
    if all(runs):
      curves, diverged = zip(*runs)
      blocks.append(Block(seed, *curves, diverged,
                          tuple(map(rounds_on_gpu, workdirs))))
  return blocks


def rounds_on_gpu(workdir: pathlib.Path) -> int:
  """Returns how many rounds a run begins with on a GPU.

  begun.json has them if the run ended elsewhere, since summary.json names the
  device of the last rounds only.
  """
  for name in ('begun.json', 'summary.json'):
    if (workdir / name).exists():
      found = json.loads((workdir / name).read_text())
      return found['rounds'] if found.get('device', 'cpu') != 'cpu' else 0
  return 0


class Tested(NamedTuple):
  """One comparison of amendment 3, on the mean of the last 10 rounds."""

  new: Arm
  baseline: Arm
  comparison: Comparison  # with the unadjusted interval
  low: float  # of the Bonferroni interval
  high: float
  holm_p: float
  verdict: str  # "higher", "lower" or "open"


def read_fresh(directory: pathlib.Path
               ) -> dict[int, dict[Arm, tuple[np.ndarray, int]]]:
  """Returns the runs on fresh splits that have finished or diverged, by seed.

  Each has its accuracies by round and the round of divergence, or 0.
  """
  found = {seed: {arm: run for arm in questions.FRESH if (run := _curve(
      directory / arm.workdir(seed), questions.MAIN.num_rounds))}
           for seed in questions.FRESH_SEEDS}
  return {seed: runs for seed, runs in found.items() if runs}


def whole_blocks(fresh: dict[int, dict[Arm, tuple[np.ndarray, int]]]
                 ) -> list[dict[Arm, np.ndarray]]:
  """Returns the curves of the seeds that have all their runs."""
  return [{arm: curve for arm, (curve, _) in runs.items()}
          for runs in fresh.values() if len(runs) == len(questions.FRESH)]


def compare_fresh(blocks: list[dict[Arm, np.ndarray]], endpoint, new: Arm,
                  baseline: Arm) -> Comparison:
  """Compares an endpoint of two methods on fresh splits."""
  return paired.compare(*([endpoint(block[arm]) for block in blocks]
                          for arm in (new, baseline)))


def tests_of_fresh(blocks: list[dict[Arm, np.ndarray]]) -> list[Tested]:
  """Returns the tests of amendment 3; none before all blocks are there.

  A comparison without a p-value, of equal differences, counts as p = 1.
  """
  if len(blocks) < len(questions.FRESH_SEEDS):
    return []
  arms = [(questions.FRESH[new], questions.FRESH[baseline])
          for new, baseline in questions.FRESH_TESTS]
  found = [compare_fresh(blocks, stats.mean_of_last, *of) for of in arms]
  holm = paired.holm([1. if math.isnan(c.p_value) else c.p_value
                      for c in found])
  return [Tested(
      *of, c, *(paired.interval(c.differences, paired.LEVEL / len(arms))
                if c.std > 0 else (math.nan, math.nan)), p,
      'open' if p >= paired.LEVEL else 'higher' if c.mean > 0 else 'lower')
          for of, c, p in zip(arms, found, holm)]


def unusually_narrow(blocks: Sequence[Block]) -> str:
  """Returns how small the spread of the last round is, '' if it is usual.

  The interval of the last round is then narrower than those of most rounds
  before it. The text also says whether that of the mean of the last 10 rounds
  is narrower than those of most means of 10 rounds.
  """
  return _extreme(blocks, 1, 'smallest', 'narrow')


def unusually_wide(blocks: Sequence[Block]) -> str:
  """Returns how large the spread of the last round is, '' if it is usual."""
  return _extreme(blocks, -1, 'largest', 'wide')


def _extreme(blocks, sign, word, size):
  d_ST = np.stack([block.new - block.baseline for block in blocks])
  rank = _rank_of_spread(d_ST, sign)
  if rank is None:
    return ''
  rounds = d_ST.shape[1]
  mean_ST = np.stack([np.convolve(
      d_T, np.full(stats.LAST, 1 / stats.LAST), 'valid') for d_T in d_ST])
  return (f'the spread of the last round is the {_ORDINALS[rank]}{word} of '
          f'rounds {rounds - SPREAD_ROUNDS + 1} to {rounds}'
          + (f'. The interval of the mean of the last {stats.LAST} rounds is '
             f'also unusually {size}') * (
                 _rank_of_spread(mean_ST, sign) is not None))


def _rank_of_spread(value_ST, sign):
  """Returns the rank of the last spread over pairs; None if it is usual."""
  if len(value_ST) < MIN_PAIRS or value_ST.shape[1] < SPREAD_ROUNDS:
    return None
  std_T = sign * value_ST[:, -SPREAD_ROUNDS:].std(0, ddof=1)
  rank = int((std_T < std_T[-1]).sum())
  return rank if rank < _UNUSUAL and std_T[-1] < np.median(std_T) else None


def gains(question: Question, blocks: Sequence[Block]) -> list[float]:
  """Returns by how many points both arms rise in the last 10 rounds."""
  return [float(np.mean([curve[-1] - curve[-1 - stats.LAST]
                         for curve in curves]))
          for _, curves in sides(question, blocks)]


def sides(question: Question, blocks: Sequence[Block]
          ) -> list[tuple[Arm, list[np.ndarray]]]:
  """Returns both arms, the baseline first, and their curves in all blocks."""
  return [(question.baseline, [block.baseline for block in blocks]),
          (question.new, [block.new for block in blocks])]


def _curve(workdir, num_rounds):
  """Returns accuracies by round, and the round of divergence or 0.

  Returns None if the run is not finished.
  """
  if not read.is_run(workdir):
    return None
  run = read.read(workdir)
  accuracies = [100 * value for value in run.values('test_accuracy')]
  done = len(accuracies)
  if done >= num_rounds:
    return np.array(accuracies[:num_rounds]), 0
  if run.state.kind != 'diverged':
    return None
  return np.array(accuracies + [CHANCE] * (num_rounds - done)), done + 1


def last(curve_T: np.ndarray) -> float:
  """Returns the primary endpoint: the accuracy after the last round."""
  return float(curve_T[-1])


def compare(blocks: list[Block], endpoint) -> Comparison:
  """Compares an endpoint of both arms in paired tests."""
  return paired.compare([endpoint(block.new) for block in blocks],
                        [endpoint(block.baseline) for block in blocks])


def beside_published(question: Question, blocks: list[Block], endpoint=last
                     ) -> Comparison:
  """Returns our paired difference at an endpoint less the published one.

  The published one is of two unpaired groups of runs, so its error is that of
  both means. Welch's test, with Satterthwaite's degrees of freedom. There are
  no pairs.
  """
  d = compare(blocks, endpoint)
  new, old = _published(question)
  return paired.of_means(d.mean - new.mean + old.mean, [
      (d.std, len(blocks)), (new.std, new.n), (old.std, old.n)])


def published_difference(question: Question) -> Comparison:
  """Returns the published difference, by Welch's test; there are no pairs."""
  new, old = _published(question)
  return paired.of_means(new.mean - old.mean,
                         [(new.std, new.n), (old.std, old.n)])


def _published(question):
  return [arm.published[-1] for arm in (question.new, question.baseline)]


def adjusted(blocks: dict[str, list[Block]]) -> dict[str, float]:
  """Returns Holm's p-values of the primary questions that have enough pairs."""
  names = [q.name for q in questions.QUESTIONS
           if q.is_primary and len(blocks[q.name]) >= MIN_PAIRS]
  return dict(zip(names, paired.holm(
      [compare(blocks[name], last).p_value for name in names])))


def verdict(question: Question, comparison: Comparison,
            but: Sequence[str] = ()) -> str:
  """Returns the protocol's sentence on a comparison of MOON with FedAvg.

  Args:
    question: the question.
    comparison: of one endpoint.
    but: what restricts a difference whose interval does not contain 0.
  """
  size = f'{comparison.mean:+.1f} points'
  if not question.is_primary:
    n = len(comparison.differences)
    return f'{size} over {n} pair{"s" * (n != 1)}; not tested.'
  if math.isnan(comparison.low):
    n = len(comparison.differences)
    return f'open: {"one pair" if n == 1 else f"{n} equal pairs"} ({size}).'
  size += f' (95% interval {comparison.low:+.1f} to {comparison.high:+.1f})'
  pairs = f'over {len(comparison.differences)} pairs'
  words = lambda word: '; '.join([word, *but])
  if comparison.low > 0:
    is_inside = comparison.low <= _PAPER_SIZE <= comparison.high
    where = 'inside' if is_inside else 'outside'
    return (f"{words('higher')}: {size} {pairs}, the paper's sign; the "
            f"paper's size (+{_PAPER_SIZE}) lies {where} the interval.")
  if comparison.high < 0:
    new, old = (arm.published[-1].mean
                for arm in (question.new, question.baseline))
    is_paper = question is questions.MAIN
    return f"{words('lower')}: {size} {pairs}, " + (
        'the sign of the reproduction.' if is_paper or new < old else
        'not the sign of the reproduction.')
  if comparison.equivalence_p < paired.LEVEL:
    return f'no useful difference: {size} {pairs}, within ±1 point.'
  return f'open: {size} {pairs}.'


def needed(question: Question, comparison: Comparison) -> str:
  """Returns how many pairs an open comparison needs, '' for a closed one."""
  if (not question.is_primary or math.isnan(comparison.low)
      or not verdict(question, comparison).startswith('open')):
    return ''
  for_sign = pairs_for_sign(comparison.mean, comparison.std)
  return ('By their spread, which so few pairs give only roughly, an interval '
          f'of ±1 point needs about {pairs_needed(comparison.std):,} pairs; if '
          f'the true difference were {comparison.mean:+.1f}, its sign would '
          f'show after about {for_sign:,} (80% power).')


def pairs_needed(std: float, half_width: float = paired.MARGIN) -> float:
  """Returns how many pairs a 95% interval of the mean difference needs.

  `std` is that of the differences, `half_width` the largest half-width of the
  interval. The result is infinite above 9,999.
  """
  n = np.arange(2, 10_000)
  limit = scipy_stats.t.ppf(1 - paired.LEVEL / 2, n - 1)
  return min(n[limit * std / np.sqrt(n) <= half_width].tolist(),
             default=math.inf)


def pairs_for_sign(mean: float, std: float, power: float = .8) -> float:
  """Returns after how many pairs a paired t-test shows the sign.

  The differences have this true mean and standard deviation, and the two-sided
  test at `paired.LEVEL` rejects 0 with probability `power`. The result is
  infinite above 9,999.
  """
  n = np.arange(2, 10_000)
  limit = scipy_stats.t.ppf(1 - paired.LEVEL / 2, n - 1)
  powers = scipy_stats.nct.sf(limit, n - 1, abs(mean) / std * np.sqrt(n))
  return min(n[powers >= power].tolist(), default=math.inf)


def sign_flip_p(differences: Sequence[float]) -> float:
  """Returns the fraction of the 2^n sign patterns with as large a |mean|.

  It is NaN for fewer than `MIN_PERMUTED` differences.
  """
  if len(differences) < MIN_PERMUTED:
    return math.nan
  return float(scipy_stats.permutation_test(
      (differences,), np.mean, permutation_type='samples', n_resamples=2**16,
      rng=np.random.default_rng(0)).pvalue)


def answer(blocks: list[Block]) -> str:
  """Returns the protocol's answer to question 1 at one learning rate."""
  shuffled, at_chance = (
      sum(last(curve) < _AT_CHANCE for curve in curves)
      for curves in zip(*[(b.baseline, b.new) for b in blocks]))
  n = len(blocks)
  word = ('yes' if at_chance == n and not shuffled else
          'no' if not at_chance else 'partly')
  return (f'{word}: {at_chance} of {n} sorted and {shuffled} of {n} shuffled '
          'runs are at chance.')
