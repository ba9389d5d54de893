"""Arms of a table, their baselines and their published values."""

import dataclasses
import json
import math

import invented_runs
import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.report import groups
from moon_jax.report import table_file
from moon_jax.results import paired

TEXT = """
title = "Methods"
baseline = {algorithm = "fedavg"}
dataset = "digits"
model = "mlp"
num_rounds = 3
beta = [0.1, 0.5]
seed = [0, 1, 2]

[[runs]]
algorithm = "fedavg"

[[runs]]
algorithm = "moon"
mu = [1, 5]

[[published]]
algorithm = "moon"
beta = 0.5
mu = 5
accuracy = 69.1
std = 0.4

[[published]]
algorithm = "fedavg"
beta = 0.5
accuracy = 66.3
std = 0.5

[budget.smoke]
beta = 0.5
"""
ACCURACY = {('fedavg', .1): .5, ('fedavg', .5): .6, ('moon', .1): .55,
            ('moon', .5): .7}


@pytest.fixture
def path(tmp_path):
  path = tmp_path / 'a.toml'
  path.write_text(TEXT)
  return str(path)


def accuracy(config):
  """Differs by method, beta, mu and, differently for both methods, seed."""
  noise = {'fedavg': (0, .02, .01), 'moon': (.01, 0, .03)}[config.algorithm]
  return (ACCURACY[config.algorithm, config.beta] + config.mu / 1000
          + noise[config.seed])


@pytest.fixture
def arms(path, tmp_path):
  table = table_file.read(path)
  (tmp_path / 'runs').mkdir()
  for config in table.sweep.configs:
    final = accuracy(config)
    invented_runs.write(tmp_path / 'runs', config, [.1, None, final])
  return groups.of_table(table, groups.find([tmp_path / 'runs']))


def test_rows_are_settings_and_runs_are_seeds(arms):
  assert [tuple(arm.settings.values()) for arm in arms] == [
      ('FedAvg', '0.1', '–'), ('FedAvg', '0.5', '–'),
      ('MOON', '0.1', '1'), ('MOON', '0.5', '1'),
      ('MOON', '0.1', '5'), ('MOON', '0.5', '5')]
  assert list(arms[0].settings) == ['algorithm', 'beta', 'mu']
  assert [len(arm.runs) for arm in arms] == [3] * 6
  values = arms[5].values('test_accuracy')
  assert values == {(s, -1): pytest.approx(100 * (.705 + d))
                    for s, d in enumerate((.01, 0, .03))}
  assert arms[5].values('test_accuracy', 2)[1, -1] == pytest.approx(
      (10 + 70.5) / 2)  # round 2 was not evaluated
  np.testing.assert_allclose(
      arms[5].curves('test_accuracy')[1], [10, np.nan, 70.5])


def test_labels_name_what_distinguishes_arms(arms):
  assert [arm.label for arm in arms] == [
      'FedAvg, beta 0.1', 'FedAvg, beta 0.5', 'MOON, beta 0.1, mu 1',
      'MOON, beta 0.5, mu 1', 'MOON, beta 0.1, mu 5', 'MOON, beta 0.5, mu 5']


def test_published_values_are_those_of_the_settings(arms):
  assert [[value.value for value in arm.published] for arm in arms] == [
      [], [66.3], [], [], [], [69.1]]


def test_budgets_that_replace_a_setting_keep_its_published_values(path):
  arms = groups.of_table(table_file.read(path, 'smoke'), {})
  assert {arm.label: [value.value for value in arm.published]
          for arm in arms} == {'FedAvg': [66.3], 'MOON, mu 1': [],
                               'MOON, mu 5': [69.1]}


def test_baselines_agree_in_the_other_settings(arms):
  found = [groups.baseline_of(arm, arms) for arm in arms]
  assert found[:2] == [None, None]
  assert [baseline.label for baseline in found[2:]] == (
      ['FedAvg, beta 0.1', 'FedAvg, beta 0.5'] * 2)


def test_the_best_mu_of_each_row(arms):
  of_any_mu = arms[5].published
  arms[3] = dataclasses.replace(arms[3], published=of_any_mu)
  marked, best = groups.chosen(arms, ['mu'])
  assert [arm.label for arm in best] == [
      'MOON, beta 0.1, mu 5', 'MOON, beta 0.5, mu 5']
  assert [bool(arm.published) for arm in marked] == [
      False, True, False, False, False, True]


def test_comparisons_are_paired_over_seeds(arms):
  """Against SciPy's paired t test on the same numbers."""
  found = groups.with_baselines(arms)
  assert len(found) == 4
  last = found[-1]
  expected = paired.compare([71.5, 70.5, 73.5], [60, 62, 61])
  assert last.pairs.mean == pytest.approx(expected.mean)
  assert (last.pairs.low, last.pairs.high) == pytest.approx(
      (expected.low, expected.high))
  assert last.published == pytest.approx(2.8)
  assert [c.published for c in found[:-1]] == [None] * 3
  assert [c.holm_p for c in found] == pytest.approx(
      paired.holm([c.pairs.p_value for c in found]))


def test_diverged_runs_are_left_out_of_pairs(path, tmp_path):
  table = table_file.read(path, 'smoke')
  (tmp_path / 'runs').mkdir()
  for config in table.sweep.configs:
    invented_runs.write(
        tmp_path / 'runs', config, [accuracy(config)],
        diverged='NaN' * (config.algorithm == 'fedavg' and config.seed == 1))
  arms = groups.of_table(table, groups.find([tmp_path / 'runs']))
  compared = groups.with_baselines(arms)
  assert [len(c.pairs.differences) for c in compared] == [2, 2]
  assert arms[0].num_ended == 3 and len(arms[0].runs) == 2


def test_deviations_from_published_values():
  """The interval holds 0 where p is above 5%."""
  ours = [68.2, 71.6, 68.0]
  found = paired.welch(ours, 66.3, .5, 3)
  assert (found.low < 0) == (found.p_value > .05)
  assert found.low + found.high == pytest.approx(2 * found.difference)
  # At the edge: a mean that differs by the half-width has p = 0.05.
  assert paired.welch(ours, 66.3 + found.low, .5).p_value == pytest.approx(.05)
  assert math.isnan(paired.welch([68.2], 66.3, .5, 3).low)
  assert math.isnan(paired.welch(ours, 66.3).p_value)


@pytest.mark.parametrize('differences, words', [
    ([1.], 'one pair'), ([1., 1.2, .9], 'higher'),
    ([-1., -1.2, -.9], 'lower'),
    ([1., -1.2, .9], 'open'), ([.1, -.1, .05, -.02], 'within ±1 point'),
    ([0., 0.], 'equal in all pairs'),
    ([2., 2.], 'same difference in all pairs')])
def test_verdicts(differences, words):
  assert paired.verdict(paired.compare(
      differences, [0] * len(differences)), .01) == words
  if words in ('higher', 'lower'):
    assert paired.verdict(paired.compare(
        differences, [0] * len(differences)), .1) == (
            f"{words} (not by Holm's p)")


def test_equal_differences_have_no_test(arms):
  """Two equal differences, from few test examples, are no evidence."""
  for run in arms[1].runs.values():
    run.lines[-1]['test_accuracy'] = .5
  for arm in arms[3], arms[5]:
    for run in arm.runs.values():
      run.lines[-1]['test_accuracy'] = .6
  found = groups.with_baselines(arms)
  assert [math.isnan(c.holm_p) for c in found] == [False, True, False, True]
  assert math.isnan(found[1].pairs.low)
  assert paired.verdict(found[1].pairs, math.nan) == (
      'same difference in all pairs')


def test_groups_with_unfinished_runs_have_no_best(arms):
  arms[3].runs.popitem()
  marked, best = groups.chosen(arms, ['mu'])
  assert [arm.label for arm in best] == ['MOON, beta 0.1, mu 5']
  assert marked[5].published


# Finding finished runs.

FEDAVG = Config(dataset='digits', algorithm='fedavg', num_rounds=2)


def of(configs, found):
  return [found.get(groups.key(config)) for config in configs]


def test_runs_are_found_by_what_decides_their_results(tmp_path):
  """A mu without effect, the directory and the hardware do not count."""
  invented_runs.write(tmp_path, FEDAVG, [.1, .2])
  found = groups.find([tmp_path])
  same = dataclasses.replace(FEDAVG, mu=5., lanes=2, checkpoint_every=1,
                             data_dir='elsewhere')
  other = dataclasses.replace(FEDAVG, seed=1)
  run, none = of([same, other], found)
  assert none is None and run.summary['test_accuracy'] == .2
  assert [line['test_accuracy'] for line in run.lines] == [.1, .2]


def test_runs_that_exclude_clients_are_others(tmp_path):
  """--on_nan may change when a run resumes, but it changes groups."""
  skips = dataclasses.replace(FEDAVG, on_nan='skip_client')
  for config, accuracy in (FEDAVG, .1), (skips, .2):
    invented_runs.write(tmp_path, config, [accuracy])
  found = of([FEDAVG, skips], groups.find([tmp_path]))
  assert [run.summary['test_accuracy'] for run in found] == [.1, .2]


def test_the_first_directory_counts(tmp_path):
  for name, accuracy in (('a', .1), ('b', .2)):
    (tmp_path / name).mkdir()
    invented_runs.write(tmp_path / name, FEDAVG, [accuracy])
  found = groups.find([tmp_path / 'b', tmp_path / 'a'])
  assert of([FEDAVG], found)[0].summary['test_accuracy'] == .2


def test_configurations_of_other_versions_are_read(tmp_path):
  path = invented_runs.write(tmp_path, FEDAVG, [.1])
  content = json.loads((path / 'config.json').read_text())
  del content['shuffle'], content['workdir']
  content |= {'inputs': {}, 'a_later_flag': 1}
  (path / 'config.json').write_text(json.dumps(content))
  assert of([FEDAVG], groups.find([tmp_path]))[0]


def test_a_run_that_was_extended_has_not_ended_before_its_last_round(tmp_path):
  """summary.json is of the rounds before --num_rounds was raised."""
  path = invented_runs.write(tmp_path, FEDAVG, [.1, .2])
  assert groups.find([tmp_path])
  summary = json.loads((path / 'summary.json').read_text())
  (path / 'summary.json').write_text(json.dumps(summary | {'rounds': 1}))
  assert not groups.find([tmp_path])


def test_unfinished_and_diverged_runs(tmp_path):
  path = invented_runs.write(tmp_path, FEDAVG, [.1])
  (path / 'summary.json').unlink()
  assert not groups.find([tmp_path])
  (path / 'diverged.json').write_text('{"error": "NaN", "rounds": 1}')
  run, = groups.find([tmp_path]).values()
  assert run.state.kind == 'diverged' and run.state.reason == 'NaN'


@pytest.mark.parametrize('name', [
    'config.json', 'metrics.jsonl', 'summary.json'])
def test_damaged_files_are_errors(name, tmp_path):
  path = invented_runs.write(tmp_path, FEDAVG, [.1])
  (path / name).write_text('{\n')
  with pytest.raises(UserError, match=f'{name}.* must .*restore it from a'):
    groups.find([tmp_path])


def test_a_missing_directory_is_an_error(tmp_path):
  with pytest.raises(UserError, match='no must be a directory .*--runs name'):
    groups.find([tmp_path / 'no'])


def test_normalized_configurations_can_be_commands():
  config = dataclasses.replace(FEDAVG, mu=5., temperature=2.)
  assert '--mu' not in groups.normalized(config).command()
  assert '--temp' not in groups.normalized(config).command()
