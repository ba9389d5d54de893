"""Logs rounds as event files of TensorBoard, by tensorboardX."""

import os
import pathlib
import time
from typing import Any

from moon_jax.errors import UserError
from moon_jax.loggers import base

_FLUSH_SECONDS = 5
_SUFFIX = '.moon_jax'  # of event files that this logger may replace


class TensorBoard(base.Logger):
  """Writes scalars, and histograms over clients, with the round as the step.

  `tensorboard --logdir=runs` shows all runs. When a run resumes, the logger
  writes a new file with all rounds and removes its old one; the new file begins
  with a purge step, so that an open TensorBoard removes the rounds that it has
  read.
  """

  rewrites = True

  def __init__(self, path: str | os.PathLike = ''):
    """Checks that tensorboardX is installed.

    Args:
      path: directory of the event file; by default tensorboard in the work
        directory.

    Raises:
      UserError: if tensorboardX is missing.
    """
    base.require('tensorboardX', 'tensorboard')
    self._given = pathlib.Path(path).expanduser() if path else None
    self._path = self._given
    self._writer: Any = None

  def start(self, run: base.RunInfo) -> None:
    self._path = self._given or run.path / 'tensorboard'
    for old in self._path.glob(f'events.out.tfevents.*{_SUFFIX}'):
      old.unlink()
    self._open(1)
    settings = '\n'.join(
        f'| {name} | {value} |' for name, value in run.config.items())
    self._writer.add_text('config', f'| flag | value |\n|---|---|\n{settings}')

  def _open(self, step):
    import tensorboardX

    # Two files of the same second would have the same name.
    self._writer = tensorboardX.SummaryWriter(
        str(self._path), purge_step=step, flush_secs=_FLUSH_SECONDS,
        filename_suffix=f'.{time.time_ns()}{_SUFFIX}')

  def log(self, line: dict[str, Any]) -> None:
    if self._path is None:
      raise UserError('TensorBoard needs a path outside moon_jax.run, such as '
                      "TensorBoard('logs'); got none")
    step = int(line['round'])
    if self._writer is None:
      self._open(step)
    for name, value in base.scalars(line).items():
      self._writer.add_scalar(tag(name), value, step)
    for name, values in base.distributions(line).items():
      self._writer.add_histogram(f'clients/{name}', values, step)

  def close(self) -> None:
    if self._writer:
      self._writer.close()
      self._writer = None


def tag(name: str) -> str:
  """Returns the tag of a metric; its first part is the group in TensorBoard."""
  group = ('accuracy' if 'accuracy' in name else 'loss' if (
      'loss' in name or name in ('cross_entropy', 'proximal_term')) else
           'time' if 'second' in name else 'round')
  return f'{group}/{name}'
