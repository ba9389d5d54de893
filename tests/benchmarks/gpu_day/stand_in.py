"""Fake measurements that succeed, fail, hang or wait for each other."""

import pathlib
import subprocess
import sys
import time


def ok(task):
  ran = pathlib.Path(task['scratch']) / f'{task["part"]}.ran'
  ran.write_text(ran.read_text() + 'x' if ran.exists() else 'x')
  return {'value': 1}


def fail(task):
  raise ValueError(f'{task["part"]} cannot be measured')


def hang(task):
  grandchild = subprocess.Popen([sys.executable, '-c', 'import time; '
                                 'time.sleep(60)'])
  (pathlib.Path(task['scratch']) / 'pid').write_text(str(grandchild.pid))
  time.sleep(60)


def meet(task):
  """Returns after parts a and b have both started."""
  scratch = pathlib.Path(task['scratch'])
  (scratch / f'{task["part"]}.here').touch()
  while not all((scratch / f'{name}.here').exists() for name in 'ab'):
    time.sleep(.02)
  return {}


def half(task):
  del task
  return {'value': 1, 'status': 'failed'}
