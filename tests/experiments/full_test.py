"""Tests the runner and the report of the full comparison on made-up runs."""

import itertools
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats as scipy_stats

from experiments import kept
from experiments.full import analysis, looks, questions, report
from experiments.full import run as run_lib
from experiments.full.questions import Run
from moon_jax.results import figures, paired, stats
from moon_jax.runs import run
from support import small_runs
from support.docs_pages import ROOT


def write_run(directory, name, accuracies, diverged=False):
  workdir = directory / name
  workdir.mkdir(parents=True)
  (workdir / 'config.json').write_text(json.dumps(
      {'data_dir': '/somewhere', 'workdir': '/elsewhere',
       'num_rounds': len(accuracies)}))
  (workdir / 'metrics.jsonl').write_text(''.join(
      json.dumps({'round': r, 'test_accuracy': accuracy}) + '\n'
      for r, accuracy in enumerate(accuracies, 1)))
  if diverged:
    (workdir / 'diverged.txt').write_text('round 3: a loss became nan\n')
  else:
    (workdir / 'summary.json').write_text(
        json.dumps({'rounds': len(accuracies)}))


def curve(last, num_rounds=100):
  return np.linspace(.1, last, num_rounds)


def write_blocks(directory, question, differences):
  """Writes pairs of runs with these differences; returns them as read."""
  for seed, d in enumerate(differences):
    write_run(directory, f'{question.baseline.name}-seed{seed}',
              curve(.66 + .01 * seed, question.num_rounds))
    write_run(directory, f'{question.new.name}-seed{seed}',
              curve(.66 + .01 * seed + d / 100, question.num_rounds))
  return analysis.read_blocks(directory, question)


@pytest.mark.parametrize('differences, text', [
    ([2.5, 3., 2.8], "the paper's sign; the paper's size (+2.8) lies inside"),
    ([.9, 1., 1.1], "the paper's sign; the paper's size (+2.8) lies outside"),
    ([-4., -5., -6.], 'lower: -5.0 points'),
    ([-4., -5., -6.], 'over 3 pairs, the sign of the reproduction.'),
    ([.1, -.1, .05], 'no useful difference'),
    ([3., -3., 2.], 'open: +0.7 points'),
    ([3.], 'open: one pair'),
])
def test_verdicts(tmp_path, differences, text):
  blocks = write_blocks(tmp_path, questions.MAIN, differences)
  found = analysis.compare(blocks, analysis.last)
  np.testing.assert_allclose(found.differences, differences, atol=1e-9)
  assert text in analysis.verdict(questions.MAIN, found)


def test_a_verdict_names_what_restricts_it(tmp_path):
  """Of question 2: Holm's p, and seed 0, whose split another question has."""
  blocks = write_blocks(tmp_path, questions.MAIN, [2.6, .4, .8, .5, 2.2])
  assert analysis.compare(blocks, analysis.last).p_value < .05
  text = report.both_endpoints(questions.MAIN, blocks, .068)
  assert text.startswith(
      "higher; not by Holm's p (0.068); open without the split of seed 0 (+1.0 "
      'points, 95% interval ')
  assert text.count('0.068') == 1
  text = report.both_endpoints(questions.MAIN, blocks, .04)
  assert text.startswith('higher; open without the split of seed 0')
  assert text.endswith("MOON higher in 5 of 5 pairs. Holm's p: 0.040.")
  sure = [analysis.Block(s, np.full(100, 60.), np.full(100, 62. + s / 9))
          for s in range(5)]
  assert report.headline(questions.MAIN, sure, .01).startswith('higher: +2.2')


def test_a_last_round_that_is_unusually_narrow_comes_second():
  """Differences of three pairs: 1, 2 and 3 points but in the last round."""
  def of(last_spread, narrower=0):
    made = []
    for seed in range(3):
      new = np.full(100, 61. + seed)
      new[-1] = 62. + last_spread * (seed - 1)
      new[60:60 + narrower] = 62. + .01 * (seed - 1)
      made.append(analysis.Block(seed, np.full(100, 60.), new))
    return made

  narrow = analysis.unusually_narrow
  assert narrow(of(.1)) == (  # so is the spread of means of 10 rounds
      'the spread of the last round is the smallest of rounds 51 to 100. The '
      'interval of the mean of the last 10 rounds is also unusually narrow')
  # 10 means of 10 rounds have a smaller spread than the last one.
  assert narrow(of(.1, narrower=1)).endswith(
      'is the second smallest of rounds 51 to 100')
  assert not narrow(of(.1, narrower=5))
  assert not narrow(of(1.)) and not narrow(of(3.))
  text = report.both_endpoints(questions.RECIPE, of(.1))
  half = 4.303 * .91 / 3**.5  # t(2, .975); 9 rounds of 1 and one of 0.1
  assert text.startswith(
      'higher: mean of the last 10 rounds +2.0 points (95% interval '
      f'{2 - half:+.1f} to {2 + half:+.1f}), MOON higher in 3 of 3 pairs. ')
  assert 'about: +2.0 points (95% interval +1.8 to +2.2) over 3 pairs' in text
  assert 'unusually narrow: the spread' in text
  assert 'is -5.6 (95% interval -11.7 to +0.5)' in text  # the reproduction's
  text = report.both_endpoints(questions.MAIN, of(1.))
  assert text.startswith('open: +2.0 points') and 'narrow' not in text


def test_an_interval_marked_as_narrow_is_wider_after_most_rounds():
  *rows, note = [row for row in report.summary().splitlines() if '\\*' in row]
  rank, start, end = re.search(
      r'is the (\w+) smallest of rounds (\d+) to (\d+)', note).groups()
  assert (rank, int(end)) == ('second', 100)
  marked = [q for q in (questions.MAIN, questions.SPLIT, questions.FEW,
                        questions.RECIPE)
            if analysis.unusually_narrow(
                analysis.read_blocks(report.kept_runs(), q))]
  assert len(marked) == len(rows)
  for question in marked:
    blocks = analysis.read_blocks(report.kept_runs(), question)
    std_T = np.stack([block.new - block.baseline for block in blocks])[
        :, int(start) - 1:].std(0, ddof=1)
    assert sum(std_T < std_T[-1]) == 1, question.name


def test_the_summary_has_what_restricts_its_figures():
  """The README lost each of these once."""
  text = report.summary()
  _, few, recipe = [row for row in text.splitlines() if 'Flower' in row
                    or 'split of seed 0, 100' in row]
  cells = [cell.strip() for cell in few.split('|')]
  c = analysis.compare(analysis.read_blocks(
      report.kept_runs(), questions.FEW), stats.mean_of_last)
  assert cells[4] == f'{c.mean:+.1f} ({c.low:+.1f} to {c.high:+.1f})'
  assert cells[7] == 'open' and (np.array(c.differences) < 0).sum() == 11
  assert 'MOON is lower in 11 of 12 pairs' in text
  assert '-5.6 (-11.7 to +0.5)' in recipe
  assert re.search('Class-sorted batches: neither method has converged.* '
                   'FedAvg: rounds 1 to 57 on a GPU', text)


def test_one_local_epoch_is_shown_at_both_endpoints():
  blocks = analysis.read_blocks(report.kept_runs(), questions.ONE_EPOCH)
  after, mean = (analysis.compare(blocks, endpoint).mean for endpoint in (
      analysis.last, stats.mean_of_last))
  note = re.search('One local epoch.*', report.summary()).group()
  assert f'{after:+.1f} points after the last round' in note
  assert f'{mean:+.1f} in the mean of the last 10 rounds' in note


def test_gains_are_those_of_the_last_ten_rounds():
  rising = np.arange(100.)
  blocks = [analysis.Block(s, rising, 60 + s * rising) for s in range(3)]
  assert analysis.gains(questions.RECIPE, blocks) == [10., 10.]
  assert 'FedAvg gains 10.0 points, MOON 10.0' in report.both_endpoints(
      questions.RECIPE, blocks)


def test_a_published_difference_has_the_error_of_both_means(tmp_path):
  """Of one published group it is Welch's test; of two it is less sure."""
  def of(old_std, new_std):
    baseline, new = (arm._replace(published=(
        arm.published[0]._replace(std=std),)) for arm, std in (
            (questions.MAIN.baseline, old_std), (questions.MAIN.new, new_std)))
    return questions.MAIN._replace(baseline=baseline, new=new)

  d = [1.5, 2., 2.2, 1.1]
  blocks = write_blocks(tmp_path, questions.MAIN, d)
  expected = paired.welch(d, 69.1 - 66.3, .4, 3)
  for question in (of(0., .4), of(.4, 0.)):
    found = analysis.beside_published(question, blocks)
    assert found[1] == pytest.approx(expected.mean)
    assert found[3:6] == pytest.approx(expected[3:6])
  both = analysis.beside_published(of(.4, .4), blocks)
  error = math.sqrt(np.var(d, ddof=1) / 4 + 2 * .4**2 / 3)
  assert abs(both.mean) / error == pytest.approx(
      scipy_stats.t.isf(both.p_value / 2, 6.891), rel=1e-3)


def test_secondary_questions_have_neither_verdict_nor_test(tmp_path):
  blocks = write_blocks(tmp_path, questions.ONE_EPOCH, [2.5, 3., 2.8])
  text = report.section(questions.ONE_EPOCH, blocks, None)
  sentence = report.full_verdict(questions.ONE_EPOCH, blocks)
  assert sentence.startswith('+2.8 points over 3 pairs; not tested.')
  assert '| last round | +2.77 |\n' in text and 'interval' not in text


def test_an_open_verdict_names_the_number_of_pairs_needed(tmp_path):
  found = analysis.compare(
      write_blocks(tmp_path, questions.MAIN, [3., -3., 2.]), analysis.last)
  pairs = analysis.pairs_needed(np.std([3., -3., 2.], ddof=1))
  assert f'an interval of ±1 point needs about {pairs} pairs' in (
      analysis.needed(questions.MAIN, found))


def test_incomplete_blocks_are_ignored_and_divergence_is_chance(tmp_path):
  write_blocks(tmp_path, questions.SORTED[0], [0.])
  write_run(tmp_path, 'fedavg-seed1', curve(.6, 40))  # extended by question 2
  write_run(tmp_path, 'fedavg-sorted-lr0.01-seed1', curve(.3, 3), diverged=True)
  write_run(tmp_path, 'fedavg-seed2', curve(.6, 10))
  blocks = analysis.read_blocks(tmp_path, questions.SORTED[0])
  assert [block.seed for block in blocks] == [0, 1]
  assert analysis.last(blocks[1].new) == 10
  assert analysis.last(blocks[1].baseline) == pytest.approx(
      100 * curve(.6, 40)[9])
  assert not analysis.read_blocks(tmp_path, questions.MAIN)
  text = report.section(questions.SORTED[0], blocks, None)
  sentence = report.full_verdict(questions.SORTED[0], blocks)
  assert '10.00 (diverged in round 4)' in text
  assert '1 of 4 runs diverged. 2 of 3 pairs so far' in sentence


def test_diverged_runs_are_not_equivalent():
  blocks = [analysis.Block(s, *[np.full(100, 10.)] * 2, diverged=(1, 1))
            for s in range(4)]
  sentence = report.full_verdict(questions.RECIPE, blocks)
  assert sentence.startswith('open') and '8 of 8 runs diverged' in sentence


def test_the_row_compares_each_method_with_fedavg_of_its_seed(tmp_path):
  """SOLO has one round; tests begin with three pairs, and have Holm's p."""
  assert not report.row(tmp_path)
  fedprox, scaffold, _, solo, _ = questions.ROW
  write_blocks(tmp_path, questions.SPLIT, [1.5, 1.7, 1.9])
  for side in (questions.SPLIT.baseline, questions.SPLIT.new):
    (tmp_path / f'{side.name}-seed0').rename(tmp_path / side.workdir(0))
  assert not report.row(tmp_path)
  for question, differences in (
      (fedprox, [2., 2.1, 2.3]), (scaffold, [1., 2.]),
      (questions.OTHER_MU[0], [1., 1.1, 1.2])):
    for seed, d in enumerate(differences):
      write_run(tmp_path, question.new.workdir(seed),
                curve(.66 + .01 * seed + d / 100))
  write_run(tmp_path, solo.new.workdir(0), [.46])
  rows = {cells[1]: cells[2:-1] for line in report.row(tmp_path).splitlines()
          if line.startswith('| ') for cells in [
              [cell.strip() for cell in line.split('|')]]}
  assert rows['FedAvg'][0] == '66.3 ± 0.5' and rows['FedAvg'][4] == '3'
  p = analysis.compare(
      analysis.read_blocks(tmp_path, fedprox), analysis.last).p_value
  assert .001 < p < .01
  assert rows[fedprox.new.title][0] == '66.9 ± 0.2'
  assert rows[fedprox.new.title][-4:] == [  # five methods in the family
      '+2.13', '+1.75 to +2.51', f'{5 * p:.3f}', '+0.43 (+0.29 to +0.58)']
  assert rows[scaffold.new.title][-4:] == [  # two pairs
      '+1.50', '', '', '-0.10']
  assert rows[questions.OTHER_MU[0].new.title][-2] == ''  # no test planned
  assert rows[solo.new.title] == [
      '46.3', '-0.3', '46.00', '', '1', '-20.00', '', '', '-21.50']


def test_the_row_has_only_its_seeds_and_names_divergence(tmp_path):
  write_blocks(tmp_path, questions.SPLIT, [1., 2., 3., 9.])
  for side in (questions.SPLIT.baseline, questions.SPLIT.new):
    (tmp_path / f'{side.name}-seed0').rename(tmp_path / side.workdir(0))
  fedprox = questions.ROW[0]
  write_run(tmp_path, fedprox.new.workdir(0), curve(.5, 3), diverged=True)
  _, fedavg, moon, row = report.row_table(tmp_path)
  assert fedavg[5] == moon[5] == '3' and moon[6] == '+2.00'
  assert row[3] == '10.00' and row[5] == '1 (1 diverged)'


def write_fresh(directory, differences, seeds=questions.FRESH_SEEDS):
  """Writes runs on fresh splits: FedAvg, and others by their differences.

  The mean of the last 10 rounds is that of the other rounds, and the last round
  is 3 points below with MOON.
  """
  for i, (seed, of_seed) in enumerate(zip(seeds, differences)):
    for arm, d in zip(questions.FRESH, (0, *of_seed)):
      accuracies = np.full(100, .6 + .01 * i + d / 100)
      if arm is questions.FRESH[1]:
        accuracies[-1] -= .03
        accuracies[-4:-1] += .01
      write_run(directory, arm.workdir(seed), accuracies.tolist())


def cells_of(text):
  """Returns the cells of the first row of a text that begins with each cell."""
  found = {}
  for line in text.splitlines():
    if line.startswith('| '):
      first, *cells = [cell.strip() for cell in line.strip('|').split('|')]
      found.setdefault(first, cells)
  return found


# Patterns of mean 0 over 12 blocks.
_ZIGZAG = np.tile([1., -1.], 6)
_PAIRS = np.tile([1., 1., -1., -1.], 3)


def test_fresh_splits_are_interim_before_the_last_block(tmp_path, monkeypatch):
  monkeypatch.setattr(report, 'kept_runs', lambda: tmp_path)
  assert not report.fresh(tmp_path) and not report.fresh_sentence(tmp_path)
  assert 'resh splits' not in report.summary()
  assert 'amendment 3' not in report._commits(tmp_path)
  write_fresh(tmp_path, [(1., -2.), (3., -1.)], seeds=(5, 7))
  write_run(tmp_path, questions.FRESH[0].workdir(6), [.5] * 100)
  write_run(tmp_path, questions.FRESH[1].workdir(6), [.59] * 100)
  write_run(tmp_path, questions.FRESH[2].workdir(6), [.59] * 60)  # trains
  text = report.fresh(tmp_path)
  rows = cells_of(text)
  assert rows['5'] == ['60.00', '61.00', '58.00', '+1.00', '-2.00', '-3.00',
                       '60.00', '58.00', '58.00', 'none']
  assert rows['6'] == ['50.00', '59.00', '', '+9.00', '', '', '50.00', '59.00',
                       '', 'none']
  assert rows['mean of 2'][3:6] == [  # only of complete blocks
      '+2.00 ± 1.41', '-1.50 ± 0.71', '-3.50 ± 0.71']
  assert report.fresh_sentence(tmp_path).startswith(
      'interim, 2 of 12 blocks: MOON - FedAvg +2.0; SCAFFOLD - FedAvg -1.5; '
      'SCAFFOLD - MOON -3.5 points')
  for word in ('higher', 'lower', 'open', 'Holm', '95%', '98.33%', 'p, '):
    assert word not in text
  assert '- **Fresh splits.** Interim, 2 of 12' in report.summary()
  assert '(9 of 39 runs)' in report._commits(tmp_path)
  write_fresh(tmp_path, [(1., -2.)] * 9, seeds=range(8, 17))
  assert 'Interim, 11 of 12' in report.fresh(tmp_path)
  assert 'Holm' not in report.fresh(tmp_path)


@pytest.mark.parametrize('moon, scaffold, verdicts', [
    # By Holm's adjustment none of three, two of which are below 0.05 alone.
    (.75 + _ZIGZAG, .71 + _PAIRS, ('open', 'open', 'open')),
    # Bonferroni's would leave the first open.
    (.75 + _ZIGZAG, -1. + .3 * _PAIRS, ('higher', 'lower', 'lower'))])
def test_fresh_splits_are_tested_as_one_family(
    tmp_path, moon, scaffold, verdicts):
  write_fresh(tmp_path, zip(moon, scaffold))
  d = [moon, scaffold, scaffold - moon]
  p = np.array([scipy_stats.ttest_1samp(x, 0).pvalue for x in d])
  assert sum(p < .05) == 2 + (verdicts[0] != 'open')
  assert p[0] * 3 > .05  # Bonferroni's
  holm = np.empty(3)
  order = np.argsort(p)
  holm[order] = np.minimum(1, np.maximum.accumulate(p[order] * [3, 2, 1]))
  text, half = report.fresh(tmp_path), lambda x, share: (
      scipy_stats.t.ppf(1 - .05 / share / 2, 11) * x.std(ddof=1) / 12**.5)
  rows = cells_of(text)
  shown = lambda x: f'{x:.3f}' if x >= .001 else '< 0.001'
  for name, x, p_value, adjusted, verdict in zip(
      ('MOON - FedAvg', 'SCAFFOLD - FedAvg', 'SCAFFOLD - MOON'), d, p, holm,
      verdicts):
    after = x.mean() - 3 * (name[:4] == 'MOON') + 3 * (name[-4:] == 'MOON')
    assert rows[name] == [
        f'{x.mean():+.2f}',
        f'{x.mean() - half(x, 1):+.2f} to {x.mean() + half(x, 1):+.2f}',
        f'{x.mean() - half(x, 3):+.2f} to {x.mean() + half(x, 3):+.2f}',
        shown(p_value), shown(adjusted), verdict, f'{after:+.2f}']
    assert f'{name} {verdict}, {x.mean():+.1f} points' in (
        report.fresh_sentence(tmp_path))
  assert "verdicts by Holm's p" in text  # the interval may say otherwise
  assert 'interim' not in text and 'diverged' not in text


def test_a_diverged_run_on_a_fresh_split_counts_as_chance(tmp_path):
  write_fresh(tmp_path, zip(1. + _ZIGZAG, 2. + _PAIRS))
  name = questions.FRESH[2].workdir(7)
  shutil.rmtree(tmp_path / name)
  write_run(tmp_path, name, [.6] * 40, diverged=True)
  text = report.fresh(tmp_path)
  assert cells_of(text)['7'][2:6] == [
      '10.00 (diverged in round 41)', '+2.00', '-52.00', '-54.00']
  mean = 2 + (-52. - 1.) / 12  # 1 point instead of -52
  assert cells_of(text)['SCAFFOLD - FedAvg'][0] == f'{mean:+.2f}'
  assert cells_of(text)['SCAFFOLD - FedAvg'][-2] == 'open'
  assert '1 of 36 runs diverged. ' in report.fresh_sentence(tmp_path)


def test_fresh_splits_have_bands_when_all_blocks_are_there(
    tmp_path, monkeypatch):
  made, empty = [], figures.empty
  monkeypatch.setattr(
      figures, 'empty', lambda *size: made.append(empty(*size)) or made[-1])
  path, link = tmp_path / 'fresh.png', '](full/fresh.png)'
  write_run(tmp_path, questions.FRESH[0].workdir(16), [.5] * 100)
  report.draw_fresh(tmp_path, path)
  assert not path.exists() and link not in report.fresh(tmp_path)
  write_fresh(tmp_path, [(1., 3.)] * 11)
  report.draw_fresh(tmp_path, path)
  assert path.exists() and link in report.fresh(tmp_path)
  axes, = made[-1].axes
  assert axes.get_title() == 'Interim: 11 of 12 blocks'
  assert not axes.collections
  shutil.rmtree(tmp_path / questions.FRESH[0].workdir(16))
  write_fresh(tmp_path, [(4., 3.)], seeds=[16])
  report.draw_fresh(tmp_path, path)
  axes, = made[-1].axes
  assert not axes.get_title() and len(axes.collections) == 3
  lines = {line.get_label(): line.get_ydata() for line in axes.lines[1:]}
  for pair, mean in (('MOON - FedAvg', 1.25), ('SCAFFOLD - FedAvg', 3.),
                     ('SCAFFOLD - MOON', 1.75)):
    np.testing.assert_allclose(lines[f'{pair}, n = 12'][:90], mean)


def test_without_projection_head_moon_is_compared_with_fedavg_without_it(
    tmp_path):
  assert not report.no_head(tmp_path)
  names = [(arm.workdir(0).removesuffix('-seed0'))
           for arm in (questions.NO_HEAD, questions.ROW[-1].new)]
  assert names == ['fedavg-no-head-split0', 'moon-no-head-split0']
  for seed, d in enumerate((1., 2., 6.)):
    for name, accuracy in zip(names, (.5, .5 + d / 100)):
      write_run(tmp_path, f'{name}-seed{seed}', [accuracy] * 99 + [.4])
    sentence = report.no_head_sentence(tmp_path)
    assert ('interval' in sentence) == (seed == 2)
    assert (f'{seed + 1} of 3 pairs so far' in sentence) == (seed < 2)
  half = 4.303 * np.std([.9, 1.8, 5.4], ddof=1) / 3**.5  # t(2, .975)
  assert sentence.startswith(
      'mean of the last 10 rounds: +2.7 points (95% interval, unadjusted, '
      f'{2.7 - half:+.1f} to {2.7 + half:+.1f}) over 3 pairs; last round: +0.0 '
      'points')
  assert 'published +0.1; not tested.' in sentence
  text = report.no_head(tmp_path)
  assert 'p, ' not in text.replace('p, Welch', '')
  assert cells_of(text)['2'][3:] == ['49.00', '54.40', '+5.40']


def test_rounds_on_a_gpu_stand_in_the_tables(tmp_path):
  """Those of begun.json; all of a run whose summary names a GPU."""
  write_blocks(tmp_path, questions.RECIPE, [-4., -5., -6.])
  baseline, new = questions.RECIPE.baseline, questions.RECIPE.new
  for seed in range(3):
    (tmp_path / baseline.workdir(seed) / 'begun.json').write_text(
        json.dumps({'rounds': 57, 'device': 'NVIDIA H200',
                    'versions': {'jax': '0.11.2'}}))
  (tmp_path / new.workdir(1) / 'summary.json').write_text(
      json.dumps({'rounds': 100, 'device': 'NVIDIA H200'}))
  blocks = analysis.read_blocks(tmp_path, questions.RECIPE)
  rows = cells_of(report.section(questions.RECIPE, blocks, None))
  assert [rows[seed][-2:] for seed in '012'] == [
      ['1 to 57', 'none'], ['1 to 57', '1 to 100'], ['1 to 57', 'none']]
  assert report._num_runs([0] * 3, blocks, 0) == '3 (rounds 1 to 57 on a GPU)'
  assert report._num_runs([0] * 3, blocks, 1) == (
      '3 (seed 1: rounds 1 to 100 on a GPU)')


def test_a_look_takes_the_first_seeds(tmp_path):
  write_blocks(tmp_path, questions.SPLIT, [1., 2., 3., 9., 4.])
  for side in (questions.SPLIT.baseline, questions.SPLIT.new):
    (tmp_path / f'{side.name}-seed0').rename(tmp_path / side.workdir(0))
    shutil.rmtree(tmp_path / side.workdir(3))
  blocks = analysis.read_blocks(tmp_path, questions.SPLIT)
  assert [block.seed for block in blocks] == [0, 1, 2, 4]
  np.testing.assert_allclose(looks.differences(blocks), [1., 2., 3.])


def test_runs_begun_elsewhere_are_named(tmp_path):
  (tmp_path / 'l2-split0-seed2').mkdir()
  (tmp_path / 'l2-split0-seed2' / 'begun.json').write_text(json.dumps(
      {'rounds': 62, 'device': 'NVIDIA H200', 'versions': {'jax': '0.11.2'}}))
  assert ('`l2-split0-seed2` (rounds 1 to 62 on an NVIDIA H200, JAX 0.11.2).'
          in report._commits(tmp_path))
  assert 'H200' not in report._commits(tmp_path / 'none')


@pytest.mark.parametrize('sorted_, word', [
    ((.1, .1, .1), 'yes: 3 of 3'), ((.1, .4, .1), 'partly: 2 of 3'),
    ((.4, .4, .4), 'no: 0 of 3')])
def test_answers_to_question_1(sorted_, word):
  blocks = [analysis.Block(s, 100 * curve(.5, 10), 100 * curve(x, 10))
            for s, x in enumerate(sorted_)]
  assert analysis.answer(blocks).startswith(word)


def test_holm_adjusts_primary_questions_with_enough_pairs(tmp_path):
  write_blocks(tmp_path, questions.MAIN, [2., 3., 2.5])
  write_blocks(tmp_path, questions.FEW, [1., -1., .5])
  write_blocks(tmp_path, questions.RECIPE, [1., 2.])  # too few
  blocks = {q.name: analysis.read_blocks(tmp_path, q)
            for q in questions.QUESTIONS}
  found = analysis.adjusted(blocks)
  p = [analysis.compare(blocks[name], analysis.last).p_value
       for name in ('moon', 'moon-5-of-100')]
  assert found == dict(zip(('moon', 'moon-5-of-100'), paired.holm(p)))


@pytest.fixture
def quick_runner(monkeypatch):
  """The runner has two cores, and looks at its children often."""
  monkeypatch.setattr(run_lib.os, 'sched_getaffinity', lambda _: {0, 1})
  monkeypatch.setattr(run_lib, 'time', SimpleNamespace(
      sleep=lambda _: time.sleep(.01)))


@pytest.mark.skipif(not pathlib.Path('/proc/self/autogroup').exists(),
                    reason='cores are not divided by session')
def test_the_session_of_a_run_has_low_priority(tmp_path):
  (tmp_path / 'moon_jax').mkdir()
  (tmp_path / 'moon_jax' / '__init__.py').touch()
  (tmp_path / 'moon_jax' / 'train.py').write_text(
      'print(open("/proc/self/autogroup").read())')
  subprocess.run(  # forking this process, which has threads, is not safe
      [sys.executable, '-c', '''
import os, pathlib, sys
from experiments.full import questions, run
here = pathlib.Path(sys.argv[1])
child = run.start(here, "data", here, questions.Run("a", (), 1),
                  os.sched_getaffinity(0))
sys.exit(child.wait())''', tmp_path], cwd=ROOT, check=True)
  assert 'nice 19' in (tmp_path / 'a.log').read_text()


def test_the_runner_keeps_the_order_and_records_divergence(
    tmp_path, quick_runner):
  """Two runs at a time; a run that extends another one waits for it."""
  runs = [Run('a', (), 1), Run('a', (), 2), Run('nan', (), 2),
          Run('done', (), 2)]
  write_run(tmp_path, 'done', [.5, .5])
  code = '''
import json, pathlib, sys
workdir, rounds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
if workdir.name == "nan":
  sys.exit("moon_jax.train: round 1, client 0: its loss became nan (...)")
workdir.mkdir(exist_ok=True)
with open(workdir / "metrics.jsonl", "a") as file:
  file.write("{}\\n")
(workdir / "summary.json").write_text(json.dumps({"rounds": rounds}))
'''
  started = []

  def start(run, cores):
    assert cores
    started.append((run.name, run.num_rounds))
    with open(tmp_path / f'{run.name}.log', 'a') as log:
      return subprocess.Popen(
          [sys.executable, '-c', code, tmp_path / run.name,
           str(run.num_rounds)], stderr=log)

  (tmp_path / 'nan').mkdir()
  run_lib.train_all(runs, start, tmp_path, jobs=2)
  assert started == [('a', 1), ('nan', 2), ('a', 2)]
  assert 'became nan' in (tmp_path / 'nan' / 'diverged.txt').read_text()
  assert all(run_lib.is_finished(tmp_path / run.name, run) for run in runs)


def test_the_runner_stops_at_a_failure(tmp_path, quick_runner):
  def start(run, cores):
    (tmp_path / f'{run.name}.log').write_text('no such file\n')
    return subprocess.Popen([sys.executable, '-c', 'import sys; sys.exit(2)'])

  runs = [Run(name, (), 1) for name in 'ab']
  with pytest.raises(SystemExit, match='a ended with status 2'):
    run_lib.train_all(runs, start, tmp_path, jobs=1)
  assert not (tmp_path / 'b.log').exists()


def test_an_extended_run_stays_finished(tmp_path):
  write_run(tmp_path, 'a', [.5] * 10)
  short, long = (Run('a', (), n) for n in (10, 100))
  assert run_lib.is_finished(tmp_path / 'a', short)
  (tmp_path / 'a' / 'summary.json').unlink()  # a starting run removes it
  assert not run_lib.is_finished(tmp_path / 'a', short)
  (tmp_path / 'a' / 'config.json').write_text('{"num_rounds": 100}')
  assert run_lib.is_finished(tmp_path / 'a', short)
  assert not run_lib.is_finished(tmp_path / 'a', long)


def test_kept_runs_are_not_trained_again():
  made = [kind for kind in questions.in_order()
          if kind.name in kept.runs('full')]
  assert len(made) > 80
  for kind in made:
    assert run_lib.is_finished(kept.directory('full') / kind.name, kind)


@pytest.mark.parametrize('message, status, is_expected', [
    ('round 2, client 0: its loss became nan at local step 7', 1, True),
    ('round 1, client 3: its message or state became no number', 1, True),
    ('round 3: the next global model is no longer of finite numbers', 1, True),
    ('round 2, client 0: its loss became nan', 2, False),
    ('no such file', 1, False), ('test accuracy 0.5', 0, True)])
def test_divergence_is_not_failure(tmp_path, message, status, is_expected):
  (tmp_path / 'a').mkdir()
  (tmp_path / 'a.log').write_text(f'round 1/10\n{message}\n')
  assert run_lib.has_ended_well(status, tmp_path / 'a') == is_expected
  assert (tmp_path / 'a' / 'diverged.txt').exists() == (
      is_expected and status == 1)


def test_collected_results_contain_no_paths(tmp_path):
  out, target = tmp_path / 'out', tmp_path / 'collected'
  write_run(out, 'a', [.5])
  write_run(out, 'b', [.5])
  (out / 'a' / 'config.json').write_text(json.dumps({  # of flat flags
      **json.loads((out / 'a' / 'config.json').read_text()),
      'beta': .1, 'algorithm': 'moon', 'mu': 1.}))
  run_lib.collect(out, target, [Run('a', (), 1), Run('b', (), 2)])
  kept.unpack(target, tmp_path)
  assert not (tmp_path / 'b').exists()
  found = json.loads((tmp_path / 'a' / 'config.json').read_text())
  assert {name: found.pop(name) for name in ('algorithm', 'partition')} == {
      'algorithm': 'moon(mu=1)', 'partition': 'dirichlet(beta=0.1)'}
  assert not {'beta', 'mu', 'workdir'} & {*found}
  assert (found['data_dir'], found['num_rounds']) == ('DATA_DIR', 1)
  assert {p.name for p in (tmp_path / 'a').iterdir()} == {
      'config.json', 'metrics.jsonl', 'summary.json'}
  assert f'a,{questions.COMMIT},' in (target / 'runs.csv').read_text()


def test_a_clone_trains_the_runs_of_its_commit(tmp_path):
  git = lambda *words: subprocess.run(
      ['git', '-c', 'user.name=a', '-c', 'user.email=a', *words], cwd=tmp_path,
      check=True, capture_output=True, text=True).stdout.strip()
  git('init')
  git('commit', '--allow-empty', '-m', 'a')
  head = git('rev-parse', 'HEAD')
  runs = [Run('a', (), 1, head), Run('b', (), 1)]
  assert run_lib.of_commit(tmp_path, runs) == runs[:1]
  with pytest.raises(SystemExit, match=f'these runs are of {questions.COMMIT}'):
    run_lib.of_commit(tmp_path, runs[1:])
  (tmp_path / 'changed').write_text('')
  git('add', '.')
  with pytest.raises(SystemExit, match='has uncommitted changes'):
    run_lib.of_commit(tmp_path, runs)


def test_runs_follow_the_protocol():
  runs = questions.in_order()
  names = [run.name for run in runs]
  assert names.index('moon-seed2') < names.index('fedavg-5-of-100-seed0')
  assert names.index('moon-5-of-100-seed11') < names.index('moon-seed3')
  assert sum(name.startswith('moon-5-of-100') for name in names) == 12
  # Part 4 of the amendment: seed 0 of each method before seed 1 of any.
  assert names.index('moon-seed4') < names.index('fedprox-split0-seed0')
  assert names.index('moon-no-head-split0-seed0') < names.index(
      'fedprox-split0-seed1') < names.index('moon-sorted-lr0.001-seed0')
  assert names.count('fedavg-seed0') == 2  # questions 1 and 2
  assert len(set(runs)) == len(runs)


def test_the_protocol_counts_the_commits_of_runs():
  commits = {questions.COMMIT, questions.PART_4, questions.AMENDMENT_2,
             questions.AMENDMENT_3}
  text = (ROOT / 'experiments/full/PROTOCOL.md').read_text(encoding='utf-8')
  word = re.search(r'one commit \((\w+) with those of the amendments', text)[1]
  assert ('zero', 'one', 'two', 'three', 'four').index(word) == len(commits)


def test_sign_flip_test_uses_all_patterns():
  d = np.random.default_rng(0).normal(.4, 1, 12)
  means = [np.mean(d * signs)
           for signs in itertools.product((1, -1), repeat=12)]
  as_far = np.mean(np.abs(means) >= abs(d.mean()) - 1e-12)
  assert analysis.sign_flip_p(d) == pytest.approx(as_far)
  assert math.isnan(analysis.sign_flip_p(d[:11]))


def test_pairs_match_published_tables():
  """t(.975, 9) = 2.262: ten pairs of s = 1 have a half-width of 0.715.

  G*Power for a paired t-test: 34 for d_z = 0.5, 15 for 0.8.
  """
  assert analysis.pairs_needed(1., .716) == 10
  assert analysis.pairs_needed(1., .715) == 11
  assert analysis.pairs_needed(0.) == 2
  assert analysis.pairs_for_sign(.5, 1.) == 34
  assert analysis.pairs_for_sign(-1.6, 2.) == 15
  assert analysis.pairs_for_sign(.02, 2.) == math.inf


def test_a_run_begun_on_a_gpu_does_not_begin_again(tmp_path):
  runs = [Run('a', (), 3), Run('l2-split0-seed2', (), 100)]
  with pytest.raises(SystemExit, match='lacks the states of l2-split0-seed2,'):
    run_lib.unpack(tmp_path / 'packed', tmp_path, runs)
  (tmp_path / 'l2-split0-seed2').mkdir()
  run_lib.unpack(tmp_path / 'packed', tmp_path, runs)


@pytest.mark.long
def test_the_newest_checkpoint_of_an_unfinished_run_resumes_elsewhere(tmp_path):
  """Its files do not contain the path of the directory that it comes from."""
  here, packed, there = (
      tmp_path / name for name in ('here', 'packed', 'there'))
  runs = [Run(name, (), 3) for name in ('a', 'done')]
  write_run(here, 'done', [.1, .2, .3])
  run.run(small_runs.at(here / 'a', num_rounds=2, checkpoint_every=1))
  (here / 'a' / 'begun.json').write_text('{}')
  run_lib.pack(here, packed, runs)
  assert [path.name for path in packed.iterdir()] == ['a.tar.xz']
  there.mkdir()
  run_lib.unpack(packed, there, runs)
  run_lib.unpack(packed, there, runs)  # a run that is there stays
  assert run_lib.rounds_done(there / 'a') == 2
  assert (there / 'a' / 'begun.json').exists()
  assert [p.name for p in (there / 'a' / 'checkpoints').iterdir()] == ['2']
  files = [path for path in there.rglob('*') if path.is_file()]
  assert not [path for path in files if b'/here' in path.read_bytes()]
  shutil.rmtree(here)
  before = (there / 'a' / 'metrics.jsonl').read_text()
  run.run(small_runs.at(there / 'a', num_rounds=3, checkpoint_every=1))
  after = (there / 'a' / 'metrics.jsonl').read_text()
  assert after.startswith(before) and len(after.splitlines()) == 3
