"""Runs are grouped over seeds, and what cannot be compared is named."""

import csv
import functools
import json
import sys

import matplotlib.image
import pytest

from moon_jax.results import arms as arms_lib
from moon_jax.results import read, show, sweep_table
from moon_jax.runs.grid import Sweep
from support import made_runs, page_checks

# Half of the held-out examples are validation examples, if all are evaluated.
_HALVED = {'validation_fraction': .2, 'client_test_fraction': .3,
           'client_eval_every': 1}


@pytest.fixture
def runs(tmp_path):
  """FedAvg and MOON with two seeds; MOON is .1 and .12 better."""
  for seed in 0, 1:
    for algorithm, more in ('fedavg', 0), ('moon', .1 + .02 * seed):
      made_runs.write(
          tmp_path / 'sweep' / f'{algorithm}{seed}', algorithm=algorithm,
          seed=seed, values=[
              round(made_runs.accuracy(r, seed) + more, 4)
              for r in range(1, 5)])
  return tmp_path / 'sweep'


@pytest.fixture
def run(run_command):
  return functools.partial(run_command, show.main)


def rows_of(label, out):
  """Returns the words of the lines of a group, after its label.

  The lines have its accuracies, its times and its difference.
  """
  return [line.removeprefix(label).split() for line in out.splitlines()
          if line.startswith((f'{label} ', f'{label}*'))]


def test_seeds_are_grouped_and_paired(runs, run, tmp_path):
  status, out, _ = run(runs, f'--out={tmp_path}/out')
  assert status == 0 and max(map(len, out.splitlines())) <= 80
  lines = out.splitlines()
  assert lines[0].startswith('4 runs of digits, simple_cnn; they differ in alg')
  assert rows_of('FedAvg', out)[0][:5] == [
      '2', '4', '80.5', '±', '0.7']
  row, times, difference = rows_of('MOON', out)
  assert row[:5] == ['2', '4', '91.5', '±', '2.1']
  assert difference[:5] == ['2', '+11.00', '(too', 'few', 'pairs)']
  assert times == ['4', '0.25', '1', 's', '4']
  assert 'rounds to 80.50% test accuracy' in out
  out = tmp_path / 'out'
  assert matplotlib.image.imread(out / 'test-accuracy.png').ndim == 3
  assert not page_checks.errors((out / 'index.html').read_text())
  with open(out / 'runs.csv', newline='') as table:
    found = list(csv.DictReader(table))
  assert [(row['algorithm'], row['seed'], row['last']) for row in found] == [
      ('fedavg', '0', '0.8'), ('fedavg', '1', '0.81'),
      ('moon', '0', '0.9'), ('moon', '1', '0.93')]
  assert [row['rounds_to_target'] for row in found] == ['', '4', '4', '4']


def test_pairs_have_equal_seeds_in_whatever_order_runs_are_read(tmp_path, run):
  """FedAvg's seed 3 has no partner, and MOON's seed 1 is read first."""
  for name, algorithm, seed, last in (
      ('a', 'fedavg', 3, .1), ('b', 'fedavg', 0, .2), ('c', 'fedavg', 1, .6),
      ('d', 'moon', 1, .7), ('e', 'moon', 0, .32), ('f', 'moon', 2, .51),
      ('g', 'fedavg', 2, .4)):
    made_runs.write(tmp_path / name, algorithm=algorithm, seed=seed,
                    values=[.1, .1, .1, last])
  _, out, _ = run(tmp_path)
  # 10, 11 and 12 points: t(2, .975) = 4.303 times 1 / sqrt(3)
  assert rows_of('MOON', out)[2][:5] == [
      '3', '+11.00', '(+8.52', 'to', '+13.48)']


def test_rows_are_sorted_by_settings_unless_runs_are_named(run, tmp_path):
  for name, mu in ('1', 10.), ('2', .5), ('3', 2.):  # names are hashes, really
    made_runs.write(tmp_path / name, algorithm=f'moon(mu={mu})', values=[.5])
  labels = lambda out: [
      line.split()[2] for line in out.split('\n\n')[1].splitlines()[2:5]
      if line.startswith('MOON, mu ')]
  _, out, _ = run(tmp_path)
  assert labels(out) == ['0.5', '2', '10']
  _, out, _ = run(tmp_path / '1', tmp_path / '2')
  assert labels(out) == ['10', '0.5']


def test_the_default_target_is_that_of_runs_that_count(runs, run):
  """Not of one that stopped, or of another run of a seed."""
  made_runs.write(runs / 'stopped', [.2, .95], algorithm='fedavg', seed=2,
                  is_finished=False)
  made_runs.write(runs / 'repeated', [.1, .2, .3, .4], algorithm='fedavg',
                  seed=1)
  _, out, _ = run(runs)
  assert 'rounds to 80.50% test accuracy' in out


def test_a_target_and_a_baseline_are_chosen(runs, run):
  _, out, _ = run(runs / 'fedavg0', f'{runs}/moon*', '--target=.6',
                  '--baseline=moon')
  assert 'rounds to 60.00% test accuracy' in out
  _, times, difference = rows_of('FedAvg', out)
  assert 'difference from MOON in points' in out
  assert difference[:2] == ['1', '-10.00']
  assert times[0] == '3'  # whose accuracy is exactly .6
  status, _, err = run(runs, '--baseline=scaffold')
  assert status == 2 and 'FedAvg; MOON' in err
  assert run(runs, '--target=1')[0] == 0
  assert run(runs, '--target=-0.9', '--metric=drift')[0] == 0
  for target in 80, 1.01, 0, -1, 'inf':
    status, _, err = run(runs, f'--target={target}')
    assert status == 2 and '--target must be a fraction' in err


def test_a_baseline_has_the_same_other_settings(runs, run):
  """Also if there is one row of FedAvg; other rows are listed."""
  for seed in 0, 1:
    made_runs.write(runs / f'long{seed}', algorithm='moon', num_rounds=5,
                    seed=seed)
  _, out, _ = run(runs)
  assert len(rows_of('MOON, num_rounds 4', out)) == 3
  results, times = rows_of('MOON, num_rounds 5', out)
  assert results[:2] == ['2', '5'] and times[0] == '-'
  assert ' '.join(out.split()).endswith(
      'not compared, since no FedAvg has the same other settings '
      '(--baseline=SETTING chooses a row): MOON, num_rounds 5')
  _, out, _ = run(runs, '--baseline=fedavg')
  assert rows_of('MOON, num_rounds 5', out)[2][:2] == ['2', '+20.00']
  assert 'no FedAvg' not in out
  _, out, _ = run(f'{runs}/moon*')
  assert 'no FedAvg' not in out


def test_rows_that_were_evaluated_on_other_examples_are_named(runs, run):
  """No choice of a baseline would compare them."""
  for seed in 0, 1:
    made_runs.write(runs / f'few{seed}', algorithm='fedprox', seed=seed,
                    eval_examples=100)
  for args in [], ['--baseline=fedavg']:
    _, out, _ = run(runs, *args)
    text = ' '.join(out.split())
    assert text.endswith(
        'not compared, since the baseline was evaluated on other examples '
        '(give the runs the same settings): FedProx, eval_examples 100 '
        '(eval_examples=100)')
    assert '--baseline' not in text and len(rows_of('MOON', out)) == 3


@pytest.mark.parametrize('fields, labels', [
    ([{'algorithm': 'fedavg'}, {'algorithm': 'moon(mu=3)'}],
     ['FedAvg', 'MOON']),
    ([{'algorithm': 'moon(mu=5)'}, {'algorithm': 'moon', 'seed': 1}],
     ['MOON']),  # 5 is the default
    ([{'algorithm': 'moon(mu=3)'}, {'algorithm': 'moon(mu=1)'}],
     ['MOON, mu 3', 'MOON, mu 1']),
    ([{'algorithm': 'fedavg'}, {'algorithm': 'moon(mu=3)'},
      {'algorithm': 'moon(mu=1)'}],
     ['FedAvg', 'MOON, mu 3', 'MOON, mu 1']),
    ([{'on_nan': 'stop'}, {
        'on_nan': 'skip_client', 'more': {'clients_left_out': [2]}}],
     ['MOON, on_nan stop', 'MOON, on_nan skip_client']),
    ([{'on_nan': 'stop'}, {'on_nan': 'skip_client', 'seed': 1}], ['MOON']),
    ([{'metrics': 'f1'}, {'seed': 1}], ['MOON']),
    ([{**_HALVED, 'client_eval': 'all'},
      {**_HALVED, 'client_eval': 'both', 'seed': 1}], ['MOON']),
    ([{**_HALVED, 'client_eval': 'all'}, {**_HALVED, 'seed': 1}],
     ['MOON, client_eval all', 'MOON, client_eval cohort']),
    ([{**_HALVED, 'client_eval': 'all', 'validation_fraction': 0.},
      {**_HALVED, 'validation_fraction': 0., 'seed': 1}], ['MOON']),
    ([{}, {'lanes': 2, 'seed': 1}, {'eval_every': 2, 'seed': 2}], ['MOON'])])
def test_groups_have_the_settings_in_which_runs_differ(
    fields, labels, tmp_path):
  for i, changes in enumerate(fields):
    made_runs.write(tmp_path / str(i), **changes)
  found = [read.read(path) for path in read.find([str(tmp_path)])]
  assert [group.label for group in arms_lib.of_runs(found)] == labels


def test_metrics_of_other_code_or_other_examples_are_not_pooled(run, tmp_path):
  for i, (algorithm, content, of_clients) in enumerate([
      ('fedavg', 'aaa', 'all'), ('fedprox', 'aaa', 'cohort'),
      ('moon', 'bbb', 'all')]):
    path = made_runs.write(
        tmp_path / f'{i}', algorithm=algorithm, client_eval=of_clients,
        more={'global_heldout_accuracy': .5}, **_HALVED) / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | {
        'inputs': {'metrics': content}}))
  _, out, _ = run(tmp_path, '--metric=global_heldout_accuracy')
  text = ' '.join(out.split())
  assert 'difference' not in text
  assert ('on other examples (give the runs the same settings): FedProx, '
          'client_eval cohort (client_eval=cohort)') in text
  assert 'settings (--baseline=SETTING chooses a row): MOON, content' in text
  _, out, _ = run(tmp_path)  # test examples are the same
  assert len(rows_of('FedProx, client_eval cohort', out)) == 3


def test_a_setting_in_which_all_runs_differ_is_not_one_they_share(
    run, tmp_path):
  for mu in 1, 2:
    made_runs.write(tmp_path / f'{mu}',
                    algorithm=f'moon(mu={mu}, temperature=0.7)')
  _, out, _ = run(tmp_path)
  assert out.startswith('2 runs of digits, moon(temperature=0.7), simple_cnn; '
                        'they differ in algorithm.mu\n')


def test_a_mean_over_seeds_of_other_rounds_is_noted(run, tmp_path):
  made_runs.write(tmp_path / 'a', algorithm='fedavg', eval_every=2,
                  values=[None, .5] * 2)
  for seed in 1, 2:
    made_runs.write(tmp_path / f'{seed}', algorithm='fedavg', seed=seed)
    made_runs.write(tmp_path / f'm{seed}', algorithm='moon', seed=seed)
  note = 'mean of last 10: not the same rounds in all runs of FedAvg\n'
  assert note in run(tmp_path)[1]
  assert 'not the same rounds' not in run(f'{tmp_path}/m?')[1]


def test_means_of_evaluations_in_other_rounds_are_not_compared(run, tmp_path):
  """Each metric has rounds of its own."""
  name = 'personal_heldout_accuracy'
  for algorithm, every, of_clients in (
      ('fedavg', 1, 1), ('fedper', 2, 1), ('fedrep', 1, 2)):
    path = made_runs.write(
        tmp_path / algorithm, algorithm=algorithm, eval_every=every,
        client_eval_every=of_clients, client_eval='all',
        client_test_fraction=.2, values=[None, .5] * 2 if every == 2 else None
        ) / 'metrics.jsonl'
    lines = map(json.loads, path.read_text().splitlines())
    path.write_text(''.join(json.dumps(line | (
        {} if line['round'] % of_clients else {name: .5})) + '\n'
                            for line in lines))
  of_last_ten = {metric: [
      any('rounds' in row for row in rows_of(
          title, run(tmp_path, f'--metric={metric}')[1]))
      for title in ('FedPer', 'FedRep')] for metric in (name, 'test_accuracy')}
  assert of_last_ten == {name: [False, True], 'test_accuracy': [True, False]}


def test_runs_that_do_not_count_are_listed(runs, run):
  made_runs.write(runs / 'repeated', algorithm='moon', seed=1,
                  values=[.1, .2, .3, .4])
  made_runs.write(runs / 'l2', [.3, .4], algorithm='moon_l2',
                  is_finished=False)
  made_runs.write(runs / 'nan', [.3], diverged='a NaN', seed=2,
                  algorithm='fedavg')
  _, out, err = run(runs)
  assert not err and rows_of('FedAvg', out)[0][0] == '2/3'
  assert rows_of('l2', out)[0][:4] == ['*', '1', '2', '40.0']
  assert rows_of('MOON', out)[0][:5] == [
      '2/3', '4', '91.5', '±', '2.1']
  assert '* no run has finished' in out
  text = ' '.join(out.split())
  assert ('FedAvg, not counted: nan: diverged after 1 of 4 rounds: a '
          'NaN') in text
  assert ('MOON, not counted: repeated: finished, with '
          'the seed 1 of another run') in text
  _, out, _ = run(runs, '--baseline=FedAvg')
  assert ' '.join(out.split('difference from')[1].split()).count(
      'l2* 1 -40.00') == 1


def test_runs_that_have_not_finished_are_not_tested(tmp_path, run):
  """They would be compared with other rounds, and enter Holm's adjustment."""
  for seed in range(3):
    for name, algorithm, more in (
        ('a', 'fedavg', 0), ('b', 'fedprox', .01), ('c', 'moon', .02)):
      values = [.1, .2, .3, round(.4 + more * (1 + .1 * seed), 4)]
      is_finished = algorithm != 'moon'
      made_runs.write(
          tmp_path / f'{name}{seed}', values if is_finished else values[:3],
          algorithm=algorithm, seed=seed, is_finished=is_finished)
  _, out, _ = run(tmp_path)
  assert rows_of('MOON*', out)[-1][:4] == ['3', '-10.00', '(not', 'finished)']
  assert rows_of('MOON*', out)[-1][4:] == ['not', 'the', 'same', 'rounds']
  prox = rows_of('FedProx', out)[2]
  _, out, _ = run(f'{tmp_path}/[ab]*')
  assert rows_of('FedProx', out)[2] == prox and prox[-1].startswith('0.00')


def test_accuracies_before_a_run_diverged_do_not_count(tmp_path, run):
  made_runs.write(tmp_path / 'nan', [.9], diverged='a NaN', algorithm='fedavg')
  made_runs.write(tmp_path / 'moon')
  status, out, _ = run(tmp_path)
  assert status == 0 and '90.0' not in out and 'no common seed' in out
  accuracies, times = rows_of('FedAvg', out)
  assert accuracies == ['*', '0/1', *'----'] and times == ['*', *'---']
  assert 'to target' not in out  # which FedAvg would have


def test_runs_that_diverged_before_an_evaluation_are_rows(tmp_path, run):
  """Without them a table has fewer methods or runs than were trained."""
  for seed in range(2):
    made_runs.write(tmp_path / f'moon{seed}', seed=seed)
    made_runs.write(tmp_path / f'l2{seed}', [], diverged='a NaN', seed=seed,
                    algorithm='moon_l2')
  made_runs.write(tmp_path / 'moon2', [], diverged='an infinity', seed=2)
  status, out, err = run(tmp_path)
  assert (status, err) == (0, '')
  assert rows_of('MOON', out)[0][0] == '2/3'
  assert rows_of('l2', out)[0] == ['*', '0/2', *'----']
  difference = rows_of('l2', out)[-1]
  assert difference == ['*', '0', *'no common seed'.split() * 2]
  assert 'moon2: diverged after 0 of 4 rounds: an infinity' in ' '.join(
      out.split())
  # Nothing else: there is nothing to compare.
  status, out, err = run(f'{tmp_path}/l2*')
  assert (status, out) == (2, '') and 'a run with an evaluation' in err


def test_runs_without_accuracy_are_compared_by_their_losses(runs, run):
  for path in runs.iterdir():
    made_runs.remove_accuracies(path)
  status, out, err = run(runs, '--target=1')
  assert status == 0 and not err and 'accuracy' not in out
  assert 'rounds to 1.0000 test loss' in out
  results, times, difference = rows_of('MOON', out)
  assert results[2:8] == ['0.5000', '±', '0.0000', '0.5000', '±', '0.0000']
  assert times[0] == '2' and difference[:2] == ['2', '+0.0000']
  assert '+0.0000 (equal in all pairs)' in out


def test_accuracies_are_compared_if_any_run_has_them(runs, run):
  made_runs.remove_accuracies(runs / 'fedavg0')  # read first
  status, out, err = run(runs)
  assert status == 0 and '3 runs of digits' in out and 'test loss' not in out
  assert err.count('left out') == 1 and 'fedavg0 has no test_accuracy' in err


def test_a_metric_is_compared_without_an_evaluation(runs, run):
  """Of runs with --eval_every above their rounds so far."""
  for path in runs.iterdir():
    lines = map(json.loads, (path / 'metrics.jsonl').read_text().splitlines())
    (path / 'metrics.jsonl').write_text(''.join(json.dumps({
        name: value for name, value in line.items()
        if not name.startswith('test_')}) + '\n' for line in lines))
  status, out, err = run(runs, '--metric=drift')
  assert (status, err) == (0, '') and '4 runs of digits' in out
  status, out, err = run(runs)
  assert status == 2 and 'a run with an evaluation' in err


def test_data_sets_are_not_compared(runs, run):
  made_runs.write(runs / 'other', dataset='breast_cancer', model='mlp')
  _, out, _ = run(runs)
  text = ' '.join(out.split())
  assert ('The runs have different data sets (breast_cancer, digits): their '
          'results cannot be compared' in text)
  assert 'no common seed' not in out and out.count('points') == 1


def test_damaged_runs_are_left_out(runs, run):
  (runs / 'moon0' / 'metrics.jsonl').write_text('x\n')
  (runs / 'moon1' / 'metrics.jsonl').write_text('')  # of 4 rounds
  status, out, err = run(runs, runs / 'fedavg0')
  assert status == 0 and '2 runs of digits, fedavg' in out
  assert [line.split(':')[0] for line in err.splitlines()] == ['left out'] * 2
  assert 'must have the 4 rounds of summary.json; got 0. Restore it' in err
  status, _, err = run(runs / 'moon0')
  assert status == 2 and 'metrics.jsonl that holds' in err


def test_ascii_terminals_get_ascii(runs, monkeypatch, run):
  monkeypatch.setattr(type(sys.stdout), 'encoding', 'ascii', raising=False)
  _, out, _ = run(runs)
  assert out.isascii() and '80.5 +- 0.7' in out


def test_all_tables_round_a_mean_alike(run, tmp_path):
  """Half a digit in percent, whose last bits depend on what is added first."""
  pairs = [(.001, .002), (.001, .006), (.004, .009), (.013, .018), (.105, .106)]
  for i, pair in enumerate(pairs):
    for seed, value in enumerate(pair):
      made_runs.write(tmp_path / f'{i}{seed}', values=[.5, .5, .5, value],
                      algorithm=f'moon(mu={i + 1})', seed=seed)
  _, out, _ = run(tmp_path)
  sweep = Sweep.grid(made_runs.CONFIG, **{
      'algorithm.mu': [i + 1 for i in range(len(pairs))], 'seed': [0, 1]})
  shown = sweep_table.table(sweep, [
      {'rounds': 4, 'test_accuracy': value, 'best_test_accuracy': value}
      for pair in pairs for value in pair]).columns['test accuracy (%)']
  for i, cell in enumerate(shown):
    assert cell.split()[0] == rows_of(f'MOON, mu {i + 1}', out)[0][2]


def test_a_target_in_percent_has_a_remedy(runs, run):
  status, _, err = run(runs, '--target=80')
  assert status == 2 and 'got 80. Write --target=0.8 for 80%' in err
  _, _, err = run(runs, '--target=62.5')
  assert 'Write --target=0.625 for 62.5%' in err
  status, out, _ = run(runs, '--target=0.8')
  assert not status and 'rounds to 80.00% test accuracy' in out


def test_settings_that_a_run_does_not_have_are_words(run, tmp_path):
  """Arguments that are not given, and files that are not read."""
  (tmp_path / 'lines.txt').write_text('0 1\n' * 4)
  made_runs.write(tmp_path / 'runs' / 'a', algorithm='fedavg')
  made_runs.write(tmp_path / 'runs' / 'b', algorithm='ditto')
  made_runs.write(tmp_path / 'runs' / 'c', algorithm='ditto(lam=0.5)')
  for name in 'a', 'b':
    path = tmp_path / 'runs' / name / 'config.json'
    made = json.loads(path.read_text())
    inputs = {'a': {'cohort.path': '0123abcd'}, 'b': {}}[name]
    path.write_text(json.dumps(made | {'inputs': inputs}))
  _, out, _ = run(tmp_path / 'runs')
  text = ' '.join(out.split())
  assert 'Ditto, lam 0.5' in text and 'Ditto, lam 1' in text
  assert 'FedAvg, content of cohort.path 0123abcd' in text


def test_own_code_is_named_by_its_setting(run, tmp_path):
  for name, algorithm, inputs in (
      ('a', 'fedavg', {}), ('b', 'mine:b', {'algorithm': '0123abcd'})):
    path = made_runs.write(tmp_path / name, algorithm='fedavg') / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | {
        'algorithm': algorithm, 'inputs': inputs}))
  _, out, _ = run(tmp_path)
  assert rows_of('FedAvg', out) and rows_of('mine:b', out)
  assert 'content of' not in out and 'no algorithm' not in out
