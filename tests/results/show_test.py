"""Any metric is shown; models of clients lead where methods are about them."""

import functools
import json
import re

import numpy as np
import pandas as pd
import pytest

import moon_jax as mj
from moon_jax.data.clients import Clients
from moon_jax.results import clients as clients_lib
from moon_jax.results import read, show, tables
from moon_jax.runs import directory
from support import made_runs

_PERSONAL = 'personal_heldout_accuracy'


@pytest.fixture
def run(run_command):
  return functools.partial(run_command, show.main)


def recorded(path, others, name='local_heldout_accuracy', **fields):
  """Writes a run whose rounds have another metric, too."""
  made_runs.write(path, **fields)
  lines = (path / 'metrics.jsonl').read_text().splitlines()
  (path / 'metrics.jsonl').write_text(''.join(
      json.dumps(json.loads(line) | {name: value}) + '\n'
      for line, value in zip(lines, others, strict=True)))


def table_of(out, title):
  """Returns the words of the rows of a table by the first word."""
  lines = out[out.index(title):].split('\n\n')[0].splitlines()[1:]
  return {line.split()[0]: line.split()[1:] for line in lines}


@pytest.fixture
def personal(tmp_path):
  """FedRep has worse global models than FedAvg, and better ones of clients."""
  for seed in 0, 1, 2:
    recorded(tmp_path / f'a{seed}', [.1, .2, .3, .4], algorithm='fedavg',
             seed=seed)
    recorded(tmp_path / f'r{seed}', [.2, .4, .6, .75 + .01 * seed], seed=seed,
             algorithm='fedrep', values=[.1] * 4)
  return tmp_path


def test_models_of_clients_lead_if_a_method_is_about_them(personal, run):
  status, out, err = run(personal)
  assert (status, err) == (0, '')
  rows = table_of(out, 'local held-out accuracy (%), of clients')
  assert rows['FedRep'][:5] == ['3', '4', '76.0', '±', '1.0']
  assert ' '.join(rows['FedRep'][-3:]) == '10.0 ± 0.0'  # test accuracy
  assert table_of(out, 'rounds to 40.00% local held-out')['FedRep'][0] == '2'
  assert '+36.00' in table_of(out, 'difference from FedAvg')['FedRep']
  _, out, _ = run(personal, '--metric=test_accuracy')
  assert table_of(out, 'test accuracy (%)')['FedRep'][2] == '10.0'
  assert 'FedRep: clients or clusters have models' in ' '.join(out.split())


def test_models_of_clusters_lead_and_traffic_between_servers_is_shown(
    tmp_path, run):
  recorded(tmp_path / 'a', [.1, .2, .3, .4], algorithm='fedavg')
  recorded(tmp_path / 'c', [.2, .4, .6, .8], algorithm='fedavg',
           topology='ifca(clusters=2)', values=[.1] * 4)
  _, out, _ = run(tmp_path / 'c')
  assert out.index('local held-out accuracy') < out.index('test accuracy')
  _, out, _ = run(tmp_path)
  assert 'local held-out accuracy (%), of clients' in out
  assert 'between servers' not in out
  summary = tmp_path / 'a' / 'summary.json'
  summary.write_text(json.dumps(json.loads(
      summary.read_text()) | {'bytes_between_servers': 2_000_000}))
  _, out, _ = run(tmp_path)
  rows = out[out.index('MB/round'):].splitlines()
  assert rows[0].split()[-2:] == ['MB/round', 'servers']
  assert sorted(row.split()[-1] for row in rows[1:3]) == ['-', '2']
  _, out, _ = run(tmp_path / 'a')
  assert 'traffic: 4 MB per round, and 2 MB between servers' in out


def test_models_of_all_clients_lead_if_they_are_evaluated(personal, run):
  for path in personal.iterdir():
    text = (path / 'metrics.jsonl').read_text()
    (path / 'metrics.jsonl').write_text(text.replace(
        '"local_heldout_accuracy"', '"personal_heldout_accuracy"'))
  _, out, _ = run(personal)
  rows = table_of(out, 'personal held-out accuracy (%), of all clients')
  assert rows['FedRep'][2] == '76.0'


def test_the_test_accuracy_leads_if_methods_have_one_model(tmp_path, run):
  for name in 'fedavg', 'moon':
    recorded(tmp_path / name, [.1] * 4, algorithm=name)
  _, out, _ = run(tmp_path)
  assert table_of(out, 'test accuracy (%)')['MOON'][2] == '80.0'
  assert 'local held-out accuracy' in ' '.join(out.split())


@pytest.mark.parametrize('name, best', [
    ('custom_f1', '0.9000'), ('custom_mse', '0.1000')])
def test_any_metric_is_compared(name, best, tmp_path, run):
  for i, algorithm in enumerate(('fedavg', 'moon')):
    recorded(tmp_path / algorithm, [.1, .9, .5, .5 + .1 * i], name,
             algorithm=algorithm)
  status, out, err = run(tmp_path, f'--metric={name}', '--target=.5',
                         f'--out={tmp_path}/out', '--format=svg')
  assert status == 0, err
  row = table_of(out, name.replace('_', ' '))['MOON']
  assert row[2:4] == ['0.6000', best]
  assert '+0.1000' in table_of(out, 'difference from FedAvg')['MOON']
  page = (tmp_path / 'out' / 'index.md').read_text()
  assert f'](index/{name.replace("_", "-")}.svg)' in page and best in page
  assert (tmp_path / 'out' / f'{name.replace("_", "-")}.svg').exists()
  frame = pd.read_csv(tmp_path / 'out' / 'runs.csv')
  assert sorted(frame['last']) == [.5, .6]
  runs, _ = mj.results(tmp_path / 'fedavg', tmp_path / 'moon', metric=name)
  assert sorted(runs['last']) == [.5, .6]
  _, out, _ = run(tmp_path / 'moon', f'--metric={name}')
  assert table_of(out, name.replace('_', ' '))['MOON'][2:4] == ['0.6000', best]
  status, _, err = run(tmp_path / 'fedavg', tmp_path / 'moon', '--metric=f2')
  assert status == 2 and f'{name}' in err and 'got f2' in err


@pytest.fixture
def diverged(tmp_path):
  """FedPer's clients diverge in round 3, in all rounds, and not at all."""
  for seed, of_fedper in enumerate((
      [.1, .2, None, None], [None] * 4, [.1, .2, .3, .8])):
    for name, values in ('fedper', of_fedper), ('fedavg_ft', [.1] * 4):
      recorded(tmp_path / f'{name}{seed}', values, _PERSONAL, seed=seed,
               algorithm=name, more={f'{_PERSONAL}_worst_tenth': values[-1]})
  return tmp_path


def test_a_value_that_is_not_finite_is_not_that_of_an_earlier_round(
    diverged, run):
  # Nor do tables of clients need those of a run that diverged at once.
  made_runs.write(diverged / 'at_once', [], diverged='a NaN', seed=3,
                  algorithm='fedper')
  status, out, err = run(diverged)
  assert (status, err) == (0, '')
  rows = table_of(out, 'personal held-out accuracy (%), of all clients')
  assert ' '.join(rows['FedPer']).startswith(
      '3/4 4 80.0 (1 of 3) 50.0 ± 42.4 (2 of 3) 35.0 (1 of 3)')
  assert 'not finite: null in metrics.jsonl' in ' '.join(out.split())
  rows = table_of(out, 'over clients')
  assert rows['FedPer'][:4] == ['80.0', '(1', 'of', '3)']
  rows = table_of(out, 'difference from')
  assert rows['FedPer'][:2] == ['1', '+70.00']
  _, out, _ = run(f'{diverged}/*[01]')
  rows = table_of(out, 'personal held-out accuracy (%), of all clients')
  assert rows['FedPer'][2:4] == ['not', 'finite']
  assert table_of(out, 'difference from')['FedPer'][:3] == [
      '0', 'not', 'finite']
  runs, _ = mj.results(f'{diverged}/fedper*', metric=_PERSONAL)
  assert runs['last'].isna().tolist() == [True, True, False]
  assert runs['mean_of_last_10'].isna().tolist() == [True, True, False]
  assert runs['best'].tolist()[::2] == [.2, .8]
  assert runs['best_round'].tolist()[::2] == [2, 4]


@pytest.mark.parametrize('seed, cells', [
    (0, ['not finite', '20.00%', 'not finite', '2']), (1, ['not finite'] * 4)])
def test_a_run_whose_clients_diverged_has_no_last_value(
    seed, cells, diverged, run, tmp_path):
  status, out, err = run(diverged / f'fedper{seed}', f'--out={tmp_path}/out',
                         '--format=svg')
  assert status == 0, err
  row = next(line for line in out.splitlines() if line.startswith(
      'personal held-out accuracy  '))
  assert re.split('  +', row)[1:] == cells
  assert 'null in metrics.jsonl' in out
  status, _, err = run(diverged / f'fedper{seed}', f'--out={tmp_path}/metric',
                       f'--metric={_PERSONAL}', '--format=svg')
  assert status == 0, err


def test_distributions_count_the_clients_that_have_values(tmp_path, run):
  path = made_runs.write(tmp_path / 'run', num_clients=30, more={
      f'{_PERSONAL}_worst_tenth': None, 'clients': {
          'client': [*range(30)], 'drift': [.5] * 30,
          _PERSONAL: [None] * 27 + [.8] * 3}})
  _, out, _ = run(path, f'--out={tmp_path}/out')
  rows = table_of(out, 'distribution over clients')
  assert '3' in rows['clients'] and '30' in rows['clients']
  page = (tmp_path / 'out' / 'index.md').read_text()
  assert 'Clients without a value, left out: MOON: 27 of 30.' in page


def test_small_losses_and_their_differences_are_not_zero(tmp_path, run):
  for seed, more in enumerate((0, 1e-6, 3e-6)):
    for algorithm, loss in ('fedavg', 4e-5), ('moon', 2e-5 + more):
      recorded(tmp_path / f'{algorithm}{seed}', [1., 1., 1., loss],
               'custom_mse', algorithm=algorithm, seed=seed)
  _, out, _ = run(tmp_path, '--metric=custom_mse')
  assert table_of(out, 'custom mse')['MOON'][2:5] == [
      '0.0000213', '±', '0.0000015']
  assert table_of(out, 'difference from')['MOON'][1:5] == [
      '-0.00001867', '(-0.00002246', 'to', '-0.00001487)']


def test_the_worst_clients_of_an_error_have_high_values(tmp_path, run):
  name = 'personal_heldout_ece'
  recorded(tmp_path / 'run', [.1] * 4, name, more={
      f'{name}_worst_tenth': .3, f'{name}_worst': .4})
  _, out, _ = run(tmp_path / 'run')
  row = next(line for line in out[out.index('over clients'):].splitlines()
             if line.startswith('personal held-out ece'))
  assert row.split()[-2:] == ['0.3000', '0.4000']
  assert 'clients with the worst values' in ' '.join(out.split())
  assert 'lowest values' not in out


def test_validation_and_privacy_are_columns_where_they_exist(tmp_path, run):
  for name in 'a', 'b':
    recorded(tmp_path / name, [.1, .2, .3, .4], 'validation_accuracy',
             algorithm='fedavg', seed=int(name == 'b'))
  _, out, _ = run(tmp_path)
  assert table_of(out, 'test accuracy (%)')['FedAvg'][-3:] == [
      '40.0', '±', '0.0']
  assert 'epsilon' not in out and 'simulated' not in out


def test_methods_are_compared_with_fedavg_of_the_same_settings(tmp_path, run):
  for beta in .1, .5:
    for algorithm, more in ('fedavg', 0), ('moon', .02):
      made_runs.write(
          tmp_path / f'{algorithm}{beta}', [.1, .1, .1, beta + more],
          algorithm=algorithm, partition=f'dirichlet(beta={beta})')
  _, out, _ = run(tmp_path)
  table = out[out.index('difference from the baseline'):].split('\n\n')[0]
  rows = table.splitlines()[-2:]
  assert len(rows) == 2 and all('+2.00' in row for row in rows)
  assert ['FedAvg, beta 0.1' in rows[0], 'FedAvg, beta 0.5' in rows[1]] == [
      True, True]


def test_clients_are_listed_by_their_results(tmp_path, run):
  """Those that were not in the last evaluation have their last results."""
  path = made_runs.write(tmp_path / 'run', num_clients=30)
  lines = [made_runs.line(r, .5) for r in range(1, 5)]
  for r, clients in enumerate(([0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4])):
    lines[r]['clients'] = {
        'client': clients, 'local_heldout_accuracy': [
            None if c == 4 else (.1 * c + .01 * r) for c in clients]}
  (path / 'metrics.jsonl').write_text(''.join(
      json.dumps(line) + '\n' for line in lines))
  status, out, _ = run(path, '--clients', f'--out={tmp_path}/out')
  assert status == 0 and '30 clients by local held-out' in out
  rows = [line.split() for line in out.splitlines()[-30:]]
  assert [row[0] for row in rows[:4]] == ['0', '1', '2', '3']
  assert [row[-1] for row in rows[:5]] == [
      '0.00%', '11.00%', '22.00%', '33.00%', '-']
  frame = mj.client_results(path)
  assert frame.index.names == ['run', 'client'] and len(frame) == 30
  assert frame['local_heldout_accuracy'].dropna().tolist() == pytest.approx(
      [0, .11, .22, .33])
  assert frame['round'].dropna().tolist() == [1, 2, 3, 4, 4]
  written = pd.read_csv(tmp_path / 'out' / 'clients.csv')
  assert written['local_heldout_accuracy'].equals(
      frame.reset_index()['local_heldout_accuracy'])
  status, _, err = run(path, '--clients', '--metric=nothing')
  assert status == 2 and 'local_heldout_accuracy' in err


def test_each_block_of_clients_has_their_names(tmp_path, run, monkeypatch):
  path = made_runs.write(tmp_path / 'run')
  (path / 'partition.npz').write_bytes(directory.partition_npz(Clients(
      np.arange(3), np.ones(3, int), ('north', 'south', 'harbour'))))
  monkeypatch.setenv('COLUMNS', '40')
  _, out, _ = run(path, '--clients')
  assert out.count('north') == out.count('harbour') == 2


def test_runs_that_recorded_no_clients_are_an_error(tmp_path, run):
  path = made_runs.write(tmp_path / 'run', more={'clients': {}})
  status, _, err = run(path, '--clients')
  assert status == 2 and '--client_eval_every' in err
  made_runs.write(tmp_path / 'other')
  status, _, err = run(tmp_path, '--clients')
  assert status == 2 and '2 runs' in err


def test_formats_of_figures_are_checked(tmp_path, run):
  made_runs.write(tmp_path / 'run')
  status, _, err = run(tmp_path, '--format=gif', f'--out={tmp_path}/x')
  assert status == 2
  assert '--format must be a list of png, pdf, svg; got gif' in err


def test_rows_get_other_labels(tmp_path, run):
  """Calls have "=" and commas."""
  for name, call in ('a', 'fedavg'), ('b', 'moon(mu=1)'), ('c', 'moon(mu=5)'), (
      'd', 'moon(mu=1, temperature=0.1)'):
    for seed in 0, 1:
      made_runs.write(tmp_path / f'{name}{seed}', algorithm=call, seed=seed)
  status, out, err = run(
      tmp_path, '--label=moon(mu=1, temperature=0.1)=MOON (tau = 0.1)',
      '--label=MOON, mu 5, temperature 0.5=Far', '--label=fedavg=Averaging',
      '--format=svg', '--size=5x3', f'--out={tmp_path}/out')
  assert status == 0, err
  rows = table_of(out, 'test accuracy (%)')
  assert {'Averaging', 'Far', 'MOON'} <= {*rows} and 'FedAvg' not in out
  svg = (tmp_path / 'out' / 'test-accuracy.svg').read_text()
  assert 'width="360pt" height="216pt"' in svg
  shown = re.findall('>([^<>]+)</text>', svg)
  assert {'Averaging', 'Far', 'MOON (tau = 0.1)'} <= {*shown}
  assert 'round (means and ranges of 2 runs)' in shown
  assert set(pd.read_csv(tmp_path / 'out' / 'runs.csv')['arm']) > {
      'Averaging', 'Far'}


def test_a_curve_says_that_some_runs_have_further_rounds(tmp_path, run):
  for seed in 1, 2, 3:
    for name in 'fedavg', 'moon':
      made_runs.write(tmp_path / f'{name}{seed}', algorithm=name, seed=seed)
  stopped = made_runs.write(tmp_path / 'stopped', [.2, .4], is_finished=False,
                            algorithm='fedavg')
  (stopped / 'summary.json').write_text('{"rounds": 2, "stopped_early": true}')
  made_runs.write(tmp_path / 'moon0', algorithm='moon')
  words = 'each curve ends with its shortest run'
  for place, is_cut in (tmp_path, True), (f'{tmp_path}/moon*', False):
    status, _, err = run(place, '--format=svg', f'--out={tmp_path}/out')
    assert status == 0, err
    svg = (tmp_path / 'out' / 'test-accuracy.svg').read_text()
    assert 'means and ranges of 4 runs' in svg
    assert (words in svg) == is_cut
    page = (tmp_path / 'out' / 'index.md').read_text()
    assert ('of their row, in round: FedAvg 2.' in page) == is_cut


def test_files_of_a_metric_with_other_signs(tmp_path, run):
  for seed in 0, 1:
    made_runs.write(tmp_path / f'{seed}', seed=seed,
                    more={'dice/liver (%)': .5})
  status, _, err = run(tmp_path, '--metric=dice/liver (%)',
                       f'--out={tmp_path}/out')
  assert status == 0, err
  assert (tmp_path / 'out' / 'dice-liver.png').exists()
  assert (tmp_path / 'out' / 'index' / 'dice-liver.svg').exists()


@pytest.mark.parametrize('args, message', [
    (['a', '--train'], '--train is for published tables; got runs'),
    (['a', '--seed=1'], '--seed is for published tables; got runs'),
    (['a.toml', '--metric=f1'], '--metric is for runs; got a table'),
    (['a', '--format=pdf'], '--format needs --out=DIR'),
    (['a', '--x=bytes'], '--x needs --out=DIR'),
    (['a', '--x=bytes', '--out=o'],
     '--x needs runs that are compared; got one run. Remove it, or name'),
    (['a', '--baseline=nonsense'],
     '--baseline needs several runs; got one run'),
    (['a', '--clients', '--target=0.5'],
     '--target needs runs that are compared; got --clients. Remove one'),
    (['a', '--clients', '--x=bytes', '--out=o'],
     '--x needs runs that are compared; got --clients. Remove it'),
    (['a', '--follow', '--metric=test_loss'], '--follow shows the '
     'description of a run, and not the tables of --metric and --target; got '
     '--metric=test_loss. Remove one'),
    (['a', '--budegt=full'], 'no flag --budegt'),
    (['a.toml', '--num_round=3'], 'Did you mean --num_rounds=3'),
    (['a.toml', '--num_rounds=x'], '--num_rounds=x: must be an integer')])
def test_flags_of_runs_and_of_tables_are_told_apart(
    args, message, tmp_path, run, monkeypatch):
  monkeypatch.chdir(tmp_path)
  made_runs.write(tmp_path / 'a')
  (tmp_path / 'a.toml').write_text('dataset = "digits"')
  status, _, err = run(*args)
  assert status == 2 and message in err


def test_settings_of_a_table_are_flags(tmp_path, run, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'a.toml').write_text(
      'title = "One"\ndataset = "digits"\nmodel = "mlp"')
  status, out, err = run('a.toml', '--algorithm.mu=2', '--num_rounds', '3')
  assert (status, err) == (0, '')
  assert 'One' in out and '--num_rounds=3' in out and 'mu=2' in out


@pytest.mark.parametrize('flags, message', [
    (['--label=solo=x'], '--label must be ROW=TEXT for one row.*solo=x. 0 rows '
     'have it; the rows are FedAvg; MOON'),
    (['--label=seed'], '--label must be ROW=TEXT'),
    (['--label=moon='], 'The text is empty'),
    (['--label=moon=FedAvg'], 'a label of its own; got FedAvg'),
    (['--size=3.3'], '--size must be WIDTHxHEIGHT in inches.*got 3.3'),
    (['--size=99x99', '--out=OUT'], 'each from 1 to 50'),
    (['--size=3x2'], '--size needs --out'),
    (['--size=1x1', '--out=OUT'], '--size must have room')])
def test_labels_and_sizes_are_checked(tmp_path, flags, message, run):
  for name in 'fedavg', 'moon':
    made_runs.write(tmp_path / name, algorithm=name)
  status, _, err = run(tmp_path, *(
      flag.replace('OUT', f'{tmp_path}/out') for flag in flags))
  assert status == 2 and re.search(message, ' '.join(err.split()))
  assert not (tmp_path / 'out' / 'index.html').exists()


def test_one_run_has_no_rows_to_label(tmp_path, run):
  made_runs.write(tmp_path / 'run')
  status, _, err = run(tmp_path, '--label=moon=x')
  assert status == 2 and '--label needs several runs' in err


def test_columns_without_room_follow_in_a_second_block():
  table = tables.Table('t', {'': ['a', 'b'], 'one': ['1', '2'],
                             'two words': ['x' * 9, 'y'], 'none': ['-', '-']})
  assert table.text(80) == ['t', '   one  two words', 'a    1  xxxxxxxxx',
                            'b    2          y']
  assert table.text(12) == [
      't', '   one', 'a    1', 'b    2', '', '   two words', 'a  xxxxxxxxx',
      'b          y']
  assert table._replace(columns=table.columns | {'two words': ['x', 'y']}).text(
      16) == ['t', '             two', '   one     words',
              'a    1         x', 'b    2         y']
  assert 'columns that' in table._replace(is_cut=True).text(12)
  assert '| a | 1 | xxxxxxxxx |' in table.markdown()


def spread_over_clients(tmp_path):
  """Runs of two methods; returns the accuracies of 20 clients of each."""
  rng, accuracies = np.random.default_rng(0), {}
  for algorithm in 'fedavg', 'fedrep':
    for seed in 0, 1:
      x = accuracies[algorithm, seed] = rng.uniform(size=20)
      statistics = {'': x.mean(), '_std': x.std(), '_worst': x.min(),
                    '_worst_tenth': np.sort(x)[:2].mean()}
      made_runs.write(tmp_path / f'{algorithm}{seed}', algorithm=algorithm,
                      seed=seed, num_clients=20, more={
          'clients': {'client': [*range(20)], _PERSONAL: x.tolist()}} | {
              _PERSONAL + ending: value
              for ending, value in statistics.items()})
  return accuracies




def test_the_spread_over_clients_is_shown(tmp_path, run):
  """Mean over runs of the mean, the deviation and the worst of clients."""
  accuracies = spread_over_clients(tmp_path)
  status, out, err = run(tmp_path, f'--out={tmp_path}/out', '--format=svg')
  assert status == 0, err
  rows = table_of(out, 'over clients: personal held-out accuracy (%)')
  for method, name in ('FedAvg', 'fedavg'), ('FedRep', 'fedrep'):
    runs = [accuracies[name, seed] for seed in (0, 1)]
    expected = [
        np.mean([100 * function(x) for x in runs]) for function in (
            np.mean, np.std, lambda x: np.sort(x)[:2].mean(), np.min)]
    assert [float(x) for x in rows[method][::3]] == pytest.approx(
        expected, abs=.051)
  frame = pd.read_csv(tmp_path / 'out' / 'runs.csv')
  assert sorted(frame[f'{_PERSONAL}_worst']) == pytest.approx(sorted(
      x.min() for x in accuracies.values()))
  rounds = mj.results(tmp_path / 'fedrep0').rounds
  assert rounds[f'{_PERSONAL}_std'].iloc[-1] == pytest.approx(
      accuracies['fedrep', 0].std())
  page = (tmp_path / 'out' / 'index.md').read_text()
  assert '## Clients' in page and '## Sorted clients' in page
  svg = (tmp_path / 'out' / 'sorted-clients.svg').read_text()
  assert {'FedAvg', 'FedRep', 'clients, the lowest first'} <= {
      *re.findall('>([^<>]+)</text>', svg)}
  _, out, _ = run(tmp_path / 'fedrep1')
  row = next(line for line in out[out.index('over clients'):].splitlines()
             if line.startswith('personal'))
  assert float(row.split()[-1]) == pytest.approx(
      100 * accuracies['fedrep', 1].min(), abs=.051)


def test_sorted_clients_are_those_of_each_run(tmp_path):
  accuracies = spread_over_clients(tmp_path)
  runs = [read.read(tmp_path / f'fedavg{seed}') for seed in (0, 1)]
  made = clients_lib.sorted_values(runs, _PERSONAL)
  np.testing.assert_allclose(made.to_numpy(), 100 * np.sort(np.stack(
      [accuracies['fedavg', seed] for seed in (0, 1)], 1), axis=0))
  assert made.index.tolist() == [*range(1, 21)]
  assert clients_lib.sorted_values(runs, 'another') is None


def test_lines_are_wrapped_around_paths():
  """A path in two lines could not be copied."""
  path = f'/tmp/a-b/{"x" * 90}'
  assert tables.wrapped(f'trials are in {path}, not below', 80) == [
      'trials are in', f'  {path},', '  not below']


def test_trials_of_a_tuning_are_no_results(run, tmp_path):
  """A new seed that diverged is no trial, though it has no test result."""
  runs, table = tmp_path / 'runs', tmp_path / 'runs' / 'tuning' / 'x'
  table.mkdir(parents=True)
  (table / 'tune.txt').write_text('fedavg: 2 trials\n')
  lines = ['method,learning_rate,seed,rounds_done,metric,value,test,seconds,'
           'is_trial,chosen,workdir']
  for rate in .1, .2:
    path = made_runs.write(
        runs / f'{rate}', algorithm='fedavg', learning_rate=rate)
    lines.append(f'fedavg,{rate},0,4,validation_accuracy,0.8,,1,True,'
                 f'{rate == .1},{path}')
  (table / 'tune.csv').write_text('\n'.join(lines))
  with pytest.raises(mj.UserError, match='only trials. Read .*tune.csv'):
    mj.results(runs)
  status, out, _ = run(runs / '0.1')
  assert status == 0 and 'fedavg, simple_cnn' in out and 'its trials' not in out
  status, out, _ = run(runs, f'--out={tmp_path}/out')
  assert (status, out) == (0, 'fedavg: 2 trials\nits trials are in '
                           f'{table}/tune.csv, not below\n\n')
  assert [path.name for path in (tmp_path / 'out' / 'index').iterdir()] == [
      'tuning-0.svg']
  for flag in ('--follow', f'--pack={tmp_path}/one.zip', '--metric=typo',
               '--target=0.9', '--baseline=x', '--label=a=b'):
    status, _, err = run(runs, flag)
    assert status == 2 and 'run' in err
  path = made_runs.write(runs / 'new', [.3], diverged='a NaN', seed=1,
                         algorithm='fedavg', learning_rate=.1)
  lines.append(f'fedavg,0.1,1,4,validation_accuracy,,,1,False,False,{path}')
  (table / 'tune.csv').write_text('\n'.join(lines))
  _, out, _ = run(runs)
  assert '1 run of digits' in out and 'not counted: new: diverged' in out
  assert ('FedAvg, not counted: 0.1: a trial, with the seed 0, of the tuning '
          f'in {table}') in ' '.join(out.split()) and ': 0.2:' not in out
  assert '--follow needs one run; got a tuning' in run(runs, '--follow')[2]
  for place in f'{runs}/*', tmp_path:  # a pattern, and the directory above
    assert run(place)[1] == out
  assert mj.results(f'{runs}/*').runs.index.tolist() == [str(path)]
  assert {*mj.client_results(runs).reset_index()['run']} == {str(path)}
  (table / 'tune.csv').write_text('method,seed\nfedavg,0\n')
  status, _, err = run(runs)
  assert status == 2 and 'lines without method, rounds_done' in err
