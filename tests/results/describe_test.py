"""A run is described in 80 columns, in every state that it may be in."""

import functools
import itertools
import json
import os
import pathlib
import signal
import subprocess
import sys

from matplotlib.figure import Figure
import matplotlib.image
import numpy as np
import pandas as pd
import pytest

from moon_jax.errors import UserError
from moon_jax.results import describe, figures, read, show
from moon_jax.runs import directory
from support import made_runs, page_checks


@pytest.fixture
def run(run_command):
  return functools.partial(run_command, show.main)


def test_a_run_whose_data_are_gone_has_a_map_of_its_split(tmp_path, run):
  path = made_runs.write(
      tmp_path / 'run', dataset='npz', data_dir=str(tmp_path / 'gone.npz'))
  np.savez(path / 'partition.npz', sizes=[3, 4], counts=[[3, 0], [0, 4]],
           class_names=['cat', 'dog'])
  status, _, err = run(path, f'--out={tmp_path}/out')
  assert status == 0, err
  assert {'run.png', 'partition.png'} < {
      file.name for file in (tmp_path / 'out').iterdir()}


def test_the_command_prints_text_and_writes_files(tmp_path, run):
  path = made_runs.write(tmp_path / 'run', participation=.7)
  status, out, err = run(path, f'--out={tmp_path}/out', '--format=png,svg')
  assert status == 0 and max(map(len, out.splitlines())) <= 80
  assert 'finished: 4 of 4 rounds' in out
  row = next(line for line in out.splitlines() if line.startswith('test acc'))
  assert row.split() == ['test', 'accuracy', '80.00%', '80.00%', '50.00%', '4']
  assert '0.25 s per round (median), 100 examples/s' in out
  assert '3.0 s compiling' in out and 'participation=0.7' in out
  assert 'traffic: 4 MB per round\n' in out
  assert '2 of 3 clients so far, each 0 to 4 times' in out
  out = tmp_path / 'out'
  assert {path.name for path in out.iterdir()} == {
      'index', 'index.html', 'index.md', 'runs.csv', 'rounds.csv',
      'clients.csv', 'run.png', 'run.svg'}
  assert all(str(out / name) in err for name in ('index.html', 'run.png'))
  assert matplotlib.image.imread(out / 'run.png').ndim == 3
  assert not page_checks.errors((out / 'index.html').read_text())
  frame = pd.read_csv(out / 'rounds.csv')
  assert frame['test_accuracy'].tolist() == [.2, .4, .6, .8]


def test_a_closed_pipe_ends_the_command_silently(tmp_path):
  """As `| head -1` does once it has its line."""
  path = made_runs.write(tmp_path / 'run')
  reader, writer = os.pipe()
  os.close(reader)
  done = subprocess.run([sys.executable, '-m', 'moon_jax', 'show',
                         str(path)],
                        stdout=writer, stderr=subprocess.PIPE, check=False)
  os.close(writer)
  assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b'')


@pytest.mark.parametrize('num_rounds, num_clients', [
    (1, 3), (4, 200), (300, 3)])
def test_text_fits_80_columns(tmp_path, num_rounds, num_clients):
  path = made_runs.write(
      tmp_path / ('long' * 30), num_rounds=num_rounds, num_clients=num_clients,
      values=[.1234] * num_rounds)
  text = describe.text(read.read(path))
  lines = text.splitlines()
  assert max(map(len, lines[2:])) <= 80  # a path may be longer
  assert ('300 rounds' in text) == (num_rounds == 300)
  assert ('(20 of 300; --out writes all)' in text) == (num_rounds == 300)
  assert ('median' in lines[-3]) == (num_clients == 200)


def test_rounds_with_evaluations_are_shown(tmp_path):
  lines = [{'round': r} | ({'test_loss': .5} if r % 7 == 0 else {})
           for r in range(1, 101)]
  shown = [line['round'] for line in describe.thinned(lines)]
  assert shown == [*range(7, 99, 7), 100]
  assert describe.thinned(lines[:20]) == lines[:20]  # there is room for them
  assert [line['round'] for line in describe.thinned(lines[:21])] == [7, 14, 21]


def test_clients_are_in_order_and_were_sampled_so_far(tmp_path):
  """cohorts.txt has all rounds from the start on."""
  path = made_runs.write(tmp_path / 'run', [.1], is_finished=False,
                         num_clients=3, participation=.7)
  (path / 'cohorts.txt').write_text('0 1\n1 2\n2 0\n')
  run = read.read(path)
  assert run.times_sampled().tolist() == [1, 1, 0]
  text = describe.text(run)
  assert 'sampled: 2 of 3 clients so far, each 0 to 1 times' in text
  assert [line.split() for line in text.splitlines()[-3:]] == [
      ['0', '5', '1', '25.00%', '2.5000'],
      ['1', '5', '1', '25.00%', '1.5000'],
      ['2', '5', '0', '-', '0.5000']]


def test_lost_updates_of_clients_are_shown(tmp_path):
  path = made_runs.write(tmp_path / 'run', [.5], num_rounds=1)
  line = made_runs.line(1, .5)
  for received, is_shown in ([True] * 3, False), ([True, False, True], True):
    line['clients']['received'] = received
    (path / 'metrics.jsonl').write_text(json.dumps(line) + '\n')
    assert ('received' in describe.text(read.read(path))) == is_shown


def test_heldout_accuracies_of_clients_come_first(tmp_path):
  path = made_runs.write(tmp_path / 'run', [.5], num_rounds=1)
  line = made_runs.line(1, .5)
  line['clients'] |= {'cosine_with_mean': [.5] * 3} | {
      f'{name}_accuracy': [.125] * 3 for name in (
          'global_own', 'local_own', 'global_heldout', 'local_heldout')}
  line['clients'] |= {f'metric_of_a_client_{i}': [1.5] * 3 for i in range(9)}
  (path / 'metrics.jsonl').write_text(json.dumps(line) + '\n')
  text = describe.text(read.read(path))
  table = text[text.index('clients by local held-out accuracy'):].splitlines()
  assert table[1].split()[:4] == ['local', 'global', 'global', 'local']
  assert table[4].split()[:4] == ['0', '5', '1', '12.50%']
  assert 'columns that do not fit, but in a wider terminal: drift' in ' '.join(
      text.split()) and max(map(len, table)) <= 80


def test_a_task_without_accuracies_has_losses(tmp_path, monkeypatch):
  path = made_runs.write(tmp_path / 'run')
  made_runs.remove_accuracies(path)
  run = read.read(path)
  text = describe.text(run, is_unicode=False)
  row = next(line for line in text.splitlines() if line.startswith('test loss'))
  assert row.split() == ['test', 'loss', '0.5000', '0.5000', '1.0417', '4']
  assert 'test mse' in text and text.isascii()
  drawn = []
  monkeypatch.setattr(Figure, 'savefig',
                      lambda self, *_, **__: drawn.append(self))
  figures.save(figures.run_picture(run), tmp_path, 'png')
  empty, losses, _, clients = drawn[0].axes
  assert empty.get_title() == 'accuracy: not recorded'
  assert [line.get_label() for line in losses.lines] == [
      'train loss', 'global model, test data']
  line, = clients.lines  # a client has no value
  assert line.get_ydata()[:2].tolist() == [.25, .25]
  assert [label.get_text() for label in clients.get_xticklabels()] == [
      '1', '0', '2']


def test_evaluations_are_those_of_the_metric_that_is_shown(tmp_path):
  path = made_runs.write(tmp_path / 'run')
  text = (path / 'metrics.jsonl').read_text()
  (path / 'metrics.jsonl').write_text(text.replace(
      'test_accuracy": 0', 'validation_accuracy": 0').replace(
          'test_loss', 'another'))
  text = describe.text(read.read(path))
  assert 'validation accuracy' in text and 'mean of last 10' in text
  assert 'of all evaluations if there are fewer' in text


def locked(path):
  """Returns metrics.jsonl, locked as by the run that writes it."""
  metrics = open(path / 'metrics.jsonl', 'a')
  assert directory.try_lock(metrics)
  return metrics


def test_a_run_that_holds_its_lock_is_running(tmp_path):
  path = made_runs.write(tmp_path / 'run', [.1, .2], is_finished=False)
  with open(path / 'metrics.jsonl', 'a') as out:
    out.write('{"round": 3, "test_acc')  # a line that is being written
  metrics = locked(path)
  state = read.read(path).state
  assert state.kind == 'running' and '2 of 4 rounds' in state.text
  assert f'process {os.getpid()} holds the lock' in state.text
  metrics.close()
  state = read.read(path).state
  assert state.kind == 'stopped' and 'starts again' in state.text
  locked(path).close()  # reading has released its own lock
  (path / 'checkpoints' / '2').mkdir(parents=True)
  assert 'resumes after round 2' in read.read(path).state.text


def test_states_of_runs_that_ended(tmp_path):
  path = made_runs.write(tmp_path / 'run', [.1, .2], is_finished=False)
  for name, content, kind, text in (
      ('summary.json', '{"rounds": 2, "stopped_early": true}', 'finished', ''),
      ('summary.json', '{"rounds": 2}', 'stopped', ''),  # num_rounds was raised
      ('diverged.txt', 'a NaN\n', 'diverged', 'after 2 of 4 rounds: a NaN'),
      ('diverged.json', '{"rounds": 2, "error": "an inf"}', 'diverged',
       'after 2 of 4 rounds: an inf')):
    (path / name).write_text(content)
    state = read.read(path).state
    assert state.kind == kind and text in state.text


def test_a_run_without_metrics_or_partition(tmp_path, run):
  path = made_runs.write(tmp_path / 'run', [], is_finished=False)
  (path / 'partition.npz').write_bytes(b'damaged')
  status, out, err = run(path, f'--out={tmp_path}/x')
  assert status == 2 and 'no metrics' in out
  assert 'must have metrics to plot' in err


@pytest.mark.parametrize('file, content, message', [
    ('config.json', '{', 'config.json must be a readable JSON object'),
    ('config.json', '[1]', 'it is not a JSON object'),
    ('config.json', '{"num_rounds": "x"}',
     'must be the configuration of a run'),
    ('config.json', '{"algorithm": "moon(mu=x"}',
     'must be the configuration of a run'),
    ('metrics.jsonl', '{"round": 2}\n',
     'metrics.jsonl that holds one line per round'),
    ('summary.json', '{"a"', 'summary.json must be a readable JSON object')])
def test_damaged_files_are_named(tmp_path, file, content, message):
  path = made_runs.write(tmp_path / 'run')
  (path / file).write_text(content)
  with pytest.raises(UserError, match=message) as error:
    read.read(path)
  assert str(path) in str(error.value) and '--workdir' not in str(error.value)


def test_directories_of_other_kinds_are_named(tmp_path, run):
  status, _, err = run(tmp_path)
  assert status == 2 and 'must be, or hold, directories of runs' in err
  made_runs.write(tmp_path / 'sweep' / 'run')
  with pytest.raises(UserError, match='It holds 1 runs: name one'):
    read.read(tmp_path)
  with pytest.raises(UserError, match='got nothing there'):
    read.read(tmp_path / 'none')
  with pytest.raises(UserError, match='must be a directory that can be'):
    figures.save(figures.run_picture(read.read(tmp_path / 'sweep' / 'run')),
                 tmp_path / 'no', 'png')


def test_following_prints_until_the_run_ends(tmp_path, monkeypatch, run):
  path = made_runs.write(tmp_path / 'run', [.1, .2], is_finished=False)
  metrics = locked(path)

  def append(number):
    metrics.write(json.dumps(made_runs.line(number, number / 10)) + '\n')
    metrics.flush()

  actions = iter([lambda: append(3), lambda: None, lambda: append(4),
                  metrics.close])
  monkeypatch.setattr(show.time, 'sleep', lambda seconds: next(actions)())
  status, out, _ = run(path, '--follow')
  assert not status and [
      f'{n} of 4 rounds' in out for n in (2, 3, 4)] == [True] * 3
  assert out.count('running:') == 3 and out.count('stopped:') == 1


def read_between(path, steps):
  """Reads a run that takes steps meanwhile, at each place that is possible.

  `steps` are (number, function): the function is called before the files of the
  run are looked at for the `number`-th time.
  """
  due, count = list(steps), itertools.count(1)
  with pytest.MonkeyPatch.context() as patch:
    def stepping(function):
      def look(*args, **kwargs):
        number = next(count)
        while due and number >= due[0][0]:
          due.pop(0)[1]()
        return function(*args, **kwargs)
      return look

    for owner, name in (pathlib.Path, 'read_bytes'), (
        directory, 'try_lock'):
      patch.setattr(owner, name, stepping(getattr(owner, name)))
    return read.read(path)


def test_a_run_that_ends_while_it_is_read_is_running_or_finished(tmp_path):
  """It writes its last line, then its summary, and then it ends."""
  whole = made_runs.write(tmp_path / 'whole')
  *lines, last = (whole / 'metrics.jsonl').read_text().splitlines(True)
  summary, seen = (whole / 'summary.json').read_text(), set()
  path = made_runs.write(tmp_path / 'run', is_finished=False)
  for places in itertools.combinations_with_replacement(range(1, 8), 3):
    (path / 'metrics.jsonl').write_text(''.join(lines))
    (path / 'summary.json').unlink(missing_ok=True)
    metrics = locked(path)
    found = read_between(path, zip(places, [
        lambda file=metrics: (file.write(last), file.flush()),
        lambda: (path / 'summary.json').write_text(summary),
        metrics.close]))
    metrics.close()
    seen.add((found.state.kind, len(found.lines)))
  assert seen == {('running', 3), ('running', 4), ('finished', 4)}


def test_a_run_that_is_extended_while_it_is_read_is_read_again(tmp_path):
  for i, places in enumerate(itertools.combinations_with_replacement(
      range(1, 8), 2)):
    path = made_runs.write(tmp_path / f'{i}')
    with open(path / 'metrics.jsonl', 'a') as file:
      found = read_between(path, zip(places, [
          (path / 'summary.json').unlink,
          lambda file=file: (file.write(json.dumps(made_runs.line(5, .5))
                                        + '\n'), file.flush())]))
    assert len(found.lines) == 4 + (not found.summary and max(places) <= 4), (
        places)


def test_names_of_many_clients_have_no_distribution(tmp_path):
  path = made_runs.write(tmp_path / 'run', num_clients=30, more={'clients': {
      'client': [*range(30)], 'name': [f'writer {i}' for i in range(30)],
      'num_examples': [10] * 30, 'drift': [.5] * 30}})
  text = describe.text(read.read(path))
  table = text[text.index('distribution over clients'):]
  assert 'nan' not in text and 'name' not in table and 'drift' in table


def test_parts_are_shown_with_what_is_not_their_default(tmp_path):
  for i, (algorithm, shown) in enumerate((
      ('fedavg', 'seed 0'), ('moon(mu=2)', 'moon(mu=2)'),
      ('moon(mu=5)', 'moon'), ('fedprox(mu=0)', 'fedprox(mu=0)'))):
    path = made_runs.write(tmp_path / f'{i}', algorithm=algorithm)
    text = describe.text(read.read(path))
    assert shown in text and ('mu=' in text) == ('mu=' in shown)
