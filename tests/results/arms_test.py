"""Arms of a table, their baselines and their published values."""

import dataclasses
import json
import types

import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.errors import UserError
from moon_jax.results import arms as arms_lib
from moon_jax.results import read, table_page
from moon_jax.simulation import checks
from support import made_runs


def test_arms_have_the_order_of_numbers_within_calls():
  calls = ['moon(mu=10)', 'moon', 'fedavg', 'moon(mu=1)', 'moon(mu=5)',
           'moon(mu=0.5)', 'moon(mu=1e-05)', '10', '9']
  arms = [types.SimpleNamespace(settings={'algorithm': x}) for x in calls]
  assert [arm.settings['algorithm'] for arm in sorted(
      arms, key=arms_lib.order)] == [
          '9', '10', 'fedavg', 'moon', 'moon(mu=1e-05)', 'moon(mu=0.5)',
          'moon(mu=1)', 'moon(mu=5)', 'moon(mu=10)']


def test_rows_are_settings_and_runs_are_seeds(arms):
  assert [tuple(arm.settings.values()) for arm in arms] == [
      ('fedavg', '0.1', '–'), ('fedavg', '0.5', '–'),
      ('moon', '0.1', '1'), ('moon', '0.5', '1'),
      ('moon', '0.1', '5'), ('moon', '0.5', '5'), ('solo', '0.5', '–')]
  assert list(arms[0].settings) == [
      'algorithm', 'partition.beta', 'algorithm.mu']
  assert [len(arm.runs) for arm in arms] == [3] * 6 + [0]
  assert arms[5].values() == {
      (s, s): pytest.approx(100 * (.705 + d))
      for s, d in enumerate((.01, 0, .03))}
  assert arms[5].values(num_rounds=7)[1, 1] == pytest.approx(
      (2 * 10 + 5 * 70.5) / 7)  # round 2 was not evaluated
  np.testing.assert_allclose(
      arms[5].curves().iloc[:, 1], [10, np.nan, 10, *[70.5] * 5])
  # Labels name what distinguishes arms.
  assert [arm.label for arm in arms] == [
      'FedAvg, beta 0.1', 'FedAvg, beta 0.5', 'MOON, beta 0.1, mu 1',
      'MOON, beta 0.5, mu 1', 'MOON, beta 0.1, mu 5', 'MOON, beta 0.5, mu 5',
      'SOLO']
  assert arms[5].label_without(['partition.beta']) == 'MOON, mu 5'
  assert [[value.value for value in arm.published] for arm in arms] == [
      [], [66.3], [], [], [], [69.1, 3], []]
  # Baselines agree in the other settings.
  found = [table_page.baseline_of(arm, arms) for arm in arms]
  assert found == [None, None, *arms[:2], *arms[:2], arms[3]]


@pytest.mark.parametrize('is_finished', [True, False])
def test_the_best_mu_of_each_row(is_finished, arms):
  """A row with unfinished runs has no best."""
  arms[3] = dataclasses.replace(
      arms[3], published=arms[5].published,
      runs=arms[3].runs if is_finished else {})
  marked = arms_lib.chosen(arms, ['algorithm.mu'])
  assert [arm.label for arm in marked if arm.is_best] == [
      'MOON, beta 0.1, mu 5', 'MOON, beta 0.5, mu 5'][:1 + is_finished]
  assert [bool(arm.published) for arm in marked] == [
      False, True, False, not is_finished, False, True, False]


def test_a_budget_keeps_published_values_and_diverged_runs_are_left_out(
    read, find):
  table = read('smoke')
  arms = arms_lib.of_table(table, find(lambda c: (
      [.5], 'NaN' * (c.algorithm.name == 'fedavg' and c.seed == 1)), table))
  # The budget replaces beta, by which they are selected.
  assert {arm.label: [value.value for value in arm.published]
          for arm in arms} == {'FedAvg': [66.3], 'MOON, mu 1': [],
                               'MOON, mu 5': [69.1, 3],
                               'SOLO, local_epochs 6': []}
  assert len(arms[0].members) == 3 and len(arms[0].runs) == 2
  assert len(arms_lib.compare(arms[1], arms[0]).differences) == 2


# Finding finished runs.

FEDAVG = Config(dataset='digits', algorithm='fedavg', num_rounds=2)


def write(path, values, is_finished=True, **fields):
  return made_runs.write(path, values, is_finished,
                         **FEDAVG.to_dict() | fields)


def of(configs, found):
  """Returns the last accuracies of the runs of configurations."""
  runs = [found.get(key) for key in arms_lib.keys(configs)]
  return [run and run.values('test_accuracy')[-1] for run in runs]


def test_runs_are_found_by_what_decides_their_results(tmp_path):
  """How a call is written, the directory and the hardware do not count."""
  write(tmp_path / 'a' / 'run', [.1, .2])
  write(tmp_path / 'a' / 'skips', [.3], on_nan='skip_client')
  write(tmp_path / 'a' / 'unfinished', [.5], is_finished=False, seed=1)
  path = write(tmp_path / 'b' / 'run', [.4])
  # A configuration of another version.
  content = json.loads((path / 'config.json').read_text())
  del content['shuffle'], content['workdir']
  content |= {'inputs': {}, 'a_later_flag': 1}
  (path / 'config.json').write_text(json.dumps(content))
  same = checks.validate(dataclasses.replace(
      FEDAVG, partition='dirichlet(beta=0.5)', lanes=2, checkpoint_every=1,
      data_dir='elsewhere'))
  configs = [same, *(dataclasses.replace(FEDAVG, **change) for change in (
      {'seed': 1}, {'on_nan': 'skip_client'}))]
  found = arms_lib.find([tmp_path / 'a', tmp_path / 'b'])
  assert of(configs, found) == [.2, None, .3]
  found = arms_lib.find([tmp_path / 'b', tmp_path / 'a'])
  assert of(configs, found) == [.4, None, .3]  # the first directory counts


def with_inputs(path, **inputs):
  config = json.loads((path / 'config.json').read_text())
  (path / 'config.json').write_text(json.dumps(config | {'inputs': inputs}))
  return read.read(path)


def test_a_run_from_a_file_is_not_one_without(tmp_path):
  """Nor is the path of the file a setting."""
  runs = [with_inputs(write(tmp_path / f'{i}', [.1], init_from=path, seed=seed),
                      **({'init_from': content} if content else {}))
          for i, (path, content, seed) in enumerate([
              ('', '', 0), ('', '', 1), ('a', 'f00', 0), ('b', 'f00', 1)])]
  assert [len(arm.runs) for arm in arms_lib.of_runs(runs)] == [2, 2]
  assert arms_lib.differing(runs) == ['content of init_from']
  key = lambda run: arms_lib.key(
      dataclasses.replace(run.config, seed=0), run.inputs)
  assert key(runs[0]) != key(runs[2]) == key(runs[3])


def test_a_finished_run_has_nobody_to_skip(tmp_path):
  """And the split of its seed is that of no split seed."""
  write(tmp_path / 'run', [.1, .2])
  found = arms_lib.find([tmp_path])
  assert of([dataclasses.replace(FEDAVG, on_nan='skip_client'),
             dataclasses.replace(FEDAVG, partition_seed=FEDAVG.seed)],
            found) == [.2, .2]


def test_a_missing_directory_is_an_error(tmp_path):
  with pytest.raises(UserError, match='no must be a directory that holds'):
    arms_lib.find([tmp_path / 'no'])


def test_runs_are_grouped_by_what_they_read(tmp_path):
  """A module that was edited since, or is gone, hides no run.

  Runs that record other rounds share a row; a repeated run counts once.
  """
  made = [({'seed': 1}, '', [.4]), ({}, '', [.2]), ({'seed': 1}, '', [.5]),
          ({'eval_every': 2}, '', [.7]), ({}, 'f00', [.3]), ({}, 'ba5', [.6]),
          *[({'seed': 1, 'diverged': 'NaN'}, 'ba5', [.1])] * 2]
  for i, (fields, content, accuracies) in enumerate(made):
    path = write(tmp_path / f'{i}', accuracies, **fields) / 'config.json'
    config = json.loads(path.read_text())
    if content:
      config['algorithm'] = 'gone_now:own(a=1)'
    path.write_text(json.dumps(config | {
        'inputs': {'algorithm': content} if content else {}}))
  runs = [read.read(path) for path in read.find([str(tmp_path)])]
  arms = arms_lib.of_runs(runs)
  assert {arm.label: ([*arm.values().values()], len(arm.others))
          for arm in arms} == {
      'FedAvg': ([40., 20.], 2),
      'gone_now:own, content of algorithm ba5': ([60.], 2),
      'gone_now:own, content of algorithm f00': ([30.], 0)}
  assert [arms_lib.baseline_of(arm, arms, {'algorithm': 'fedavg'})
          for arm in arms] == [None, arms[0], arms[0]]


def test_the_baseline_of_an_own_algorithm_may_be_in_another_file():
  """The contents of two files differ; so may those of no other setting."""
  def arm(algorithm, **settings):
    return types.SimpleNamespace(
        config=Config(algorithm=algorithm),
        settings={'algorithm': algorithm, **settings})

  wanted = {'algorithm': 'mine:plain'}
  other = {'content of dataset': '4'}
  base, far = arm('mine:plain', **{'content of algorithm': '1'}, **other), arm(
      'mine:plain', **{'content of algorithm': '1', 'content of dataset': '5'})
  better = arm('mine2:better', **{'content of algorithm': '2'}, **other)
  assert arms_lib.baseline_of(better, [far, base, better], wanted) is base
  assert arms_lib.baseline_of(base, [far, base, better], wanted) is None
