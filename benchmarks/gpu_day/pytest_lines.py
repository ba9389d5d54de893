"""A pytest plugin that writes the outcome of each test as a results line.

The environment variable GPU_DAY_TESTS holds a JSON object with "results" (the
stage's file), "part", and "running" (a file that names the running test).
"""

import json
import os
import pathlib

from benchmarks.gpu_day import results

_MAX_ERROR_LENGTH = 3000  # characters

_task = json.loads(os.environ.get('GPU_DAY_TESTS', '{}'))


def pytest_runtest_logstart(nodeid, location):
  del location
  if _task:
    pathlib.Path(_task['running']).write_text(nodeid, encoding='utf-8')


def pytest_runtest_logreport(report):
  is_outcome = report.when == 'call' or report.outcome != 'passed'
  if not _task or not is_outcome:
    return
  progress = {'test': report.nodeid, 'outcome': report.outcome,
              'seconds': round(report.duration, 3)}
  if report.outcome == 'failed':
    progress |= {'when': report.when,
                 'error': report.longreprtext[-_MAX_ERROR_LENGTH:]}
  results.append(pathlib.Path(_task['results']), {
      'kind': 'progress', 'part': _task['part'], 'progress': progress})
