"""Runs are grouped over seeds, and what cannot be compared is named."""

import csv
import sys

import matplotlib.image
import pytest

import made_runs
from moon_jax import compare
from moon_jax.errors import UserError
from moon_jax.report import groups
from moon_jax.results import read


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


def run(capsys, monkeypatch, *args):
  monkeypatch.setattr(sys, 'argv', ['compare', *map(str, args)])
  with pytest.raises(SystemExit) as status:
    compare.main()
  captured = capsys.readouterr()
  return status.value.code or 0, captured.out, captured.err


def test_seeds_are_grouped_and_paired(runs, capsys, monkeypatch, tmp_path):
  status, out, _ = run(capsys, monkeypatch, runs, f'--plot={tmp_path}/c.png',
                       f'--csv={tmp_path}/c.csv')
  assert status == 0 and max(map(len, out.splitlines())) <= 80
  lines = out.splitlines()
  assert lines[0].startswith('4 runs of digits, simple_cnn; they differ in alg')
  assert lines[1:3] == ['a  algorithm=fedavg', 'b  algorithm=moon']
  rows = [line.split() for line in lines if line.startswith(('a  ', 'b  '))]
  assert rows[2][:6] == ['a', '2', '4', '80.5', '±', '0.7']
  assert rows[3][:6] == ['b', '2', '4', '91.5', '±', '2.1']
  # 11 ± 1 points: t(1, .975) = 12.706 times 1
  assert rows[4][:5] == ['b', '2', '+11.00', '(-1.71', 'to']
  assert 'target: test accuracy 80.50%' in out
  assert matplotlib.image.imread(tmp_path / 'c.png').shape[1:] == (1080, 4)
  with open(tmp_path / 'c.csv', newline='') as table:
    found = list(csv.DictReader(table))
  assert [(row['algorithm'], row['seed'], row['last']) for row in found] == [
      ('fedavg', '0', '0.8'), ('fedavg', '1', '0.81'),
      ('moon', '0', '0.9'), ('moon', '1', '0.93')]
  assert [row['rounds_to_target'] for row in found] == ['', '4', '4', '4']


def test_pairs_have_equal_seeds_in_whatever_order_runs_are_read(
    tmp_path, capsys, monkeypatch):
  """FedAvg's seed 2 has no partner, and MOON's seed 1 is read first."""
  for name, algorithm, seed, last in (
      ('a', 'fedavg', 2, .1), ('b', 'fedavg', 0, .2), ('c', 'fedavg', 1, .6),
      ('d', 'moon', 1, .7), ('e', 'moon', 0, .32)):
    made_runs.write(tmp_path / name, algorithm=algorithm, seed=seed,
                    values=[.1, .1, .1, last])
  _, out, _ = run(capsys, monkeypatch, tmp_path)
  rows = [line.split() for line in out.splitlines() if line[:3] == 'b  ']
  # 10 and 12 points; the interval is 12.706 points to both sides.
  assert rows[2][:5] == ['b', '2', '+11.00', '(-1.71', 'to']


def test_equal_differences_have_no_interval(tmp_path, capsys, monkeypatch):
  for seed in 0, 1:
    for algorithm, last in ('fedavg', .5), ('moon', .6):
      made_runs.write(tmp_path / f'{algorithm}{seed}', algorithm=algorithm,
                      seed=seed, values=[.1, .1, .1, last + .1 * seed])
  _, out, _ = run(capsys, monkeypatch, tmp_path)
  rows = [line.split() for line in out.splitlines() if line[:3] == 'b  ']
  assert rows[2] == ['b', '2', '+10.00', '+2.50']


def test_rows_are_sorted_by_settings_unless_runs_are_named(
    capsys, monkeypatch, tmp_path):
  for name, mu in ('1', 10.), ('2', .5), ('3', 2.):  # names are hashes, really
    made_runs.write(tmp_path / name, algorithm='moon', mu=mu, values=[.5])
  _, out, _ = run(capsys, monkeypatch, tmp_path)
  assert out.splitlines()[1:4] == ['a  mu=0.5', 'b  mu=2', 'c  mu=10']
  _, out, _ = run(capsys, monkeypatch, tmp_path / '1', tmp_path / '2')
  assert out.splitlines()[1:3] == ['a  mu=10', 'b  mu=0.5']


def test_a_target_and_a_baseline_are_chosen(runs, capsys, monkeypatch):
  _, out, _ = run(capsys, monkeypatch, runs / 'fedavg0', f'{runs}/moon*',
                  '--target=.6', '--baseline=moon')
  assert 'target: test accuracy 60.00%' in out
  assert 'difference from b' in out and 'a      1  -10.00' in out
  rows = [line.split() for line in out.splitlines() if line[:3] == 'a  ']
  assert rows[1][6] == '3'  # whose accuracy is exactly .6
  status, _, err = run(capsys, monkeypatch, runs, '--baseline=scaffold')
  assert status == 2 and 'algorithm=fedavg; algorithm=moon' in err


def test_a_repeated_seed_counts_once(runs, capsys, monkeypatch):
  made_runs.write(runs / 'repeated', algorithm='moon', seed=1,
                  values=[.1, .2, .3, .4])
  _, out, _ = run(capsys, monkeypatch, runs)
  rows = [line.split() for line in out.splitlines() if line[:3] == 'b  ']
  assert rows[1][:6] == ['b', '2/3', '4', '91.5', '±', '2.1']
  assert ('b, not counted: repeated: finished, with the seed 1 of another run'
          in out)


@pytest.mark.parametrize('target', [80, 0, -1])
def test_a_target_is_a_fraction(runs, capsys, monkeypatch, target):
  status, _, err = run(capsys, monkeypatch, runs, f'--target={target}')
  assert status == 2 and '--target must be a fraction' in err


def test_settings_without_effect_do_not_differ(tmp_path):
  for name, fields in (('a', {'algorithm': 'fedavg'}),
                       ('b', {'algorithm': 'moon', 'mu': 3.}),
                       ('c', {'algorithm': 'moon', 'mu': 1.})):
    made_runs.write(tmp_path / name, **fields)
  found = [read.read(path) for path in read.find([str(tmp_path)])]
  assert groups.differing(found[:2]) == ['algorithm']
  assert groups.differing(found) == ['algorithm', 'mu']
  labels = [group.label for group in groups.of_runs(found)]
  assert labels == ['algorithm=fedavg', 'algorithm=moon mu=3',
                    'algorithm=moon mu=1']


def test_runs_that_exclude_clients_are_others(tmp_path):
  """Not repeated seeds of runs that stop at the first NaN."""
  for name, on_nan in ('a', 'stop'), ('b', 'skip_client'):
    made_runs.write(tmp_path / name, on_nan=on_nan)
  found = [read.read(path) for path in read.find([str(tmp_path)])]
  assert [arm.label for arm in groups.of_runs(found)] == [
      'on_nan=stop', 'on_nan=skip_client']


def test_lanes_and_evaluations_are_not_settings(tmp_path):
  for seed, fields in enumerate(({}, {'lanes': 2}, {'eval_every': 2})):
    made_runs.write(tmp_path / str(seed), seed=seed, **fields)
  found = [read.read(path) for path in read.find([str(tmp_path)])]
  assert len(groups.of_runs(found)) == 1


def test_runs_that_are_not_finished_are_marked(runs, capsys, monkeypatch):
  made_runs.write(runs / 'l2', [.3, .4], algorithm='moon', contrastive='l2',
                  is_finished=False)
  path = made_runs.write(runs / 'nan', [.3], is_finished=False, seed=2,
                         algorithm='fedavg')
  (path / 'diverged.json').write_text('{"rounds": 1, "error": "a NaN"}')
  _, out, err = run(capsys, monkeypatch, runs)
  assert not err
  rows = [line.split() for line in out.splitlines()]
  assert any(row[:2] == ['a', '2/3'] for row in rows)
  assert any(row[:4] == ['b*', '1', '2', '40.0'] for row in rows)
  assert '* no run has finished' in out
  assert 'a, not counted: nan: diverged after 1 of 4 rounds: a NaN' in out


def test_accuracies_before_a_run_diverged_do_not_count(
    tmp_path, capsys, monkeypatch):
  path = made_runs.write(tmp_path / 'nan', [.9], is_finished=False,
                         algorithm='fedavg')
  (path / 'diverged.json').write_text('{"rounds": 1, "error": "a NaN"}')
  made_runs.write(tmp_path / 'moon')
  status, out, _ = run(capsys, monkeypatch, tmp_path)
  assert status == 0 and '90.0' not in out
  rows = [line.split() for line in out.splitlines()]
  assert ['a*', '0/1', *'------'] in [row[:8] for row in rows]
  assert 'no common seed' in out


def test_data_sets_are_not_compared(runs, capsys, monkeypatch):
  made_runs.write(runs / 'other', dataset='breast_cancer', model='mlp')
  _, out, _ = run(capsys, monkeypatch, runs)
  text = ' '.join(out.split())
  assert ('The runs have different data sets (breast_cancer, digits): their '
          'accuracies cannot be compared' in text)
  assert 'no common seed' not in out and out.count('points') == 1


def test_damaged_runs_are_left_out(runs, capsys, monkeypatch):
  (runs / 'moon0' / 'metrics.jsonl').write_text('x\n')
  (runs / 'moon1' / 'metrics.jsonl').write_text('')
  status, out, err = run(capsys, monkeypatch, runs, runs / 'fedavg0')
  assert status == 0 and '2 runs of digits, fedavg' in out
  assert [line.split(':')[0] for line in err.splitlines()] == ['left out'] * 2
  assert 'moon1 has no accuracy yet' in err
  status, _, err = run(capsys, monkeypatch, runs / 'moon0')
  assert status == 2 and 'there must be a run with an accuracy' in err


def test_arguments_without_runs_are_errors(tmp_path):
  (tmp_path / 'empty').mkdir()
  for name in 'empty', 'none', 'pattern*':
    with pytest.raises(UserError, match='must be, or hold, directories of'):
      read.find([str(tmp_path / name)])


def test_ascii_terminals_get_ascii(runs, monkeypatch, capsys):
  monkeypatch.setattr(type(sys.stdout), 'encoding', 'ascii', raising=False)
  _, out, _ = run(capsys, monkeypatch, runs)
  assert out.isascii() and '80.5 +- 0.7' in out
