"""Runs the commands of the package hundreds of times per minute.

Starting Python and JAX takes seconds, so a server imports them once and forks a
child for each command. Each child has separate arguments, working directory,
stdout and stderr. It runs the module like `python -m` and exits like the
interpreter. The server must not initialise a JAX device or start a thread,
because forked children would inherit them.
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

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 10  # time limit of a command
_KILLED_STATUS = -1
_MAX_MEMORY_BYTES = 6 * 2**30
_POLL_SECONDS = .002
# Units of ru_maxrss per megabyte.
_MAXRSS_PER_MEGABYTE = 2**20 if sys.platform == 'darwin' else 2**10

# Modules that are slow to import, and import what commands need.
_IMPORTED = ('absl.app', 'scipy.io', 'moon_jax.cli.command_line',
             'moon_jax.runs.checkpoint', 'moon_jax.simulation.simulation',
             'moon_jax.runs.run')


class Done(NamedTuple):
  """The result of a command."""

  status: int  # negative after a signal or a timeout
  out: str
  err: str
  megabytes: float  # peak memory
  cpu_seconds: float  # of all cores


class Server:
  """A server that runs commands. Use it as a context manager."""

  def __init__(self, directory: pathlib.Path, **env: str):
    """Starts the server.

    Args:
      directory: an existing directory for the output of the commands.
      **env: additional environment variables.
    """
    self._out, self._err = directory / 'out', directory / 'err'
    self._process = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, cwd=directory,
        env={**os.environ, 'PYTHONPATH': str(ROOT),
             'PYTHONDONTWRITEBYTECODE': '1', 'OPENBLAS_NUM_THREADS': '1',
             # If pandas is installed, scikit-learn imports it and pyarrow.
             'JE_ARROW_MALLOC_CONF': 'background_thread:false', **env})
    self.threads = json.loads(self._process.stdout.readline())['threads']

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._process.stdin.close()
    self._process.wait(timeout=SECONDS)
    self._process.stdout.close()

  def run(self, *args: str, cwd: pathlib.Path, limit: float = SECONDS,
          module: str = 'moon_jax.train') -> Done:
    """Runs `python -m MODULE ARGS` in this directory."""
    request = {'args': args, 'cwd': str(cwd), 'out': str(self._out),
               'err': str(self._err), 'limit': limit, 'module': module}
    self._process.stdin.write(json.dumps(request) + '\n')
    self._process.stdin.flush()
    result = json.loads(self._process.stdout.readline())
    out, err = (path.read_text(encoding='utf-8', errors='backslashreplace')
                for path in (self._out, self._err))
    return Done(out=out, err=err, **result)


def _serve():
  """Serves requests. Returns a request in the child that must run it."""
  requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), 'w')
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
  for module in _IMPORTED:
    importlib.import_module(module)
  gc.collect()
  gc.freeze()  # otherwise a collection in a child copies all memory pages
  tasks = pathlib.Path('/proc/self/task')
  threads = len(list(tasks.iterdir())) if tasks.exists() else 1
  _reply(replies, {'threads': threads})
  for line in requests:
    request = json.loads(line)
    child = os.fork()
    if not child:
      return request
    _reply(replies, _wait(child, request['limit']))
  return None


def _reply(replies, value):
  replies.write(json.dumps(value) + '\n')
  replies.flush()


def _wait(child, limit):
  """Waits for a child; kills it after `limit` seconds."""
  end, is_late = time.monotonic() + limit, False
  while True:
    pid, status, usage = os.wait4(child, os.WNOHANG)
    if pid:
      code = os.waitstatus_to_exitcode(status)
      return {'status': _KILLED_STATUS if is_late else code,
              'megabytes': usage.ru_maxrss / _MAXRSS_PER_MEGABYTE,
              'cpu_seconds': usage.ru_utime + usage.ru_stime}
    if time.monotonic() > end and not is_late:
      is_late = True
      with contextlib.suppress(ProcessLookupError):
        os.kill(child, 9)
    time.sleep(_POLL_SECONDS)


def _run_command(request):
  """Runs the requested command in this child process."""
  for number, path in ((1, request['out']), (2, request['err'])):
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
  # A command that allocates too much memory must fail without affecting others.
  resource.setrlimit(resource.RLIMIT_DATA, (_MAX_MEMORY_BYTES,) * 2)
  os.chdir(request['cwd'])
  sys.path[0] = request['cwd']  # like `python -m`
  sys.argv = [request['module'], *request['args']]
  runpy.run_module(request['module'], run_name='__main__', alter_sys=True)


def _exit(error):
  """Exits like the interpreter, but without freeing memory."""
  threading._shutdown()
  atexit._run_exitfuncs()
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(error.code or 0)


if __name__ == '__main__':
  command = _serve()
  if command:
    try:
      _run_command(command)
    except SystemExit as error:
      _exit(error)
