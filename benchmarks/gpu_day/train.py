"""Trains with `python -m moon_jax.train` until the time limit."""

from collections.abc import Sequence
import json
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.gpu_day import results

_POLL_SECONDS = .5
_WARM_UP = 2  # first rounds, not part of the median time


def measure(task: dict[str, Any]) -> dict[str, Any]:
  """Trains, or resumes a run; returns rounds, accuracies and seconds.

  The task has "flags". The work directory is in the scratch directory. Each
  round becomes a progress line. SIGTERM also reaches the run, which saves a
  checkpoint and ends; the status of the result is then "stopped".

  Raises:
    RuntimeError: if the run fails.
  """
  workdir = pathlib.Path(task['scratch']) / 'runs' / task['part']
  log = pathlib.Path(task['results'])
  reported = [p['round'] for p in results.progress(
      results.read(log), task['part'])]
  last = max(reported, default=0)
  child = subprocess.Popen(
      [sys.executable, '-m', 'moon_jax.train', f'--workdir={workdir}',
       *task['flags']])
  while True:
    has_ended = child.poll() is not None
    for line in _rounds(workdir):
      if line['round'] > last:
        last = line['round']
        results.append(log, {
            'kind': 'progress', 'part': task['part'], 'progress': line})
    if has_ended:
      break
    time.sleep(_POLL_SECONDS)
  # The exit status after SIGTERM is 128 + 15 if the run saved a checkpoint.
  is_stopped = child.returncode in (143, -15)
  if child.returncode and not is_stopped:
    raise RuntimeError(
        f'moon_jax.train ended with status {child.returncode}')
  return outcome(_rounds(workdir)) | (
      {'status': results.STOPPED} if is_stopped else {})


def _rounds(workdir):
  """Returns the complete lines of metrics.jsonl."""
  path = workdir / 'metrics.jsonl'
  text = path.read_text(encoding='utf-8') if path.exists() else ''
  complete = text[:text.rfind('\n') + 1]
  return [json.loads(line) for line in complete.splitlines()]


def outcome(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """Returns the results of a run, given the lines of metrics.jsonl.

  Seconds and examples/s are medians over the rounds after the first two.
  """
  accuracies = [line['test_accuracy'] for line in lines
                if 'test_accuracy' in line]
  timed = lines[_WARM_UP:] or lines
  return {
      'rounds': len(lines), 'test_accuracies': accuracies,
      'test_accuracy': accuracies[-1] if accuracies else None,
      'best_test_accuracy': max(accuracies, default=None),
      'seconds_per_round': statistics.median(
          line['seconds'] for line in timed) if timed else None,
      'examples_per_second': statistics.median(
          line['examples_per_second'] for line in timed) if timed else None}
