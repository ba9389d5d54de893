"""Evaluates saved runs by PROTOCOL.md and its amendments: tables and plots.

experiments/evidence.py writes them into the documents.
"""

from collections.abc import Sequence
import functools
import json
import math
import pathlib
import textwrap
from typing import Any, BinaryIO

import numpy as np

from experiments import kept
from experiments.full import looks, questions
from experiments.full.analysis import (
  adjusted,
  answer,
  Block,
  compare,
  compare_fresh,
  gains,
  last,
  MIN_PAIRS,
  MIN_PERMUTED,
  needed,
  published_difference,
  read_blocks,
  read_fresh,
  rounds_on_gpu,
  sides,
  sign_flip_p,
  tests_of_fresh,
  unusually_narrow,
  unusually_wide,
  verdict,
  whole_blocks,
)
from experiments.full.questions import Question
from moon_jax.results import figures, paired, stats
from moon_jax.view.text import fixed

_ROOT = pathlib.Path(__file__).parents[2]
RESULTS = _ROOT / 'experiments' / 'results' / 'full'
kept_runs = functools.partial(kept.directory, 'full')
_WINDOW = 5  # rounds of the running median
_ROW_SEEDS = 3  # of each method of parts 4 and 5
# Questions with a table and a plot of differences by round, and those with a
# plot of accuracies.
_BY_ROUND = (questions.SPLIT, questions.FEW)
_DRAWN = (questions.SPLIT, questions.RECIPE)
_EARLY_ROUNDS = (1, 5, 10, 20, 50)  # rounds whose differences are shown


def everything() -> str:
  """Returns a section with tables for each question that has runs."""
  blocks = _read()
  holm = adjusted(blocks)
  parts = [section(question, found, holm.get(question.name))
           for question in questions.QUESTIONS
           if (found := blocks[question.name])]
  return '\n\n'.join(filter(None, [
      _commits(kept_runs()), *parts,
      *(part(kept_runs()) for part in (row, no_head, fresh))]))


def _commits(directory):
  """Returns a sentence on the commits and the devices of the runs."""
  begun = {path.parent.name: json.loads(path.read_text())
           for path in sorted(directory.glob('*/begun.json'))}
  planned = questions.amendment_3()
  added = sum((directory / run.name).is_dir() for run in planned)
  text = (f'Commit {questions.COMMIT[:7]}; part 4 of the first amendment, '
          f'{questions.PART_4[:7]}') + (
              f'; amendment 3, {questions.AMENDMENT_3[:7]} '
              f'({added} of {len(planned)} runs)' if added else '')
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
  """Returns a table of the comparisons of MOON with FedAvg."""
  blocks = _read()
  holm = adjusted(blocks)
  first, *others = [q for q in questions.QUESTIONS if q.is_primary]
  rows = [['setting', 'FedAvg (%)', 'MOON (%)', 'MOON - FedAvg, mean of the '
           f'last {stats.LAST} rounds', 'after the last round', 'pairs',
           'verdict', 'published difference']]
  notes = []
  for question in (first, questions.SPLIT, *others):
    if found := blocks[question.name]:
      narrow = unusually_narrow(found)
      verdict_text = headline(question, found, holm.get(question.name))
      ends = [looks.size(found, endpoint, '')
              if question is questions.SPLIT
              else _size(compare(found, endpoint))
              for endpoint in (stats.mean_of_last, last)]
      published = published_difference(question)
      rows.append([
          _setting(question), *(  # accuracies after the last round
              stats.mean_and_std([last(curve) for curve in curves], 1)
              for _, curves in sides(question, found)),
          ends[0], ends[1] + '\\*' * bool(narrow), len(found),
          verdict_text.partition(':')[0],
          f'{_size(published)}, {question.new.published[-1].source}'])
      notes += [f'\\* Unusually narrow: {narrow}.'] * bool(narrow)
      notes += _details(question, found)
  notes = [
      *dict.fromkeys(notes),
      *[f'**Fresh splits.** {sentence(fresh_sentence(kept_runs()))}'] * bool(
          whole_blocks(read_fresh(kept_runs()))),
      *_not_tested(blocks)]
  return '\n'.join([markdown(rows), '', *(f'- {note}' for note in notes)])


def _details(question, blocks):
  """Returns what a row of the summary needs beside its figures, as sentences.

  An open verdict on the last round hides a difference in the registered
  secondary endpoint.
  """
  caveats = _caveats(question, blocks)[1:]
  if caveats:
    return [f'Class-sorted batches: n{" ".join(caveats)[1:]}']
  c = compare(blocks, stats.mean_of_last)
  if (c.low <= 0 <= c.high or
      not headline(question, blocks).startswith('open')):
    return []
  word = 'higher' if c.mean > 0 else 'lower'
  pairs = sum(np.sign(c.differences) == np.sign(c.mean))
  return [f'{_setting(question).partition(" per ")[0]}: in the mean of the '
          f'last {stats.LAST} rounds, the registered secondary endpoint, MOON '
          f'is {word} in {pairs} of {len(blocks)} pairs.'
          + _wide(question, blocks).replace(
              'This interval', 'The interval of the last round')]


def _setting(question):
  """Returns what differs between the questions, for a table."""
  setting = question.title.split(', ', 1)[1].replace(' of 10 epochs', '')
  if question is questions.SPLIT:
    setting = f'10 clients, the split of seed 0, {setting}'
  return setting


def _size(comparison):
  return (f'{comparison.mean:+.1f} '
          f'({stats.interval_text(comparison.low, comparison.high)})')


def _not_tested(blocks):
  """Returns sentences on one local epoch, and on methods above MOON."""
  sentences = []
  if found := blocks[questions.ONE_EPOCH.name]:
    at_end, mean = (compare(found, endpoint).mean
                    for endpoint in (last, stats.mean_of_last))
    sentences.append(
        'One local epoch instead of 10, a split per seed: '
        f'{at_end:+.1f} points after the last round, {mean:+.1f} in the mean '
        f'of the last {stats.LAST} rounds, over {len(found)} pairs; both not '
        'tested.')
  at_end, means = (higher_than_moon(kept_runs(), endpoint)
                   for endpoint in (last, stats.mean_of_last))
  if means:
    sentences.append(
        'Other methods on the split of seed 0 whose mean of the last '
        f'{stats.LAST} rounds is above that of MOON (not planned, 95% '
        'intervals unadjusted): ' + '; '.join(
            f'{question.new.title}, {len(c.differences)} pairs: {_size(c)} '
            'points; after the last round ' + (
                _size(at_end[question]) if question in at_end else
                'not above it') for question, c in means.items()) + '.')
  return sentences


def higher_than_moon(directory: pathlib.Path, endpoint
                     ) -> dict[Question, paired.Comparison]:
  """Returns the methods of part 4 with a higher mean than MOON, same seeds."""
  moon = {block.seed: endpoint(block.new)
          for block in read_blocks(directory, questions.SPLIT)}
  found = {}
  for question in questions.ROW:
    common = [block for block in read_blocks(directory, question)
              if block.seed in moon]
    c = paired.compare([endpoint(block.new) for block in common],
                       [moon[block.seed] for block in common])
    if c.mean > 0:
      found[question] = paired.shown(c)
  return found


def sentence(text: str) -> str:
  """Returns a text with a capital letter at its beginning."""
  return text[:1].upper() + text[1:]


def _num_runs(curves, blocks, side):
  """Returns the number of runs of an arm, and which rounds ran on a GPU."""
  on_gpu = _on_gpu(blocks, side)
  return f'{len(curves)}' + f' ({on_gpu})' * bool(on_gpu)


def _on_gpu(blocks, side):
  """Returns which rounds of an arm ran on a GPU, or ''."""
  begun = {block.seed: block.on_gpu[side] for block in blocks
           if block.on_gpu[side]}
  if not begun:
    return ''
  seeds = '' if len(begun) == len(blocks) else (
      f'seed {", ".join(map(str, begun))}: ')
  return (f'{seeds}rounds 1 to {stats.range_text(begun.values(), " or ")} on '
          'a GPU')


def _endpoints(curves):
  """Returns means and deviations of both endpoints of an arm, as text."""
  return [stats.mean_and_std([endpoint(curve) for curve in curves], 2)
          for endpoint in (last, stats.mean_of_last)]


def draw_all() -> None:
  """Draws the plots of the pages beside the runs."""
  for question in _DRAWN:
    draw_question(question, RESULTS / f'{question.name}.png')
  for question in _BY_ROUND:
    draw_differences(read_blocks(kept_runs(), question),
                     RESULTS / f'{question.name}-difference.png')
  draw_fresh(kept_runs(), RESULTS / 'fresh.png')


def draw_question(question: Question, file: pathlib.Path | BinaryIO) -> None:
  """Draws the accuracies of a question by round as PNG."""
  draw(question, read_blocks(kept_runs(), question), file)


def _read():
  return {q.name: read_blocks(kept_runs(), q) for q in questions.QUESTIONS}


def headline(question: Question, blocks: list[Block],
             holm_p: float | None = None) -> str:
  """Returns the verdict on a question: a word, a colon and what it rests on."""
  if question in questions.SORTED:
    return answer(blocks)
  if question is questions.SPLIT:
    return looks.sentence(blocks)
  return verdict(question, compare(blocks, last),
                 _restrictions(question, blocks, holm_p))


def _restrictions(question, blocks, holm_p):
  """Returns what restricts a difference that is significant by itself."""
  found, but = compare(blocks, last), []
  if holm_p is not None and found.p_value < paired.LEVEL <= holm_p:
    but.append(f"not by Holm's p ({stats.p_text(holm_p)})")
  if question is questions.MAIN:  # its block 0 is pair 0 of SPLIT
    rest = compare([block for block in blocks if block.seed], last)
    if rest.low <= 0 <= rest.high:
      but.append(f'open without the split of seed 0 ({rest.mean:+.1f} points, '
                 f'95% interval {stats.interval_text(rest.low, rest.high)})')
  return but


def both_endpoints(question: Question, blocks: list[Block],
                   holm_p: float | None = None) -> str:
  """Returns the verdict and the mean of the last 10 rounds.

  This mean comes first if the interval of the last round is unusually narrow.
  """
  verdict_text = headline(question, blocks, holm_p)
  if question in questions.SORTED:
    return verdict_text
  at_end = compare(blocks, stats.mean_of_last)
  size, pairs = f'{at_end.mean:+.1f} points', ''
  if question is questions.SPLIT:
    size = looks.size(blocks, stats.mean_of_last)
  elif question.is_primary and not math.isnan(at_end.low):
    size += f' (95% interval {stats.interval_text(at_end.low, at_end.high)})'
    sign, word = (1, 'higher') if at_end.mean > 0 else (-1, 'lower')
    pairs = (f', MOON {word} in {sum(sign * d > 0 for d in at_end.differences)}'
             f' of {len(at_end.differences)} pairs')
  means = f'mean of the last {stats.LAST} rounds'
  narrow = '' if question in questions.SECONDARY else unusually_narrow(blocks)
  if narrow:
    word, _, rest = verdict_text.partition(': ')
    text = (f'{word}: {means} {size}{pairs}. Last round, which the verdict is '
            f'about: {rest} This interval is unusually narrow: {narrow}.')
  else:
    kind = ' (secondary endpoint)' * question.is_primary
    text = f'{verdict_text}{_wide(question, blocks)} M{means[1:]}{kind}: '
    text += f'{size}{pairs}.'
  adjusted_p = "not by Holm's p" not in text and stats.p_text(holm_p)
  return ' '.join((text, *_caveats(question, blocks), *[
      f"Holm's p: {adjusted_p}."] * bool(adjusted_p)))


def _wide(question, blocks):
  """Returns a sentence on a registered interval that is unusually wide."""
  wide = unusually_wide(blocks) if question.is_primary else ''
  return f' This interval is unusually wide: {wide}.' if wide else ''


def _caveats(question, blocks):
  """Returns sentences on the reproduction's recipe, none on others."""
  if question is not questions.RECIPE:
    return []
  theirs = published_difference(question)
  rise = gains(question, blocks)
  before = np.mean([b.new[65:75] - b.baseline[65:75] for b in blocks])
  on_gpu = ' '.join(f'{arm.title}: {found}.' for side, (arm, _) in enumerate(
      sides(question, blocks)) if (found := _on_gpu(blocks, side)))
  return [f'The difference of the reproduction is {theirs.mean:+.1f} (95% '
          f'interval {stats.interval_text(theirs.low, theirs.high)}).',
          f'Neither method has converged: in the last {stats.LAST} rounds '
          f'FedAvg gains {rise[0]:.1f} points, MOON {rise[1]:.1f}. The mean '
          f'difference of rounds 66 to 75 is {before:+.1f}.',
          *[on_gpu] * bool(on_gpu)]


def full_verdict(question: Question, blocks: list[Block],
                 holm_p: float | None = None) -> str:
  """Returns the verdict, both endpoints and what is still missing."""
  sentences = [both_endpoints(question, blocks, holm_p),
               needed(question, compare(blocks, last))]
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
  text = full_verdict(question, blocks, holm_p)
  is_sorting = question in questions.SORTED
  is_split, has_rounds = question is questions.SPLIT, question in _BY_ROUND
  parts = [f'### {question.title}',
           f'**{sentence(text)}**', _pairs(question, blocks),
           _tests(question, blocks, holm_p), _published(question, blocks),
           '' if is_sorting else _rounds(blocks),
           markdown(looks.table(blocks)) if is_split else '',
           markdown(looks.round_table(blocks)) if has_rounds else '',
           f'![accuracy by round](full/{question.name}.png)'
           if question in _DRAWN else  # docs/site draws it
           f'<!-- figure: full/{question.name}.png accuracy by round -->',
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
      '### Other methods on the split of seed 0',
      'Parts 4 and 5 of the first amendment. All rows have seeds '
      f'0 to {_ROW_SEEDS - 1} at most; MOON has more pairs above. Differences '
      'are over the seeds that a row has in common with FedAvg or MOON. '
      'P-values are of the difference from FedAvg, adjusted for the '
      f'{len(questions.ROW)} methods of part 4; with {MIN_PAIRS} pairs only '
      'large effects reach 0.05. The paper compares MOON without its head '
      'with FedAvg without it (66.7); in this table FedAvg has it, so that its '
      'interval and p-value are of two different networks.',
      markdown(rows)))


def row_table(directory: pathlib.Path) -> list[list[Any]]:
  """Returns the rows of a table of methods on the split of seed 0, or []."""
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
      published = _mean_and_std(source)
      above = f'{np.mean([*map(last, curves)]) - source.mean:+.1f}'
    at_end, of_last = _endpoints(curves)
    diverged = sum(bool(b.diverged[side]) for b in blocks[question])
    return [arm.title, published, above, at_end,
            of_last if len(curves[0]) > 1 else '',
            _num_runs(curves, blocks[question], side)
            + f' ({diverged} diverged)' * bool(diverged)]

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
        *cells(question, 1), fixed(c.mean, 2, '+'),
        *((stats.interval_text(c.low, c.high, 2),
           stats.p_text(holm.get(question)))
          if is_tested(question) else ('', '')),
        '' if question is questions.SPLIT or not common else
        fixed(beside.mean, 2, '+') + f' ({interval})' * bool(interval)])
  return rows


def no_head(directory: pathlib.Path) -> str:
  """Returns a section on both methods without projection head, or ''."""
  question = questions.WITHOUT_HEAD
  blocks = read_blocks(directory, question)
  if not blocks:
    return ''
  return '\n\n'.join((
      '### Without projection head',
      f'**{sentence(no_head_sentence(directory))}**',
      'Part 2 of [amendment 3](../full/AMENDMENT_3.md): MOON and FedAvg, both '
      'without projection head, on the split of seed 0.',
      _pairs(question, blocks), _published(question, blocks)))


def no_head_sentence(directory: pathlib.Path) -> str:
  """Returns MOON - FedAvg, both without projection head; '' without runs."""
  question = questions.WITHOUT_HEAD
  blocks = read_blocks(directory, question)
  if not blocks:
    return ''
  new, old = (arm.published[0].mean
              for arm in (question.new, question.baseline))
  texts = []
  for endpoint in (stats.mean_of_last, last):
    c = paired.shown(compare(blocks, endpoint))
    interval = stats.interval_text(c.low, c.high)
    texts.append(f'{c.mean:+.1f} points'
                 + f' (95% interval, unadjusted, {interval})' * bool(interval))
  n = len(blocks)
  return (f'mean of the last {stats.LAST} rounds: {texts[0]} over {n} '
          f'pair{"s" * (n != 1)}; last round: {texts[1]}; published '
          f'{new - old:+.1f}; not tested.' + _diverged(blocks)
          + f' {n} of {question.num_blocks} pairs so far.' * (
              n < question.num_blocks))


def _diverged(blocks):
  count = sum(bool(r) for block in blocks for r in block.diverged)
  return f' {count} of {2 * len(blocks)} runs diverged.' if count else ''


def fresh(directory: pathlib.Path) -> str:
  """Returns the section on fresh splits of amendment 3, '' without runs."""
  found = read_fresh(directory)
  if not found:
    return ''
  pairs = [(questions.FRESH[new], questions.FRESH[old])
           for new, old in questions.FRESH_TESTS]
  rows = [['block', *(f'{arm.method}, mean of last {stats.LAST}'
                      for arm in questions.FRESH),
           *(f'{new.method} - {old.method}' for new, old in pairs),
           *(f'{arm.method}, last round' for arm in questions.FRESH),
           'rounds on a GPU']]
  for seed, runs in found.items():
    at_end = {arm: stats.mean_of_last(curve)
              for arm, (curve, _) in runs.items()}
    on_gpu = {arm: rounds_on_gpu(directory / arm.workdir(seed)) for arm in runs}
    rows.append([
        seed, *(f'{at_end[arm]:.2f}' + (
            f' (diverged in round {runs[arm][1]})' if runs[arm][1] else '')
                if arm in runs else '' for arm in questions.FRESH),
        *(f'{at_end[new] - at_end[old]:+.2f}' if {new, old} <= at_end.keys()
          else '' for new, old in pairs),
        *(f'{last(runs[arm][0]):.2f}' if arm in runs else ''
          for arm in questions.FRESH),
        ', '.join(f'{arm.method} 1 to {rounds}'
                  for arm, rounds in on_gpu.items() if rounds) or 'none'])
  if blocks := whole_blocks(found):
    mean = lambda endpoint, arm: stats.mean_and_std(
        [endpoint(block[arm]) for block in blocks], 2)
    rows.append([
        f'mean of {len(blocks)}',
        *(mean(stats.mean_of_last, arm) for arm in questions.FRESH),
        *(stats.mean_and_std(compare_fresh(
            blocks, stats.mean_of_last, *of).differences, 2, sign='+')
          for of in pairs),
        *(mean(last, arm) for arm in questions.FRESH), ''])
  tests = [['difference', 'mean of last 10, points', '95% interval, unadjusted',
            '98.33% interval, Bonferroni', 'p, paired t', 'p, Holm', 'verdict',
            'last round, points, not tested']]
  for test in tests_of_fresh(blocks):
    c = test.comparison
    after = compare_fresh(blocks, last, test.new, test.baseline)
    tests.append([
        f'{test.new.method} - {test.baseline.method}', fixed(c.mean, 2, '+'),
        stats.interval_text(c.low, c.high, 2),
        stats.interval_text(test.low, test.high, 2), stats.p_text(c.p_value),
        stats.p_text(test.holm_p), test.verdict, fixed(after.mean, 2, '+')])
  return '\n\n'.join((
      '### Fresh splits', f'**{sentence(fresh_sentence(directory))}**',
      'Part 1 of [amendment 3](../full/AMENDMENT_3.md): 10 clients, Dirichlet '
      '0.5, 100 rounds of 10 epochs, seeds '
      f'{questions.FRESH_SEEDS[0]} to {questions.FRESH_SEEDS[-1]}, each with '
      'its own split, which no earlier comparison used. SCAFFOLD has '
      "NIID-Bench's form. Differences are in points. Means are over the blocks "
      'that have all their runs.',
      markdown(rows), *[markdown(tests)] * (len(tests) > 1),
      *['![difference by round](full/fresh.png)'] * bool(blocks)))


def fresh_sentence(directory: pathlib.Path) -> str:
  """Returns the verdicts on fresh splits, or that blocks are missing.

  It is '' without runs. Before all blocks are there, it has means only.
  """
  found = read_fresh(directory)
  if not found:
    return ''
  blocks, planned = whole_blocks(found), len(questions.FRESH_SEEDS)
  diverged = sum(bool(r) for runs in found.values() for _, r in runs.values())
  count = sum(map(len, found.values()))
  suffix = (f' {diverged} of {count} runs diverged. A diverged run counts as '
            'an accuracy of 10% from that round on.' if diverged else '')
  if tests := tests_of_fresh(blocks):
    return (f'mean of the last {stats.LAST} rounds over {planned} blocks, '
            "verdicts by Holm's p: "
            + '; '.join(
                f'{t.new.method} - {t.baseline.method} {t.verdict}, '
                f'{t.comparison.mean:+.1f} points (95% interval, unadjusted, '
                f'{stats.interval_text(t.comparison.low, t.comparison.high)}; '
                f"Holm's p: {stats.p_text(t.holm_p)})" for t in tests)
            + f'.{suffix}')
  if not blocks:
    return f'interim: none of {planned} blocks is complete.{suffix}'
  means = []
  for new, old in questions.FRESH_TESTS:
    arms = questions.FRESH[new], questions.FRESH[old]
    mean = compare_fresh(blocks, stats.mean_of_last, *arms).mean
    means.append(f'{arms[0].method} - {arms[1].method} {mean:+.1f}')
  return (f'interim, {len(blocks)} of {planned} blocks: {"; ".join(means)} '
          f'points in the mean of the last {stats.LAST} rounds. There are no '
          f'intervals, tests and verdicts before all blocks are there.{suffix}')


def _pairs(question, blocks):
  """Returns a table with one row per pair, then means and deviations."""
  old, new = question.baseline.title, question.new.title
  rows = [['block', old, new, 'difference', f'{old}, mean of last {stats.LAST}',
           f'{new}, mean of last {stats.LAST}', 'difference']]
  columns = []
  has_gpu = any(map(any, [block.on_gpu for block in blocks]))
  rows[0] += [f'{arm.title}, rounds on a GPU'
              for arm in (question.baseline, question.new)] * has_gpu
  for endpoint in (last, stats.mean_of_last):
    a, b = (np.array([endpoint(curve) for curve in curves])
            for _, curves in sides(question, blocks))
    columns += [a, b, b - a]
  for i, block in enumerate(blocks):
    suffixes = [f' (diverged in round {r})' if r else ''
                for r in block.diverged]
    rows.append([block.seed, *[
        f'{c[i]:+.2f}' if j % 3 == 2 else f'{c[i]:.2f}{suffixes[j % 3]}'
        for j, c in enumerate(columns)], *[
            f'1 to {rounds}' if rounds else 'none' for rounds in block.on_gpu
        ] * has_gpu])
  rows.append(['mean', *[stats.mean_and_std(c, 2, sign='+' * (j % 3 == 2))
                         for j, c in enumerate(columns)], *['', ''] * has_gpu])
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
    rows.append([name, fixed(c.mean, 2, '+'),
                 stats.interval_text(c.low, c.high, 2),
                 *map(stats.p_text, (
                     c.p_value, holm_p if endpoint is last else None,
                     c.equivalence_p, sign_flip_p(c.differences)))])
  return markdown([row[:columns] for row in rows])


def _mean_and_std(source):
  """Returns a published mean, and its standard deviation if it is known."""
  return f'{source.mean:.1f}' + (
      f' ± {source.std:.1f}' if source.std > 0 else '')


def _published(question, blocks):
  """Returns a table of our last rounds and published means.

  The published runs used other code; the splits of the reproduction are
  unknown, and the paper's is probably that of seed 0.
  """
  what = (', probably the same split' if question in (
      questions.SPLIT, questions.WITHOUT_HEAD) else ', other or unknown splits')
  rows = [[f'published (other code{what})', 'theirs', 'ours',
           'ours - theirs, points', 'p, Welch']]
  for arm, curves in sides(question, blocks):
    ours = [last(curve) for curve in curves]
    for source in arm.published:
      row = [f'{arm.title}, {source.source}',
             _mean_and_std(source),
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


def draw(question: Question, blocks: list[Block],
         file: pathlib.Path | BinaryIO) -> None:
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
  figure.savefig(file, dpi=120)


def draw_differences(blocks: list[Block], path: pathlib.Path) -> None:
  """Draws differences by round with their pointwise 95% band."""
  _draw_by_round({f'mean of {len(blocks)} pairs': (blocks, '#d55e00')},
                 'MOON - FedAvg, points', path)


def draw_fresh(directory: pathlib.Path, path: pathlib.Path) -> None:
  """Draws differences by round on fresh splits, if a block is complete.

  They have no bands before all blocks are there.
  """
  runs = whole_blocks(read_fresh(directory))
  if not runs:
    return
  lines = {}
  for (new, old), color in zip(
      questions.FRESH_TESTS, ('#d55e00', '#cc79a7', '#595959')):
    new, old = questions.FRESH[new], questions.FRESH[old]
    lines[f'{new.method} - {old.method}, n = {len(runs)}'] = (
        [Block(i, run[old], run[new]) for i, run in enumerate(runs)], color)
  is_complete = len(runs) == len(questions.FRESH_SEEDS)
  _draw_by_round(lines, 'difference, points', path,
                 has_band=is_complete,
                 title='' if is_complete else (
                     f'Interim: {len(runs)} of {len(questions.FRESH_SEEDS)} '
                     'blocks'))


def _draw_by_round(lines, ylabel, path, has_band=True, title=''):
  """Draws mean differences of blocks by round, from labels to (blocks, color).

  Bands are pointwise 95% intervals, which the label of the last one explains.
  """
  figure = figures.empty(7, 4.2)
  axes = figure.subplots()
  axes.axhline(0, color='black', linewidth=1)
  for label, (blocks, color) in lines.items():
    means, low, high = looks.by_round(blocks)
    rounds = np.arange(1, len(means) + 1)
    axes.plot(rounds, means, color=color, label=label)
    if has_band:
      band = axes.fill_between(rounds, low, high, color=color, alpha=.2,
                               linewidth=0)
  if has_band:
    band.set_label('pointwise 95% band')
  axes.set(xlabel='round', ylabel=ylabel, xlim=(1, len(rounds)), title=title)
  axes.grid(alpha=.3)
  axes.legend(fontsize=8)
  figure.savefig(path, dpi=120)
