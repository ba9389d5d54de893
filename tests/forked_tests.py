"""Runs tests in copies of the repository, each time in a fork of this process.

Importing JAX takes seconds; `prepare` imports it once for all runs.
"""

from collections.abc import Iterable
import importlib.util
import os
import pathlib
import re
import shutil
import sys
import time

_COPIED = ('moon_jax', 'tests', 'docs', 'benchmarks',
           'experiments', 'README.md', 'pyproject.toml')
# Modules that are slow to import and start neither a thread nor a device. The
# first one configures JAX for tests.
_IMPORTED = ('conftest', 'flax.linen', 'hypothesis', 'matplotlib.figure',
             'optax', 'orbax.checkpoint.experimental.v1', 'scipy.stats',
             'sklearn.datasets')
_HERE = str(pathlib.Path(__file__).parent)
# Exit statuses of pytest.
_PASSED = 0
_NOT_RUN = 4, 5  # unknown ids; no tests collected


def prepare() -> None:
  """Imports slow modules. Call it before the first run."""
  os.environ['OPENBLAS_NUM_THREADS'] = '1'  # a fork has only one thread
  for name in _IMPORTED:
    importlib.import_module(name)


def copy(root: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
  """Copies the files that tests need to a new directory `to`/repo."""
  (to / 'repo').mkdir(parents=True)
  for name in _COPIED:
    if (root / name).is_dir():
      shutil.copytree(root / name, to / 'repo' / name,
                      ignore=shutil.ignore_patterns('__pycache__'))
    elif (root / name).exists():
      shutil.copy2(root / name, to / 'repo' / name)
  shared = root.parent / 'shared'  # contains the golden vectors
  if shared.is_dir():
    (to / 'shared').symlink_to(shared.resolve())
  return to / 'repo'


class Run:
  """A fork of this process that runs tests until the first fails."""

  def __init__(self, repo: pathlib.Path, tests: Iterable[str],
               cache: pathlib.Path, seconds: float):
    """Starts the tests.

    Args:
      repo: a copy of the repository.
      tests: files or pytest ids below tests/.
      cache: directory of the compilation cache, shared by all runs.
      seconds: time limit.
    """
    self._out = repo.parent / 'out'
    self.begin = time.monotonic()
    self._end = self.begin + seconds
    self._process = os.fork()
    if self._process:
      return
    status = 3  # pytest's exit status for an internal error
    try:
      os.setsid()
      os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
      for stream in 1, 2:
        os.dup2(os.open(self._out, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
                stream)
      os.chdir(repo)
      status = _pytest(tests, cache)
    finally:
      os._exit(status)

  def noticed_by(self) -> str | None:
    """Returns the id of the failed test, '' if all passed, None if running.

    Raises:
      RuntimeError: if pytest did not find the tests.
    """
    process, status = os.waitpid(self._process, os.WNOHANG)
    if not process:
      if time.monotonic() < self._end:
        return None
      os.killpg(self._process, 9)  # includes processes that tests started
      os.waitpid(self._process, 0)
      self._out.unlink()
      return 'timed out'
    status = os.waitstatus_to_exitcode(status)
    out = self._out.read_text(errors='backslashreplace')
    self._out.unlink()
    if status == _PASSED:
      return ''
    if status in _NOT_RUN:
      raise RuntimeError(f'pytest found no such tests:\n{out[-2000:]}')
    failed = re.search(r'^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$', out,
                       re.MULTILINE)
    return failed[1] if failed else f'pytest ended with status {status}'


def _pytest(tests, cache):
  """Runs tests in the current directory and returns pytest's exit status."""
  import pytest

  os.environ['JAX_COMPILATION_CACHE_DIR'] = str(cache)
  sys.modules.pop('conftest', None)
  sys.path[:] = [path for path in sys.path if path != _HERE]
  try:
    one_process = ['-n', '0'] if importlib.util.find_spec('xdist') else []
    return int(pytest.main([
        '-x', '-q', '--tb=line', '-rfE', '-p', 'no:cacheprovider',
        '-m', 'not slow',
        '--hypothesis-seed=0', *one_process,
        *(f'tests/{test}' for test in tests)]))
  finally:
    sys.stdout.flush()
    sys.stderr.flush()


def write(path: pathlib.Path, text: str) -> None:
  """Writes a Python file so that its old bytecode is not used.

  Python compares only the size and the time in seconds of the source file, so
  this advances the time by one second.
  """
  seconds = path.stat().st_mtime + 1
  path.write_text(text, encoding='utf-8')
  os.utime(path, (seconds, seconds))
