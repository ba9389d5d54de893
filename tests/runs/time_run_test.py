"""Runs with simulated time: resuming, files, compare."""

import dataclasses
import functools
import json

import jax
import pytest

from moon_jax.errors import UserError
from moon_jax.results import show
from moon_jax.runs import prepare, run
from moon_jax.runs.directory import Workdir
from moon_jax.simulation import build
from support import made_runs, small_runs
from support.small_runs import ended_at_call, lines_of

at = functools.partial(
    small_runs.at, participation=1., clock='lognormal',
    rounds='fedbuff(concurrency=4, buffer_size=2)', num_rounds=6,
    checkpoint_every=1)


@pytest.mark.long
def test_a_stopped_run_goes_on_with_the_same_arrivals(tmp_path, capsys):
  run.run(at(tmp_path / 'whole', algorithm='moon(mu=1)'))
  out = capsys.readouterr().out
  assert 'simulated time: ' in out and ' for 6 server steps, staleness ' in out
  stopped = at(tmp_path / 'stopped', algorithm='moon(mu=1)')
  with ended_at_call(Workdir, 'append_metrics', 4, KeyboardInterrupt()):
    run.run(stopped)
  run.run(stopped)
  assert 'resumes after round 3 of 6' in capsys.readouterr().out
  whole, resumed = tmp_path / 'whole', tmp_path / 'stopped'
  assert lines_of(resumed) == lines_of(whole)
  assert (resumed / 'cohorts.txt').read_text() == (
      whole / 'cohorts.txt').read_text()
  lines = lines_of(whole)
  assert max(line['staleness'] for line in lines) > 0
  times = [line['simulated_seconds'] for line in lines]
  assert times == sorted(times)
  summary = json.loads((resumed / 'summary.json').read_text())
  assert summary['simulated_seconds'] == times[-1]
  # Two clients download a model, which may be old, and upload one.
  assert summary['bytes_per_round'] == 2 * 8 * summary['num_parameters']


def test_another_file_of_devices_is_another_run(tmp_path):
  devices = tmp_path / 'devices.csv'
  config = small_runs.at(tmp_path / 'run', clock=f'file(path={devices})')
  hashes = set()
  for upload in 10, 20:
    devices.write_text('upload,download,seconds_per_example\n'
                       f'{upload},9,.1\n', encoding='utf-8')
    hashes.add(prepare.inputs_of(config, prepare.once())['clock.path'])
  assert len(hashes) == 2


def test_the_time_of_a_client_follows_its_examples_and_bytes():
  """Of the method's messages; fewer if they are compressed."""
  config = dataclasses.replace(
      small_runs.CONFIG, clock='lognormal(spread=0, upload=100, download=1000, '
      'seconds_per_example=.5)', participation=1., local_epochs=3)
  made = build.federation(config)
  model = jax.eval_shape(lambda key: made.model.init(
      key, made.data.train_inputs[:1]), jax.random.key(0))
  count = sum(x.size for x in jax.tree.leaves(model))
  slowest = max(max(n // 16, 1) * min(n, 16) for n in map(len, made.clients))
  assert made.rounds.timeline.seconds[0] == pytest.approx(
      4 * count / 1000 + 3 * slowest * .5 + 4 * count / 100)
  signs = build.federation(dataclasses.replace(config, compress='sign'))
  assert signs.rounds.timeline.seconds[0] == pytest.approx(
      4 * count / 1000 + 3 * slowest * .5 + (32 + count) / 8 / 100, rel=1e-4)


def test_over_selection_needs_so_many_clients():
  config = dataclasses.replace(
      small_runs.CONFIG, clock='lognormal',
      rounds='synchronous(over_selection=3)')
  with pytest.raises(
      UserError, match='rounds.over_selection must .*got 3.0, which starts 12'):
    build.federation(config)


def test_compare_has_the_time_to_the_target(tmp_path, run_command, capsys):
  for name, seconds in ('slow', 50.), ('fast', 20.):
    made_runs.write(tmp_path / name, clock='lognormal', values=[.2, .5, .7, .8],
                    rounds='synchronous(over_selection=1.5)' if name == 'fast'
                    else 'synchronous',
                    more={'simulated_seconds': seconds})
  status, out, _ = run_command(
      show.main, tmp_path, '--target=.6', f'--out={tmp_path}/out',
      '--x=simulated_seconds')
  assert status == 0
  times = [line.split() for line in out.splitlines()
           if line.startswith('MOON, over_selection')][2:4]
  assert [row[3:5] for row in times] == [['3', '50'], ['3', '20']]
  assert 'simulated_seconds_to_target' in (
      tmp_path / 'out' / 'runs.csv').read_text()
  made_runs.write(tmp_path / 'without', values=[.2, .5, .7, .8])
  status, _, error = run_command(
      show.main, tmp_path, f'--out={tmp_path}/out', '--x=simulated_seconds')
  assert status and '--x must be known of all runs' in error
