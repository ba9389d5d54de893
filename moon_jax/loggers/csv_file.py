"""Logs the numbers of each round to a CSV file."""

import csv
import io
import os
import pathlib
from typing import Any

from moon_jax.errors import UserError
from moon_jax.loggers import base


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
