"""Loggers of Weights & Biases, MLflow and Aim, each by its client."""

import os
import time
from typing import Any
import uuid

from moon_jax.loggers import base


class _Tracker(base.Logger):
  """Opens a run, with `_open`, which sets `_run`, once there is a round."""

  _package = ''

  def __init__(self):
    base.require(self._package, self._package)
    self._run: Any = None

  def log(self, line: dict[str, Any]) -> None:
    if self._run is None:  # in a loop
      self._open()
    self._log(base.scalars(line), int(line['round']))

  def close(self) -> None:
    if self._run:
      self._end()
      self._run = None


class WandB(_Tracker):
  """Logs rounds to Weights & Biases, with the round as the step.

  The client's environment variables apply: WANDB_MODE=offline,
  WANDB_PROJECT, WANDB_API_KEY and others. A run that resumes continues its
  remote run.
  """

  _package = 'wandb'

  def __init__(self, **init: Any):
    """Checks that wandb is installed.

    Args:
      **init: arguments of `wandb.init`, such as project='moon'. By default the
        name is that of the work directory, which also holds the files.

    Raises:
      UserError: if wandb is missing.
    """
    super().__init__()
    self._init = init

  def start(self, run: base.RunInfo) -> None:
    run.saved.setdefault('id', uuid.uuid4().hex[:16])
    self._open(config=dict(run.config), name=run.path.name, dir=str(run.path),
               id=run.saved['id'], resume='allow')
    if self._run.resumed:  # the server knows what has arrived
      run.saved['round'] = max(self._run.step - 1, 0)

  def _open(self, **of_run):
    import wandb

    settings = wandb.Settings(console='off', silent=True)
    self._run = wandb.init(**{
        'reinit': 'create_new', 'settings': settings, **of_run, **self._init})

  def _log(self, metrics, step):
    self._run.log(metrics, step=step)

  def _end(self):
    self._run.finish()


class MLflow(_Tracker):
  """Logs rounds to MLflow, with the round as the step.

  The client's environment variables apply: MLFLOW_TRACKING_URI,
  MLFLOW_EXPERIMENT_NAME and others. A run that resumes continues its run in
  MLflow.
  """

  _package = 'mlflow'

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
    super().__init__()
    self._experiment = experiment or os.environ.get(
        'MLFLOW_EXPERIMENT_NAME') or 'moon_jax'
    self._uri, self._name = tracking_uri, run_name
    self._client: Any = None

  def start(self, run: base.RunInfo) -> None:
    self._open(run.saved.get('id', ''), run.path.name, run.config)
    run.saved['id'] = self._run
    history = self._client.get_metric_history(self._run, 'seconds')
    run.saved['round'] = max((metric.step for metric in history), default=0)

  def _open(self, run_id='', name='', config=()):
    """Sets `_run` to the identifier of the run, new without `run_id`."""
    from mlflow import MlflowClient
    from mlflow.entities import Param

    self._client, self._run = MlflowClient(self._uri), run_id
    if run_id:
      self._client.update_run(run_id, status='RUNNING')
      return
    found = self._client.get_experiment_by_name(self._experiment)
    experiment_id = (found.experiment_id if found else
                     self._client.create_experiment(self._experiment))
    self._run = self._client.create_run(
        experiment_id, run_name=self._name or name or None).info.run_id
    self._client.log_batch(self._run, params=[
        Param(name, str(value)[:500]) for name, value in dict(config).items()])

  def _log(self, metrics, step):
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    self._client.log_batch(self._run, metrics=[
        Metric(name, value, now, step) for name, value in metrics.items()])

  def _end(self):
    self._client.set_terminated(self._run)


class Aim(_Tracker):
  """Logs rounds to Aim, with the round as the step.

  A run that resumes continues its run in Aim.
  """

  _package = 'aim'

  def __init__(self, **run: Any):
    """Checks that aim is installed.

    Args:
      **run: arguments of `aim.Run`, such as repo='aim://host:53800' and
        experiment='moon'. By default the repository is .aim in the current
        directory.

    Raises:
      UserError: if aim is missing.
    """
    super().__init__()
    self._arguments = run

  def start(self, run: base.RunInfo) -> None:
    self._open(run_hash=run.saved.get('hash'))
    run.saved['hash'] = self._run.hash
    self._run.name = run.path.name
    self._run['config'] = dict(run.config)

  def _open(self, **of_run):
    import aim

    self._run = aim.Run(**{
        'system_tracking_interval': None, 'capture_terminal_logs': False,
        'log_system_params': False, **of_run, **self._arguments})

  def _log(self, metrics, step):
    for name, value in metrics.items():
      self._run.track(value, name=name, step=step)

  def _end(self):
    self._run.close()
