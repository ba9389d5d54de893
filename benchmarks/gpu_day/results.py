"""Reads and writes the results of a stage: one JSON line per measurement.

A line is on disk before the next measurement starts, so that a kill loses only
the measurement that was running. Each line has a "kind":

surroundings  device, versions, command and commit, once for each command
part          a measurement: "part", "status", "seconds", and "result" or
              "error"
progress      an intermediate result of a running part: "part" and "progress"
"""

import json
import math
import os
import pathlib
from typing import Any

OK = 'ok'
STOPPED = 'stopped'  # by the time limit; may have a partial result
FAILED = 'failed'
SKIPPED = 'skipped'  # not started for lack of time


def path_of(out: pathlib.Path, stage: int) -> pathlib.Path:
  """Returns the file of a stage's results."""
  return out / f'stage{stage}.jsonl'


def append(path: pathlib.Path, line: dict[str, Any]) -> None:
  """Appends a line and waits until it is on disk.

  Several processes may append to one file, because each line is a single write.
  NaN and infinity, which JSON lacks, become strings.
  """
  text = json.dumps(_json_value(line), allow_nan=False) + '\n'
  file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
  try:
    if not _ends_with_newline(file):  # a kill truncated the last line
      text = '\n' + text
    os.write(file, text.encode())
    os.fsync(file)
  finally:
    os.close(file)


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns all complete lines."""
  lines = []
  if path.exists():
    for text in path.read_bytes().splitlines():
      try:
        lines.append(json.loads(text))
      except ValueError:
        continue
  return [line for line in lines if isinstance(line, dict)]


def parts(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
  """Returns the best line of each part, and the last one among equals."""
  best = {}
  for line in lines:
    if line.get('kind') != 'part':
      continue
    status = best.get(line['part'], {}).get('status')
    if _RANK[line['status']] >= _RANK.get(status, 0):
      best[line['part']] = line
  return best


def progress(lines: list[dict[str, Any]], part: str) -> list[Any]:
  """Returns what a part reported while it was running."""
  return [line['progress'] for line in lines
          if line.get('kind') == 'progress' and line['part'] == part]


# A later line with a lower rank does not replace an earlier line.
_RANK = {SKIPPED: 0, FAILED: 1, STOPPED: 2, OK: 3}


def _ends_with_newline(file):
  size = os.fstat(file).st_size
  return not size or os.pread(file, 1, size - 1) == b'\n'


def _json_value(value):
  if isinstance(value, dict):
    return {str(name): _json_value(x) for name, x in value.items()}
  if isinstance(value, (list, tuple)):
    return [_json_value(x) for x in value]
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  return value
