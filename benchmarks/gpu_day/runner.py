"""Runs the parts of a stage, each in a separate process, within a time limit.

A part that crashes, hangs or exhausts the device's memory does not affect other
parts, and the device's peak memory is that of one part.
"""

from collections.abc import Sequence
from concurrent import futures
import contextlib
import datetime
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from typing import Any
from typing import NamedTuple

from benchmarks.gpu_day import results

_ROOT = pathlib.Path(__file__).parents[2]
_GRACE_SECONDS = 20.  # from SIGTERM to SIGKILL
_PATH = re.compile(r'(^|=)/.*')
_ERROR_LINES = 40  # last lines of a log, saved in the results


class Part(NamedTuple):
  """One measurement of a stage."""

  name: str  # unique within the stage
  kind: str  # a key of benchmarks.gpu_day.child.KINDS
  task: dict[str, Any]  # arguments of the measurement, as a JSON object
  limit: float = 120.  # maximum seconds
  least: float = 15.  # not started if fewer seconds are left
  env: dict[str, str] = {}  # environment variables in addition to the stage's


class Stage(NamedTuple):
  """Where and how a stage runs."""

  number: int
  out: pathlib.Path
  scratch: pathlib.Path  # logs, traces and work directories
  seconds: float  # time limit of the stage
  env: dict[str, str]


def run(stage: Stage, parts: Sequence[Part], jobs: int = 1) -> list[str]:
  """Runs the unfinished parts of a stage.

  Results are appended to the stage's file. Calling this again runs the parts
  that failed, ran out of time or were skipped.

  Args:
    stage: where and how to run.
    parts: the parts in order.
    jobs: number of parts at a time; must be 1 if times are measured.

  Returns:
    The status of each part that is still not done.
  """
  path = results.path_of(stage.out, stage.number)
  deadline = time.monotonic() + stage.seconds
  done = results.parts(results.read(path))
  children = set()

  def run_unless_done(part):
    """Runs a part, appends its line, and returns its status."""
    if done.get(part.name, {}).get('status') == results.OK:
      print(f'stage {stage.number}: {part.name}: already done', flush=True)
      return results.OK
    left = deadline - time.monotonic()
    if left < part.least:
      line = {'status': results.SKIPPED, 'seconds': 0.,
              'error': f'{left:.0f} s left, {part.least:.0f} s needed'}
    else:
      line = run_part(stage, part, min(part.limit, left), children)
    results.append(path, {
        'kind': 'part', 'part': part.name, 'task': _without_paths(part.task),
        'at': _now(), **line})
    print(f'stage {stage.number}: {part.name}: {line["status"]}, '
          f'{line["seconds"]:.1f} s', flush=True)
    if line['status'] != results.OK:
      print(line.get('error', ''), file=sys.stderr, flush=True)
    return line['status']

  threads = futures.ThreadPoolExecutor(jobs)
  try:
    statuses = list(threads.map(run_unless_done, parts))
  except BaseException:  # for example SystemExit of a signal handler
    threads.shutdown(wait=False, cancel_futures=True)
    for child in list(children):
      _signal(child, signal.SIGKILL)
    raise
  return [status for status in statuses if status != results.OK]


def exit_status(statuses: Sequence[str]) -> int:
  """Returns 0 if all is done, 1 if a part failed, and 3 if time ran out."""
  if results.FAILED in statuses:
    return 1
  return 3 if statuses else 0


def run_part(stage: Stage, part: Part, limit: float,
             children: set[subprocess.Popen]) -> dict[str, Any]:
  """Runs a part and returns its status, its seconds, and its result or error.

  Args:
    stage: where and how to run.
    part: the part.
    limit: maximum seconds.
    children: contains the part's process while it runs.
  """
  stem = f'stage{stage.number}-{part.name}'.replace(' ', '_')
  logs = stage.scratch / 'logs'
  logs.mkdir(parents=True, exist_ok=True)
  log, answer = logs / f'{stem}.log', logs / f'{stem}.json'
  answer.unlink(missing_ok=True)
  task = {
      **part.task, 'kind': part.kind, 'part': part.name,
      'results': str(results.path_of(stage.out, stage.number)),
      'scratch': str(stage.scratch), 'out': str(stage.out)}
  start = time.monotonic()
  with open(log, 'wb') as output:
    child = subprocess.Popen(
        [sys.executable, '-m', 'benchmarks.gpu_day.child', str(answer)],
        cwd=_ROOT, env={**os.environ, **stage.env, **part.env},
        stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
        process_group=0)  # not a new session, so that a job's kill reaches it
    children.add(child)
    try:
      child.stdin.write(json.dumps(task).encode())
      child.stdin.close()
      has_ended = _wait(child, limit)
    finally:
      _kill(child)
      children.discard(child)
  line = {'seconds': round(time.monotonic() - start, 2)}
  if child.returncode == 0 and answer.exists():
    result = json.loads(answer.read_text(encoding='utf-8'))
    status = result.pop('status', results.OK)
    return line | {'status': status, 'result': result}
  reason = (f'status {child.returncode}' if has_ended
            else f'stopped at its limit of {limit:.0f} s')
  return line | {'status': results.FAILED if has_ended else results.STOPPED,
                 'error': f'{reason}\n{_tail(log)}'}


def _without_paths(value):
  """Replaces absolute paths in a task by PATH."""
  if isinstance(value, dict):
    return {name: _without_paths(x) for name, x in value.items()}
  if isinstance(value, list):
    return [_without_paths(x) for x in value]
  return _PATH.sub(r'\1PATH', value) if isinstance(value, str) else value


def _wait(child, limit):
  """Returns whether the child ended by itself within the limit.

  Otherwise sends SIGTERM and waits for the child to end.
  """
  with contextlib.suppress(subprocess.TimeoutExpired):
    child.wait(max(1., limit - _GRACE_SECONDS / 2))
    return True
  _signal(child, signal.SIGTERM)
  with contextlib.suppress(subprocess.TimeoutExpired):
    child.wait(_GRACE_SECONDS)
  return False


def _kill(child):
  """Kills the child and all processes that it started."""
  _signal(child, signal.SIGKILL)
  child.wait()


def _signal(child, number):
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(child.pid, number)


def _tail(log):
  lines = log.read_text(encoding='utf-8', errors='replace').splitlines()
  return '\n'.join(lines[-_ERROR_LINES:])


def _now():
  return datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
