"""Weights & Biases, MLflow and Aim, each with a local store, if installed.

Each run is interrupted, and resumes with another logger, as in a new process.
"""

import json

import pytest

import moon_jax as mj
from moon_jax.simulation.records import Record


def log(logger, path, saved, numbers):
  """Logs rounds as `moon_jax.training.run_loggers` does; returns what was left.

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


def test_wandb_offline(tmp_path, monkeypatch):
  pytest.importorskip('wandb')
  monkeypatch.setenv('WANDB_MODE', 'offline')
  resumed(mj.loggers.WandB, tmp_path)
  history = [row for path in sorted(
      tmp_path.glob('wandb/offline-run-*/run-*.wandb'))
             for row in wandb_history(path)]
  assert [row['_step'] for row in history] == [1, 2, 3, 4, 5]
  assert [row['train_loss'] for row in history] == [1 / r for r in range(1, 6)]
  assert not any('validation_loss' in row for row in history)


def wandb_history(path):
  """Returns the rows in a file of W&B."""
  from wandb.proto import wandb_internal_pb2
  from wandb.sdk.internal import datastore

  store = datastore.DataStore()
  store.open_for_scan(str(path))
  rows = []
  while data := store.scan_data():
    record = wandb_internal_pb2.Record.FromString(data)
    if record.WhichOneof('record_type') == 'history':
      rows.append({
          item.key or '/'.join(item.nested_key): json.loads(item.value_json)
          for item in record.history.item} | (
              {'_step': record.history.step.num}))
  return rows


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


def test_aim_with_a_local_repository(tmp_path):
  aim = pytest.importorskip('aim')
  resumed(lambda: mj.loggers.Aim(repo=str(tmp_path)), tmp_path / 'run7')
  run, = aim.Repo(str(tmp_path)).iter_runs()
  assert run.name == 'run7' and run['config']['mu'] == 5.
  metric = next(metric for metric in run.metrics()
                if metric.name == 'train_loss')
  steps, values = metric.values.sparse_numpy()
  assert steps.tolist() == [1, 2, 3, 4, 5]
  assert values.tolist() == [1 / r for r in range(1, 6)]


@pytest.mark.parametrize('package', ['wandb', 'mlflow', 'aim'])
def test_trackers_log_loops(package, tmp_path, monkeypatch):
  pytest.importorskip(package)
  monkeypatch.setenv('WANDB_MODE', 'offline')
  monkeypatch.setenv('MLFLOW_TRACKING_URI', f'sqlite:///{tmp_path}/mlflow.db')
  monkeypatch.chdir(tmp_path)
  with mj.loggers.NAMES[package]() as logger:
    for number in (1, 2):
      logger(Record(number, {'test_accuracy': .5}, .1))
  assert list(tmp_path.iterdir())
