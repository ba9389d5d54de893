"""The results of a stage: one JSON line per finished measurement.

A line is on the disk before the next measurement starts, so that a kill loses
only the measurement that was running. Each line has a "kind":

surroundings  device, versions, command and commit, once for each command
part          a measurement: "part", "status", "seconds", and "result" or
              "error"
progress      something a running part already knows: "part" and "progress"
"""

import json
import math
import os
import pathlib
from typing import Any

OK = 'ok'
STOPPED = 'stopped'  # by the time limit, with what it had until then
FAILED = 'failed'
SKIPPED = 'skipped'  # for lack of time


def path_of(out: pathlib.Path, stage: int) -> pathlib.Path:
  """Returns the file of a stage's results."""
  return out / f'stage{stage}.jsonl'


def append(path: pathlib.Path, line: dict[str, Any]) -> None:
  """Appends a line and waits until it is on the disk.

  Several processes may append to one file: each line is a single write. Numbers
  that JSON does not have (NaN, infinity) become strings.
  """
  text = json.dumps(_plain(line), allow_nan=False) + '\n'
  file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
  try:
    if not _ends_line(file):  # a write that a kill cut off
      text = '\n' + text
    os.write(file, text.encode())
    os.fsync(file)
  finally:
    os.close(file)


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the lines, without any that a kill cut off."""
  lines = []
  if path.exists():
    for text in path.read_bytes().splitlines():
      try:
        lines.append(json.loads(text))
      except ValueError:
        continue
  return [line for line in lines if isinstance(line, dict)]


def parts(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
  """Returns the last line of each part; a part that was done stays done."""
  found = {}
  for line in lines:
    if line.get('kind') != 'part':
      continue
    earlier = found.get(line['part'], {}).get('status')
    if _RANK[line['status']] >= _RANK.get(earlier, 0):
      found[line['part']] = line
  return found


def progress(lines: list[dict[str, Any]], part: str) -> list[Any]:
  """Returns what a part reported while it was running."""
  return [line['progress'] for line in lines
          if line.get('kind') == 'progress' and line['part'] == part]


# A later, poorer outcome does not replace an earlier one.
_RANK = {SKIPPED: 0, FAILED: 1, STOPPED: 2, OK: 3}


def _ends_line(file):
  size = os.fstat(file).st_size
  return not size or os.pread(file, 1, size - 1) == b'\n'


def _plain(value):
  if isinstance(value, dict):
    return {str(name): _plain(x) for name, x in value.items()}
  if isinstance(value, (list, tuple)):
    return [_plain(x) for x in value]
  if isinstance(value, float) and not math.isfinite(value):
    return str(value)
  return value
