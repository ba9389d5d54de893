"""Mutation testing with hand-written faults: python tests/mutants.py.

Applies the faults of tests/mutants.toml to a copy of the repository, one at a
time, and runs the tests that should detect each fault. Prints a line for each
fault and a table. The exit status is 1 if a fault is not detected and has no
recorded reason.

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


def try_all(faults: Sequence[Fault]) -> list[Outcome]:
  """Tests faults in a copy of the repository and prints each outcome.

  Raises:
    RuntimeError: if tests fail without a fault, or do not exist.
  """
  # Processes that a test left behind may still write to this directory.
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
    repo = _copy(pathlib.Path(scratch))
    tests = dict.fromkeys(test for fault in faults for test in fault.tests)
    failed = _first_failure(repo, [
        test for test in tests if test.partition('::')[0] not in tests
        or '::' not in test], _ALL_SECONDS)
    if failed:
      raise RuntimeError(f'all tests must pass without a fault; got {failed}')
    outcomes = []
    for fault in faults:
      path, begin = repo / fault.file, time.monotonic()
      text = path.read_text(encoding='utf-8')
      _write(path, changed(fault, text))
      noticed_by = _first_failure(repo, fault.tests, _SECONDS)
      _write(path, text)
      outcomes.append(Outcome(fault, noticed_by, time.monotonic() - begin))
      print(f'{fault.room} {fault.name}: {noticed_by or "NOT NOTICED"} '
            f'({outcomes[-1].seconds:.0f} s)', flush=True)
    return outcomes


def _copy(to):
  """Copies the files that tests need to a new directory `to`/repo."""
  (to / 'repo').mkdir()
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


def _first_failure(repo: pathlib.Path, tests: Iterable[str],
                   limit: float) -> str:
  """Runs tests (files or pytest ids) in a fork until the first fails.

  Returns:
    The id of the failed test, or '' if all passed.

  Raises:
    RuntimeError: if pytest did not find the tests.
  """
  end, log = time.monotonic() + limit, repo.parent / 'out'
  child = os.fork()
  if not child:
    status = 3  # pytest's exit status for an internal error
    try:
      status = _pytest(repo, tests, log)
    finally:
      os._exit(status)
  while True:
    process, status = os.waitpid(child, os.WNOHANG)
    if process:
      break
    if time.monotonic() > end:
      os.killpg(child, 9)  # includes processes that tests started
      os.waitpid(child, 0)
      return 'timed out'
    time.sleep(_POLL_SECONDS)
  status = os.waitstatus_to_exitcode(status)
  out = log.read_text(errors='backslashreplace')
  if status == _PASSED:
    return ''
  if status in _NOT_RUN:
    raise RuntimeError(f'pytest found no such tests:\n{out[-2000:]}')
  failed = re.search(r'^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$', out,
                     re.MULTILINE)
  return failed[1] if failed else f'pytest ended with status {status}'


def _pytest(repo, tests, log):
  """Runs tests in this child process and returns pytest's exit status."""
  os.setsid()
  os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
  for stream in 1, 2:
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
  os.chdir(repo)
  import pytest

  os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(repo.parent / 'xla'))
  for name in [*sys.modules]:  # of the original, imported once
    if name.partition('.')[0] in ('conftest', 'support'):
      del sys.modules[name]
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
  """Returns a Markdown table of the rooms, and what was not noticed."""
  lines = [f'The {len(outcomes)} faults of [mutants.toml](mutants.toml) on '
           f'{time.strftime("%Y-%m-%d")}, and how many of them tests noticed.',
           '', '| room | noticed | seconds |', '|---|---|---|']
  for room in [*dict.fromkeys(o.fault.room for o in outcomes), 'all']:
    some = [o for o in outcomes if room in (o.fault.room, 'all')]
    noticed = sum(bool(o.noticed_by) for o in some)
    lines.append(
        f'| {room} | {noticed} of {len(some)} ({noticed / len(some):.0%}) | '
        f'{sum(o.seconds for o in some):.0f} |')
  return '\n'.join([*lines, '', *[
      f'- {o.fault.name}: {o.fault.reason or o.fault.fault}'
      for o in outcomes if not o.noticed_by]])


def main(argv: Sequence[str]) -> int:
  """Tests the selected faults and returns the exit status."""
  parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
  parser.add_argument('--only', nargs='+', metavar='NAME', default=[],
                      help='names of faults')
  parser.add_argument('--room', nargs='+', default=[],
                      help='rooms whose faults are tested')
  args = parser.parse_args(argv)
  chosen = {*args.only, *args.room}
  faults = [fault for fault in read()
            if not chosen or chosen & {fault.name, fault.room}]
  if unknown := chosen - {
      name for fault in faults for name in (fault.name, fault.room)}:
    parser.error('--only and --room must name faults and rooms of '
                 f'{FAULTS}, got {", ".join(unknown)}')
  for name in _IMPORTED:
    importlib.import_module(name)
  outcomes = try_all(faults)
  print(markdown(outcomes))
  return int(any(not outcome.noticed_by and not outcome.fault.reason
                 for outcome in outcomes))


if __name__ == '__main__':
  os.environ['OPENBLAS_NUM_THREADS'] = '1'  # a fork has only one thread
  sys.exit(main(sys.argv[1:]))
