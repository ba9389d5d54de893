"""Logs rounds to MLflow, by its client."""

import os
import time
from typing import Any

from moon_jax.loggers import base


class MLflow(base.Logger):
  """Logs the numbers of each round, with the round as the step.

  The client's environment variables apply: MLFLOW_TRACKING_URI,
  MLFLOW_EXPERIMENT_NAME and others. A run that resumes continues its run in
  MLflow.
  """

  def __init__(self, experiment: str = '', tracking_uri: str | None = None,
               run_name: str = ''):
    """Checks that mlflow is installed.

    Args:
      experiment: by default MLFLOW_EXPERIMENT_NAME, or "moon_jax".
      tracking_uri: a server, or a store such as sqlite:///mlflow.db; by default
        that of the environment.
      run_name: by default the name of the work directory.

    Raises:
      UserError: if mlflow is missing.
    """
    base.require('mlflow', 'mlflow')
    self._experiment = experiment or os.environ.get(
        'MLFLOW_EXPERIMENT_NAME') or 'moon_jax'
    self._uri, self._name = tracking_uri, run_name
    self._client: Any = None
    self._id = ''

  def start(self, run: base.RunInfo) -> None:
    self._open(run.saved.get('id', ''), self._name or run.path.name, run.config)
    run.saved['id'] = self._id
    history = self._client.get_metric_history(self._id, 'seconds')
    run.saved['round'] = max((metric.step for metric in history), default=0)

  def _open(self, run_id, name, config):
    from mlflow import MlflowClient
    from mlflow.entities import Param

    self._client = MlflowClient(self._uri)
    if run_id:
      self._client.update_run(run_id, status='RUNNING')
      self._id = run_id
      return
    found = self._client.get_experiment_by_name(self._experiment)
    experiment_id = (found.experiment_id if found else
                     self._client.create_experiment(self._experiment))
    self._id = self._client.create_run(
        experiment_id, run_name=name or None).info.run_id
    self._client.log_batch(self._id, params=[
        Param(name, str(value)[:500]) for name, value in config.items()])

  def log(self, line: dict[str, Any]) -> None:
    from mlflow.entities import Metric

    if self._client is None:
      self._open('', self._name, {})
    now = int(time.time() * 1000)
    self._client.log_batch(self._id, metrics=[
        Metric(name, value, now, int(line['round']))
        for name, value in base.scalars(line).items()])

  def close(self) -> None:
    if self._client:
      self._client.set_terminated(self._id)
      self._client = None
