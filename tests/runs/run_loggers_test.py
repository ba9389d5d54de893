"""Each round reaches each logger once, however often a run resumes."""

import csv
import dataclasses
import importlib.util
import json
import types

import numpy as np
import pytest

import moon_jax as mj
from moon_jax.config import Config
from moon_jax.runs.directory import Workdir
from moon_jax.runs.run_loggers import RunLoggers
from moon_jax.simulation import checks
from moon_jax.view.run_log import RunLog
from support import event_files, small_runs

CONFIG = dataclasses.replace(
    small_runs.CONFIG, num_rounds=5, checkpoint_every=2)


class Seen(mj.loggers.Logger):
  """Keeps the rounds that it was passed, over all starts."""

  rounds: list[int] = []

  def start(self, run):
    self.run = run

  def log(self, line):
    Seen.rounds.append(line['round'])


@pytest.fixture(autouse=True)
def no_rounds(monkeypatch):
  monkeypatch.setattr(Seen, 'rounds', [])


def directory(path, num_lines, config=CONFIG):
  """A work directory with the metrics of some rounds."""
  path.mkdir(exist_ok=True)
  (path / 'config.json').write_text(json.dumps(config.to_dict()))
  (path / 'metrics.jsonl').write_text(''.join(
      json.dumps({'round': r, 'seconds': .5}) + '\n'
      for r in range(1, num_lines + 1)))
  return Workdir(dataclasses.replace(config, workdir=str(path)))


def csv_rounds(path):
  with open(path / 'metrics.csv', newline='') as lines:
    return [int(row['round']) for row in csv.DictReader(lines)]


def steps(path):
  return [step for step, _ in event_files.scalars(path / 'tensorboard')[
      'time/seconds']]


def start(path, num_lines, *loggers, config=CONFIG):
  return RunLoggers(
      loggers, directory(path, num_lines, config), config, RunLog())


@pytest.mark.parametrize('kept', [0, 2, 4])
def test_a_resumed_run_repeats_no_round_and_misses_none(tmp_path, kept):
  """It is killed after round 3, and resumes after the rounds in `kept`."""
  loggers = start(tmp_path, 0, Seen(), mj.loggers.CSV(),
                  mj.loggers.TensorBoard())
  for number in (1, 2, 3):
    loggers(None, {'round': number, 'seconds': .5})
  loggers.close()
  loggers = start(tmp_path, kept, Seen(), mj.loggers.CSV(),
                  mj.loggers.TensorBoard())
  for number in range(kept + 1, 6):
    loggers(None, {'round': number, 'seconds': .5})
  loggers.close()
  for rounds in Seen.rounds, csv_rounds(tmp_path), steps(tmp_path):
    assert rounds == [1, 2, 3, 4, 5]


def test_another_configuration_begins_another_log(tmp_path):
  start(tmp_path, 2, Seen()).close()
  start(tmp_path, 3, Seen(), config=dataclasses.replace(
      CONFIG, num_rounds=9)).close()
  assert Seen.rounds == [1, 2, 3]
  start(tmp_path, 1, Seen(), config=dataclasses.replace(
      CONFIG, seed=9)).close()
  assert Seen.rounds == [1, 2, 3, 1]


@pytest.mark.parametrize('damage', ['', '[]', '{"run": 1', '{"run": "a"}'])
def test_a_damaged_state_begins_another_log(tmp_path, damage):
  start(tmp_path, 2, Seen()).close()
  (tmp_path / 'loggers.json').write_text(damage)
  start(tmp_path, 2, Seen()).close()
  assert Seen.rounds == [1, 2, 1, 2]


def test_two_loggers_of_one_kind_have_states_of_their_own(tmp_path):
  loggers = [Seen(), Seen()]
  started = start(tmp_path, 0, *loggers)
  for logger, value in zip(loggers, 'ab'):
    logger.run.saved['id'] = value
  started(None, {'round': 1})
  again = [Seen(), Seen()]
  start(tmp_path, 1, *again)
  assert [logger.run.saved['id'] for logger in again] == ['a', 'b']
  assert Seen.rounds == [1, 1]


def test_a_logger_that_fails_ends_with_a_warning(tmp_path, capsys):
  class Fails(mj.loggers.Logger):
    def log(self, line):
      if line['round'] == 2:
        raise ConnectionError('no route\nto host')

  loggers = start(tmp_path, 0, Fails(), Seen())
  for number in (1, 2, 3):
    loggers(None, {'round': number, 'seconds': .5})
  loggers.close()
  warnings = capsys.readouterr().err.splitlines()
  assert len(warnings) == 1 and warnings[0].startswith(
      'warning: the logger Fails failed in round 2: ConnectionError: no route.')
  assert Seen.rounds == [1, 2, 3]
  saved = json.loads((tmp_path / 'loggers.json').read_text())['loggers']
  assert saved == {'Fails': {'round': 1}, 'Seen': {'round': 3}}


def test_a_logger_that_saves_what_is_not_json_ends_with_a_warning(
    tmp_path, capsys):
  class Saves(Seen):
    def log(self, line):
      self.run.saved['last'] = (
          np.float32(1) if line['round'] == 2 else line['round'])

  loggers = start(tmp_path, 0, Saves(), Seen())
  for number in (1, 2, 3):
    loggers(None, {'round': number, 'seconds': .5})
  loggers.close()
  assert 'the logger Saves failed in round 2: TypeError' in (
      capsys.readouterr().err)
  saved = json.loads((tmp_path / 'loggers.json').read_text())['loggers']
  assert saved == {'Saves': {'round': 1, 'last': 1}, 'Seen': {'round': 3}}


def test_a_logger_that_cannot_start_ends_the_run(tmp_path):
  class Fails(mj.loggers.Logger):
    def start(self, run):
      raise ConnectionError('no route')

  with pytest.raises(mj.UserError, match='logger Fails must start; got .*rou'):
    start(tmp_path, 0, Fails())


def test_a_killed_run_and_its_csv(tmp_path, capsys):
  """An error after round 3 loses it, since the checkpoint has two rounds."""
  config = dataclasses.replace(CONFIG, workdir=str(tmp_path),
                               loggers='csv,tensorboard')
  small_runs.run_until(config, 3, RuntimeError, loggers=[Seen()])
  assert 'resumes' not in capsys.readouterr().out
  mj.run(config, loggers=[Seen()])
  assert 'after round 2 of 5; rounds that are trained again: 1\n' in (
      capsys.readouterr().out)
  metrics = [json.loads(line) for line in open(tmp_path / 'metrics.jsonl')]
  with open(tmp_path / 'metrics.csv', newline='') as lines:
    found = list(csv.DictReader(lines))
  for row, line in zip(found, metrics, strict=True):
    for name, value in row.items():
      assert float(value) == line[name]
  assert [step for step, _ in event_files.scalars(tmp_path / 'tensorboard')[
      'accuracy/test_accuracy']] == [1, 2, 3, 4, 5]
  assert Seen.rounds == [1, 2, 3, 4, 5]
  mj.run(config, loggers=[Seen, mj.loggers.CSV(tmp_path / 'late.csv')])
  assert Seen.rounds == [1, 2, 3, 4, 5]  # the run is complete
  assert (tmp_path / 'late.csv').read_text() == (
      tmp_path / 'metrics.csv').read_text()


@pytest.mark.long
def test_runs_of_a_sweep_have_their_own_loggers(tmp_path):
  config = dataclasses.replace(CONFIG, num_rounds=2, loggers='csv')
  sweep = mj.Sweep.grid(config, seed=range(2))
  with pytest.raises(mj.UserError, match=r'Pass the class, or lambda: Seen\('):
    mj.run_sweep(sweep, str(tmp_path), loggers=[Seen()])
  found = mj.run_sweep(sweep, str(tmp_path), loggers=[Seen])
  assert sorted(Seen.rounds) == [1, 1, 2, 2]
  paths = {run['workdir'] for run in found}
  assert len(paths) == 2
  for path in paths:
    assert csv_rounds(tmp_path / path) == [1, 2]
  mj.run_sweep(mj.Sweep.grid(dataclasses.replace(
      config, loggers='tensorboard'), seed=range(2)), str(tmp_path))
  assert all(steps(tmp_path / path) == [1, 2] for path in paths)


def test_a_missing_package_is_reported_before_anything(tmp_path, monkeypatch):
  find = importlib.util.find_spec
  monkeypatch.setattr('importlib.util.find_spec', lambda name: (
      find(name) if name.startswith('moon_jax') else None))
  with pytest.raises(mj.UserError, match=r'moon_jax\[wandb\]'):
    mj.run(dataclasses.replace(
        CONFIG, workdir=str(tmp_path / 'run'), loggers='wandb'))
  assert not (tmp_path / 'run').exists()


def test_names_of_the_flag_are_those_of_loggers():
  from moon_jax.config import LOGGERS

  assert tuple(mj.loggers.NAMES) == LOGGERS
  config = Config(loggers=' csv, tensorboard,csv,')
  assert config.logger_names() == ['csv', 'tensorboard']
  assert checks.validate(config)


def test_values_that_are_not_loggers_are_refused():
  for value in print, types.SimpleNamespace(log=print), 3:
    with pytest.raises(mj.UserError, match=r'^loggers\[1\] must be a moon_jax'):
      mj.loggers.make(CONFIG, [Seen(), value])
