"""Logs rounds to Aim, by its client."""

from typing import Any

from moon_jax.loggers import base


class Aim(base.Logger):
  """Logs the numbers of each round, with the round as the step.

  A run that resumes continues its run in Aim.
  """

  def __init__(self, **run: Any):
    """Checks that aim is installed.

    Args:
      **run: arguments of `aim.Run`, such as repo='aim://host:53800' and
        experiment='moon'. By default the repository is .aim in the current
        directory.

    Raises:
      UserError: if aim is missing.
    """
    base.require('aim', 'aim')
    self._arguments = run
    self._run: Any = None

  def start(self, run: base.RunInfo) -> None:
    self._open({'run_hash': run.saved.get('hash')})
    run.saved['hash'] = self._run.hash
    self._run.name = run.path.name
    self._run['config'] = dict(run.config)

  def _open(self, defaults):
    import aim

    self._run = aim.Run(**{
        'system_tracking_interval': None, 'capture_terminal_logs': False,
        'log_system_params': False, **defaults, **self._arguments})

  def log(self, line: dict[str, Any]) -> None:
    if self._run is None:
      self._open({})
    for name, value in base.scalars(line).items():
      self._run.track(value, name=name, step=int(line['round']))

  def close(self) -> None:
    if self._run:
      self._run.close()
      self._run = None
