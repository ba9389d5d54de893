"""Mutation testing with hand-written faults: python tests/mutants.py.

Applies the faults of tests/mutants.toml to a copy of the repository, one at a
time, and runs the tests that should detect each fault. Prints a table. The exit
status is 1 if a fault is not detected and has no recorded reason.

The faults are chosen by hand, because mutmut and cosmic-ray generate thousands,
and starting JAX takes 3 to 5 seconds for each. Here JAX is imported once, and
each run of the tests is a fork.
"""

import argparse
from collections.abc import Sequence
import os
import pathlib
import sys
import tempfile
import time
import tomllib
from typing import NamedTuple

import forked_tests

ROOT = pathlib.Path(__file__).parents[1]
FAULTS = pathlib.Path(__file__).with_suffix('.toml')
_SECONDS = 300  # time limit for the tests of one fault
_ALL_SECONDS = 3600  # time limit for the tests of all faults
_POLL_SECONDS = .05


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


def read(path: pathlib.Path = FAULTS) -> list[Fault]:
  """Returns the faults of a file in order."""
  rooms = tomllib.loads(path.read_text(encoding='utf-8'))
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


def try_all(faults: Sequence[Fault], root: pathlib.Path, num_jobs: int,
            is_checked: bool = False) -> list[Outcome]:
  """Tests all faults, prints each outcome to stderr, and returns them in order.

  Args:
    faults: the faults.
    root: the repository.
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
    free = [forked_tests.copy(root, scratch / str(job))
            for job in range(num_jobs)]
    if not is_checked:
      _check_without_faults(faults, free[0], cache)
    running, outcomes, waiting = [], {}, list(faults)
    while running or waiting:
      while free and waiting:
        fault, repo = waiting.pop(0), free.pop()
        path = repo / fault.file
        text = path.read_text(encoding='utf-8')
        forked_tests.write(path, changed(fault, text))
        run = forked_tests.Run(repo, fault.tests, cache, _SECONDS)
        running.append((fault, run, repo, text))
      time.sleep(_POLL_SECONDS)
      for each in list(running):
        fault, run, repo, text = each
        noticed_by = run.noticed_by()
        if noticed_by is None:
          continue
        seconds = time.monotonic() - run.begin
        forked_tests.write(repo / fault.file, text)
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
  run = forked_tests.Run(repo, tests, cache, _ALL_SECONDS)
  while (failed := run.noticed_by()) is None:
    time.sleep(_POLL_SECONDS)
  if failed:
    raise RuntimeError(f'all tests must pass without a fault; got {failed}')
  print(f'the tests pass without a fault: {time.monotonic() - run.begin:.0f} s',
        file=sys.stderr, flush=True)


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
  parser.add_argument('--faults', type=pathlib.Path, default=FAULTS,
                      metavar='FILE', help='the list of faults')
  parser.add_argument('--root', type=pathlib.Path, default=ROOT,
                      metavar='DIRECTORY', help='the repository')
  args = parser.parse_args(argv)
  faults = read(args.faults)
  if unknown := {*args.only, *args.room} - {
      name for fault in faults for name in (fault.name, fault.room)}:
    parser.error('--only and --room must name faults and rooms of '
                 f'{args.faults}, got {", ".join(unknown)}')
  faults = [fault for fault in faults
            if (not args.only or fault.name in args.only)
            and (not args.room or fault.room in args.room)]
  for fault in faults:  # reports outdated faults before the first test runs
    changed(fault, (args.root / fault.file).read_text(encoding='utf-8'))
  forked_tests.prepare()
  outcomes = try_all(faults, args.root, max(1, args.jobs), args.checked)
  table = markdown(outcomes)
  print(table, end='')
  if args.out:
    args.out.write_text(table, encoding='utf-8')
  return int(any(not outcome.noticed_by and not outcome.fault.reason
                 for outcome in outcomes))


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
