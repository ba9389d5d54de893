"""Evaluates saved runs by PROTOCOL.md and its amendments: tables and plots.

experiments/evidence.py writes them into the documents.
"""

from collections.abc import Sequence
import json
import pathlib
import textwrap
from typing import Any

import numpy as np

from experiments.full import looks, questions
from experiments.full.analysis import (
  adjusted,
  answer,
  Block,
  compare,
  last,
  MIN_PAIRS,
  MIN_PERMUTED,
  needed,
  read_blocks,
  sides,
  sign_flip_p,
  verdict,
)
from experiments.full.questions import Question
from moon_jax.results import figures, paired, stats

_ROOT = pathlib.Path(__file__).parents[2]
RESULTS = _ROOT / 'experiments' / 'results' / 'full'
_WINDOW = 5  # rounds of the running median
_ROW_SEEDS = 3  # of each method of parts 4 and 5
# Questions with a table and a plot of differences by round.
_BY_ROUND = (questions.SPLIT, questions.FEW)
_EARLY_ROUNDS = (1, 5, 10, 20, 50)  # rounds whose differences are shown


def everything() -> str:
  """Returns a section with tables for each question that has runs."""
  blocks = _read()
  holm = adjusted(blocks)
  parts = [section(question, found, holm.get(question.name))
           for question in questions.QUESTIONS
           if (found := blocks[question.name])]
  return '\n\n'.join([_commits(RESULTS), *parts, row(RESULTS)]).strip()


def _commits(directory):
  """Returns a sentence on the code and the device of the runs."""
  begun = {path.parent.name: json.loads(path.read_text())
           for path in sorted(directory.glob('*/begun.json'))}
  text = (f'Commit {questions.COMMIT[:7]}; part 4 of the amendment, '
          f'{questions.PART_4[:7]}')
  if begun:
    groups = {}
    for name, facts in begun.items():
      groups.setdefault((facts['rounds'], facts['device'],
                         facts['versions']['jax']), []).append(f'`{name}`')
    text += (f'. Begun on a GPU, commit {questions.AMENDMENT_2[:7]} '
             '([amendment 2](../full/AMENDMENT_2.md)): ' + '; '.join(
                 f'{", ".join(names)} (rounds 1 to {rounds} on an {device}, '
                 f'JAX {version})'
                 for (rounds, device, version), names in groups.items()))
  return f'{text}.'


def summary() -> str:
  """Returns a table of accuracies, and the verdicts on MOON."""
  blocks = _read()
  holm = adjusted(blocks)
  adjusted_p = lambda q: (
      f" Holm's p: {stats.p_text(holm[q.name])}" + (
          ', not significant at 0.05.' if compare(
              blocks[q.name], last).p_value < paired.LEVEL <= holm[q.name]
          else '.') if q.name in holm else '')
  primary = [q for q in questions.QUESTIONS if q.is_primary]
  rows = [['clients, rounds of 10 epochs', 'method',
           'test accuracy after the last round (%)',
           f'mean of last {stats.LAST} rounds (%)', 'runs', 'published (%)']]
  for question in (primary[0], questions.SPLIT, *primary[1:]):
    setting = question.title.split(', ', 1)[1].replace(' of 10 epochs', '')
    if question is questions.SPLIT:
      setting = f"10 clients, the paper's split, {setting}"
    for arm, curves in sides(question, blocks[question.name]):
      if curves:
        rows.append([
            setting, arm.title, *_endpoints(curves), len(curves), '; '.join(
                f'{source.mean:.1f} ± {source.std:.1f} ({source.source})'
                for source in arm.published)])
  return '\n'.join([markdown(rows), '', *(
      f'- {q.title}: {headline(q, found)}{_so_far(q, found)}{adjusted_p(q)}'
      for q in questions.QUESTIONS
      if q in (*primary, questions.SPLIT) and (found := blocks[q.name]))])


def _endpoints(curves):
  """Returns means and deviations of both endpoints of an arm, as text."""
  return [stats.mean_and_std([endpoint(curve) for curve in curves], 2)
          for endpoint in (last, stats.mean_of_last)]


def draw_all() -> None:
  """Draws the plots of each question beside the runs."""
  for question in questions.QUESTIONS:
    if found := read_blocks(RESULTS, question):
      draw(question, found, RESULTS / f'{question.name}.png')
      if question in _BY_ROUND:
        draw_differences(found, RESULTS / f'{question.name}-difference.png')


def _read():
  return {q.name: read_blocks(RESULTS, q) for q in questions.QUESTIONS}


def headline(question: Question, blocks: list[Block]) -> str:
  """Returns the verdict on a question, one sentence."""
  if question in questions.SORTED:
    return answer(blocks)
  if question is questions.SPLIT:
    return looks.sentence(blocks)
  return verdict(question, compare(blocks, last))


def full_verdict(question: Question, blocks: list[Block]) -> str:
  """Returns the verdict, the second endpoint and what is still missing."""
  has_interval = question not in (questions.SPLIT, *questions.SECONDARY)
  sentences = [headline(question, blocks),
               needed(question, compare(blocks, last))]
  if question not in questions.SORTED:
    at_end = compare(blocks, stats.mean_of_last)
    interval = stats.interval_text(at_end.low, at_end.high)
    sentences.append(
        f'Mean of the last {stats.LAST} rounds: {at_end.mean:+.1f} points'
        + (f' (95% interval {interval})' if interval and has_interval else '')
        + '.')
  if num_diverged := sum(bool(r) for b in blocks for r in b.diverged):
    sentences.append(f'{num_diverged} of {2 * len(blocks)} runs diverged.')
  sentences.append(_so_far(question, blocks).strip())
  return ' '.join(filter(None, sentences))


def _so_far(question, blocks):
  """Returns how many of the planned pairs have run, '' if all have."""
  count, planned = len(blocks), question.num_blocks
  if question is questions.SPLIT:
    count = len(d := looks.differences(blocks))
    planned = looks.num_planned(d)
  return '' if count >= planned else f' {count} of {planned} pairs so far.'


def section(question: Question, blocks: list[Block],
            holm_p: float | None) -> str:
  """Returns the section of a question."""
  sentence = full_verdict(question, blocks)
  is_sorting = question in questions.SORTED
  is_split, has_rounds = question is questions.SPLIT, question in _BY_ROUND
  parts = [f'### {question.title}',
           f'**{sentence[0].upper()}{sentence[1:]}**', _pairs(question, blocks),
           _tests(question, blocks, holm_p), _published(question, blocks),
           '' if is_sorting else _rounds(blocks),
           markdown(looks.table(blocks)) if is_split else '',
           markdown(looks.round_table(blocks)) if has_rounds else '',
           f'![accuracy by round](full/{question.name}.png)',
           f'![difference by round](full/{question.name}-difference.png)'
           if has_rounds else '']
  return '\n\n'.join(part for part in parts if part)


def row(directory: pathlib.Path) -> str:
  """Returns a section on the methods of parts 4 and 5 of the amendment.

  It is '' if they have no runs.
  """
  rows = row_table(directory)
  if not rows:
    return ''
  return '\n\n'.join((
      "### Other methods on the paper's split",
      'Parts 4 and 5 of the amendment. All rows have seeds '
      f'0 to {_ROW_SEEDS - 1} at most; MOON has more pairs above. Differences '
      'are over the seeds that a row has in common with FedAvg or MOON. '
      'P-values are of the difference from FedAvg, adjusted for the '
      f'{len(questions.ROW)} methods of part 4; with {MIN_PAIRS} pairs only '
      'large effects reach 0.05. The paper compares MOON without its head '
      'with FedAvg without it (66.7); here FedAvg has it, so that its interval '
      'and p-value are of two different networks.',
      markdown(rows)))


def row_table(directory: pathlib.Path) -> list[list[Any]]:
  """Returns the rows of a table of methods on the paper's split, or []."""
  methods = (*questions.ROW, *questions.OTHER_MU)
  blocks = {question: found for question in (questions.SPLIT, *methods) if (
      found := [block for block in read_blocks(directory, question)
                if block.seed < _ROW_SEEDS])}
  if blocks.keys() <= {questions.SPLIT}:
    return []
  compared = {q: compare(found, last) for q, found in blocks.items()}
  # MOON is tested at its looks only.
  is_tested = lambda q: q is not questions.SPLIT and (
      len(blocks.get(q, ())) >= MIN_PAIRS)
  # Methods that cannot be tested (yet) count as 1.
  holm = dict(zip(questions.ROW, paired.holm([
      compared[q].p_value if is_tested(q) and np.isfinite(compared[q].p_value)
      else 1. for q in questions.ROW])))
  moon = {block.seed: last(block.new)
          for block in blocks.get(questions.SPLIT, ())}

  def cells(question, side):
    arm, curves = sides(question, blocks[question])[side]
    published, above = '', ''
    for source in arm.published[:1]:
      published = f'{source.mean:.1f}' + f' ± {source.std:.1f}' * (
          source.std > 0)
      above = f'{np.mean([*map(last, curves)]) - source.mean:+.1f}'
    at_end, of_last = _endpoints(curves)
    diverged = sum(bool(b.diverged[side]) for b in blocks[question])
    return [arm.title, published, above, at_end,
            of_last if len(curves[0]) > 1 else '',
            f'{len(curves)}' + f' ({diverged} diverged)' * bool(diverged)]

  rows = [['method', 'published (%)', 'ours - published', 'last round (%)',
           f'mean of last {stats.LAST} (%)', 'runs',
           'difference from FedAvg of the same seed, points',
           '95% interval, unadjusted', 'p, Holm',
           'difference from MOON of the same seed, points (95% interval, '
           'unadjusted)']]
  for question, found in blocks.items():
    if len(rows) == 1:
      rows.append([*cells(question, 0), *[''] * 4])
    c = compared[question]
    common = [block for block in found if block.seed in moon]
    beside = paired.shown(paired.compare(
        [last(block.new) for block in common],
        [moon[block.seed] for block in common]))
    interval = stats.interval_text(beside.low, beside.high, 2)
    rows.append([
        *cells(question, 1), f'{c.mean:+.2f}',
        *((stats.interval_text(c.low, c.high, 2),
           stats.p_text(holm.get(question)))
          if is_tested(question) else ('', '')),
        '' if question is questions.SPLIT or not common else
        f'{beside.mean:+.2f}' + f' ({interval})' * bool(interval)])
  return rows


def _pairs(question, blocks):
  """Returns a table with one row per pair, then means and deviations."""
  old, new = question.baseline.title, question.new.title
  rows = [['block', old, new, 'difference', f'{old}, mean of last {stats.LAST}',
           f'{new}, mean of last {stats.LAST}', 'difference']]
  columns = []
  for endpoint in (last, stats.mean_of_last):
    a, b = (np.array([endpoint(curve) for curve in curves])
            for _, curves in sides(question, blocks))
    columns += [a, b, b - a]
  for i, block in enumerate(blocks):
    suffixes = [f' (diverged in round {r})' if r else ''
                for r in block.diverged]
    rows.append([block.seed, *[
        f'{c[i]:+.2f}' if j % 3 == 2 else f'{c[i]:.2f}{suffixes[j % 3]}'
        for j, c in enumerate(columns)]])
  rows.append(['mean', *[stats.mean_and_std(c, 2, sign='+' * (j % 3 == 2))
                         for j, c in enumerate(columns)]])
  return markdown(rows)


def _tests(question, blocks, holm_p):
  """Returns a table of differences with what is planned: intervals, tests."""
  columns = (2 if question in questions.SECONDARY else
             3 if not question.is_primary else
             7 if len(blocks) >= MIN_PERMUTED else 6)
  rows = [['endpoint', 'difference, points', '95% interval', 'p, paired t',
           'p, Holm', 'p, TOST ±1', 'p, sign flip']]
  for name, endpoint in (('last round', last),
                         (f'mean of last {stats.LAST}', stats.mean_of_last)):
    c = compare(blocks, endpoint)
    rows.append([name, f'{c.mean:+.2f}',
                 stats.interval_text(c.low, c.high, 2),
                 *map(stats.p_text, (
                     c.p_value, holm_p if endpoint is last else None,
                     c.equivalence_p, sign_flip_p(c.differences)))])
  return markdown([row[:columns] for row in rows])


def _published(question, blocks):
  """Returns a table of our last rounds and published means.

  The published runs used other code; the splits of the reproduction are
  unknown, and the paper's is that of seed 0.
  """
  what = '' if question is questions.SPLIT else ', other or unknown splits'
  rows = [[f'published (other code{what})', 'theirs', 'ours',
           'ours - theirs, points', 'p, Welch']]
  for arm, curves in sides(question, blocks):
    ours = [last(curve) for curve in curves]
    for source in arm.published:
      row = [f'{arm.title}, {source.source}',
             f'{source.mean:.1f} ± {source.std:.1f}',
             stats.mean_and_std(ours, 2),
             f'{np.mean(ours) - source.mean:+.1f}', '']
      if len(ours) > 1:
        row[-1] = stats.p_text(paired.welch(
            ours, source.mean, source.std, source.n).p_value)
      rows.append(row)
  return markdown(rows) if len(rows) > 1 else ''


def _rounds(blocks):
  """Returns a table of rounds to FedAvg's final accuracy and differences."""
  rows = [['block', 'round in which FedAvg reaches its own last accuracy '
           f'(median of {_WINDOW} rounds)', 'round in which MOON reaches it',
           *[f'difference after round {r}, points' for r in _EARLY_ROUNDS]]]
  for block in blocks:
    reached = [stats.first_reached(curve, last(block.baseline), _WINDOW)
               for curve in (block.baseline, block.new)]
    rows.append([block.seed, *[
        'never' if i is None else str(i + 1) for i in reached], *[
        f'{block.new[r - 1] - block.baseline[r - 1]:+.1f}'
        for r in _EARLY_ROUNDS]])
  return markdown(rows)


def markdown(rows: Sequence[Sequence[Any]]) -> str:
  """Returns rows of cells as a Markdown table; the first is the header."""
  rows = [rows[0], ['---'] * len(rows[0]), *rows[1:]]
  return '\n'.join(f'| {" | ".join(map(str, row))} |' for row in rows)


def draw(question: Question, blocks: list[Block], path: pathlib.Path) -> None:
  """Draws accuracy by round: means, bands over seeds, published values."""
  figure = figures.empty(7, 4.2)
  axes = figure.subplots()
  colors = '#0072b2', '#d55e00'  # safe for colour-blind readers
  for (arm, curves), color in zip(sides(question, blocks), colors):
    curves_ST = np.stack(curves)
    rounds_T = np.arange(1, curves_ST.shape[1] + 1)
    axes.plot(rounds_T, curves_ST.mean(0), color=color,
              label=f'{arm.title}, n = {len(blocks)}')
    axes.fill_between(rounds_T, curves_ST.min(0), curves_ST.max(0),
                      color=color, alpha=.2, linewidth=0)
    for source in arm.published:
      axes.axhline(source.mean, color=color, linestyle='--', linewidth=1,
                   label=f'{arm.title}, {source.source}: {source.mean:.1f}')
  axes.set(xlabel='round', ylabel='test accuracy, %',
           title=textwrap.fill(question.title, 80),
           xlim=(1, question.num_rounds))
  axes.title.set_fontsize(10)
  axes.grid(alpha=.3)
  axes.legend(fontsize=8, loc='best')
  figure.savefig(path, dpi=120)


def draw_differences(blocks: list[Block], path: pathlib.Path) -> None:
  """Draws differences by round with their pointwise 95% band."""
  figure = figures.empty(7, 4.2)
  axes = figure.subplots()
  means, low, high = looks.by_round(blocks)
  rounds = np.arange(1, len(means) + 1)
  axes.axhline(0, color='black', linewidth=1)
  axes.plot(rounds, means, color='#d55e00',
            label=f'mean of {len(blocks)} pairs')
  axes.fill_between(rounds, low, high, color='#d55e00', alpha=.2, linewidth=0,
                    label='pointwise 95% band')
  axes.set(xlabel='round', ylabel='MOON - FedAvg, points',
           xlim=(1, len(means)))
  axes.grid(alpha=.3)
  axes.legend(fontsize=8)
  figure.savefig(path, dpi=120)
