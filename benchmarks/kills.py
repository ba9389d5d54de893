"""Kills processes of runs and sweeps, and compares them with intact ones.

python -m benchmarks.kills --out=DIR [--kills=30] [--case=moon]

The cases moon and scaffold are one run each; one, two and three are a sweep of
six runs in so many processes that start the same command. SIGKILL is sent to a
process at random times: while a checkpoint is being written, during a round or
its evaluation, at any time after it started, and, in sweeps, while it compiles,
writes the files of a finished run or waits for other processes. Then the same
command starts again; except after the last kill of a sweep with several
processes, whose runs the others take over. At the end, the metrics of each run
except times, all bits of its last checkpoint and its files must equal those of
a command that was not killed, and no run may have been trained after it was
finished. If they do not, the exit status is 1.
"""

from collections import Counter
import pathlib
import random
import re
import subprocess
import sys
import time
from typing import NamedTuple

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from benchmarks import common

_DIGITS = ('--dataset=digits --model=mlp --num_clients=8 --participation=.5 '
           '--batch_size=16 --learning_rate=.02 --partition.beta=5 '
           '--checkpoint_every=1')
_RUN = f'{_DIGITS} --local_epochs=2'
_SWEEP = (f'{_DIGITS} --local_epochs=1 --algorithm=moon '
          '--algorithm.num_negatives=2 --grid algorithm.mu=1,5')
_FILES = 'partition.npz', 'model.safetensors', 'cohorts.txt'
_ROUNDS = re.compile(r'(\d+)/\d+ rounds of (\d+) runs')


class Case(NamedTuple):
  """A command, how many processes start it, and when they are killed."""

  module: str
  flags: str
  num_processes: int = 1
  kinds: tuple[str, ...] = ('checkpoint', 'round', 'anywhere')


_OF_SWEEPS = 'anywhere', 'compiling', 'checkpoint', 'round'
CASES = {
    'moon': Case('train', f'{_RUN} --algorithm=moon(mu=1,num_negatives=2)'),
    'scaffold': Case(
        'train', f'{_RUN} --algorithm=scaffold --optimizer.momentum=0'),
    'one': Case('sweep', _SWEEP, 1, _OF_SWEEPS),
    'two': Case('sweep', f'{_SWEEP} --max_runs=2', 2, _OF_SWEEPS),
    'three': Case('sweep', f'{_SWEEP} --max_runs=1', 3, _OF_SWEEPS)}


def main() -> None:
  parser = common.parser(__doc__)
  parser.add_argument('--kills', type=int, default=15,
                      help='number of kills of each case (default: 15)')
  parser.add_argument('--case', choices=list(CASES), action='append',
                      help='may be repeated; all cases by default')
  parser.add_argument('--seed', type=int, default=0,
                      help='seed of the times of the kills')
  args = parser.parse_args()
  is_same = True
  for case in args.case or CASES:
    result = compare(case, args.out / case, args.kills, args.seed)
    is_same &= result['same']
    common.write(args.out, f'kills_{case}', result)
  sys.exit(not is_same)


def compare(case: str, out: pathlib.Path, kills: int,
            seed: int = 0) -> dict[str, object]:
  """Runs a case once without interruption and once with `kills` kills.

  Returns the kind of each kill and what it left, and whether both, in the
  directory `out`, have the same results. `seed` is that of the times.

  Raises:
    AssertionError: if a process fails, or a run ends before it is killed.
  """
  command = CASES[case]
  # Runs of a sweep have unlike numbers of rounds, so that some finish while
  # others of their program train.
  rounds = [12 * kills] if command.module == 'train' else [
      kills // 2, kills, 6 * kills]
  grid = '--grid num_rounds=' if len(rounds) > 1 else '--num_rounds='
  command = command._replace(
      flags=f'{command.flags} {grid}{",".join(map(str, rounds))}')
  killed = _Killed(command, out, random.Random(seed))
  try:
    kinds = [command.kinds[i % len(command.kinds)] for i in range(kills)]
    history = [killed.kill(kind, i + 1 == kills)
               for i, kind in enumerate(kinds)]
    tables = killed.finish()
  finally:
    killed.end()
  process = _start(command, out / 'reference', out / 'reference.txt')
  assert process.wait() == 0, out / 'reference.txt'
  tables.append(_table(out / 'reference.txt'))
  is_table_same = tables.count(tables[-1]) == len(tables) and (
      bool(tables[-1]) == (command.module == 'sweep'))
  same = {run.name: _same(run, killed.workdir / run.relative_to(
      out / 'reference')) for run in _runs(out / 'reference')}
  repeated = killed.num_repeated()
  return {
      'flags': command.flags,
      'processes': command.num_processes,
      'kinds': Counter(kill['kind'] for kill in history),
      'left half a checkpoint': sum(
          kill['half_written'] > 0 for kill in history),
      'left metrics ahead of checkpoints': sum(
          kill['lines'] > kill['checkpoints'] for kill in history),
      'rounds': sum(len(common.lines_of(run))
                    for run in _runs(out / 'reference')),
      'finished runs trained again': repeated,
      'same_runs': sum(same.values()),
      'same_tables': is_table_same,
      'same': bool(same) and all(same.values()) and not repeated and (
          is_table_same),
      'kills': history}


class _Killed:
  """A command whose processes are killed."""

  def __init__(self, command, out, draw):
    out.mkdir(parents=True, exist_ok=True)
    self.workdir = out / 'killed'
    self._command, self._out, self._draw = command, out, draw
    self._num_started = self._num_at_end = 0
    self._finished = {}  # run -> identity of its summary
    self._children = [self._next() for _ in range(command.num_processes)]

  def _next(self):
    """Returns a new process and the file of its output."""
    log = self._out / f'process-{self._num_started:02}.txt'
    self._num_started += 1
    return _start(self._command, self.workdir, log), log

  def kill(self, kind, is_last):
    """Kills a process at a random time of a kind; returns what it left."""
    index = self._draw.randrange(len(self._children))
    process, log = self._children[index]
    kind = self._wait(kind, process, log)
    process.kill()
    status = process.wait()
    if not status and self._command.module == 'sweep':
      kind = 'none: all runs were finished'
    else:
      assert status == -9, f'{kind}: the command ended before it: {log}'
    self._look()
    runs = _runs(self.workdir)
    left = {
        'kind': kind, 'lines': sum(map(_num_lines, runs)),
        'checkpoints': sum(map(_newest_checkpoint, runs)),
        'finished': len(self._finished),
        'half_written': sum(map(_has_partial_checkpoint, runs))}
    print(left, file=sys.stderr, flush=True)
    if is_last and len(self._children) > 1:
      del self._children[index]
    else:
      time.sleep(self._draw.uniform(0, 4) * (len(self._children) > 1))
      self._children[index] = self._next()
    return left

  def _wait(self, kind, process, log):
    """Waits for a time to kill; returns its kind."""
    if kind == 'anywhere':
      time.sleep(self._draw.uniform(0, 8))
      return kind
    first, writing = _rounds_shown(log), self._writing()
    last = first + self._draw.randint(2, 8)
    while process.poll() is None:
      if self._writing() - writing and (
          self._num_at_end <= len(self._finished)):
        self._num_at_end += 1
        time.sleep(self._draw.uniform(0, .02))
        return 'files of a finished run'
      text, shown = log.read_text(), _rounds_shown(log)
      if text.endswith('other processes train\n'):
        time.sleep(self._draw.uniform(0, 2))
        return 'waiting'
      if kind == 'compiling' and (
          text.count('results in') > text.count('compiled in')):
        time.sleep(self._draw.uniform(0, 2))
        return kind
      if kind == 'compiling' and shown > first + 12:  # it has compiled before
        return 'round'
      if kind != 'compiling' and shown >= last and (
          kind == 'round' or any(map(
              _has_partial_checkpoint, _runs(self.workdir)))):
        time.sleep(self._draw.uniform(0, .4 if kind == 'round' else .02))
        return kind
      self._look()
      time.sleep(.001)
    return kind

  def _writing(self):
    """Returns the runs with a final model that have no summary yet."""
    return {run for run in _runs(self.workdir) if any(run.glob('model*'))
            and not (run / 'summary.json').exists()}

  def _look(self):
    """Notes the runs that are finished."""
    for run in _runs(self.workdir):
      if run not in self._finished and (run / 'summary.json').exists():
        self._finished[run] = _identity(run)

  def num_repeated(self):
    """Returns how many runs were written again after they were finished."""
    return sum(_identity(run) != was for run, was in self._finished.items())

  def finish(self):
    """Waits for the processes; returns the tables that they printed."""
    for process, log in self._children:
      while process.poll() is None:
        self._look()
        time.sleep(.01)
      assert process.returncode == 0, log
    return [_table(log) for _, log in self._children]

  def end(self):
    for process, _ in self._children:
      process.kill()


def _start(command, workdir, log):
  with open(log, 'w') as out:
    return subprocess.Popen(
        [sys.executable, '-m', f'moon_jax.{command.module}',
         f'--workdir={workdir}', *command.flags.split()], cwd=common.ROOT,
        stdout=out, stderr=subprocess.STDOUT)


def _runs(workdir):
  """Returns the directories of the runs of a sweep, or of the only run."""
  if (workdir / 'config.json').exists():
    return [workdir]
  return sorted(workdir.glob('digits-*'))


def _rounds_shown(log):
  """Returns the rounds that a process shows to have trained."""
  total = before = 0
  for line in log.read_text().splitlines():
    if line.startswith('compiled in'):
      before = None  # a new program
    elif line.startswith('round '):
      total += 1
    elif match := _ROUNDS.match(line):
      done, runs = map(int, match.groups())
      total += runs if before is None else done - before
      before = done
  return total


def _num_lines(workdir):
  path = workdir / 'metrics.jsonl'
  return path.read_bytes().count(b'\n') if path.exists() else 0


def _has_partial_checkpoint(workdir):
  """Returns whether a checkpoint is being written, or was when it ended."""
  return any(workdir.glob('checkpoints/*tmp*'))


def _newest_checkpoint(workdir):
  return max((int(path.name) for path in workdir.glob('checkpoints/*')
              if path.name.isdecimal()), default=0)


def _identity(run):
  files = (run / 'summary.json').stat(), (run / 'metrics.jsonl').stat()
  return [(stat.st_ino, stat.st_mtime_ns) for stat in files]


def _table(log):
  """Returns the lines of the table that a sweep prints; [] of a run."""
  found = re.search(r'^.*\bn +rounds\b.*\n(?:(?!table: ).+\n)+',
                    log.read_text(), re.M)
  return found.group().splitlines() if found else []


def outcome(run: pathlib.Path) -> tuple[list[dict], dict]:
  """Returns the metrics without times, and the last checkpoint."""
  return common.lines_of(run), ocp.load(
      (run / 'checkpoints' / str(_newest_checkpoint(run))).absolute())


def _same(run, other):
  """Returns whether two work directories have the same results."""
  found = []
  for path in run, other:
    lines, state = outcome(path)
    found.append((
        (path / 'config.json').read_text().replace(str(path), ''), lines,
        [(jax.tree_util.keystr(key), np.asarray(x).tobytes())
         for key, x in jax.tree.leaves_with_path(state)],
        [(path / name).read_bytes() for name in _FILES]))
  return found[0] == found[1]


if __name__ == '__main__':
  main()
