"""Kills processes of a sweep repeatedly, and compares it with an intact one.

python -m benchmarks.sweep_kills --out=DIR [--kills=15] [--case=two]

One, two or three processes start the same command. SIGKILL is sent to one of
them at random times: while it compiles, while a checkpoint is being written,
during a round or its evaluation, while the files of a finished run are being
written, or at any time after it started. The same command starts again a few
seconds later, except after the last kill, whose runs the other processes take
over. At the end, the metrics of each run except times, all bits of its last
checkpoint, and its files must equal those of a sweep that was not killed; and
no run may have been trained after it was finished. If that fails, the exit
status is 1.
"""

from collections import Counter
import pathlib
import random
import re
import subprocess
import sys
import time

from benchmarks import kills as kills_lib

FLAGS = (
    '--dataset=digits --model=mlp --num_clients=8 --participation=.5 '
    '--local_epochs=1 --batch_size=16 --learning_rate=.02 --beta=5 '
    '--checkpoint_every=1 --algorithm=moon --num_negatives=2')
# The number of processes, and further flags. Runs have unlike numbers of
# rounds, so that runs finish while others of their program train.
CASES = {
    'one': (1, ''),
    'two': (2, '--max_runs=2'),
    'three': (3, '--max_runs=1'),
}
_KINDS = 'anywhere', 'compiling', 'checkpoint', 'round'
_FILES = 'config.json', 'partition.npz', 'model.safetensors', 'cohorts.txt'
_ROUNDS = re.compile(r'(\d+)/\d+ rounds of (\d+) runs')
_ROOT = pathlib.Path(__file__).parents[1]


def main() -> None:
  kills_lib.run_cases(__doc__, CASES, compare, 'sweep_kills', num_kills=15)


def compare(case: str, out: pathlib.Path, kills: int,
            seed: int = 0) -> dict[str, object]:
  """Runs a sweep once without interruption and once with `kills` kills.

  Args:
    case: a name of `CASES`.
    out: a directory for both.
    kills: number of kills.
    seed: seed of the times of the kills.

  Returns:
    The kind of each kill and what it left, and whether both have the same
    results.

  Raises:
    AssertionError: if a process fails, or the sweep ends before the last kill.
  """
  num_processes, more = CASES[case]
  rounds = [kills // 2, kills, 6 * kills]
  flags = (f'{FLAGS} {more} --grid mu=1,5 --grid '
           f'num_rounds={",".join(map(str, rounds))}')
  killed = _Killed(flags, out, num_processes, random.Random(seed))
  try:
    history = [killed.kill(_KINDS[i % len(_KINDS)], i == kills - 1)
               for i in range(kills)]
    tables = killed.finish()
  finally:
    killed.end()
  process = _start(flags, out / 'reference', out / 'reference.txt')
  assert process.wait() == 0, out / 'reference.txt'
  table = _table(out / 'reference.txt')
  same = {run.name: _same(run, killed.workdir / run.name)
          for run in sorted((out / 'reference').glob('digits-*'))}
  trained = sum(map(_rounds_shown, out.glob('process-*.txt')))
  repeated = killed.num_repeated()
  return {
      'flags': flags,
      'processes': num_processes,
      'kinds': Counter(kill['kind'] for kill in history),
      'left half a checkpoint': sum(
          kill['half_written'] > 0 for kill in history),
      'runs': len(same),
      'rounds': 2 * sum(rounds),
      'rounds shown by all processes': trained,
      'finished runs trained again': repeated,
      'tables printed': len(tables),
      'same_runs': sum(same.values()),
      'same_tables': all(other == table for other in tables),
      'same': (all(same.values()) and len(same) == 2 * len(rounds)
               and not repeated and all(other == table for other in tables)),
      'kills': history}


class _Killed:
  """A sweep whose processes are killed."""

  def __init__(self, flags, out, num_processes, draw):
    out.mkdir(parents=True)
    self.workdir = out / 'killed'
    self._flags, self._out, self._draw = flags, out, draw
    self._num_started = self._num_at_end = 0
    self._finished = {}  # run -> identity of its summary
    self._children = [self._next() for _ in range(num_processes)]

  def _next(self):
    """Returns a new process and the file of its output."""
    log = self._out / f'process-{self._num_started:02}.txt'
    self._num_started += 1
    return _start(self._flags, self.workdir, log), log

  def kill(self, kind, is_last):
    """Kills a process at a random time of a kind; returns what it left."""
    index = self._draw.randrange(len(self._children))
    process, log = self._children[index]
    kind = self._wait(kind, process, log)
    process.kill()
    assert process.wait() == -9, f'{kind}: the sweep ended before it: {log}'
    self._look()
    left = {
        'kind': kind, 'process': int(log.stem[-2:]),
        'lines': sum(map(kills_lib.num_lines, self._runs())),
        'finished': len(self._finished),
        'half_written': sum(map(kills_lib.has_partial_checkpoint,
                                self._runs()))}
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
    last = first + self._draw.randint(4, 12)
    while process.poll() is None:
      if self._writing() - writing and (
          self._num_at_end <= len(self._finished)):
        self._num_at_end += 1
        time.sleep(self._draw.uniform(0, .3))
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
          kind == 'round' or any(map(kills_lib.has_partial_checkpoint,
                                     self._runs()))):
        time.sleep(self._draw.uniform(0, .4 if kind == 'round' else .02))
        return kind
      self._look()
      time.sleep(.001)
    return kind

  def _runs(self):
    return sorted(self.workdir.glob('digits-*'))

  def _writing(self):
    """Returns the runs with a final model that have no summary yet."""
    return {run for run in self._runs() if any(run.glob('model*'))
            and not (run / 'summary.json').exists()}

  def _look(self):
    """Notes the runs that are finished."""
    for run in self._runs():
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


def _start(flags, workdir, log):
  with open(log, 'w') as out:
    return subprocess.Popen(
        [sys.executable, '-m', 'moon_jax.sweep', f'--workdir={workdir}',
         *flags.split()], cwd=_ROOT, stdout=out, stderr=subprocess.STDOUT)


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


def _identity(run):
  files = (run / 'summary.json').stat(), (run / 'metrics.jsonl').stat()
  return [(stat.st_ino, stat.st_mtime_ns) for stat in files]


def _table(log):
  return [line for line in log.read_text().splitlines()
          if line.startswith('|')]


def _same(run, other):
  """Returns whether two work directories have the same results."""
  (metrics, state), (other_metrics, other_state) = map(
      kills_lib.outcome, (run, other))
  return (metrics == other_metrics
          and kills_lib.bits(state) == kills_lib.bits(other_state)
          and all((run / name).read_bytes() == (other / name).read_bytes()
                  for name in _FILES))


if __name__ == '__main__':
  main()
