"""Kills a run repeatedly, and compares it with an uninterrupted run.

python -m benchmarks.kills --out=DIR [--kills=30] [--case=moon]

SIGKILL is sent at random times: while a checkpoint is being written, during a
round or its evaluation, or at any time after the program started. After each
kill the same command resumes the run. At the end, all metrics except times and
all bits of the last checkpoint must equal those of the uninterrupted run. If
they do not, the exit status is 1.
"""

import argparse
from collections import Counter
from collections.abc import Callable
from collections.abc import Iterable
import json
import os
import pathlib
import random
import subprocess
import sys
import time

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

_DIGITS = ('--dataset=digits --model=mlp --num_clients=8 --participation=.5 '
           '--local_epochs=2 --batch_size=16 --learning_rate=.02 --beta=5 '
           '--checkpoint_every=1')
CASES = {
    'moon': f'{_DIGITS} --algorithm=moon --num_negatives=2 --mu=1',
    'scaffold': f'{_DIGITS} --algorithm=scaffold --momentum=0',
}
_TIMES = 'seconds', 'examples_per_second'  # metrics that are not compared
_KINDS = 'checkpoint', 'round', 'anywhere'
_ROOT = pathlib.Path(__file__).parents[1]


def main() -> None:
  run_cases(__doc__, CASES, compare, 'kills', num_kills=30)


def run_cases(description: str, cases: Iterable[str], compare_fn: Callable,
              name: str, num_kills: int) -> None:
  """Runs the command of a kill benchmark, and exits with its status.

  Args:
    description: of the command.
    cases: the names of its cases.
    compare_fn: a function of the case, an output directory, the number of kills
      and a seed that returns the result, with "same".
    name: results are written to NAME_CASE.json.
    num_kills: the default number of kills of each case.
  """
  parser = argparse.ArgumentParser(description=description)
  parser.add_argument('--out', type=pathlib.Path, required=True,
                      help='output directory')
  parser.add_argument('--kills', type=int, default=num_kills,
                      help='number of kills of each case (default: '
                      f'{num_kills})')
  parser.add_argument('--case', choices=list(cases), action='append',
                      help='may be repeated; all cases by default')
  parser.add_argument('--seed', type=int, default=0,
                      help='seed of the times of the kills')
  args = parser.parse_args()
  is_same = True
  for case in args.case or cases:
    result = compare_fn(case, args.out / case, args.kills, args.seed)
    is_same &= bool(result['same'])
    print(json.dumps(result, indent=1), flush=True)
    (args.out / f'{name}_{case}.json').write_text(
        json.dumps(result, indent=1) + '\n')
  sys.exit(not is_same)


def compare(case: str, out: pathlib.Path, kills: int,
            seed: int = 0) -> dict[str, object]:
  """Runs a case once without interruption and once with `kills` kills.

  Args:
    case: a name of `CASES`.
    out: a directory for both runs.
    kills: number of kills.
    seed: seed of the times of the kills.

  Returns:
    The kind of each kill and the files it left, and whether both runs have the
    same results.

  Raises:
    AssertionError: if a run fails, or ends before it is killed.
  """
  flags = f'{CASES[case]} --num_rounds={12 * kills}'
  reference, killed = out / 'reference', out / 'killed'
  start = time.monotonic()
  _finish(flags, reference)
  run_seconds = time.monotonic() - start
  draw = random.Random(seed)
  history = []
  while len(history) < kills:
    kind = _KINDS[len(history) % len(_KINDS)]
    process = _start(flags, killed)
    is_killed = _kill(process, kind, killed, draw, min(run_seconds, 8.))
    if not is_killed:
      raise AssertionError(f'{kind}: the run ended before it was killed')
    history.append({'kind': kind, **_files_left(killed)})
    print(history[-1], file=sys.stderr, flush=True)
  _finish(flags, killed)
  (metrics, state), (other_metrics, other_state) = map(
      outcome, (reference, killed))
  same_metrics = metrics == other_metrics
  same_state = bits(state) == bits(other_state)
  return {
      'flags': flags,
      'kinds': Counter(kill['kind'] for kill in history),
      'left half a checkpoint': sum(kill['half_written'] for kill in history),
      'left metrics ahead of checkpoints': sum(
          kill['lines'] > kill['checkpoint'] for kill in history),
      'rounds': len(metrics),
      'same_metrics': same_metrics,
      'same_state': same_state,
      'same': same_metrics and same_state,
      'kills': history}


def _start(flags, workdir):
  return subprocess.Popen(
      [sys.executable, '-m', 'moon_jax.train', f'--workdir={workdir}',
       *flags.split()], cwd=_ROOT, stdout=subprocess.DEVNULL,
      stderr=subprocess.PIPE, text=True)


def _finish(flags, workdir):
  process = _start(flags, workdir)
  _, errors = process.communicate()
  if process.returncode:
    raise AssertionError(f'status {process.returncode}: {errors}')


def _kill(process, kind, workdir, draw, max_seconds):
  """Kills a run at a random time of this kind; returns False if it ended."""
  if kind == 'anywhere':
    try:
      process.wait(draw.uniform(0, max_seconds))
      return False
    except subprocess.TimeoutExpired:
      pass
  else:
    first = num_lines(workdir)
    last = first + draw.randint(2, 4)
    has_started = False
    while True:
      if process.poll() is not None:
        return False
      lines = num_lines(workdir)
      # A resumed run first truncates its metrics to those of its checkpoint.
      has_started |= lines != first
      if has_started and lines >= last:
        break
      time.sleep(.002)
    if kind == 'checkpoint':
      while process.poll() is None and not has_partial_checkpoint(workdir):
        time.sleep(.0005)
      time.sleep(draw.uniform(0, .02))
    else:
      time.sleep(draw.uniform(0, .4))
  process.kill()
  process.communicate()
  return process.returncode == -9


def num_lines(workdir):
  """Returns the number of complete lines of metrics."""
  try:
    return (workdir / 'metrics.jsonl').read_bytes().count(b'\n')
  except FileNotFoundError:
    return 0


def has_partial_checkpoint(workdir):
  """Returns whether a checkpoint is being written, or was when it ended."""
  try:
    return any('tmp' in name for name in os.listdir(workdir / 'checkpoints'))
  except FileNotFoundError:
    return False


def _newest_checkpoint(workdir):
  try:
    names = os.listdir(workdir / 'checkpoints')
  except FileNotFoundError:
    return 0
  return max((int(name) for name in names if name.isdecimal()), default=0)


def _files_left(workdir):
  return {'lines': num_lines(workdir),
          'checkpoint': _newest_checkpoint(workdir),
          'half_written': has_partial_checkpoint(workdir)}


def outcome(workdir):
  """Returns the lines of metrics without times, and the last checkpoint."""
  lines = [json.loads(line) for line in
           (workdir / 'metrics.jsonl').read_text().splitlines()]
  lines = [{name: value for name, value in line.items() if name not in _TIMES}
           for line in lines]
  step = _newest_checkpoint(workdir)
  return lines, ocp.load((workdir / 'checkpoints' / str(step)).absolute())


def bits(tree):
  """Returns the path and the bytes of each array."""
  return [(jax.tree_util.keystr(path), np.asarray(x).tobytes())
          for path, x in jax.tree.leaves_with_path(tree)]


if __name__ == '__main__':
  main()
