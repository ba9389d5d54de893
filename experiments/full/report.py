"""Evaluates the kept runs as PROTOCOL.md says; writes tables, plots, verdicts.

python -m experiments.full.report

Reads experiments/results/full, draws a plot of each question there, and
rewrites what stands between <!-- full --> and <!-- end of full --> in
experiments/results/README.md (everything) and README.md (verdicts alone).
"""

import json
import math
import pathlib
import re
from typing import NamedTuple

import numpy as np

from experiments.full import questions
from experiments.full.questions import Arm
from experiments.full.questions import Question
from moon_jax.report import paired

_ROOT = pathlib.Path(__file__).parents[2]
RESULTS = _ROOT / 'experiments' / 'results' / 'full'
_CHANCE = 10.  # percent; the accuracy of a run that diverged
_AT_CHANCE = 12.
_LAST = 10  # rounds of the secondary endpoint
_PAPER_SIZE = 2.8  # points by which the paper's MOON is ahead
_EARLY = (1, 5, 10, 20, 50)  # rounds whose differences are shown
_MIN_PAIRS = 3  # of a primary question, for Holm's adjustment


class Block(NamedTuple):
  """Test accuracies in percent, by round, of both arms at one seed.

  A diverged arm has the accuracy of chance from that round on.
  """

  seed: int
  baseline: np.ndarray
  new: np.ndarray
  diverged: tuple[int, int] = (0, 0)  # the round of each arm; 0 for none


def main() -> None:
  blocks = {q.name: read_blocks(RESULTS, q) for q in questions.QUESTIONS}
  holm = adjusted(blocks)
  parts, verdicts = [], []
  for question in questions.QUESTIONS:
    if found := blocks[question.name]:
      draw(question, found, RESULTS / f'{question.name}.png')
      text, sentence = section(question, found, holm.get(question.name))
      parts.append(text)
      verdicts.append(f'- {question.title}: {sentence}')
  if solo := solo_line(RESULTS):
    parts.append(solo)
  commit = (RESULTS / 'commit.txt').read_text().strip()[:7]
  _rewrite(_ROOT / 'experiments' / 'results' / 'README.md',
           '\n\n'.join([f'Commit {commit}.', *parts]))
  _rewrite(_ROOT / 'README.md', '\n'.join(verdicts))


def read_blocks(directory: pathlib.Path, question: Question) -> list[Block]:
  """Returns the whole blocks of a question: both arms finished or diverged."""
  blocks = []
  for seed in range(question.num_blocks):
    runs = [_curve(directory / f'{arm.name}-seed{seed}', question.num_rounds)
            for arm in (question.baseline, question.new)]
    if all(runs):
      curves, diverged = zip(*runs)
      blocks.append(Block(seed, *curves, diverged))
  return blocks


def _curve(workdir, num_rounds):
  """Accuracies by round, and the round of divergence or 0.

  None of a run that is not finished.
  """
  path = workdir / 'metrics.jsonl'
  if not path.exists():
    return None
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  accuracies = [100 * line['test_accuracy'] for line in lines][:num_rounds]
  done = len(accuracies)
  if done == num_rounds:
    return np.array(accuracies), 0
  if not (workdir / 'diverged.txt').exists():
    return None
  return np.array(accuracies + [_CHANCE] * (num_rounds - done)), done + 1


def solo_line(directory: pathlib.Path) -> str:
  """Returns a sentence on SOLO, mean and spread over clients; '' before it."""
  path = directory / questions.SOLO.name / 'metrics.jsonl'
  if not path.exists():
    return ''
  line = json.loads(path.read_text().splitlines()[-1])
  return (f'SOLO, one round of 300 epochs: {100 * line["test_accuracy"]:.1f} ± '
          f'{100 * line["test_accuracy_std"]:.1f} over clients, block 0 '
          '(published: 46.3 ± 5.1).')


def last(curve_T: np.ndarray) -> float:
  """The primary endpoint."""
  return float(curve_T[-1])


def mean_of_last(curve_T: np.ndarray) -> float:
  """The secondary endpoint."""
  return float(curve_T[-_LAST:].mean())


def compare(blocks: list[Block], endpoint) -> paired.Comparison:
  """Compares the arms by an endpoint."""
  return paired.compare([endpoint(block.new) for block in blocks],
                        [endpoint(block.baseline) for block in blocks])


def adjusted(blocks: dict[str, list[Block]]) -> dict[str, float]:
  """Holm's p-values of the primary questions that have enough pairs."""
  names = [q.name for q in questions.QUESTIONS
           if q.is_primary and len(blocks[q.name]) >= _MIN_PAIRS]
  return dict(zip(names, paired.holm(
      [compare(blocks[name], last).p_value for name in names])))


def verdict(question: Question, found: paired.Comparison) -> str:
  """Returns the protocol's sentence on a comparison of MOON with FedAvg."""
  size = f'{found.mean:+.1f} points'
  if not question.is_primary:
    return f'{size} over {len(found.differences)} pairs; not tested.'
  if math.isnan(found.low):
    return f'open: one pair ({size}).'
  size += f' (95% interval {found.low:+.1f} to {found.high:+.1f})'
  pairs = f'over {len(found.differences)} pairs'
  if found.low > 0:
    holds = found.low <= _PAPER_SIZE <= found.high
    where = 'inside' if holds else 'outside'
    return (f"MOON is ahead, {size} {pairs}: the paper's sign holds, and its "
            f'size (+{_PAPER_SIZE}) lies {where} the interval.')
  if found.high < 0:
    return (f'MOON is behind, {size} {pairs}: the sign of the reproduction '
            'holds.')
  if found.equivalence_p < paired.LEVEL and found.std:
    return f'no useful difference, {size} {pairs}, within ±1 point.'
  return (f'open: {size} {pairs}; an interval of ±1 point needs about '
          f'{paired.pairs_needed(found.std)} pairs.')


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


def section(question: Question, blocks: list[Block],
            holm_p: float | None) -> tuple[str, str]:
  """Returns the section of a question, and its verdict in a sentence."""
  found = compare(blocks, last)
  is_sorting = question in questions.SORTED
  sentence = answer(blocks) if is_sorting else verdict(question, found)
  num_diverged = sum(bool(r) for block in blocks for r in block.diverged)
  if num_diverged:
    sentence += f' {num_diverged} of {2 * len(blocks)} runs diverged.'
  if len(blocks) < question.num_blocks:
    sentence += (f' {len(blocks)} of {question.num_blocks} blocks so far; '
                 'unfinished for lack of time.')
  parts = [f'### {question.title}',
           f'**{sentence[0].upper()}{sentence[1:]}**', _pairs(question, blocks),
           _tests(question, blocks, holm_p), _published(question, blocks),
           '' if is_sorting else _rounds(blocks),
           f'![accuracy by round](full/{question.name}.png)']
  return '\n\n'.join(part for part in parts if part), sentence


def _pairs(question, blocks):
  """A row for each pair, then means and standard deviations."""
  old, new = question.baseline.title, question.new.title
  rows = [['block', old, new, 'difference', f'{old}, mean of last {_LAST}',
           f'{new}, mean of last {_LAST}', 'difference'], ['---'] * 7]
  columns = []
  for endpoint in (last, mean_of_last):
    a, b = (np.array([endpoint(getattr(block, arm)) for block in blocks])
            for arm in ('baseline', 'new'))
    columns += [a, b, b - a]
  for i, block in enumerate(blocks):
    notes = [f' (diverged in round {r})' if r else '' for r in block.diverged]
    rows.append([str(block.seed), *[
        f'{c[i]:+.2f}' if j % 3 == 2 else f'{c[i]:.2f}{notes[j % 3]}'
        for j, c in enumerate(columns)]])
  rows.append(['mean', *[_spread(c, j % 3 == 2)
                         for j, c in enumerate(columns)]])
  return _markdown(rows)


def _tests(question, blocks, holm_p):
  """Intervals; and tests, of primary questions alone."""
  columns = 7 if question.is_primary else 3
  rows = [['endpoint', 'difference, points', '95% interval', 'p, paired t',
           'p, Holm', 'p, TOST ±1', 'p, sign flip'], ['---'] * 7]
  for name, endpoint in (('last round', last),
                         (f'mean of last {_LAST}', mean_of_last)):
    c = compare(blocks, endpoint)
    rows.append([name, f'{c.mean:+.2f}',
                 '' if math.isnan(c.low) else f'{c.low:+.2f} to {c.high:+.2f}',
                 _p(c.p_value), _p(holm_p if endpoint is last else None),
                 _p(c.equivalence_p), _p(c.sign_flip_p)])
  return _markdown([row[:columns] for row in rows])


def _published(question, blocks):
  """Our last rounds beside published means: other code, splits unknown."""
  rows = [['published (other code, splits unknown)', 'theirs', 'ours',
           'ours - theirs, points', 'p, Welch'], ['---'] * 5]
  for arm, name in ((question.baseline, 'baseline'), (question.new, 'new')):
    ours = [last(getattr(block, name)) for block in blocks]
    for source in arm.published:
      row = [f'{arm.title}, {source.source}',
             f'{source.mean:.1f} ± {source.std:.1f}', _spread(ours),
             f'{np.mean(ours) - source.mean:+.1f}', '']
      if len(ours) > 1:
        row[-1] = _p(paired.welch(
            ours, source.mean, source.std, source.n)[1])
      rows.append(row)
  return _markdown(rows) if len(rows) > 2 else ''


def _rounds(blocks):
  """Rounds to FedAvg's final accuracy, and differences early on."""
  rows = [['block', "rounds to the baseline's final accuracy: baseline",
           'new', *[f'difference after round {r}' for r in _EARLY]],
          ['---'] * (3 + len(_EARLY))]
  for block in blocks:
    reached = [paired.rounds_to(curve, last(block.baseline))
               for curve in (block.baseline, block.new)]
    rows.append([str(block.seed), *[str(r or 'never') for r in reached], *[
        f'{block.new[r - 1] - block.baseline[r - 1]:+.1f}' for r in _EARLY]])
  return _markdown(rows)


def _spread(values, signed=False):
  mean = f'{np.mean(values):{"+" if signed else ""}.2f}'
  return mean if len(values) < 2 else (
      f'{mean} ± {np.std(values, ddof=1):.2f}')


def _p(value):
  if value is None or math.isnan(value):
    return ''
  return f'{value:.3f}' if value >= .001 else '< 0.001'


def _markdown(rows):
  return '\n'.join(f'| {" | ".join(row)} |' for row in rows)


def draw(question: Question, blocks: list[Block], path: pathlib.Path) -> None:
  """Draws accuracy by round: means, bands over seeds, published values."""
  import matplotlib

  matplotlib.use('agg')
  from matplotlib import pyplot as plt

  figure, axes = plt.subplots(figsize=(7, 4.2), layout='constrained')
  arms: list[tuple[Arm, str, str]] = [
      (question.baseline, 'baseline', '#0072b2'),
      (question.new, 'new', '#d55e00')]  # told apart by the colour-blind
  for arm, name, color in arms:
    curves_ST = np.stack([getattr(block, name) for block in blocks])
    rounds_T = np.arange(1, curves_ST.shape[1] + 1)
    axes.plot(rounds_T, curves_ST.mean(0), color=color,
              label=f'{arm.title}, n = {len(blocks)}')
    axes.fill_between(rounds_T, curves_ST.min(0), curves_ST.max(0),
                      color=color, alpha=.2, linewidth=0)
    for source in arm.published:
      axes.axhline(source.mean, color=color, linestyle='--', linewidth=1,
                   label=f'{arm.title}, {source.source}: {source.mean:.1f}')
  axes.set(xlabel='round', ylabel='test accuracy, %', title=question.title,
           xlim=(1, question.num_rounds))
  axes.title.set_fontsize(10)
  axes.grid(alpha=.3)
  axes.legend(fontsize=8, loc='best')
  figure.savefig(path, dpi=120)
  plt.close(figure)


def _rewrite(document, text):
  """Replaces what stands between the markers of a document."""
  old = document.read_text(encoding='utf-8')
  new, count = re.subn(
      r'(<!-- full -->\n).*?(<!-- end of full -->)',
      lambda match: f'{match[1]}{text}\n{match[2]}', old, flags=re.DOTALL)
  if count != 1:
    raise ValueError(f'{document} has {count} parts between <!-- full --> and '
                     '<!-- end of full -->; one is expected')
  document.write_text(new, encoding='utf-8')


if __name__ == '__main__':
  main()
