"""The command `python -m moon_jax.train`, run hundreds of times in a minute.

A start of Python and JAX takes seconds, so one server imports them once and
forks a child for each command. The child has arguments, directory, output and
errors of its own, runs the module as `python -m` does, and ends as the
interpreter ends. The server has no device of JAX's and no second thread.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pathlib
import resource
import runpy
import subprocess
import sys
import threading
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
SECONDS = 10  # that a command may take
_KILLED = -1
_MAX_BYTES = 6 * 2**30  # of memory
_POLL_SECONDS = .002
_OF_MEGABYTE = 2**20 if sys.platform == 'darwin' else 2**10

# Slow to import; without JAX, which the command too imports late.
QUICK = ('absl.app', 'numpy', 'sklearn.datasets', 'scipy.io',
         'moon_jax.cli.command_line', 'moon_jax.training.run')
WHOLE = (*QUICK, 'jax', 'moon_jax.simulation.simulation',
         'moon_jax.rundir.checkpoint',
         'moon_jax.report.heatmap', 'platformdirs')


class Done(NamedTuple):
  """How a command ended."""

  status: int  # negative where a signal ended it, or it took too long
  out: str
  err: str
  seconds: float
  megabytes: float  # the most memory it had


class Server:
  """Runs commands. Use as a context."""

  def __init__(self, directory: pathlib.Path, modules: tuple[str, ...],
               **env: str):
    """Starts it.

    Args:
      directory: for the output of the commands; an existing one.
      modules: to be imported before the forks.
      **env: more variables of the environment.
    """
    self._out, self._err = directory / 'out', directory / 'err'
    self._process = subprocess.Popen(
        [sys.executable, __file__, *modules], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, cwd=directory,
        env={**os.environ, 'PYTHONPATH': str(ROOT),
             'PYTHONDONTWRITEBYTECODE': '1', 'OPENBLAS_NUM_THREADS': '1',
             **env})
    self.threads = json.loads(self._process.stdout.readline())['threads']

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._process.stdin.close()
    self._process.wait(timeout=SECONDS)
    self._process.stdout.close()

  def run(self, *args: str, cwd: pathlib.Path, limit: float = SECONDS) -> Done:
    """Runs the command with these arguments in this directory."""
    request = {'args': args, 'cwd': str(cwd), 'out': str(self._out),
               'err': str(self._err), 'limit': limit}
    self._process.stdin.write(json.dumps(request) + '\n')
    self._process.stdin.flush()
    told = json.loads(self._process.stdout.readline())
    out, err = (path.read_text(encoding='utf-8', errors='backslashreplace')
                for path in (self._out, self._err))
    return Done(out=out, err=err, **told)


def _serve(modules):
  """Answers requests; returns one in the child that is to run it."""
  requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), 'w')
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
  for module in modules:
    importlib.import_module(module)
  gc.collect()
  gc.freeze()  # else each child copies the pages of all objects
  tasks = pathlib.Path('/proc/self/task')
  threads = len(list(tasks.iterdir())) if tasks.exists() else 1
  _reply(replies, {'threads': threads})
  for line in requests:
    request = json.loads(line)
    start = time.monotonic()
    child = os.fork()
    if not child:
      return request
    _reply(replies, _wait(child, start, request['limit']))
  return None


def _reply(replies, value):
  replies.write(json.dumps(value) + '\n')
  replies.flush()


def _wait(child, start, limit):
  """Waits for a child, which it ends after `limit` seconds."""
  is_late = False
  while True:
    found, status, usage = os.wait4(child, os.WNOHANG)
    seconds = time.monotonic() - start
    if found:
      code = os.waitstatus_to_exitcode(status)
      return {'status': _KILLED if is_late else code, 'seconds': seconds,
              'megabytes': usage.ru_maxrss / _OF_MEGABYTE}
    if seconds > limit and not is_late:
      is_late = True
      with contextlib.suppress(ProcessLookupError):
        os.kill(child, 9)
    time.sleep(_POLL_SECONDS)


def _become(request):
  """Makes of this child the command that was asked for."""
  for number, path in ((1, request['out']), (2, request['err'])):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
  # What takes all memory is to fail, and not the machine.
  resource.setrlimit(resource.RLIMIT_DATA, (_MAX_BYTES, _MAX_BYTES))
  os.chdir(request['cwd'])
  sys.path[0] = request['cwd']  # as `python -m` has it
  sys.argv = ['moon_jax.train', *request['args']]
  runpy.run_module('moon_jax.train', run_name='__main__', alter_sys=True)


def _end(error):
  """Ends a child as the interpreter would, but does not tidy up memory."""
  threading._shutdown()
  atexit._run_exitfuncs()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(error.code or 0)


if __name__ == '__main__':
  todo = _serve(sys.argv[1:])
  if todo:
    try:
      _become(todo)
    except SystemExit as error:
      _end(error)
