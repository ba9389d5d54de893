"""Trackers miss and repeat no round, with stand-ins for their clients.

Each run is interrupted, and resumes with another logger, as in a new process.
Loops, and MLflow as a whole, also run with the packages, if installed.
"""

import json
import sys
import types

import pytest

import moon_jax as mj
from moon_jax.simulation.records import Record


def log(logger, path, saved, numbers):
  """Logs rounds as `moon_jax.runs.run_loggers` does; returns what was left.

  The last round logged is in `saved`, unless the logger knows better.
  """
  with logger:
    logger.start(mj.loggers.RunInfo(path, {'mu': 5.}, 0, saved))
    for number in numbers:
      if number > saved['round']:
        logger.log({'round': number, 'train_loss': 1 / number, 'seconds': .5,
                    'validation_loss': None, 'clients': {'client': [1]}})
        saved['round'] = number
  return json.loads(json.dumps(saved))


def resumed(make, path):
  """Logs rounds 1 to 3, then 3 to 5, of which the logger has 3."""
  saved = log(make(), path, {'round': 0}, (1, 2, 3))
  assert saved['round'] == 3
  assert log(make(), path, saved, (3, 4, 5))['round'] == 5


def install(monkeypatch, name, **members):
  """Installs a package that stands in for a tracker."""
  module = types.ModuleType(name)
  module.__dict__.update(members)
  module.__spec__ = types.SimpleNamespace(origin=f'{name}.py')
  monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize('saved, arrived', [(3, 2), (2, 3), (0, 0)])
def test_wandb_misses_no_round_that_did_not_arrive(
    saved, arrived, tmp_path, monkeypatch):
  """A killed run: its state has `saved` rounds, the server `arrived`."""
  history = {}  # round -> metrics, on the server

  class Run:
    resumed = True

    def __init__(self, **given):
      assert (given['id'], given['resume']) == ('run7', 'allow')
      self.step = max(history, default=-1) + 1  # of the next call of `log`

    def log(self, metrics, step):
      assert step >= self.step  # otherwise W&B ignores the metrics
      history[step], self.step = metrics, step + 1

    def finish(self):
      pass

  install(monkeypatch, 'wandb', init=Run, Settings=dict)
  history.update({number: {} for number in range(1, arrived + 1)})
  state = log(mj.loggers.WandB(), tmp_path, {'id': 'run7', 'round': saved},
              (1, 2, 3, 4))
  assert list(history) == [1, 2, 3, 4] and state['round'] == 4


@pytest.mark.parametrize('saved, arrived', [(3, 2), (2, 3)])
def test_mlflow_misses_no_round_that_did_not_arrive(
    saved, arrived, tmp_path, monkeypatch):
  history = list(range(1, arrived + 1))  # rounds on the server

  class Client:

    def __init__(self, uri):
      assert uri == 'uri'

    def update_run(self, run_id, status):
      assert (run_id, status) == ('run7', 'RUNNING')

    def get_metric_history(self, run_id, name):
      return [types.SimpleNamespace(step=step) for step in history]

    def log_batch(self, run_id, metrics):
      assert run_id == 'run7'
      history.extend({step for *_, step in metrics})

    def set_terminated(self, run_id):
      assert run_id == 'run7'

  install(monkeypatch, 'mlflow', MlflowClient=Client)
  install(monkeypatch, 'mlflow.entities', Metric=lambda *values: values,
          Param=lambda *values: values)
  log(mj.loggers.MLflow(tracking_uri='uri'), tmp_path,
      {'id': 'run7', 'round': saved}, (1, 2, 3, 4))
  assert history == [1, 2, 3, 4]


def test_aim_continues_its_run(tmp_path, monkeypatch):
  history = {}  # hash of a run -> rounds

  class Run(dict):

    def __init__(self, run_hash=None, **_):
      self.hash = run_hash or f'run{len(history)}'
      self.rounds = history.setdefault(self.hash, [])

    def track(self, value, name, step):
      if name == 'train_loss':
        self.rounds.append((step, value))

    def close(self):
      pass

  install(monkeypatch, 'aim', Run=Run)
  resumed(mj.loggers.Aim, tmp_path)
  assert history == {'run0': [(r, 1 / r) for r in range(1, 6)]}


def test_mlflow_with_sqlite(tmp_path):
  mlflow = pytest.importorskip('mlflow')
  uri = f'sqlite:///{tmp_path}/mlflow.db'
  make = lambda: mj.loggers.MLflow('tests', tracking_uri=uri)
  resumed(make, tmp_path / 'run7')
  client = mlflow.MlflowClient(uri)
  run, = client.search_runs([
      client.get_experiment_by_name('tests').experiment_id])
  assert run.info.run_name == 'run7' and run.info.status == 'FINISHED'
  assert run.data.params == {'mu': '5.0'}
  history = client.get_metric_history(run.info.run_id, 'train_loss')
  assert [(m.step, m.value) for m in history] == [
      (r, 1 / r) for r in range(1, 6)]
  # A process that is killed before it writes its state repeats no round.
  saved = log(make(), tmp_path / 'run7', {
      'id': run.info.run_id, 'round': 2}, (3, 4, 5, 6))
  assert saved['round'] == 6
  assert len(client.get_metric_history(run.info.run_id, 'train_loss')) == 6


@pytest.mark.parametrize('package, arguments', [
    ('wandb', lambda path: {'mode': 'offline', 'dir': path}),
    ('mlflow', lambda path: {'tracking_uri': f'sqlite:///{path}/mlflow.db'}),
    ('aim', lambda path: {'repo': path})])
def test_trackers_log_loops(package, arguments, tmp_path):
  pytest.importorskip(package)
  make = mj.loggers.NAMES[package]
  with make(**arguments(str(tmp_path))) as logger:
    for number in (1, 2):
      logger(Record(number, {'test_accuracy': .5}, .1))
  assert list(tmp_path.iterdir())
