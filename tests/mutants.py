"""Mutation testing with hand-written faults: python tests/mutants.py.

Applies the faults of tests/mutants.toml to a copy of the repository, one at a
time, and runs the tests that should detect each fault. Prints a table. The exit
status is 1 if a fault is not detected and has no recorded reason.

The faults are chosen by hand, because mutmut and cosmic-ray generate thousands,
and starting JAX takes 3 to 5 seconds for each. Here JAX is imported once, and
each run of the tests is a fork.
"""

import argparse
from collections.abc import Iterable, Sequence
import importlib.util
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time
import tomllib
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
FAULTS = pathlib.Path(__file__).with_suffix('.toml')
_SECONDS = 300  # time limit for the tests of one fault
_ALL_SECONDS = 3600  # time limit for the tests of all faults
_POLL_SECONDS = .05
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


class Fault(NamedTuple):
  """A small, realistic error; see tests/mutants.toml."""

  room: str
  name: str
  file: str
  old: str
  new: str
  fault: str
  tests: Sequence[str]
  reason: str = ''


class Outcome(NamedTuple):
  """The result of the tests of a fault."""

  fault: Fault
  noticed_by: str  # the test that failed, or ''
  seconds: float


def read() -> list[Fault]:
  """Returns the faults in order."""
  rooms = tomllib.loads(FAULTS.read_text(encoding='utf-8'))
  return [Fault(room, **fields)
          for room, faults in rooms.items() for fields in faults]


def changed(fault: Fault, text: str) -> str:
  """Returns the text of the file with the fault applied.

  Raises:
    ValueError: if the old text does not occur exactly once.
  """
  count = text.count(fault.old)
  if count != 1:
    raise ValueError(f'{fault.name}: the old text must occur exactly once in '
                     f'{fault.file}, got {count} times; update the list')
  return text.replace(fault.old, fault.new)


def try_all(faults: Sequence[Fault], num_jobs: int,
            is_checked: bool = False) -> list[Outcome]:
  """Tests all faults, prints each outcome to stderr, and returns them in order.

  Args:
    faults: the faults.
    num_jobs: number of faults tested at a time.
    is_checked: whether the tests are known to pass without a fault.

  Raises:
    RuntimeError: if tests fail without a fault, or do not exist.
  """
  # Processes that a test left behind may still write to this directory.
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
    scratch = pathlib.Path(scratch)
    cache = pathlib.Path(os.environ.get('JAX_COMPILATION_CACHE_DIR')
                         or scratch / 'xla')
    free = [_copy(scratch / str(job)) for job in range(num_jobs)]
    if not is_checked:
      _check_without_faults(faults, free[0], cache)
    running, outcomes, waiting = [], {}, list(faults)
    while running or waiting:
      while free and waiting:
        fault, repo = waiting.pop(0), free.pop()
        path = repo / fault.file
        text = path.read_text(encoding='utf-8')
        _write(path, changed(fault, text))
        run = _Run(repo, fault.tests, cache, _SECONDS)
        running.append((fault, run, repo, text))
      time.sleep(_POLL_SECONDS)
      for each in list(running):
        fault, run, repo, text = each
        noticed_by = run.noticed_by()
        if noticed_by is None:
          continue
        seconds = time.monotonic() - run.begin
        _write(repo / fault.file, text)
        running.remove(each)
        free.append(repo)
        outcomes[fault.name] = Outcome(fault, noticed_by, seconds)
        print(f'{fault.room} {fault.name}: {noticed_by or "NOT NOTICED"} '
              f'({seconds:.0f} s)', file=sys.stderr, flush=True)
    return [outcomes[fault.name] for fault in faults]


def _check_without_faults(faults, repo, cache):
  tests = dict.fromkeys(test for fault in faults for test in fault.tests)
  files = {test for test in tests if '::' not in test}
  tests = [test for test in tests
           if test in files or test.partition('::')[0] not in files]
  run = _Run(repo, tests, cache, _ALL_SECONDS)
  while (failed := run.noticed_by()) is None:
    time.sleep(_POLL_SECONDS)
  if failed:
    raise RuntimeError(f'all tests must pass without a fault; got {failed}')
  print(f'the tests pass without a fault: {time.monotonic() - run.begin:.0f} s',
        file=sys.stderr, flush=True)


# Runs of tests in copies of the repository, each in a fork.


def _prepare():
  """Imports slow modules once for all runs."""
  os.environ['OPENBLAS_NUM_THREADS'] = '1'  # a fork has only one thread
  for name in _IMPORTED:
    importlib.import_module(name)


def _copy(to):
  """Copies the files that tests need to a new directory `to`/repo."""
  (to / 'repo').mkdir(parents=True)
  for name in _COPIED:
    if (ROOT / name).is_dir():
      shutil.copytree(ROOT / name, to / 'repo' / name,
                      ignore=shutil.ignore_patterns('__pycache__'))
    else:
      shutil.copy2(ROOT / name, to / 'repo' / name)
  shared = ROOT.parent / 'shared'  # contains the golden vectors
  if shared.is_dir():
    (to / 'shared').symlink_to(shared.resolve())
  return to / 'repo'


class _Run:
  """A fork of this process that runs tests until the first fails."""

  def __init__(self, repo: pathlib.Path, tests: Iterable[str],
               cache: pathlib.Path, seconds: float):
    """Starts the tests (files or pytest ids) in a copy of the repository."""
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
  for name in 'conftest', 'forked':  # of the original, imported once
    sys.modules.pop(name, None)
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


def _write(path, text):
  """Writes a Python file so that its old bytecode is not used.

  Python compares only the size and the time in seconds of the source file, so
  this advances the time by one second.
  """
  seconds = path.stat().st_mtime + 1
  path.write_text(text, encoding='utf-8')
  os.utime(path, (seconds, seconds))


def markdown(outcomes: Sequence[Outcome]) -> str:
  """Returns Markdown tables of the rooms and the faults, and the reasons."""
  def share(some):
    noticed = sum(bool(outcome.noticed_by) for outcome in some)
    return f'{noticed} of {len(some)} ({noticed / len(some):.0%})'

  cell = lambda text: text.replace('|', '\\|')
  lines = ['| room | noticed | seconds |', '|---|---|---|']
  for room in [*dict.fromkeys(o.fault.room for o in outcomes), 'all']:
    some = [o for o in outcomes if room in (o.fault.room, 'all')]
    lines.append(f'| {room} | {share(some)} | '
                 f'{sum(o.seconds for o in some):.0f} |')
  reasons = [f'- {o.fault.name}: {o.fault.reason}' for o in outcomes
             if o.fault.reason and not o.noticed_by]
  if reasons:
    lines += ['', 'Not noticed, for a reason:', '', *reasons]
  lines += ['', '| room | fault | noticed by | seconds |', '|---|---|---|---|']
  for fault, noticed_by, seconds in outcomes:
    by = f'`{cell(noticed_by)}`' if noticed_by else (
        '**not noticed**' + (', for a reason' if fault.reason else ''))
    lines.append(f'| {fault.room} | {fault.name}: {cell(fault.fault)} | {by} | '
                 f'{seconds:.1f} |')
  return '\n'.join(lines) + '\n'


def main(argv: Sequence[str]) -> int:
  """Tests the selected faults and returns the exit status."""
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('--only', nargs='+', metavar='NAME', default=[],
                      help='names of faults')
  parser.add_argument('--room', nargs='+', default=[],
                      help='rooms whose faults are tested')
  parser.add_argument('--out', type=pathlib.Path, metavar='FILE',
                      help='Markdown file for the table')
  parser.add_argument('--jobs', type=int, default=1,
                      help='number of faults tested at a time')
  parser.add_argument('--checked', action='store_true',
                      help='the tests are known to pass without a fault')
  args = parser.parse_args(argv)
  faults = read()
  if unknown := {*args.only, *args.room} - {
      name for fault in faults for name in (fault.name, fault.room)}:
    parser.error('--only and --room must name faults and rooms of '
                 f'{FAULTS}, got {", ".join(unknown)}')
  faults = [fault for fault in faults
            if (not args.only or fault.name in args.only)
            and (not args.room or fault.room in args.room)]
  for fault in faults:  # reports outdated faults before the first test runs
    changed(fault, (ROOT / fault.file).read_text(encoding='utf-8'))
  _prepare()
  outcomes = try_all(faults, max(1, args.jobs), args.checked)
  table = markdown(outcomes)
  print(table, end='')
  if args.out:
    args.out.write_text(table, encoding='utf-8')
  return int(any(not outcome.noticed_by and not outcome.fault.reason
                 for outcome in outcomes))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
