"""Runs one part of a stage: python -m benchmarks.gpu_day.child ANSWER.

Reads the task, a JSON object, from standard input and writes the result, also a
JSON object, to the file ANSWER. Its output is the part's log.
"""

import importlib
import json
import pathlib
import signal
import sys
from typing import Any

_HERE = 'benchmarks.gpu_day'

# The function of each kind. Any other kind must itself be MODULE:FUNCTION.
KINDS = {
    'surroundings': f'{_HERE}.surroundings:measure',
    'tests': f'{_HERE}.tests:measure',
    'precision': f'{_HERE}.precision:measure',
    'agreement': f'{_HERE}.speed:agreement',
    'pair': f'{_HERE}.speed:pair',
    'ours': f'{_HERE}.speed:ours',
    'rates': f'{_HERE}.speed:rates',
    'scaling': f'{_HERE}.speed:scaling',
    'profile': f'{_HERE}.profile:measure',
    'train': f'{_HERE}.train:measure',
    'sweep': f'{_HERE}.sweep:measure',
    'resnet': f'{_HERE}.resnet:measure',
}
# These kinds have a result even if time runs out: SIGTERM ends the process that
# they started, and they report what it had finished.
_OUTLIVES_SIGTERM = ('tests', 'train')


def run(task: dict[str, Any]) -> dict[str, Any]:
  """Returns the result of a task."""
  module, function = KINDS.get(task['kind'], task['kind']).split(':')
  return getattr(importlib.import_module(module), function)(task)


def main() -> None:
  task = json.load(sys.stdin)
  if task['kind'] in _OUTLIVES_SIGTERM:
    signal.signal(signal.SIGTERM, lambda *_: None)
  answer = pathlib.Path(sys.argv[1])
  result = run(task)
  answer.write_text(json.dumps(result), encoding='utf-8')


if __name__ == '__main__':
  main()
