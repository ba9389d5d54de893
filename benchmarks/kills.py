"""Kills a run again and again, and compares it with an unbroken one.

python -m benchmarks.kills --out=DIR [--kills=30] [--case=moon]

SIGKILL comes at random moments: while a checkpoint is being written, within a
round or its evaluation, or anywhere from the start of the program on. The same
command then goes on each time by itself. At the end metrics (but for the clock)
and all bits of the last checkpoint must be those of a run that nobody killed;
else this ends with status 1.
"""

import argparse
from collections import Counter
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
_CLOCK = 'seconds', 'examples_per_second'
_KINDS = 'checkpoint', 'round', 'anywhere'
_ROOT = pathlib.Path(__file__).parents[1]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--out', type=pathlib.Path, required=True)
  parser.add_argument('--kills', type=int, default=30)
  parser.add_argument('--case', choices=CASES, action='append')
  parser.add_argument('--seed', type=int, default=0)
  args = parser.parse_args()
  is_same = True
  for case in args.case or CASES:
    found = compare(case, args.out / case, args.kills, args.seed)
    is_same &= found['same']
    print(json.dumps(found, indent=1), flush=True)
    (args.out / f'kills_{case}.json').write_text(
        json.dumps(found, indent=1) + '\n')
  sys.exit(not is_same)


def compare(case: str, out: pathlib.Path, kills: int,
            seed: int = 0) -> dict[str, object]:
  """Runs a case whole, and another time through so many kills.

  Args:
    case: a name of `CASES`.
    out: a directory for both runs.
    kills: how many.
    seed: of when.

  Returns:
    Each kill with its kind and what it left, and whether both are the same.
  """
  flags = f'{CASES[case]} --num_rounds={12 * kills}'
  whole, broken = out / 'whole', out / 'broken'
  start = time.monotonic()
  _finish(flags, whole)
  rest = time.monotonic() - start
  draw = random.Random(seed)
  told = []
  while len(told) < kills:
    kind = _KINDS[len(told) % len(_KINDS)]
    process = _start(flags, broken)
    is_killed = _kill(process, kind, broken, draw, min(rest, 8.))
    if not is_killed:
      raise AssertionError(f'{kind}: the run ended before it was killed')
    told.append({'kind': kind, **_left(broken)})
    print(told[-1], file=sys.stderr, flush=True)
  _finish(flags, broken)
  one, other = _outcome(whole), _outcome(broken)
  return {
      'flags': flags,
      'kinds': Counter(kill['kind'] for kill in told),
      'left half a checkpoint': sum(kill['half_written'] for kill in told),
      'left metrics ahead of checkpoints': sum(
          kill['lines'] > kill['checkpoint'] for kill in told),
      'rounds': len(one[0]),
      'same_metrics': one[0] == other[0],
      'same_state': _bits(one[1]) == _bits(other[1]),
      'same': one[0] == other[0] and _bits(one[1]) == _bits(other[1]),
      'kills': told}


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


def _kill(process, kind, workdir, draw, most_seconds):
  """Waits for a moment of the kind, and kills; False if the run ended."""
  if kind == 'anywhere':
    try:
      process.wait(draw.uniform(0, most_seconds))
      return False
    except subprocess.TimeoutExpired:
      pass
  else:
    rounds = _lines(workdir) + draw.randint(2, 4)
    first = _lines(workdir)
    began = False
    while True:
      if process.poll() is not None:
        return False
      lines = _lines(workdir)
      began |= lines != first  # metrics are cut to the checkpoint at first
      if began and lines >= rounds:
        break
      time.sleep(.002)
    if kind == 'checkpoint':
      while process.poll() is None and not _half_written(workdir):
        time.sleep(.0005)
      time.sleep(draw.uniform(0, .02))
    else:
      time.sleep(draw.uniform(0, .4))
  process.kill()
  process.communicate()
  return process.returncode == -9


def _lines(workdir):
  try:
    return (workdir / 'metrics.jsonl').read_bytes().count(b'\n')
  except FileNotFoundError:
    return 0


def _half_written(workdir):
  try:
    return any('tmp' in name for name in os.listdir(workdir / 'checkpoints'))
  except FileNotFoundError:
    return False


def _newest(workdir):
  try:
    names = os.listdir(workdir / 'checkpoints')
  except FileNotFoundError:
    return 0
  return max((int(name) for name in names if name.isdecimal()), default=0)


def _left(workdir):
  return {'lines': _lines(workdir), 'checkpoint': _newest(workdir),
          'half_written': _half_written(workdir)}


def _outcome(workdir):
  """Lines of metrics without the clock, and the state at the end."""
  lines = [json.loads(line) for line in
           (workdir / 'metrics.jsonl').read_text().splitlines()]
  lines = [{name: value for name, value in line.items() if name not in _CLOCK}
           for line in lines]
  newest = (workdir / 'checkpoints' / str(_newest(workdir))).absolute()
  return lines, ocp.load(newest)


def _bits(tree):
  return [(jax.tree_util.keystr(path), np.asarray(x).tobytes())
          for path, x in jax.tree.leaves_with_path(tree)]


if __name__ == '__main__':
  main()
