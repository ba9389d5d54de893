"""Tests of the tuned comparison on made-up runs."""

import json
import shutil
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
from moon_jax.tuning import search as search_lib
from support import made_runs
from support.docs_pages import ROOT

GLOBAL, PERSONAL = ([x for x in tuned.searches() if x.beta == '0.5'
                     and x.is_personal == kind] for kind in (False, True))
BASELINES = GLOBAL[0], PERSONAL[0]
FEW = *GLOBAL[:6], *PERSONAL[:3]  # each run takes time to write and to read


@pytest.fixture
def few(monkeypatch):
  """A comparison of the searches FEW, of two trials each."""
  monkeypatch.setattr(tuned, 'searches', lambda: FEW)
  monkeypatch.setattr(tuned, 'NUM_TRIALS', 2)


def fields_of(search):
  """Returns fields of a configuration with a value of each range."""
  fields = {**search.settings, 'seed': 0}
  for name, text in search.ranges.items():
    value = tuned.values.show(search_lib.axis(name, text, name).at(.5))
    kind, _, argument = name.partition('.')
    if argument:
      call = fields[kind].rstrip(')')
      fields[kind] = f'{call}{", " if "(" in call else "("}{argument}={value})'
    else:
      fields[name] = float(value)
  return fields


def write_run(path, search, values, diverged='', **others):
  """Writes a run with values of its last evaluations, percents or None."""
  fields = fields_of(search) | others
  made_runs.write(path, [.05] * fields['num_rounds'], diverged=diverged,
                  **fields)
  lines = [json.loads(line) for line in (
      path / 'metrics.jsonl').read_text().splitlines()]
  ends = range(len(lines), len(lines) - 8 * len(values), -8)
  for line in lines:
    line.pop('test_accuracy')
    if line['round'] in ends:
      value = values[ends.index(line['round'])]
      for name in (tuned._ENDPOINTS[search.is_personal],
                   tuned._CHOOSES[search.is_personal]):
        line[name] = value if value is None else value / 100
  (path / 'metrics.jsonl').write_text(''.join(
      json.dumps(line) + '\n' for line in lines))


def write(root, search, accuracies):
  """Writes the runs of a search: its trials, and percents by seed."""
  for trial in range(1, tuned.NUM_TRIALS + 1):
    write_run(root / f'{search.name}-trial{trial}', search, [30.])
  for seed, value in zip(tuned.SEEDS, accuracies):
    write_run(root / f'{search.name}-seed{seed}', search,
              [value, value + 3, value - 3, 0.], seed=seed)


def read_all(root):
  return {path.name: read.read(path) for path in root.iterdir()}


def test_the_searches_are_those_of_the_amendment():
  assert [len(x) for x in (GLOBAL, PERSONAL, tuned.searches())] == [11, 6, 34]
  assert {len(x.ranges) for x in tuned.searches()} == {1, 2}
  text = (tuned.FILE.parent / 'full' / 'AMENDMENT_4.md').read_text()
  assert all(commit in text for commit in tuned.COMMITS)


def holm(p):
  order, adjusted = np.argsort(p), np.empty(len(p))
  adjusted[order] = np.minimum(1, np.maximum.accumulate(
      np.array(p)[order] * np.arange(len(p), 0, -1)))
  return adjusted


def test_a_family_has_two_baselines_and_holms_p(
    tmp_path, few, monkeypatch):
  rng, base = np.random.default_rng(0), np.array([60., 61, 62, 63, 64])
  members, made = FEW, {}
  for i, search in enumerate(members):
    made[search.name] = base + 10 * search.is_personal
    if search not in BASELINES:
      made[search.name] += i - 4 + rng.normal(size=5) * (
          .05 if i in (2, 8) else 3)
    write(tmp_path, search, made[search.name].tolist())
  found = tuned.tests(tuned.results(read_all(tmp_path)), '0.5')
  others = [x for x in members if x not in BASELINES]
  d = [made[x.name] - made[BASELINES[x.is_personal].name] for x in others]
  p = holm([scipy_stats.ttest_1samp(x, 0).pvalue for x in d])
  assert [x.result.search for x in found] == [*BASELINES, *others]
  assert [x.verdict for x in found[:2]] == ['', '']
  np.testing.assert_allclose(
      [x.comparison.mean for x in found[2:]], np.mean(d, 1))
  np.testing.assert_allclose([x.holm_p for x in found[2:]], p)
  verdicts = ['open' if q >= .05 else 'higher' if x.mean() > 0 else 'lower'
              for q, x in zip(p, d)]
  assert [x.verdict for x in found[2:]] == verdicts
  assert {*verdicts} == {'open', 'higher', 'lower'}
  rows = [row.split(' | ') for row in tuned.table(
      [x for x in found if not x.result.search.is_personal]).splitlines()[2:]]
  assert [row[0][2:] for row in rows] == [x.title for x in GLOBAL[:6]]
  assert rows[0][1:6] == ['learning rate 0.01732', '0 of 2', '2 of 2', '30.0',
                           '62.0 ± 1.6']
  assert rows[0][-1] == ' |' and rows[1][6] == f'{d[0].mean():+.1f}'
  assert tuned.tests(tuned.results(read_all(tmp_path)), '0.1') == []
  monkeypatch.setattr(tuned, 'kept_results', lambda: tuned.results(
      read_all(tmp_path)))
  low, high = scipy_stats.t.interval(
      .95, 4, np.mean(d, 1), np.std(d, 1, ddof=1) / 5**.5)
  unadjusted = np.where(low > 0, 'higher', np.where(high < 0, 'lower', ''))
  words = [f'open, but {u} by the unadjusted interval' if v == 'open' and u
           else v for v, u in zip(verdicts, unadjusted)]
  assert 'open, but lower by the unadjusted interval' in words
  of = lambda verdict, kind: ', '.join(
      x.title for x, word in zip(others, words) if word == verdict
      and x.is_personal == kind)
  assert tuned.summary().splitlines() == [
      f'- Dirichlet 0.5, against tuned {baseline}: ' + '; '.join(
          f'*{word}*: {of(word, kind) or "none"}' for word in (
              'higher', 'lower', 'open, but higher by the unadjusted interval',
              'open, but lower by the unadjusted interval', 'open')
          if of(word, kind) or word in ('higher', 'lower')) + '.'
      for kind, baseline in ((False, 'FedAvg'), (True, 'FedAvg-FT'))]
  i = [x.method for x in others].index('moon')
  assert 'MOON - FedAvg, Dirichlet 0.5, mu ' in tuned.moon()
  assert f': {d[i].mean():+.1f} points (95%' in tuned.moon()
  assert f', {verdicts[i]} by Holm\'s p ({p[i]:.3f}).' in tuned.moon()


def test_a_family_is_not_shown_before_its_last_search(
    tmp_path, few, monkeypatch):
  for search in FEW[:-1]:
    write(tmp_path, search, [60.] * 5)
  found = tuned.results(read_all(tmp_path))
  assert len(found) == 8 and tuned.tests(found, '0.5') == []
  monkeypatch.setattr(tuned, 'kept_results', lambda: found)
  assert tuned.summary() == '- Dirichlet 0.5: 8 of 9 searches have ended.'


def test_divergence_is_chance_and_no_result_is_no_difference(tmp_path, few):
  fedavg, fedprox, scaffold, *others = FEW
  write(tmp_path, fedavg, [60., 61, 63, 64, 65])
  write(tmp_path, fedprox, [70., 71, 72, 73])
  write_run(tmp_path / f'{fedprox.name}-seed5', fedprox, [75.], seed=5,
            diverged='nan')
  for trial in (1, 2):
    write_run(tmp_path / f'{scaffold.name}-trial{trial}', scaffold, [10.],
              diverged='nan')
  for search in others:
    write(tmp_path, search, [60., 61, 63, 64, 65])  # equal: no p-value
  found = tuned.results(read_all(tmp_path))
  assert found[1].accuracies == pytest.approx((70, 71, 72, 73, 10))
  assert (found[1].failed, found[2].trials_failed) == (1, 2)
  tested = tuned.tests(found, '0.5')
  p = scipy_stats.ttest_rel([70, 71, 72, 73, 10], [60, 61, 63, 64, 65]).pvalue
  assert tested[2].holm_p == pytest.approx(min(1, 7 * p))
  assert {x.holm_p for x in tested[3:]} == {1.}
  assert {x.verdict for x in tested[2:]} == {'open'}
  rows = {row.split(' | ')[0][2:]: row
          for row in tuned.table(tested).splitlines()}
  assert '| nothing | 2 of 2 | 0 of 2 | none | no result |' in (
      rows['SCAFFOLD'])
  assert '(1 with a loss that is not finite)' in rows['FedProx']


@pytest.mark.parametrize('best', [14.9, 15.])
def test_a_baseline_that_no_trial_tuned_is_no_comparison(
    tmp_path, few, monkeypatch, best):
  """The registered tests stay in the table."""
  for search in FEW:
    write(tmp_path, search, [60., 61, 63, 64, 65 + FEW.index(search)])
  for trial in (1, 2):
    shutil.rmtree(tmp_path / f'{FEW[0].name}-trial{trial}')
    write_run(tmp_path / f'{FEW[0].name}-trial{trial}', FEW[0], [10., best])
  found = tuned.results(read_all(tmp_path))
  monkeypatch.setattr(tuned, 'kept_results', lambda: found)
  is_tuned = best >= 15
  assert ('**no comparison with FedAvg.** No trial of FedAvg reached' in (
      tuned.summary())) == (not is_tuned)
  assert ('against tuned FedAvg: ' in tuned.summary()) == is_tuned
  assert ('0.5: no comparison, since no trial of FedAvg reached a' in (
      tuned.moon())) == (not is_tuned)
  assert ('| 0 of 2 | 14.9 |' in tuned.report()) == (not is_tuned)
  assert tuned.report().count('FedAvg, the baseline, is among') == (
      not is_tuned)


def test_an_evaluation_with_a_client_that_diverged_is_chance(tmp_path):
  """So are trials that end with one: they were not chosen."""
  search = PERSONAL[1]
  write(tmp_path, search, [80., 81, 82, 83, 84])
  for name, values in (('seed2', [None, 70., 40., 0.]), ('trial4', [None])):
    shutil.rmtree(tmp_path / f'{search.name}-{name}')
    write_run(tmp_path / f'{search.name}-{name}', search, values,
              seed=2 * (name == 'seed2'))
  found, = tuned.results(read_all(tmp_path))
  assert found.accuracies == pytest.approx((80, 40, 82, 83, 84))
  assert (found.failed, found.trials_failed) == (1, 1)


@pytest.mark.parametrize('name, change, words', [
    ('seed3', {'learning_rate': .02}, 'several settings'),
    ('seed3', None, '9 trials, of which 0 diverged, and 4 runs of new seeds'),
    ('trial2', None, '8 trials'),
    ('seed3', {'num_rounds': 64}, 'num_rounds=64 instead of 72'),
    ('trial2', {'partition': 'iid'}, 'partition=iid instead of dirichlet'),
    ('trial2', {'algorithm': 'fedprox(mu=0.01)'}, 'instead of moon')])
def test_runs_that_are_not_of_one_search_are_refused(
    tmp_path, name, change, words):
  search = GLOBAL[3]
  write(tmp_path, search, [60.] * 5)
  shutil.rmtree(tmp_path / f'{search.name}-{name}')
  if change:
    write_run(tmp_path / f'{search.name}-{name}', search, [60.] * 4,
              seed=3 * (name == 'seed3'), **change)
  with pytest.raises(ValueError, match=words):
    tuned.results(read_all(tmp_path))


def test_an_unfinished_run_is_refused(tmp_path):
  search = GLOBAL[0]
  write(tmp_path, search, [60.] * 5)
  path = tmp_path / f'{search.name}-seed3' / 'metrics.jsonl'
  path.with_name('summary.json').unlink()
  path.write_text(''.join(path.read_text().splitlines(True)[:-1]))
  with pytest.raises(ValueError, match='has 71 of 72 rounds'):
    tuned.results(read_all(tmp_path))


def test_finished_searches_are_collected_and_not_trained_again(
    tmp_path, monkeypatch):
  search, other = GLOBAL[0], GLOBAL[1]
  out = tmp_path / 'out'
  root, rows = out / search.name, [
      *((True, 0, f'a{i}') for i in range(9)),
      *((False, seed, f'b{seed}') for seed in tuned.SEEDS)]
  for _, seed, name in rows:
    write_run(root / name, search, [50. + seed] * 3, seed=seed)
  write_run(out / other.name / 'a', other, [10.])
  (out / f'{search.name}.commit').write_text(f'{search.run.commit}\n')
  table = root / 'tuning' / 'x' / 'tune.csv'
  assert not run_lib.is_finished(root, search.run)
  table.parent.mkdir(parents=True)
  pd.DataFrame([{'is_trial': is_trial, 'seed': seed,
                 'workdir': f'/elsewhere/{name}'}
                for is_trial, seed, name in rows]).to_csv(table, index=False)
  assert run_lib.is_finished(root, search.run)
  tables = tmp_path / 'made_searches'
  tuned.collect(out, tables)
  monkeypatch.setattr(kept, 'RESULTS', tmp_path)
  monkeypatch.setattr(tuned, 'TABLES', tables)
  kept.runs.cache_clear()
  kept.directory.cache_clear()
  try:
    found, = tuned.kept_results()
    assert set(kept.runs('made_searches')) == {
        f'{search.name}-{x}' for x in (
            *(f'trial{i}' for i in range(1, 10)),
            *(f'seed{seed}' for seed in tuned.SEEDS))}
    assert found.accuracies == pytest.approx((51, 52, 53, 54, 55))
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
  (out / f'{search.name}.commit').write_text('abc\n')
  with pytest.raises(ValueError, match='was trained at abc'):
    tuned.collect(out, tables)


@pytest.mark.parametrize('search', [GLOBAL[8], PERSONAL[0]],
                         ids=lambda search: search.name)
def test_a_search_has_the_trials_of_the_amendment(tmp_path, search):
  done = subprocess.run(
      [sys.executable, '-m', 'moon_jax.train',
       '--flagfile=experiments/cifar10.flags', f'--workdir={tmp_path}',
       *search.run.flags, '--dataset=digits', '--model=mlp', '--dry_run'],
      cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert ('trials: 9 up to round 8, 3 up to round 24, 1 up to round 72, 168 '
          'rounds; new seeds: 5 up to round 72, 360 rounds') in done.stdout
