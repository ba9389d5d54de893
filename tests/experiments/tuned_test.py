"""Tests of the tuned comparison on made-up runs."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from experiments import kept
from experiments.full import run as run_lib
from experiments.full import tuned
from moon_jax.results import read
from support import made_runs
from support.docs_pages import ROOT

GLOBAL, PERSONAL = ([x for x in tuned.searches() if x.beta == '0.5'
                     and x.is_personal == kind] for kind in (False, True))


def settings(search):
  """Returns fields of a configuration with a value of each range."""
  axes = {name: tuned.search_lib.axis(name, text, name).at(.5)
          for name, text in search.ranges.items()}
  fields = {'learning_rate': axes.pop('learning_rate'), 'algorithm': next(
      x for x in search.run.flags if x.startswith('--algorithm'))[12:]}
  if search.method == 'fedadam':
    fields['server'] = 'adam'
  for name, value in axes.items():
    kind, _, argument = name.partition('.')
    fields[kind] += f'({argument}={value})'
  return fields


def write(root, search, accuracies, diverged=(), **others):
  """Writes the runs of a search: its trials, and percents by seed."""
  metric = tuned._ENDPOINTS[search.is_personal]
  fields = {'num_rounds': 4} | settings(search)
  for trial in (1, 2):
    made_runs.write(root / f'{search.name}-trial{trial}', [.1],
                    is_finished=False, **fields)
  for seed, value in zip(tuned.SEEDS, accuracies):
    path = root / f'{search.name}-seed{seed}'
    made_runs.write(
        path, [.05], seed=seed, more={metric: value if value is None else
                                      value / 100},
        diverged='nan' * (seed in diverged), **fields | others)


def read_all(root):
  return {path.name: read.read(path) for path in root.iterdir()}


def test_the_searches_are_those_of_the_amendment():
  assert [len(x) for x in (GLOBAL, PERSONAL, tuned.searches())] == [11, 6, 34]
  assert GLOBAL[0].title == 'FedAvg' and PERSONAL[0].title == 'FedAvg-FT'
  assert {len(x.ranges) for x in tuned.searches()} == {1, 2}
  text = (tuned.FILE.parent / 'full' / 'AMENDMENT_4.md').read_text()
  assert f'commit {tuned.COMMIT},' in text


def holm(p):
  order, adjusted = np.argsort(p), np.empty(len(p))
  adjusted[order] = np.minimum(1, np.maximum.accumulate(
      np.array(p)[order] * np.arange(len(p), 0, -1)))
  return adjusted


@pytest.mark.parametrize('members', [GLOBAL, PERSONAL])
def test_a_family_has_its_baseline_and_holms_p(tmp_path, members):
  rng = np.random.default_rng(0)
  base = np.array([60., 61, 62])
  values = [base, *(base + i - 1 + rng.normal(size=3) / (50 if i in (3, 4)
                                                         else 1)
                    for i in range(1, len(members)))]
  for search, accuracies in zip(members, values):
    write(tmp_path, search, accuracies.tolist())
  found = tuned.family(
      tuned.results(read_all(tmp_path)), '0.5', members is PERSONAL)
  d = [x - base for x in values[1:]]
  p = [scipy_stats.ttest_1samp(x, 0).pvalue for x in d]
  assert [x.result.search for x in found] == members
  np.testing.assert_allclose([x.comparison.mean for x in found[1:]],
                             np.mean(d, 1))
  np.testing.assert_allclose([x.holm_p for x in found[1:]], holm(p))
  assert [x.verdict for x in found] == ['', *(
      'open' if q >= .05 else 'higher' for q in holm(p))]
  assert {'open', 'higher'} <= {x.verdict for x in found}
  rows = tuned.table(found).splitlines()[2:]
  assert rows[0].startswith(f'| {members[0].title} | learning rate 0.03')
  assert rows[0].count('61.0 ± 1.0') == 1
  order = np.argsort([-x.mean() for x in values[1:]])
  assert [row.split(' | ')[0][2:] for row in rows[1:]] == [
      members[i + 1].title for i in order]


def test_a_family_is_not_shown_before_its_last_search(tmp_path):
  for search in GLOBAL[1:]:
    write(tmp_path, search, [60., 61, 62])
  runs = read_all(tmp_path)
  assert len(tuned.results(runs)) == 10
  assert tuned.family(tuned.results(runs), '0.5', False) == []


def test_divergence_is_chance_and_no_result_is_no_difference(tmp_path):
  fedavg, fedprox, scaffold, *others = GLOBAL
  write(tmp_path, fedavg, [60., 61, 63])
  write(tmp_path, fedprox, [70., 71, 72], diverged=(2,))
  for trial in (1, 2):
    made_runs.write(tmp_path / f'{scaffold.name}-trial{trial}', [.1],
                    diverged='nan', num_rounds=4, **settings(scaffold))
  for search in others:
    write(tmp_path, search, [60., 61, 63])  # equal: no p-value
  found = tuned.results(read_all(tmp_path))
  assert found[1].accuracies == pytest.approx((70, 10, 72))
  assert found[1].diverged == 1
  tested = tuned.family(found, '0.5', False)
  p = scipy_stats.ttest_rel([70, 10, 72], [60, 61, 63]).pvalue
  assert tested[1].holm_p == pytest.approx(min(1, 10 * p))
  assert {x.holm_p for x in tested[2:]} == {1.}
  assert {x.verdict for x in tested[1:]} == {'open'}
  rows = {row.split(' | ')[0][2:]: row
          for row in tuned.table(tested).splitlines()}
  assert '| nothing | 2 of 2 | no result |' in rows['SCAFFOLD']
  assert '(1 diverged)' in rows['FedProx']
  assert list(rows)[-1] == 'SCAFFOLD'


def test_a_client_that_diverged_makes_the_mean_over_clients_chance(tmp_path):
  write(tmp_path, PERSONAL[1], [80., None, 82])
  found, = tuned.results(read_all(tmp_path))
  assert found.accuracies == pytest.approx((80, 10, 82))
  assert found.diverged == 1


@pytest.mark.parametrize('change, words', [
    ('setting', 'different settings'), ('seed', 'lacks runs of the seeds'),
    ('rounds', 'has 3 of 4 rounds'), ('none', 'no run with a new seed')])
def test_runs_that_are_not_of_one_search_are_refused(tmp_path, change, words):
  search = GLOBAL[3]
  write(tmp_path, search, [] if change == 'none' else [60., 61, 62][
      :2 if change == 'seed' else 3])
  if change in ('setting', 'rounds'):
    path = tmp_path / f'{search.name}-seed3'
    for file in path.iterdir():
      file.unlink()
    path.rmdir()
    fields = settings(search) | {'num_rounds': 4}
    made_runs.write(path, [.1] * 3 if change == 'rounds' else [.1], seed=3,
                    is_finished=change == 'setting', **fields | (
                        {'learning_rate': .2} if change == 'setting' else {}))
  with pytest.raises(ValueError, match=words):
    tuned.results(read_all(tmp_path))


def test_finished_searches_are_collected_and_not_trained_again(
    tmp_path, monkeypatch):
  search, other = GLOBAL[0], GLOBAL[1]
  root, fields = tmp_path / 'out' / search.name, settings(search)
  rows = [(True, 0, 'a'), (True, 0, 'b'), (False, 1, 'c'), (False, 2, 'd'),
          (False, 3, 'e')]
  for is_trial, seed, name in rows:
    made_runs.write(root / name, [.1], is_finished=not is_trial, seed=seed,
                    num_rounds=4, **fields)
  made_runs.write(tmp_path / 'out' / other.name / 'a', [.1], is_finished=False)
  table = root / 'tuning' / 'x' / 'tune.csv'
  assert not run_lib.is_finished(root, search.run)
  table.parent.mkdir(parents=True)
  pd.DataFrame([{'is_trial': is_trial, 'seed': seed,
                 'workdir': f'/elsewhere/{name}'}
                for is_trial, seed, name in rows]).to_csv(table, index=False)
  assert run_lib.is_finished(root, search.run)
  tables = tmp_path / 'tuned_comparison'
  tuned.collect(tmp_path / 'out', tables)
  monkeypatch.setattr(kept, 'RESULTS', tmp_path)
  monkeypatch.setattr(tuned, 'TABLES', tables)
  kept.runs.cache_clear()
  kept.directory.cache_clear()
  try:
    found, = tuned.kept_results()
    assert set(kept.runs('tuned_comparison')) == {
        f'{search.name}-{x}' for x in (
            'trial1', 'trial2', 'seed1', 'seed2', 'seed3')}
    assert found.accuracies == pytest.approx((10, 10, 10))
    assert tuned.report().startswith('1 of 34 searches')
    trained = []
    monkeypatch.setattr(run_lib, 'of_commit', lambda _, runs: runs)
    monkeypatch.setattr(run_lib.os, 'nice', lambda _: None)
    monkeypatch.setattr(run_lib, 'train_all', lambda runs, *_: trained.extend(
        run.name for run in runs))
    monkeypatch.setattr(
        'sys.argv', ['tuned', '--data_dir=d', f'--out={tmp_path}', '--code=c',
                     '--match=fed.*0.5$'])
    tuned.main()
    assert trained == [x.name for x in (*GLOBAL, *PERSONAL)
                       if x.name.startswith('fed')][1:]
  finally:
    kept.runs.cache_clear()
    kept.directory.cache_clear()


@pytest.mark.parametrize('search', [GLOBAL[8], PERSONAL[0]],
                         ids=lambda search: search.name)
def test_a_search_has_the_trials_of_the_amendment(tmp_path, search):
  done = subprocess.run(
      [sys.executable, '-m', 'moon_jax.train',
       '--flagfile=experiments/cifar10.flags', f'--workdir={tmp_path}',
       *search.run.flags, '--dataset=digits', '--model=mlp', '--dry_run'],
      cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert ('trials: 9 up to round 10, 3 up to round 30, 1 up to round 90, 210 '
          'rounds; new seeds: 3 up to round 90, 270 rounds') in done.stdout
