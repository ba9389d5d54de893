"""Writes what the full comparison found: blocks of docs/moon.md.

experiments/evidence.py writes them into the documents.
"""

import functools
import json
import pathlib

import numpy as np
import pandas as pd
import scipy.stats

from experiments import kept
from experiments.full import looks, questions, report, tuned
from experiments.full.analysis import (
  adjusted,
  beside_published,
  compare,
  gains,
  last,
  pairs_needed,
  published_difference,
  read_blocks,
  read_fresh,
  sides,
  unusually_narrow,
  whole_blocks,
)
from experiments.full.report import markdown, sentence
from moon_jax.results import paired, stats

AUTHOR = pathlib.Path(__file__).with_name('author_rerun.json')
TORCH = kept.RESULTS / 'torch_level' / 'rounds.csv'  # of torch_level.py
SAME_START = kept.RESULTS / 'same_start'  # of moon_jax, with its weights
_LOW = 67.5  # percent: the limit of AMENDMENT_4.md, part 4
_WINDOW = 5  # rounds of a running mean or median


@functools.cache
def _blocks(question):
  return read_blocks(report.kept_runs(), question)


def cifar10() -> str:
  """The head of cifar10.flags."""
  blocks = _blocks(questions.MAIN)
  means, found = (compare(blocks, end) for end in (stats.mean_of_last, last))
  rest = compare([block for block in blocks if block.seed], last)
  moon, fedavg = map(min, _seconds(questions.MAIN))
  first = [side[0] for b in blocks for side in (b.baseline, b.new)]
  return (
      'Test accuracy in percent after the last round, '
      f'{len(blocks)} seeds, each with its own split:\n'
      f'MOON {stats.mean_and_std([last(b.new) for b in blocks], 1)}, FedAvg '
      '(--algorithm=fedavg) '
      f'{stats.mean_and_std([last(b.baseline) for b in blocks], 1)}.\n'
      f'MOON - FedAvg: {_size(found)},\nHolm\'s p '
      f'{stats.p_text(_holm()[questions.MAIN.name])}; without seed 0 '
      f'{_size(rest)};\nmean of the last 10 rounds {_size(means)}.\nA round '
      f'took '
      f'{moon:.0f} s with MOON and {fedavg:.0f} s with '
      'FedAvg, on one CPU core each\n(the fastest of these runs; others shared '
      f'their cores).\nAfter round 1 accuracy is low: {min(first):.0f}% to '
      f'{max(first):.0f}% in these runs.')


def _size(comparison):
  """Returns a mean difference with its interval, as text."""
  return (f'{comparison.mean:+.1f} points (95% interval '
          f'{stats.interval_text(comparison.low, comparison.high)})')


def _beside_paper(question):
  """Returns how a difference compares with that of the paper."""
  texts = []
  for end, name in ((last, 'last round'),
                    (stats.mean_of_last, 'mean of the last 10 rounds')):
    found = beside_published(question, _blocks(question), end)
    texts.append(f'{name} {-found.mean:+.1f} points (95% interval '
                 f'{stats.interval_text(-found.high, -found.low)})')
  if unusually_narrow(_blocks(question)):
    texts = [texts[1], f'{texts[0]}, unusually narrow too']
  return f"The paper's difference, +2.8, minus ours: {'; '.join(texts)}."


def _holm():
  return adjusted({q.name: _blocks(q) for q in questions.QUESTIONS})


def _best(curve):
  return float(np.max(curve))


def _num_ahead(comparison):
  return f'{sum(d > 0 for d in comparison.differences)} of ' + (
      f'{len(comparison.differences)} pairs')


def moon_short() -> str:
  """What the page found, one line per finding."""
  split, few = _blocks(questions.SPLIT), _blocks(questions.FEW)
  means, _, _ = looks.by_round(split)
  main = _blocks(questions.MAIN)
  holm = _holm()
  recipe = [
      "- **The Flower reproduction's recipe**, sorted batches and learning "
      'rate 0.001 (registered). '
      + sentence(report.full_verdict(
          questions.RECIPE, found, holm[questions.RECIPE.name]))
      ] if (found := _blocks(questions.RECIPE)) else []
  others = sorted((row for row in report.row_table(report.kept_runs())[1:]
                   if row[5].startswith('3')),
                  key=lambda row: -float(row[3].split()[0]))
  differences = [f'{last(b.new) - last(b.baseline):+.1f}' for b in main]
  solo_runs = [last(b.new) for b in _blocks(questions.ROW[3])]
  above = np.mean(solo_runs) - questions.ROW[3].new.published[0].mean
  chance = report.full_verdict(
      questions.SORTED[0], _blocks(questions.SORTED[0]))
  return '\n'.join((
      "- **The paper's setting on the split of seed 0**, 100 rounds "
      '(not registered: added when pair 0 was known). '
      f'{sentence(report.both_endpoints(questions.SPLIT, split))}\n  '
      f'{_beside_paper(questions.SPLIT)}',
      '- **By round**, on the split of seed 0: MOON has the lower mean at '
      f'first ({means[1]:+.1f} points in round 2, {means[4]:+.1f} in '
      'round 5).\n  Averaged over a round and the four before it, the '
      f'difference is above 0 from round {_ahead_from(means)} on.',
      '- **A split per seed**, 100 rounds (the registered question). '
      + sentence(report.both_endpoints(
          questions.MAIN, main, holm[questions.MAIN.name]))
      + f'\n  Pairs after the last round: {", ".join(differences)}, that of '
      'seed 0 first. p = '
      f'{stats.p_text(compare(main, last).p_value)}, by Holm\'s adjustment for '
      f'the {len(holm)} registered comparisons '
      f'{stats.p_text(holm[questions.MAIN.name])}.\n  '
      f'{_beside_paper(questions.MAIN)}',
      *[f'- **Fresh splits** ([amendment 3](../experiments/full/AMENDMENT_3.md)'
        f'). {sentence(on_fresh)}'
        for on_fresh in [report.fresh_sentence(report.kept_runs())]
        if on_fresh],
      '- **One local epoch** instead of 10, a split per seed, round 100: '
      f'{_one_epoch()}\n  (a secondary question, registered without a test).',
      '- **5 of 100 clients per round**, after 250 rounds (registered). '
      + sentence(report.both_endpoints(
          questions.FEW, few, holm[questions.FEW.name])),
      '- **Other methods on the split of seed 0**: accuracies after the last '
      'round in percent, means of seeds 0 to 2, the highest first; in\n  '
      'parentheses our accuracy minus the published one, in points: '
      + '; '.join(f'{row[0].split(" (")[0]} {row[3].split()[0]}'
                  + f' ({row[2]})' * bool(row[2]) for row in others)
      + '.\n  Three runs order only what is far apart (tests: [below]'
      '(#other-methods-on-the-split-of-seed-0)). We do not know why our '
      'accuracies differ from the published ones. Other splits of the\n  '
      'published runs would be one reason: SOLO is '
      f'{abs(above):.1f} points {"above" if above > 0 else "below"}, and our '
      f'{len(solo_runs)} runs on this split have a standard deviation of '
      f'{np.std(solo_runs, ddof=1):.1f}.\n  [Initial weights]'
      '(#why-our-fedavg-is-above-the-published-one-is-not-known) may be '
      'another for FedAvg: with those of the released program ours is lower. '
      'They cannot explain why our SOLO is below the published one.',
      tuned.moon(),
      '- **The Flower reproduction reports 10%** at the learning rate of the '
      'paper. Do batches that are sorted by class and never shuffled\n  '
      'suffice for that? FedAvg, 10 clients, 10 rounds. '
      f'{chance[0].upper()}{chance[1:]} A diverged run counts as at chance.',
      *recipe))


def _ahead_from(means):
  """Returns the first round of five whose mean difference stays above 0."""
  below = np.flatnonzero(np.convolve(means, np.ones(5) / 5, 'valid') <= 0)
  return int(below[-1]) + 6 if len(below) else 5


def moon_published() -> str:
  """Published differences, with the intervals that their spreads allow."""
  rows = [['published', 'MOON (%)', 'FedAvg (%)', 'difference, points',
           "95% interval, Welch's test"]]
  for title, question in (
      ("MOON's paper", questions.MAIN),
      ('the Flower reproduction, 10 clients, its recipe', questions.RECIPE),
      ('the Flower reproduction, 5 of 100 clients', questions.FEW)):
    found = published_difference(question)
    published = [arm.published[-1] for arm in (question.new, question.baseline)]
    rows.append([title, *(f'{x.mean:.1f} ± {x.std:.1f}' for x in published),
                 f'{found.mean:+.1f}',
                 stats.interval_text(found.low, found.high)])
  return markdown(rows)


def moon_split() -> str:
  """MOON on the split of seed 0."""
  blocks = _blocks(questions.SPLIT)
  means, _, high = looks.by_round(blocks)
  half = high - means
  best = compare(blocks, _best)
  verdict = report.both_endpoints(questions.SPLIT, blocks)
  return (f'{sentence(verdict)}\nHalf of the 95% interval '
          f'of the last round is {half[-1]:.1f} points; the median over '
          f'rounds 51 to 100 is {np.median(half[50:]):.1f}. Best round of each '
          f'run, by test accuracy: {best.mean:+.1f} points.')


def moon_by_round() -> str:
  rows = [['pairs', *(f'round {r}' for r in looks.ROUNDS)]]
  blocks = _blocks(questions.SPLIT)
  for title, found in (
      ('split of seed 0, mu 5', blocks),
      ('split of seed 0, mu 5, the same seeds as below', blocks[:3]),
      *((f"split of seed 0, {q.new.title.split(', ')[1]}", _blocks(q))
        for q in questions.OTHER_MU),
      ('split of each seed, mu 5', _blocks(questions.MAIN)),
      ('the same with one local epoch', _blocks(questions.ONE_EPOCH))):
    means, _, _ = looks.by_round(found)
    rows.append([f'{title}, n = {len(found)}', *(
        f'{means[r - 1]:+.1f}' for r in looks.ROUNDS)])
  ahead = [_ahead_from(looks.by_round(_blocks(q))[0])
           for q in (questions.SPLIT, questions.MAIN)]
  alone = [', '.join(str(_ahead_from(block.new - block.baseline))
                     for block in _blocks(q))
           for q in (questions.SPLIT, questions.MAIN)]
  reached = [', '.join(
      'never' if i is None else str(i + 1) for block in blocks
      for i in [stats.first_reached(
          getattr(block, side), last(block.baseline), _WINDOW)])
             for side in ('new', 'baseline')]
  seconds = _seconds(questions.SPLIT)
  ratio = min(seconds[0]) / min(seconds[1])
  in_pairs = [moon / fedavg for moon, fedavg in zip(*seconds)]
  equal = round(questions.SPLIT.num_rounds / ratio)
  at_equal = [np.mean(block.new[equal - _WINDOW:equal])
              - np.mean(block.baseline[-_WINDOW:]) for block in blocks]
  few, one_epoch, main = (looks.by_round(_blocks(q))[0] for q in (
      questions.FEW, questions.ONE_EPOCH, questions.MAIN))
  recipe_blocks = _blocks(questions.RECIPE)
  behind, _, _ = looks.by_round(recipe_blocks)
  rise = gains(questions.RECIPE, recipe_blocks)
  return '\n'.join((
      markdown(rows), '',
      'Means over pairs, not tested. In round 1 MOON has no previous model and '
      'is FedAvg. The first two rows and the fifth\nhave the same pair of seed '
      '0, the first four the same runs of FedAvg. With one local epoch\nboth '
      'methods are near chance in rounds 1 and 2.', '',
      '- Averaged over a round and the four before it, the difference is above '
      f'0 from round {ahead[0]} on (split of seed 0)\n  and {ahead[1]} on (a '
      'split per seed). In single pairs this average stays above 0 from rounds '
      f'{alone[0]} on (split of\n  seed 0), and {alone[1]} (a split per seed).',
      '- Rounds on the split of seed 0 until the median accuracy of five '
      'rounds reaches the accuracy of FedAvg after round 100\n  (of the same '
      f'seed; seeds 0 to {len(blocks) - 1}): MOON {reached[0]}; FedAvg itself '
      f'{reached[1]}.',
      f'- On this split the fastest run of MOON takes {ratio:.2f} times as '
      'long per round as that of FedAvg (one CPU core). Ratios of pairs\n  are '
      f'{min(in_pairs):.1f} to {max(in_pairs):.1f}, probably because other '
      'work shared the processors. At a ratio of '
      f'{ratio:.2f}, {equal} rounds of MOON take as long as\n  '
      f'{questions.SPLIT.num_rounds} of FedAvg. MOON in rounds '
      f'{equal - _WINDOW + 1} to {equal} minus FedAvg in its last {_WINDOW} '
      f'rounds: {np.mean(at_equal):+.1f} points (mean of {len(at_equal)} '
      f'pairs, above 0 in {sum(d > 0 for d in at_equal)}; not planned).',
      _drift(),
      '- With one local epoch the mean difference is '
      f'{one_epoch[:20].mean():+.1f} points over rounds 1 to 20, '
      f'{one_epoch[20:50].mean():+.1f} over 21 to 50 and '
      f'{one_epoch[50:].mean():+.1f} over 51 to 100 (not\n  planned). These '
      '100 rounds have the steps of 10 rounds of 10 epochs, where it is '
      f'{main[9]:+.1f}.',
      '- With 5 of 100 clients per round the mean of MOON is not lower at '
      f'first: the difference is {few[:20].mean():+.1f} points over rounds 1 '
      f'to 20, {few[20:100].mean():+.1f} over\n  rounds 21 to 100, and '
      f'{few[100:].mean():+.1f} over rounds 101 to 250. On average '
      f'{100 * np.mean(.95**np.arange(20)):.0f}% of the clients of rounds 1 to '
      '20 train for the first time,\n  have no negative, and so train as in '
      'FedAvg.',
      '- With class-sorted batches and learning rate 0.001 the mean of MOON '
      'stays lower: '
      + ', '.join(f'{behind[r - 1]:+.1f} in round {r}'
                  for r in (20, 50, 100))
      + f'.\n  Neither method has converged by then: in the last 10 rounds '
      f'FedAvg gains {rise[0]:.1f} points, MOON {rise[1]:.1f}.'))


def _one_epoch():
  """Returns the differences at the end of one local epoch, as text."""
  blocks = _blocks(questions.ONE_EPOCH)
  found, at_10 = (compare(blocks, end) for end in (last, stats.mean_of_last))
  pairs = ', '.join(f'{d:+.1f}' for d in found.differences)
  return (f'{found.mean:+.1f} points (pairs {pairs}); mean of the last 10 '
          f'rounds: {at_10.mean:+.1f}, above 0 in {_num_ahead(at_10)}')


def _drift():
  """Returns a sentence on local models in round 2, by mu."""
  mu_1, mu_01 = questions.OTHER_MU
  arms = {'FedAvg': questions.SPLIT.baseline, 'mu 0.1': mu_01.new,
          'mu 1': mu_1.new, 'mu 5': questions.SPLIT.new}

  def shown(metric):
    mean = lambda arm: np.mean([
        dict(kept.runs('full')[arm.workdir(seed)].series(metric))[2]
        for seed in range(3)])
    return ', '.join(f'{mean(arm):.2f} with {title}'
                     for title, arm in arms.items())

  return (f'- In round 2 the mean distance between local models and the global '
          f'one is {shown("drift")};\n  the mean cosine between updates of '
          f'clients is {shown("update_cosine")}\n  (seeds 0 to 2, not '
          'planned). So weights that stay near the global ones do not '
          'explain the low accuracy in round 2.\n  Distances of z were not '
          'measured.')


def _seconds(question):
  """Returns the seconds per round of the runs of MOON and of FedAvg."""
  return [[kept.runs('full')[arm.workdir(block.seed)].summary[
      'seconds_per_round'] for block in _blocks(question)]
          for arm in (question.new, question.baseline)]


def moon_author() -> str:
  """The author's own rerun on the same split."""
  author = json.loads(AUTHOR.read_text())
  _, (_, fedprox) = sides(questions.ROW[0], _blocks(questions.ROW[0]))
  (_, fedavg), (_, moon) = sides(
      questions.SPLIT, _blocks(questions.SPLIT)[:len(fedprox)])  # same seeds
  mean = lambda name, found: (
      f'our {name}, mean of {len(found)} runs', np.mean(found, 0))
  pairs = np.subtract(moon, fedprox)
  curves = dict([
      ("author's MOON, mu 5", author['moon_mu5']), mean('MOON, mu 5', moon),
      ("author's FedProx, mu 0.01", author['fedprox_mu0.01']),
      mean('FedProx, mu 0.01', fedprox), mean('FedAvg', fedavg)])
  curves["author's MOON - FedProx"] = np.subtract(
      author['moon_mu5'], author['fedprox_mu0.01'])
  curves[f'our MOON - FedProx, mean of {len(pairs)} pairs'] = np.mean(pairs, 0)
  rows = [['test accuracy (%)', 'round 2', 'round 5', 'round 10', 'round 100',
           'mean of the last 10']]
  for name, curve in curves.items():
    sign = '+' * (' - ' in name)
    rows.append([name, *(f'{x:{sign}.1f}' for x in (
        *(curve[r - 1] for r in (2, 5, 10, 100)),
        stats.mean_of_last(np.asarray(curve))))])
  theirs = curves["author's MOON - FedProx"][-1]
  less = author['moon_mu5'][-1] - np.mean(moon, 0)[-1]
  published, = questions.MAIN.new.published
  return (
      f'{markdown(rows)}\n\nOurs are of seeds 0 to {len(fedprox) - 1}. The '
      f"author's MOON ends {author['moon_mu5'][-1] - published.mean:.1f} "
      f'points above the {published.mean}% of the paper, and '
      f'{abs(less):.2f} points\n{"above" if less > 0 else "below"} our mean. '
      f'MOON - FedProx after round 100 is {theirs:+.1f} there, and '
      f'{", ".join(f"{x:+.1f}" for x in pairs[:, -1])} here. One\nrun has no '
      'interval, so it is not tested whether the differences agree.')


def moon_splits() -> str:
  blocks = _blocks(questions.MAIN)
  base = [last(block.baseline) for block in blocks]
  rows = [['split seed and run seed', 'FedAvg', 'MOON', 'difference']] + [
      [b.seed, f'{last(b.baseline):.2f}', f'{last(b.new):.2f}',
       f'{last(b.new) - last(b.baseline):+.2f}'] for b in blocks]
  std = lambda values: f'{np.std(values, ddof=1):.1f}'
  d, on_one_split = compare(blocks, last), _blocks(questions.SPLIT)
  d_ST = np.stack([block.new - block.baseline for block in on_one_split])
  usual = (f', unusually small: the median of rounds 51 to 100 is '
           f'{np.median(d_ST[:, 50:].std(0, ddof=1)):.1f}'
           if unusually_narrow(on_one_split) else '')
  new = [last(block.new) for block in blocks]
  return (f'{markdown(rows)}\n\nAccuracies after round 100 in percent, '
          'differences in points. Standard deviations, in points:\n\n'
          '- FedAvg, a split per seed: '
          f'{std(base)} over {len(blocks)} runs; on the split of seed 0: '
          f'{std([last(b.baseline) for b in on_one_split])} over '
          f'{len(on_one_split)} runs. These are too few runs to separate\n  '
          'the spread of splits from that of seeds.\n'
          f'- MOON - FedAvg of a pair, a split per seed: {std(d.differences)}; '
          'on the split of seed 0: '
          f'{std(compare(on_one_split, last).differences)}{usual}.\n  The '
          'difference of two runs with different splits would have '
          f'{np.hypot(np.std(base, ddof=1), np.std(new, ddof=1)):.1f}, by the '
          'spreads of both methods.')


def moon_level() -> str:
  """FedAvg beside the published one."""
  main, split = _blocks(questions.MAIN), _blocks(questions.SPLIT)
  published, = questions.MAIN.baseline.published
  base = np.mean([last(block.baseline) for block in main])
  here = paired.welch([last(block.baseline) for block in split],
                      published.mean, published.std, published.n)
  author = json.loads(AUTHOR.read_text())
  fedprox, = questions.ROW[0].new.published
  moon, = questions.MAIN.new.published
  return (
      f'- With a split per seed our FedAvg is {base:.2f}%, '
      f'{base - published.mean:.3f} points above the published one. The '
      'protocol requires a search for the\n  cause if the distance exceeds 3 '
      'points. The distance is just below this limit, and with a standard '
      f'deviation of {np.std([last(b.baseline) for b in main], ddof=1):.1f} '
      f'over {len(main)} runs the limit is not\n  resolved. Its cause is not '
      'known.\n'
      f'- On the split of seed 0 FedAvg is {here.mean:.1f} points above '
      f'({len(split)} runs; 95% interval '
      f'{stats.interval_text(here.low, here.high)}, p = '
      f"{stats.p_text(here.p_value)} by Welch's test).\n"
      "- The author's own rerun is above the paper too: FedProx by "
      f'{author["fedprox_mu0.01"][-1] - fedprox.mean:.1f} points, MOON by '
      f'{author["moon_mu5"][-1] - moon.mean:.1f} (one run each). In both '
      'reruns, ours and\n  the author\'s, FedProx and MOON end above the '
      'paper.')


def torch_level() -> str:
  """FedAvg in PyTorch, from the weights of the released program."""
  if not TORCH.exists():
    return 'The run has not ended.'
  curve = 100 * pd.read_csv(TORCH)['test_accuracy'].to_numpy()
  blocks = _blocks(questions.SPLIT)
  ours = [stats.mean_of_last(block.baseline) for block in blocks]
  theirs, = questions.MAIN.baseline.published
  runs = {'PyTorch': curve}
  if SAME_START.exists():
    run, = kept.runs(SAME_START.name).values()
    runs['moon_jax'] = 100 * np.array(run.values('test_accuracy'))
  means = {name: stats.mean_of_last(x) for name, x in runs.items()}
  named = ' and '.join(f'{x:.1f}% in {name}' for name, x in means.items())
  ends = ' and '.join(f'{x[-1]:.1f}%' for x in runs.values())
  deviation = np.std(ours, ddof=1) * np.sqrt(1 + 1 / len(ours))
  low, high = scipy.stats.t.interval(
      .95, len(ours) - 1, np.mean(ours), deviation)
  return (
      'With the weights of the released program the mean of the last '
      f'{stats.LAST} rounds is {named}; after round {len(curve)} the accuracy '
      f'is {ends} '
      f"(one run each, described, not tested).\nWith moon_jax's own weights "
      f'{len(ours)} runs have a mean of the last {stats.LAST} rounds of '
      f'{", ".join(f"{x:.1f}" for x in ours)}% (seed 0 first), and '
      f'{stats.mean_and_std([last(b.baseline) for b in blocks], 1)}% after '
      f'round {len(curve)}. Published: {theirs.mean} ± {theirs.std}%.\n'
      f'{_of_limit(means)}\nChance may be another reason: the 95% prediction '
      f"interval for one more run with moon_jax's own weights is {low:.1f} to "
      f'{high:.1f}%.')


def _of_limit(means):
  """Returns what follows from the registered limit, by amendment 4."""
  if means['PyTorch'] >= _LOW:
    return (f'The run in PyTorch is not below {_LOW}%, the registered limit: '
            'it gives no sign that draws and arithmetic explain the published '
            'accuracy.')
  begin = f'The run in PyTorch is below {_LOW}%, the registered limit'
  if 'moon_jax' not in means:
    return f'{begin}. The registered run of moon_jax has not ended.'
  if means['moon_jax'] < _LOW:
    return (f'Both runs are below {_LOW}%, the registered limit. The initial '
            'weights may be one reason for their low accuracy.')
  return (f'{begin}; the run of moon_jax is not. So the initial weights '
          'alone do not explain the level of the run in PyTorch. The order of '
          'examples, the draws of the augmentation, the arithmetic of PyTorch, '
          'or a difference that we have overlooked are left.')


def moon_others() -> str:
  """Other methods beside MOON on the split of seed 0."""
  heading, *rows = report.row_table(report.kept_runs())
  after_last, at_end = (
      report.higher_than_moon(report.kept_runs(), endpoint)
      for endpoint in (last, stats.mean_of_last))
  higher = [f'{question.new.title},\n  by {_size(found)} after the last round'
            + (f', and by {_size(at_end[question])} in\n  the mean of the last '
               '10 rounds' if question in at_end else '')
            for question, found in after_last.items()]
  without_head = report.no_head_sentence(report.kept_runs())
  lowest = [f'{curve[20:].min():.0f}% (round {21 + int(curve[20:].argmin())})'
            for curve in (block.new for block in _blocks(questions.ROW[-1]))]
  return (
      f'{markdown([heading, *rows])}\n\nDifferences in points. Holm\'s p is of '
      'the difference from FedAvg, adjusted for the '
      f'{len(questions.ROW)} rows from FedProx to MOON without\nits head. The '
      'other rows have no p: MOON is tested at its looks, with all its pairs; '
      'mu 1 and mu 0.1\nare outside this family. The last column was not '
      'planned.\n\n'
      '- Higher mean than MOON on the same seeds: '
      f'{"; ".join(higher) or "none"}.\n  These intervals were not planned '
      'and are not adjusted.\n'
      '- MOON without its projection head was unstable. The lowest accuracies '
      f'of its runs after round 20: {", ".join(lowest)}.\n'
      + ('- MOON - FedAvg, both without projection head: '
         f'{without_head}' if without_head else
         '- FedAvg without the projection head has not been run yet.'))


def moon_few() -> str:
  """5 of 100 clients."""
  blocks = _blocks(questions.FEW)
  found, at_10, best = (
      compare(blocks, end) for end in (last, stats.mean_of_last, _best))
  jumps = lambda curves: np.mean([np.std(c[-50:], ddof=1) for c in curves])
  (_, fedavg), (_, moon) = sides(questions.FEW, blocks)
  median = float(np.median(np.std(
      [(b.new - b.baseline)[-50:] for b in blocks], axis=0, ddof=1)))
  return '\n'.join((
      f'- After round 250 (the registered endpoint): {_size(found)}, MOON '
      f'higher in {_num_ahead(found)}.',
      '- Mean of the last 10 rounds (secondary endpoint; a sentence of its own '
      f'was decided when one pair was known): {_size(at_10)},\n  MOON higher '
      f'in {_num_ahead(at_10)}.',
      f'- Best round by test accuracy (not planned): {_size(best)}, MOON '
      f'higher in '
      f'{_num_ahead(best)}.\n  A maximum favours the method that varies '
      'more between rounds: over the last 50 rounds accuracy has a\n  standard '
      f'deviation of {jumps(moon):.1f} points with MOON and of '
      f'{jumps(fedavg):.1f} with FedAvg (mean over runs).',
      '- One round is a noisy endpoint: over the last 50 rounds the difference '
      'within a pair has a standard deviation\n  of '
      f'{jumps([b.new - b.baseline for b in blocks]):.1f} points. For a 95% '
      'interval of ±1 point the last round needs about '
      f'{pairs_needed(found.std):,} pairs, the mean of\n  the last 10 rounds '
      f'about {pairs_needed(at_10.std):,}, by the spread of these '
      f'{len(blocks)}. By the median spread of the last 50 rounds the last '
      f'round needs about {pairs_needed(median):,}.'))


def moon_sorted() -> str:
  lines = [f'- {question.title}: '
           f'{report.full_verdict(question, blocks)}'
           for question in (*questions.SORTED, questions.RECIPE)
           if (blocks := _blocks(question))]
  beside = beside_published(questions.RECIPE, _blocks(questions.RECIPE))
  levels = []
  for arm, curves in sides(questions.RECIPE, _blocks(questions.RECIPE)):
    theirs, = arm.published
    levels.append(
        f'{arm.title} {stats.mean_and_std([*map(last, curves)], 1)} here and '
        f'{theirs.mean:.1f} ± {theirs.std:.1f} there')
  return '\n'.join([
      *lines, '- Accuracies with that recipe, in percent after the last round: '
      f'{"; ".join(levels)}.\n  Our MOON - FedAvg less theirs: '
      f'{_size(beside)}. '
      'Three published runs of each method\n  are too few to compare the '
      'sizes.'])


def moon_left() -> str:
  """What was planned and has not all its runs; looks may need no more."""
  counts = [(q.title, len(_blocks(q)), q.num_blocks, 'pairs') for q in (
      questions.SMALL_MU, questions.ONE_EPOCH, *questions.OTHER_MU,
      questions.WITHOUT_HEAD)]
  fresh = whole_blocks(read_fresh(report.kept_runs()))
  counts.append(('FedAvg, MOON and SCAFFOLD on fresh splits', len(fresh),
                 len(questions.FRESH_SEEDS), 'blocks'))
  counts.append(('The tuned comparison ([amendment 4]'
                 '(../experiments/full/AMENDMENT_4.md), part 3)',
                 len(tuned.kept_results()), len(tuned.searches()), 'searches'))
  counts.append(('FedAvg in PyTorch with the initial weights of the released '
                 'program (amendment 4, part 4)', int(TORCH.exists()), 1,
                 'runs'))
  counts.append(('FedAvg in moon_jax with these weights (amendment 4)',
                 int(SAME_START.exists()), 1, 'runs'))
  left = [f'- {title}: {done} of {planned} {unit}'
          for title, done, planned, unit in counts if done < planned]
  return 'Planned and not finished, for lack of time:\n\n' + (
      '\n'.join(left) or '- nothing')
