"""The sections and the banner of a table's page."""

import invented_runs
import pytest

from moon_jax.report import groups
from moon_jax.report import pages
from moon_jax.report import table_file
from moon_jax.results.read import State
import page_checks

TEXT = """
title = "Methods"
description = "Two methods."
source = "A paper, table 1"
baseline = {algorithm = "fedavg"}
notes = ["A fact."]
dataset = "digits"
model = "mlp"
num_rounds = 8
seed = [0, 1, 2]

[[runs]]
algorithm = "fedavg"

[[runs]]
algorithm = "moon"
mu = 5

[[runs]]
algorithm = "solo"

[[published]]
algorithm = "moon"
accuracy = 69.1
std = 0.4

[[published]]
algorithm = "fedavg"
accuracy = 66.3
std = 0.5

[[published]]
algorithm = "moon"
rounds = 3

[budget.smoke]
num_rounds = 8
"""
FINAL = {'fedavg': (.60, .62, .61), 'moon': (.70, .71, .74)}


@pytest.fixture
def table(tmp_path):
  path = tmp_path / 'methods.toml'
  path.write_text(TEXT)
  return table_file.read(str(path))


@pytest.fixture
def found(table, tmp_path):
  """SOLO has not been run; MOON is as good as FedAvg from round 6 on."""
  directory = tmp_path / 'runs'
  directory.mkdir()
  for config in table.sweep.configs:
    if config.algorithm == 'solo':
      continue
    final = FINAL[config.algorithm][config.seed]
    early = [.1] * 3 if config.algorithm == 'moon' else [.1] * 7
    curve = early + [final] * (8 - len(early))
    invented_runs.write(directory, config, curve)
  return groups.find([directory])


def rows(section):
  """Returns the rows of the first table of a section, by column."""
  table = next(part for part in section if '\n| ---' in part)
  header, _, *lines = (
      [cell.strip() for cell in line.strip('|').split(' | ')]
      for line in table.splitlines() if line.startswith('|'))
  return [dict(zip(header, line, strict=True)) for line in lines]


def test_accuracies_are_beside_published_ones(table, found):
  arms = groups.of_table(table, found)
  fedavg, moon, solo = rows(pages.accuracy(arms, (), is_full=True))
  assert fedavg['arm'] == 'FedAvg'
  assert fedavg['ours, last round (%)'] == '61.0 ± 1.0'
  assert fedavg['mean of last 4 (%)'] == '22.8 ± 0.2'
  assert fedavg['published (%)'] == '66.3 ± 0.5' and fedavg['runs'] == '3'
  assert fedavg['ours − published'] == '-5.3'
  assert moon['p, Welch'] and moon['95% interval'].startswith('-')
  assert solo['runs'] == '0 of 3' and not solo['ours, last round (%)']
  assert not solo['published (%)'] and not solo['p, Welch']


@pytest.mark.parametrize('value, text', [
    (23., '23.0'), (53.12, '53.12'), (.5, '0.5')])
def test_published_numbers_have_their_decimals(value, text):
  assert pages._number(value) == text


def test_only_the_full_budget_is_tested_against_published_values(table, found):
  arms = groups.of_table(table, found)
  row, *_ = rows(pages.accuracy(arms, (), is_full=False))
  assert 'published (%)' in row and 'p, Welch' not in row


def test_differences_from_the_baseline(table, found):
  arms = groups.of_table(table, found)
  moon, solo = rows(pages.differences(arms))
  assert moon['our difference'] == '+10.67' and moon['pairs'] == '3'
  assert moon['published difference'] == '+2.8' and moon['verdict'] == 'higher'
  assert solo['verdict'] == 'no common seeds' and solo['pairs'] == '0'
  figure = pages.differences(arms)[-1]
  assert 'MOON: +10.67, 95% interval' in figure.alt and 'SOLO' not in figure.alt


def test_rounds_to_the_baseline(table, found):
  """The median of 5 rounds is the later accuracy from round 6 on."""
  arms = groups.of_table(table, found)
  moon, solo = rows(pages.rounds_to_baseline(arms))
  assert moon['ours, rounds'] == '6'
  assert moon['published'] == '3' and solo['ours, rounds'] == ''
  assert moon['target: last round of'] == 'FedAvg'


def test_rounds_to_the_baseline_are_paired_where_a_run_diverged(
    table, tmp_path):
  """MOON's seed 0 diverged: its seed 1 has the target of FedAvg's seed 1."""
  (tmp_path / 'runs').mkdir()
  for config in table.sweep.configs[:6]:
    final = {'fedavg': (.2, .5, .2), 'moon': (.9, .6, .3)}[
        config.algorithm][config.seed]
    is_nan = config.algorithm == 'moon' and config.seed == 0
    invented_runs.write(
        tmp_path / 'runs', config, [final] * (3 if is_nan else 8),
        diverged='NaN' * is_nan)
  moon, _ = rows(pages.rounds_to_baseline(
      groups.of_table(table, groups.find([tmp_path / 'runs']))))
  assert moon['ours, rounds'] == '5'


@pytest.mark.parametrize('reached, text', [
    ([3, 5, 4], '4'), ([3, None, 4], '4 (reached in 2 of 3 runs)'),
    ([None, None, 3], 'never (reached in 1 of 3 runs)'), ([None], 'never'),
    ([], '')])
def test_never_is_later_than_all_rounds(reached, text):
  assert pages.rounds_text(reached) == text


def test_times_and_commands(table, found):
  arms = groups.of_table(table, found)
  fedavg, *_ = rows(pages.time(arms, has_prediction=False))
  assert fedavg['seconds per round'] == '2.00'
  assert fedavg['MB per round'] == '4.00'
  section = pages.commands(arms, 'the command')
  assert '```\nthe command\n```' in section
  fedavg, moon, solo = rows(section)
  assert fedavg['finished seeds'] == '0, 1, 2'
  assert solo['finished seeds'] == 'none'
  assert '--mu' not in fedavg['command'] and '--mu=5' in moon['command']


def test_curves_have_a_text_with_their_last_values(table, found):
  section = pages.curves(groups.of_table(table, found), (), 64, True)
  names = [figure.name for figure in section[1:]]
  assert names == ['test-accuracy', 'test-loss', 'test-loss-divided',
                   'train-loss']
  assert 'FedAvg: 61' in section[1].alt
  assert 'FedAvg: 0.0312' in section[3].alt  # 2 / 64
  assert pages.curves([], (), 0, True) == []


def test_a_page_names_its_budget_and_what_is_missing(table, found):
  page = pages.make(table, found, 'the command')
  assert page.banner == ('FULL BUDGET: digits, 8 rounds of 10 local epochs, 9 '
                         'runs.')
  assert '6 of 9 runs have ended' in page.parts[1]
  assert [part.removeprefix('## ') for part in page.parts
          if part[:3] == '## '] == [
      'Test accuracy', 'Differences from the baseline',
      'Rounds to the accuracy of the baseline', 'Curves',
      'Time and communication', 'Notes', 'Commands']
  assert not page_checks.errors(page.html())
  small = table._replace(budget='smoke', changed=True)
  page = pages.make(small, found, 'the command')
  assert page.banner.startswith('SMOKE BUDGET, CHANGED: digits, 8 rounds')
  assert 'nothing about the methods' in page.banner


def test_a_page_without_runs(table):
  page = pages.make(table, {}, 'the command')
  assert not page_checks.errors(page.html())
  assert '## Curves' not in page.parts


def test_rows_that_were_chosen_are_bold(table, found):
  arms = groups.of_table(table, found)
  _, table = pages.accuracy(arms, arms[1:2], is_full=False)
  bold = [line[:4] == '| **' for line in table.splitlines()[4:]]
  assert bold == [False, True, False] and 'chosen by their accuracy' in table


def test_diverged_runs_are_listed(table, found):
  arms = groups.of_table(table, {
      key: run._replace(state=State('diverged', '', 'NaN in round 3'))
      if i == 0 else run
      for i, (key, run) in enumerate(found.items())})
  fedavg, *_ = rows(pages.accuracy(arms, (), is_full=True))
  assert fedavg['runs'] == '2 of 3 (1 diverged)'
  assert '| FedAvg | 0 | NaN in round 3 |' in pages.commands(arms, 'x')[-1]


def test_rounds_without_evaluation_count(table, tmp_path):
  """The fifth evaluation of MOON is after round 8."""
  (tmp_path / 'sparse').mkdir()
  for config in table.sweep.configs[:6]:
    curve = [.5, .5, None, .5, None, .5, None, .6]
    if config.algorithm == 'fedavg':
      curve = [.1] * 7 + [.5]
    invented_runs.write(tmp_path / 'sparse', config, curve)
  arms = groups.of_table(table, groups.find([tmp_path / 'sparse']))
  moon, _ = rows(pages.rounds_to_baseline(arms))
  assert moon['ours, rounds'] == '8'
