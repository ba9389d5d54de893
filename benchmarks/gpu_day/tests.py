"""Runs tests of this project on the accelerator and records failures."""

import collections
from collections.abc import Sequence
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

from benchmarks.gpu_day import results

# Tests on CPUs disable optimizations. On GPUs the default precision of float32
# matrix products is too low for the tests' tolerances.
_ENV = {
    'JAX_DISABLE_MOST_OPTIMIZATIONS': '0',
    'JAX_DEFAULT_MATMUL_PRECISION': 'highest',
}
_SOME_FAILED = 1  # exit status of pytest
_NONE_SELECTED = 5


def measure(task: dict[str, Any]) -> dict[str, Any]:
  """Runs pytest; returns the numbers of passed and skipped tests and failures.

  The task has "words", pytest's arguments, and "golden", the directory of the
  golden vectors. The outcome of each test is also a progress line.

  Raises:
    RuntimeError: if pytest could not run the tests.
  """
  path = pathlib.Path(task['results'])
  num_before = len(results.progress(results.read(path), task['part']))
  running = pathlib.Path(task['scratch']) / f'{task["part"]}.running'
  running.unlink(missing_ok=True)
  env = {**os.environ, **_ENV, 'GPU_DAY_TESTS': json.dumps({
      'results': task['results'], 'part': task['part'],
      'running': str(running)}), 'MOON_JAX_GOLDEN': task['golden']}
  status = subprocess.run(
      [sys.executable, '-m', 'pytest', '-p', 'benchmarks.gpu_day.pytest_lines',
       '-p', 'no:cacheprovider', '-v', *task['words']], env=env).returncode
  if status not in (0, _SOME_FAILED) and status > 0:
    reason = ' (no test was selected)' if status == _NONE_SELECTED else ''
    raise RuntimeError(f'pytest ended with status {status}{reason}')
  result = outcome(
      results.progress(results.read(path), task['part'])[num_before:])
  if status < 0:  # ended by a signal, for example at the time limit
    result |= {'status': results.STOPPED,
               'running': running.read_text() if running.exists() else ''}
  elif result['failed']:
    result['status'] = results.FAILED
  return result


def outcome(tests: Sequence[dict[str, Any]]) -> dict[str, Any]:
  """Returns the numbers of passed and skipped tests, and the failures.

  Args:
    tests: the progress lines; the last line of each test counts.
  """
  last = {test['test']: test for test in tests}.values()
  counts = collections.Counter(test['outcome'] for test in last)
  return {
      'passed': counts['passed'], 'skipped': counts['skipped'],
      'failed': [{name: test[name] for name in ('test', 'error')}
                 for test in last if test['outcome'] == 'failed']}
