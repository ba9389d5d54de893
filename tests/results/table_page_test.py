"""The sections and the banner of a table's page."""

import dataclasses
import math
import re
import types

import pytest

from moon_jax.results import arms as arms_lib
from moon_jax.results import read, table_page
from moon_jax.results.read import State
from moon_jax.results.table_file import Published
from support import made_runs, page_checks

MEASURES = 'test_accuracy', 'test_loss', 'train_loss'


def rows(section):
  """Returns the rows of the first table of a section by arm and column."""
  table = next(part for part in section if '\n| ---' in part)
  header, _, *lines = (
      [cell.strip() for cell in line.strip('|').split(' | ')]
      for line in table.splitlines() if line.startswith('|'))
  return {line[0]: dict(zip(header, line, strict=True)) for line in lines}


def test_accuracies_are_beside_published_ones(arms):
  found = rows(table_page.accuracy(arms, is_full=True))
  fedavg, moon = found['FedAvg, beta 0.5'], found['MOON, beta 0.5, mu 5']
  assert fedavg == {
      'arm': 'FedAvg, beta 0.5', 'ours, last round (%)': '61.0 ± 1.0',
      'mean of last 10 rounds (%)': '16.4 ± 0.1', 'published (%)': '66.3 ± 0.5',
      'runs': '3', 'ours − published': '-5.3',
      '95% interval': fedavg['95% interval'], 'p, Welch': fedavg['p, Welch']}
  assert moon['p, Welch'] and moon['95% interval'].startswith('-')
  assert {*found['SOLO'].values()} == {'SOLO', '0 of 3', ''}
  # Only the full budget is tested against published values.
  row = rows(table_page.accuracy(arms, is_full=False))['SOLO']
  assert 'published (%)' in row and 'p, Welch' not in row


def test_accuracies_of_clients_are_beside_published_ones():
  fedavg, fedper = (
      types.SimpleNamespace(
          label=label, summaries=lambda name, x=x: [x], published=(
              Published({}, measure, value, .5, 3, ''),))
      for label, measure, value, x in (
          ('FedAvg', 'global', 31.89, .2), ('FedPer', 'personal', 49.63, .4)))
  found = rows(table_page.heldout([fedavg, fedper]))
  columns = 'published, global (%)', 'published, of clients (%)'
  assert [[found[arm][name] for name in columns] for arm in found] == [
      ['31.89 ± 0.5', ''], ['', '49.63 ± 0.5']]
  assert found['FedPer']['models of clients (%)'].startswith('40.0')
  other = fedavg.published[0]._replace(measure='accuracy')
  only = rows(table_page.heldout([types.SimpleNamespace(
      **vars(fedavg) | {'published': (other,)})]))
  assert not [name for name in only['FedAvg'] if 'published' in name]


def test_accuracies_of_clients_that_diverged_are_not_finite(arms):
  """summary.json has null; the means are those of the other runs."""
  name = 'personal_heldout_accuracy'
  made = [dataclasses.replace(arm, runs={
      seed: run._replace(summary=run.summary | {
          name: value, f'{name}_weighted': value})
      for (seed, run), value in zip(arm.runs.items(), values)})
          for arm, values in zip(arms, ([None] * 3, [.4, None, .5]))]
  section = table_page.heldout([
      dataclasses.replace(arm, published=()) for arm in made])
  assert [row['models of clients (%)'] for row in rows(section).values()] == [
      'not finite', '45.0 ± 7.1 (2 of 3)']
  assert 'Not finite: null in' in section[1]


def test_tasks_without_accuracy_have_their_losses(table, found):
  """The losses are 1 - accuracy, so that the lowest is the best."""
  def of_losses(line):
    line = {**line}
    accuracy = line.pop('test_accuracy', None)
    return line if accuracy is None else line | {'test_loss': 1 - accuracy}

  arms = arms_lib.of_table(table, {
      key: run._replace(lines=[*map(of_losses, run.lines)])
      for key, run in found.items()})
  marked = arms_lib.chosen(arms, ['algorithm.mu'])
  assert [arm.label for arm in marked if arm.is_best] == [
      'MOON, beta 0.1, mu 5', 'MOON, beta 0.5, mu 5']
  page = table_page.make(table._replace(best_of=('algorithm.mu',)), arms, 'c')
  titles = [part for part in page.parts if part[:3] == '## ']
  assert titles[:4] == [
      '## Test loss', '## Differences from the baseline',
      '## Rounds to the loss of the baseline', '## Curves']
  assert [part.name for part in page.parts if not isinstance(part, str)] == [
      'test-loss', 'train-loss']
  name = 'MOON, beta 0.5, mu 5'
  row = rows(table_page.accuracy(arms, is_full=True))[name]
  assert row['ours, last round'] == '0.2817 ± 0.0153'
  assert 'chosen by their loss' in page.parts[3] and 'p, Welch' not in row
  row = rows(table_page.differences(arms))[name]
  assert (row['our difference'], row['verdict']) == ('-0.1083', 'lower')
  assert rows(table_page.rounds_to_baseline(arms))[name]['ours, rounds'] == '6'


def test_published_numbers_have_their_decimals():
  assert [*map(table_page.number, (23., 53.12, .5))] == ['23.0', '53.12', '0.5']


def test_differences_from_the_baseline(arms):
  found = rows(table_page.differences(arms))
  moon, solo = found['MOON, beta 0.5, mu 5'], found['SOLO']
  assert moon['our difference'] == '+10.83' and moon['pairs'] == '3'
  assert moon['published difference'] == '+2.8' and moon['verdict'] == 'higher'
  assert moon['p, Holm'] > moon['p, paired t'] != ''
  assert solo['verdict'] == 'no common seeds' and solo['pairs'] == '0'


def test_rounds_to_the_baseline(arms):
  """The median of 5 evaluated rounds is the later accuracy from round 6 on."""
  found = rows(table_page.rounds_to_baseline(arms))
  assert found['MOON, beta 0.5, mu 5'] == {
      'arm': 'MOON, beta 0.5, mu 5', 'published': '3', 'ours, rounds': '6',
      'target: last round of': 'FedAvg, beta 0.5'}
  assert found['SOLO']['ours, rounds'] == ''


@pytest.mark.parametrize('values, rounds', [
    # MOON's seed 0 diverged: its seed 1 has the target of FedAvg's seed 1.
    (lambda config: (
        ([.9] * 3, 'NaN') if (config.algorithm.name, config.seed) == (
            'moon', 0) else [{'fedavg': (.2, .5, .2), 'moon': (.9, .6, .3)}[
                config.algorithm.name][config.seed]] * 8), '5'),
    # Rounds without evaluation count: the fifth one of MOON is after round 8.
    (lambda config: [.5, .5, None, .5, None, .5, None, .6]
     if config.algorithm.name == 'moon' else [.1] * 7 + [.5], '8')])
def test_rounds_to_the_baseline_of_other_curves(
    values, rounds, table, find):
  found = rows(table_page.rounds_to_baseline(
      arms_lib.of_table(table, find(values))))
  assert found['MOON, beta 0.5, mu 5']['ours, rounds'] == rounds


def test_times_and_commands(arms):
  fedavg = rows(table_page.time(arms, is_timed=False))['FedAvg, beta 0.5']
  assert fedavg['seconds per round'] == '3.00'  # 2, 3 and 4
  assert fedavg['MB per round'] == '4.00'
  section = table_page.commands(arms, 'the command')
  assert '```\nthe command\n```' in section
  commands = dict(zip(section[4::2], section[5::2]))
  fedavg = commands['**FedAvg, beta 0.1**, finished seeds: 0, 1, 2']
  assert "--partition='dirichlet(beta=0.1)'" in fedavg
  assert any("--algorithm='moon(mu=1)'" in command
             for arm, command in commands.items() if 'mu 1*' in arm)
  assert '**SOLO**, finished seeds: none' in commands


def test_stopped_runs_are_no_finished_seeds(tmp_path):
  path = made_runs.write(tmp_path / 'run', is_finished=False)
  section = table_page.commands(
      arms_lib.of_runs([read.read(path)]), 'moon-jax show run', False)
  assert section[4].endswith(', finished seeds: none')


def test_curves_have_a_text_with_their_last_values(arms):
  section = table_page.curves(arms, MEASURES, is_full=True)
  names = [figure.name for figure in section[1:]]
  assert names == ['test-accuracy', 'test-loss', 'train-loss']
  assert 'FedAvg, beta 0.5: 61' in section[1].alt
  assert 'FedAvg, beta 0.5: 0.25' in section[2].alt  # 2 / 8
  assert table_page.curves([], MEASURES) == []


def test_many_curves_have_several_figures_the_best_first(arms, monkeypatch):
  monkeypatch.setattr(table_page, '_MOST_LINES', 4)
  section = table_page.curves(arms, MEASURES, is_full=True)
  assert [figure.name for figure in section[1:5]] == [
      'test-accuracy-1', 'test-accuracy-2', 'test-loss-1', 'test-loss-2']
  firsts, rests = (
      [float(value) for value in re.findall(r': ([\d.]+)(?:;|\.$)', figure.alt)]
      for figure in section[1:3])
  assert len(firsts) == 4 and min(firsts) >= max(rests)
  assert 'ranks 1 to 4' in section[1].alt.lower()


def test_a_page_names_its_budget_and_what_is_missing(table, arms):
  page = table_page.make(table, arms, 'the command')
  assert page.banner == ('FULL BUDGET: dataset digits; num_rounds 8; '
                         'local_epochs 10; 21 runs.')
  assert '18 of 21 runs have ended' in page.parts[1]
  assert [part.removeprefix('## ') for part in page.parts
          if part[:3] == '## '] == [
      'Test accuracy', 'Differences from the baseline',
      'Rounds to the accuracy of the baseline', 'Curves',
      'Time and communication', 'Notes', 'Commands']
  assert not page_checks.errors(page.html())
  # No run has ended, at another budget.
  page = table_page.make(table._replace(budget='smoke', changed=True),
                    arms_lib.of_table(table, {}), 'c')
  assert page.banner.startswith('SMOKE BUDGET, CHANGED: dataset digits; num_')
  assert 'nothing about the methods' in page.banner
  assert not page_checks.errors(page.html()) and '## Curves' not in page.parts


def test_rows_that_were_chosen_are_bold(arms):
  arms[1] = dataclasses.replace(arms[1], is_best=True)
  _, table = table_page.accuracy(arms, is_full=False)
  bold = [line[:4] == '| **' for line in table.splitlines()[4:]]
  assert bold == [False, True, *[False] * 5]
  assert 'chosen by their accuracy' in table


def test_diverged_runs_are_listed(table, found):
  arms = arms_lib.of_table(table, {
      key: run._replace(state=State('diverged', '', 'NaN in round 3'))
      if i == 0 else run
      for i, (key, run) in enumerate(found.items())})
  fedavg = rows(table_page.accuracy(arms, is_full=True))['FedAvg, beta 0.1']
  assert fedavg['runs'] == '2 of 3 (1 diverged)'
  assert ('| FedAvg, beta 0.1 | 0 | `NaN in round 3` |'
          in table_page.commands(arms, 'x')[-1])


@pytest.mark.parametrize('p_values, text', [
    ([.01, math.nan, math.nan, math.nan, math.nan],
     'adjusted for 1 comparison.'),
    ([.01, .2, math.nan, math.nan, math.nan], 'adjusted for 2 comparisons.')])
def test_comparisons_are_counted(p_values, text, monkeypatch, arms):
  monkeypatch.setattr(table_page.paired, 'holm', lambda values: p_values)
  assert text in table_page.differences(arms)[1]
