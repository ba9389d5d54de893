"""Logs rounds to Weights & Biases, by its client."""

from typing import Any
import uuid

from moon_jax.loggers import base


class WandB(base.Logger):
  """Logs the numbers of each round, with the round as the step.

  The client's environment variables apply: WANDB_MODE=offline,
  WANDB_PROJECT, WANDB_API_KEY and others. A run that resumes continues its
  remote run.
  """

  def __init__(self, **init: Any):
    """Checks that wandb is installed.

    Args:
      **init: arguments of `wandb.init`, such as project='moon'. By default the
        name is that of the work directory, which also holds the files.

    Raises:
      UserError: if wandb is missing.
    """
    base.require('wandb', 'wandb')
    self._init = init
    self._run: Any = None

  def start(self, run: base.RunInfo) -> None:
    run.saved.setdefault('id', uuid.uuid4().hex[:16])
    self._open({
        'config': dict(run.config), 'name': run.path.name,
        'dir': str(run.path), 'id': run.saved['id'], 'resume': 'allow'})
    if self._run.resumed:  # the server knows what has arrived
      run.saved['round'] = max(self._run.step - 1, 0)

  def _open(self, defaults):
    import wandb

    settings = wandb.Settings(console='off', silent=True)
    self._run = wandb.init(**{
        'reinit': 'create_new', 'settings': settings, **defaults,
        **self._init})

  def log(self, line: dict[str, Any]) -> None:
    if self._run is None:
      self._open({})
    self._run.log(base.scalars(line), step=int(line['round']))

  def close(self) -> None:
    if self._run:
      self._run.finish()
      self._run = None
