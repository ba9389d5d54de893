"""Loggers that write files: CSV, and event files of TensorBoard."""

import csv
import io
import os
import pathlib
import time
from typing import Any

from moon_jax.errors import UserError
from moon_jax.loggers import base

_FLUSH_SECONDS = 5
_SUFFIX = '.moon_jax'  # of event files that this logger may replace


class CSV(base.Logger):
  """Writes one row per round, and one column per metric that is a number.

  A round without a metric, such as an accuracy that is not evaluated in each
  round, has an empty cell. Lists, such as the columns of clients, are in
  metrics.jsonl only.
  """

  rewrites = True

  def __init__(self, path: str | os.PathLike = ''):
    """Stores the arguments.

    Args:
      path: the file; by default metrics.csv in the work directory. A loop that
        begins with round r keeps the rows of earlier rounds in it.
    """
    self._given = pathlib.Path(path).expanduser() if path else None
    self._path = self._given
    self._columns: list[str] = []

  def start(self, run: base.RunInfo) -> None:
    self._path = self._given or run.path / 'metrics.csv'
    self._write({'round': 0}, [])

  def log(self, line: dict[str, Any]) -> None:
    if self._path is None:
      raise UserError('CSV needs a path outside moon_jax.run, such as '
                      "CSV('metrics.csv'); got none")
    row = {'round': int(line['round']), **base.scalars(line)}
    if not self._columns or not row.keys() <= set(self._columns):
      self._write(row, [old for old in self._rows()
                        if int(old['round']) < row['round']])
    with open(self._path, 'a', encoding='utf-8', newline='') as out:
      csv.DictWriter(out, self._columns).writerow(row)

  def _rows(self):
    if not self._path.exists():
      return []
    with open(self._path, encoding='utf-8', newline='') as lines:
      reader = csv.DictReader(lines)
      if 'round' not in (reader.fieldnames or ('round',)):
        raise UserError(f'{self._path} must be a file of this logger, with a '
                        'column "round"; name another file')
      return list(reader)

  def _write(self, new, rows):
    """Writes the file with these rows, and columns also for a new row."""
    self._columns = list(dict.fromkeys(
        name for row in [*rows[:1], new] for name in row))
    text = io.StringIO(newline='')
    writer = csv.DictWriter(text, self._columns)
    writer.writeheader()
    writer.writerows(rows)
    self._path.parent.mkdir(parents=True, exist_ok=True)
    part = self._path.with_name(self._path.name + '.part')
    part.write_text(text.getvalue(), encoding='utf-8', newline='')
    os.replace(part, self._path)


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
