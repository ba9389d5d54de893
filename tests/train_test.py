"""The command, as users meet it."""

import contextlib
import dataclasses
import json
import pathlib
import shutil

import numpy as np
import pytest

from moon_jax.config import Config
from moon_jax.data import cohort
from moon_jax.errors import DivergedError, UserError
from moon_jax.runs import run
from moon_jax.runs.identity import fingerprint
from moon_jax.simulation import checks
from support import inline, ROOT
from support.small_runs import lines_of

SMALL = Config(
    dataset='digits', num_clients=6, participation=.5,
    algorithm='moon(num_negatives=2)', num_rounds=4, local_epochs=1,
    batch_size=16, learning_rate=.02, checkpoint_every=1, eval_every=2,
    model='mlp')
with_ = dataclasses.replace


@pytest.fixture(scope='session')
def runs(tmp_path_factory):
  """A directory with runs of SMALL: `half` has 2 rounds, and `whole` all 4."""
  directory = tmp_path_factory.mktemp('runs')
  run.run(with_(SMALL, workdir=str(directory / 'half'), num_rounds=2))
  run.run(with_(SMALL, workdir=str(directory / 'whole')))
  return directory


@pytest.fixture
def half(runs, tmp_path):
  """A copy of the run of 2 rounds."""
  return shutil.copytree(runs / 'half', tmp_path / 'half')


def test_command_writes_all_that_it_promises(tmp_path):
  resolved = checks.validate(SMALL)
  flags = [f'--{"" if v is not False else "no"}{k}'
           + ('' if isinstance(v, bool) else f'={v}')
           for k, v in SMALL.to_dict().items()]
  done = inline.run(*flags, cwd=tmp_path)
  assert done.status == 0 and 'Traceback' not in done.err, done.err
  workdir = tmp_path / 'runs' / f'digits-moon-{fingerprint(resolved)}'
  assert {p.name for p in workdir.iterdir()} == {
      'config.json', 'partition.npz', 'cohorts.txt', 'metrics.jsonl',
      'checkpoints', 'model.safetensors', 'summary.json', 'log.txt'}
  assert json.loads((workdir / 'config.json').read_text()) == (
      resolved.to_dict())

  metrics = [json.loads(line) for line in open(workdir / 'metrics.jsonl')]
  assert [line['round'] for line in metrics] == [1, 2, 3, 4]
  assert ['test_accuracy' in line for line in metrics] == [
      False, True, False, True]
  for line in metrics:
    assert {'train_loss', 'contrastive_loss', 'drift', 'seconds',
            'examples_per_second'} <= set(line)
    assert line['drift'] > 0 and line['examples_per_second'] > 0
  correct = metrics[-1]['test_accuracy'] * 359  # a fraction of the test set
  assert abs(correct - round(correct)) < 1e-9

  summary = json.loads((workdir / 'summary.json').read_text())
  assert summary['rounds'] == 4
  assert summary['test_accuracy'] == metrics[-1]['test_accuracy']
  assert f'test accuracy {summary["test_accuracy"]:.2%}' in (
      done.out.splitlines()[-1])

  saved = np.load(workdir / 'partition.npz')
  assert saved['sizes'].sum() == len(saved['indices']) == 1438
  assert sorted(saved['indices']) == list(range(1438))

  # The same command again: nothing to do, and it says so.
  done = inline.run(*flags, cwd=tmp_path)
  assert done.status == 0 and 'is complete' in done.out
  assert len(lines_of(workdir)) == 4


def test_resumed_run_equals_unbroken_run(runs, half):
  with pytest.raises(UserError, match='another config.*eval_examples=0'):
    run.run(with_(SMALL, workdir=str(half), eval_examples=75))
  # A line of a round that no checkpoint holds, and half a line.
  with open(half / 'metrics.jsonl', 'a') as out:
    out.write('{"round": 3, "train_loss": 99}\n{"round": 4, "tra')
  run.run(with_(SMALL, workdir=str(half), lanes=0))
  assert lines_of(half) == lines_of(runs / 'whole')


@pytest.mark.long
def test_fewer_test_examples_are_recorded(tmp_path, capsys, monkeypatch):
  from moon_jax.view import progress

  shown = []
  monkeypatch.setattr(
      progress.Progress, 'busy',
      lambda self, what, *_: shown.append(what.partition(' (')[0])
      or contextlib.nullcontext())
  config = with_(SMALL, workdir=str(tmp_path), eval_examples=75)
  summary = run.run(with_(config, num_rounds=2))
  assert shown == [
      'loading data', 'preparing the first round', 'compiling',
      'round 1: training', 'round 1: saving a checkpoint', 'round 2: training',
      'round 2: evaluating on 75 examples', 'round 2: saving a checkpoint',
      'saving the final model']
  assert summary['test_examples'] == 75
  assert 'evaluated on 75 of the test examples' in capsys.readouterr().out
  run.run(config)
  lines = lines_of(tmp_path)
  assert [line.get('test_examples') for line in lines] == [None, 75, None, 75]
  correct = lines[-1]['test_accuracy'] * 75
  assert abs(correct - round(correct)) < 1e-9
  with pytest.raises(UserError, match='eval_examples=75 .now 0.'):
    run.run(with_(config, eval_examples=0))


@pytest.mark.long
def test_listed_cohorts_replay_a_run(runs, tmp_path):
  cohorts = pathlib.Path(shutil.copy(runs / 'whole' / 'cohorts.txt', tmp_path))
  listed = with_(SMALL, participation=1., cohort=f'file(path={cohorts})',
                 workdir=str(tmp_path / 'listed'))
  run.run(listed)
  assert lines_of(tmp_path / 'listed') == lines_of(runs / 'whole')
  cohorts.write_text('0\n1 2 3 4\n5 0\n1\n')
  with pytest.raises(UserError, match='where cohort.path=.*had other'):
    run.run(listed)
  other = with_(listed, workdir=str(tmp_path / 'other'))
  run.run(other)
  assert len(lines_of(tmp_path / 'other')) == 4


@pytest.mark.long
def test_failing_clients_and_evaluation_of_clients(tmp_path):
  config = with_(SMALL, algorithm='scaffold', optimizer='sgd(momentum=0)',
                 rounds='synchronous(dropout_rate=0.5, '
                 'dropout_stage=after_training)', client_eval_every=2,
                 server='sgd(momentum=0.5)')
  run.run(with_(config, workdir=str(tmp_path / 'a')))
  run.run(with_(config, workdir=str(tmp_path / 'b'), num_rounds=2))
  run.run(with_(config, workdir=str(tmp_path / 'b'), lanes=1))
  metrics = lines_of(tmp_path / 'a')
  assert metrics == lines_of(tmp_path / 'b')
  for line in metrics:
    assert 0 <= line['clients_received'] <= 3
    assert -1 <= line['update_cosine'] <= 1
  assert len({line['clients_received'] for line in metrics}) > 1
  assert ['clients' in line for line in metrics] == [False, True, False, True]
  cohorts = [sorted(map(int, line.split())) for line in
             (tmp_path / 'a' / 'cohorts.txt').read_text().splitlines()]
  sizes = np.load(tmp_path / 'a' / 'partition.npz')['sizes']
  for line in metrics[1::2]:
    table = line['clients']
    assert sorted(table['client']) == cohorts[line['round'] - 1]
    assert table['num_examples'] == sizes[table['client']].tolist()
    assert np.mean(table['drift']) == pytest.approx(line['drift'])
    for name in ('global_own_accuracy', 'local_own_accuracy',
                 'local_test_accuracy'):
      assert np.mean(table[name]) == pytest.approx(line[name])
      assert np.std(table[name]) == pytest.approx(line[f'{name}_std'])
    correct = np.array(table['local_own_accuracy']) * table['num_examples']
    np.testing.assert_allclose(correct, correct.round(), atol=1e-9)


@pytest.mark.long
def test_rounds_in_which_all_fail_are_recorded(tmp_path):
  config = with_(SMALL, rounds='synchronous(dropout_rate=0.95)',
                 client_eval_every=1)
  run.run(with_(config, workdir=str(tmp_path)))
  metrics = lines_of(tmp_path)
  empty = [line for line in metrics if not line['clients_received']]
  assert len(metrics) == 4 and empty
  assert 'train_loss' not in empty[0] and empty[0]['clients']['client'] == []


@pytest.mark.slow
def test_privacy_loss_is_reported(tmp_path, promotion):
  config = with_(SMALL, algorithm='fedavg', weighting='uniform',
                 privacy='client(clip=0.5, noise_multiplier=0.02)')
  run.run(with_(config, workdir=str(tmp_path / 'a')))
  run.run(with_(config, workdir=str(tmp_path / 'b'), num_rounds=2))
  summary = run.run(with_(config, workdir=str(tmp_path / 'b')))
  metrics = lines_of(tmp_path / 'a')
  # The same noise, resumed or not.
  assert metrics == lines_of(tmp_path / 'b')
  spent = [line['epsilon'] for line in metrics if 'epsilon' in line]
  assert len(spent) == 2 and 0 < spent[0] < spent[1] == summary['epsilon']


@pytest.mark.long
def test_rounds_after_the_first_compile_nothing(tmp_path, compilations):
  lengths = []
  run.run(with_(SMALL, workdir=str(tmp_path), checkpoint_every=0, eval_every=1),
          callbacks=[lambda *_: lengths.append(len(compilations))])
  assert len(lengths) == 4 and lengths[0] > 0
  assert lengths[0] == lengths[-1]


@pytest.mark.parametrize('changes, words', [
    (dict(learning_rate=1e30), 'at its last local step'),
    pytest.param(dict(learning_rate=1e9, eval_every=1, algorithm='fedavg'),
                 'the test loss became', marks=pytest.mark.long)])
def test_divergence_is_reported(changes, words, tmp_path):
  config = with_(SMALL, workdir=str(tmp_path), batch_size=2000, **changes)
  with pytest.raises(DivergedError, match=words):  # after one step a client
    run.run(config)
  assert not (tmp_path / 'summary.json').exists()


def test_shuffles_are_addressed_by_seed_round_and_client(digits):
  from moon_jax.data import split
  from moon_jax.simulation import build
  from moon_jax.simulation.simulation import Simulation

  config = with_(SMALL, participation=1.)
  clients, cohorts = split.make(config, digits).clients, cohort.make(config)
  simulations = [
      Simulation(build.federation(
          with_(config, seed=seed, lanes=lanes), digits, clients, cohorts))
      for seed, lanes in ((0, 1), (0, 3), (1, 1))]

  def order(simulation, round_index, client):
    table = simulation.planner.plan(round_index)
    job = list(table.jobs.client).index(client)
    rows, lanes = np.nonzero(table.job_TL == job)
    return table.examples_TLB[rows, lanes].ravel().tolist()

  given = order(simulations[0], 1, 2)
  assert given == order(simulations[0], 1, 2) == order(simulations[1], 1, 2)
  assert given != order(simulations[0], 2, 2)
  assert given != order(simulations[2], 1, 2)
  number_N = np.random.default_rng([0, 1]).random(len(digits.train_labels))
  for client, indices in enumerate(clients):
    found = order(simulations[0], 1, client)
    assert found == sorted(indices, key=lambda i: number_N[i])[:len(found)]


def test_a_checkpoint_without_metrics_is_reported(half):
  (half / 'metrics.jsonl').unlink()
  with pytest.raises(UserError, match='must hold metrics.jsonl next to'):
    run.run(with_(SMALL, workdir=str(half)))


def test_summary_is_made_up_for(half):
  path = half / 'summary.json'
  first = json.loads(path.read_text())
  path.unlink()
  again = run.run(with_(SMALL, workdir=str(half), num_rounds=2))
  assert again['test_accuracy'] == first['test_accuracy']


def test_what_cannot_fit_is_refused(tmp_path):
  with pytest.raises(UserError, match='needs at least .* GB'):
    run.run(with_(SMALL, workdir=str(tmp_path),
                  algorithm='moon(num_negatives=1000000)'))


@pytest.mark.long
def test_run_on_other_data_is_another_run(tmp_path, monkeypatch, capfd):
  monkeypatch.chdir(tmp_path)
  random = np.random.RandomState(0)
  data = dict(x_train=random.randn(40, 3), y_train=np.arange(40) % 2,
              x_test=random.randn(10, 3), y_test=np.arange(10) % 2)
  config = Config(dataset='npz', data_dir='a.npz', model='mlp', num_clients=2,
                  algorithm='fedavg', partition='iid', num_rounds=1,
                  local_epochs=1, checkpoint_every=0)
  np.savez('a.npz', **data)
  np.savez('b.npz', **data)
  run.run(config)
  run.run(with_(config, data_dir='b.npz'))
  assert capfd.readouterr().out.count('is complete') == 1
  data['x_train'][7, 1] += .5
  np.savez('a.npz', **data)
  run.run(config)
  assert len(list(pathlib.Path('runs').iterdir())) == 2
  run.run(with_(config, workdir='w'))
  with pytest.raises(UserError, match='where dataset=npz had other content'):
    run.run(with_(config, data_dir='b.npz', workdir='w'))


@pytest.mark.parametrize('name', sorted(
    path.name for path in (ROOT / 'experiments').glob('*.flags')))
def test_flag_files_are_valid_and_tell_what_to_expect(name):
  path = ROOT / 'experiments' / name
  text = path.read_text()
  assert text.startswith('#') and 'accuracy' in text
  done = inline.run(f'--flagfile={path}', '--data_dir=/no/such',
                    '--workdir=/proc/run', cwd=ROOT)
  # The flags of the file are valid: only the invalid ones are reported.
  assert done.status == 2
  assert 'data_dir' in done.err or '--workdir' in done.err
