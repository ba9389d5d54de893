"""Runs as data frames."""

import math
import subprocess
import sys

import pytest

import moon_jax as mj
from moon_jax.results import compare, read, sweep_table
from moon_jax.runs.grid import Sweep
from moon_jax.runs.values import SEEDS
from moon_jax.tuning import report
from moon_jax.tuning.train import Arm, Tried
from support import made_runs


def test_runs_and_rounds_are_data_frames(tmp_path):
  made_runs.write(tmp_path / 'a', [.2, .6, .4, .6], algorithm='fedavg')
  b = made_runs.write(tmp_path / 'b', [.1], is_finished=False, seed=1,
                      algorithm='moon(mu=3)')
  (b / 'metrics.jsonl').write_text(
      '{"round": 1, "train_loss": 2.0, "is_late": true, "clients": {}}\n')
  runs, rounds = mj.results(tmp_path)
  assert runs.index.tolist() == [str(tmp_path / name) for name in 'ab']
  assert runs.state.tolist() == ['finished', 'stopped']
  first, second = runs.to_dict('records')
  assert (first['last'], first['best'], first['best_round']) == (.6, .6, 2)
  assert first['mean_of_last_10'] == pytest.approx(.45)
  assert (first['rounds_done'], first['seconds_of_rounds']) == (4, 1.)
  assert (second['algorithm'], second['rounds_done']) == ('moon(mu=3)', 1)
  assert math.isnan(second['last'])
  assert rounds.loc[str(tmp_path / 'a'), 'test_accuracy'].tolist() == [
      .2, .6, .4, .6]
  assert rounds.index.names == ['run', 'round'] and len(rounds) == 5
  assert 'is_late' not in rounds and 'clients' not in rounds


def test_no_other_column_has_the_name_of_a_setting(tmp_path):
  run = read.read(made_runs.write(tmp_path / 'a'))
  [row] = read.runs_frame([run]).to_dict('records')
  settings = run.config.to_dict()
  assert {name: row[name] for name in settings} == settings
  compared = compare.frame(compare.of([run], 'test_accuracy'))
  assert {*compared} & {*settings} == {*SEEDS}
  sweep = sweep_table.table(Sweep.grid(made_runs.CONFIG, seed=[0]), [None])
  assert not {*sweep.columns} & {*settings}
  tuner = mj.Tuner({'mu': [1]}, 'random(trials=1)')
  trials = report.frame([Tried(
      Arm('', run.config, tuner), trial, {}, 1., 'validation_accuracy', 4)
      for trial in tuner.ask()], [])
  assert {*trials} & {*settings} == {'seed', 'workdir'}  # not tuned


def test_times_are_medians_and_sums_over_rounds(tmp_path):
  run = read.read(made_runs.write(tmp_path / 'a'))._replace(lines=[
      {'round': r, 'seconds': seconds, 'examples_per_second': 6 / seconds}
      for r, seconds in enumerate((1., 6., 2.), 1)])
  assert run.times() == {'seconds_per_round': 2., 'seconds_of_rounds': 9.,
                         'examples_per_second': 3.}


def test_runs_without_rounds(tmp_path):
  path = made_runs.write(tmp_path / 'a', [], is_finished=False)
  runs, rounds = mj.results(str(path))
  assert runs.rounds_done.tolist() == [0] and rounds.empty
  assert rounds.index.names == ['run', 'round']
  with pytest.raises(mj.UserError, match='must be, or hold, directories of'):
    mj.results(tmp_path / 'none')


def test_a_directory_that_cannot_be_read_is_left_out(
    tmp_path, monkeypatch, capsys):
  made_runs.write(tmp_path / 'a', [.5])
  (tmp_path / 'secret').mkdir()
  is_run = read.is_run

  def refusing(path):
    if str(path).endswith('secret'):
      raise PermissionError(13, 'Permission denied', str(path))
    return is_run(path)

  monkeypatch.setattr(read, 'is_run', refusing)
  runs, _ = mj.results(tmp_path)
  assert [*runs.index] == [str(tmp_path / 'a')]
  assert f'left out: Permission denied: {tmp_path}/secret' in (
      capsys.readouterr().err)


def test_endpoints_name_their_metric(tmp_path):
  made_runs.write(tmp_path / 'a', [.5, .75])
  made_runs.remove_accuracies(made_runs.write(tmp_path / 'b', [.5, .75]))
  runs, _ = mj.results(tmp_path)
  assert runs.metric.tolist() == ['test_accuracy', 'test_loss']
  with pytest.raises(mj.UserError, match='metric must be .* test_loss.*; got '
                     'test_acuracy'):
    mj.results(tmp_path, metric='test_acuracy')


def test_describing_a_run_imports_neither_jax_nor_pandas(tmp_path):
  path = made_runs.write(tmp_path / 'a')
  (path / 'metrics.jsonl').write_text(
      '{"round": 1, "train_loss": 2.0}\n')
  (path / 'summary.json').unlink()
  code = ('import pathlib, sys\n'
          'from moon_jax.results import describe, read, show\n'
          f'describe.text(read.read(pathlib.Path({str(path)!r})))\n'
          'assert not {"jax", "pandas", "matplotlib"} & {*sys.modules}')
  subprocess.run([sys.executable, '-c', code], check=True)


def test_modules_of_results_are_imported_in_each_form_without_pandas():
  """The package has the name of a public function."""
  code = ('import sys, moon_jax.train\n'
          'import moon_jax.results.stats as a\n'
          'import moon_jax as mj\n'
          'assert "pandas" not in sys.modules and callable(mj.results)\n'
          'import moon_jax.results.stats as b\n'
          'from moon_jax.results import stats as c\n'
          'assert a is b is c and callable(mj.results)')
  subprocess.run([sys.executable, '-c', code], check=True)
