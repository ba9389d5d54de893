"""Trains the unfinished runs of PROTOCOL.md in their order.

python -m experiments.full.run --data_dir=DIR --out=OUT --code=CLONE
                               [--jobs=2] [--match=REGEX]
python -m experiments.full.run --out=OUT --status
python -m experiments.full.run --out=OUT --collect=experiments/results/full
python -m experiments.full.run --out=OUT --pack=experiments/full/unfinished

CLONE is a clone at a commit that `questions.py` names, whose runs are trained;
so later changes of the code do not affect them. Runs, and on Linux their
sessions, have low priority. The cores are divided among --jobs runs; on two
cores, two runs at a time are 1.3 times as fast as one after another. SIGTERM or
Ctrl-C stops all runs, which lose at most the current round; their exit statuses
are printed, and the same command resumes them. Runs of the tables in
experiments/results/full are not trained again. --status prints the progress of
each run. --collect adds the config, metrics and summary of finished runs to the
tables of a directory (experiments/kept.py), without this machine's paths.
--pack writes the newest checkpoint of each unfinished run, so that another
machine can resume it: runs that OUT lacks begin from
experiments/full/unfinished.
"""

import argparse
from collections.abc import Callable
import functools
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time

import numpy as np

from experiments import convert, keep, kept
from experiments.full import questions
from experiments.full.questions import Run

UNFINISHED = pathlib.Path(__file__).parent / 'unfinished'
_DIVERGED = 'diverged.txt'  # holds the error message of a diverged run
_DIVERGENCE = r'became (nan|-?inf|no number)|no longer of finite numbers'


def parser(description: str | None) -> argparse.ArgumentParser:
  """Returns the arguments of what and where to train."""
  made = argparse.ArgumentParser(
      description=description,
      formatter_class=argparse.RawDescriptionHelpFormatter)
  made.add_argument('--data_dir', help='directory that contains CIFAR-10')
  made.add_argument('--out', type=pathlib.Path, help='directory of the runs')
  made.add_argument('--code', type=pathlib.Path,
                    help='clone whose moon_jax is run')
  made.add_argument('--jobs', type=int, default=1,
                    help='number of runs at a time')
  made.add_argument('--match', default='',
                    help='regular expression of names')
  return made


def main() -> None:
  arguments = parser(__doc__)
  arguments.add_argument('--status', action='store_true',
                         help='print the progress of each run')
  arguments.add_argument('--collect', type=pathlib.Path,
                         help='directory of the tables of finished runs')
  arguments.add_argument('--pack', type=pathlib.Path,
                         help='directory to which unfinished runs are packed')
  args = arguments.parse_args()
  if not args.out:
    arguments.error('--out is required')
  runs = [run for run in questions.in_order()
          if re.match(args.match, run.name)]
  if args.status:
    for run in runs:
      print(f'{rounds_done(args.out / run.name):4} of {run.num_rounds:4}  '
            f'{run.name}')
  elif args.collect:
    collect(args.out, args.collect, runs)
  elif args.pack:
    pack(args.out, args.pack, runs)
  elif args.data_dir and args.code:
    runs = [run for run in of_commit(args.code, runs) if not is_finished(
        kept.directory('full') / run.name, run)]
    args.out.mkdir(parents=True, exist_ok=True)
    unpack(UNFINISHED, args.out, runs)
    os.nice(19)
    train_all(runs, functools.partial(
        start, args.code, args.data_dir, args.out), args.out, args.jobs)
  else:
    arguments.error('--data_dir and --code, or --status, --collect or --pack, '
                    'are required')


def train_all(runs: list[Run],
              start_fn: Callable[[Run, set[int]], subprocess.Popen],
              out: pathlib.Path, jobs: int) -> None:
  """Trains the unfinished runs, `jobs` at a time; exits if one fails.

  Two runs with the same name share a directory (one extends the other), so they
  are never trained at the same time.
  """
  waiting = [run for run in runs if not is_finished(out / run.name, run)]
  cores = sorted(os.sched_getaffinity(0))
  free = [set(part.tolist()) for part in np.array_split(
      cores, min(jobs, len(cores)))]
  children, failed, is_stopped = {}, [], threading.Event()
  stop = lambda *_: is_stopped.set()
  handlers = {number: signal.signal(number, stop)
              for number in (signal.SIGTERM, signal.SIGINT)}
  while children or (waiting and not is_stopped.is_set()):
    ready = [run for run in waiting if run.name not in children]
    if free and ready and not is_stopped.is_set():
      run, cores = ready[0], free.pop()
      waiting.remove(run)
      print(run.name, flush=True)
      children[run.name] = start_fn(run, cores), cores
      continue
    time.sleep(1)
    for name, (child, cores) in list(children.items()):
      if is_stopped.is_set():
        child.send_signal(signal.SIGTERM)
      if child.poll() is not None:
        del children[name]
        free.append(cores)
        if not has_ended_well(child.returncode, out / name):
          failed.append(f'{name} ended with status {child.returncode}; see '
                        f'{out / name}.log')
          is_stopped.set()
  for number, handler in handlers.items():
    signal.signal(number, handler)
  if failed:
    sys.exit('\n'.join(failed))


def start(code: pathlib.Path, data_dir: str, out: pathlib.Path, run: Run,
          cores: set[int]) -> subprocess.Popen:
  """Starts or resumes a run on some cores, with its output in NAME.log."""
  commit = out / f'{run.name}.commit'
  if commit.exists() and commit.read_text().strip() != run.commit:
    sys.exit(f'{out / run.name} was begun at {commit.read_text().strip()}, but '
             f'the run is of {run.commit}; move it away')
  commit.write_text(f'{run.commit}\n')
  with open(out / f'{run.name}.log', 'a', encoding='utf-8') as log:
    return subprocess.Popen(
        [sys.executable, '-m', 'moon_jax.train',
         '--flagfile=experiments/cifar10.flags', f'--data_dir={data_dir}',
         f'--workdir={(out / run.name).absolute()}', '--checkpoint_every=1',
         f'--num_rounds={run.num_rounds}', *run.flags],
        cwd=code, stdout=log, stderr=subprocess.STDOUT,
        # Ctrl-C reaches only this process, which sends SIGTERM to the runs.
        start_new_session=True,
        preexec_fn=lambda: _stay_behind(cores))


def _stay_behind(cores):
  os.sched_setaffinity(0, cores)
  session = pathlib.Path('/proc/self/autogroup')
  if session.exists():  # Linux divides cores by session first
    for _ in range(20):
      try:
        session.write_text('19')
        return
      except OSError:  # but for root, one change in 100 ms
        time.sleep(.05)


def has_ended_well(status: int, workdir: pathlib.Path) -> bool:
  """Returns whether a run finished or diverged.

  Writes diverged.txt if it diverged.
  """
  log = workdir.with_name(f'{workdir.name}.log')
  message = log.read_text(encoding='utf-8').strip().splitlines()[-1:]
  if status == 1 and message and re.search(_DIVERGENCE, message[0]):
    (workdir / _DIVERGED).write_text(f'{message[0]}\n', encoding='utf-8')
    return True
  return status == 0


def rounds_done(workdir: pathlib.Path) -> int:
  """Returns the number of rounds in metrics.jsonl, 0 if it does not exist."""
  path = workdir / 'metrics.jsonl'
  return len(path.read_text().splitlines()) if path.exists() else 0


def is_finished(workdir: pathlib.Path, run: Run) -> bool:
  """Returns whether a run diverged or has all its rounds, or a search ended.

  Question 2 extends runs of question 1, which stay finished in the meantime.
  """
  if any((workdir / name).exists() for name in (_DIVERGED, 'diverged.json')):
    return True
  if any(workdir.glob('tuning/*/tune.csv')):  # of experiments/full/tuned.py
    return True
  config = workdir / 'config.json'
  if config.exists() and rounds_done(workdir) >= run.num_rounds and (
      json.loads(config.read_text())['num_rounds'] > run.num_rounds):
    return True
  path = workdir / 'summary.json'
  return path.exists() and (
      json.loads(path.read_text())['rounds'] >= run.num_rounds)


def collect(out: pathlib.Path, to: pathlib.Path, runs: list[Run]) -> None:
  """Adds the results of finished runs to the tables in `to`."""
  finished = {run.name: run for run in runs
              if is_finished(out / run.name, run)}
  with tempfile.TemporaryDirectory() as copies:
    made = {name: pathlib.Path(copies) / name for name in finished}
    for name, copy in made.items():
      keep.copy(out / name, copy)
      convert.convert(copy / 'config.json')  # of the flags of its commit
      convert.convert(copy / 'summary.json')
      print(name)
    kept.add(made, to, {name: run.commit for name, run in finished.items()})


def pack(out: pathlib.Path, to: pathlib.Path, runs: list[Run]) -> None:
  """Writes NAME.tar.xz for each unfinished run that has a checkpoint.

  Removes those of finished runs. No run may be training.
  """
  to.mkdir(parents=True, exist_ok=True)
  for run in runs:
    source, path = out / run.name, to / f'{run.name}.tar.xz'
    steps = [step for step in (source / 'checkpoints').glob('*')
             if step.name.isdigit()]
    if is_finished(source, run) or not steps:
      path.unlink(missing_ok=True)
      continue
    newest = max(steps, key=lambda step: int(step.name))
    with tarfile.open(path, 'w:xz') as tar:
      config = keep.config_without_paths(source).encode()
      info = tarfile.TarInfo(f'{run.name}/config.json')
      info.size = len(config)
      tar.addfile(info, io.BytesIO(config))
      for file in ('metrics.jsonl', 'partition.npz', 'begun.json',
                   f'checkpoints/{newest.name}'):
        if (source / file).exists():
          tar.add(source / file, f'{run.name}/{file}', filter=_portable)
    print(f'{path}: {rounds_done(source)} of {run.num_rounds} rounds')


def _portable(info):
  # It names this machine's directory; Orbax reads it only in cloud storage.
  if info.name.endswith('/commit_success.txt'):
    return None
  info.uname = info.gname = ''
  return info


def unpack(packed: pathlib.Path, out: pathlib.Path, runs: list[Run]) -> None:
  """Extracts the packed runs that OUT lacks.

  Exits if a run that was begun on a GPU is in neither.
  """
  for run in runs:
    path = packed / f'{run.name}.tar.xz'
    if path.exists() and not (out / run.name).exists():
      with tarfile.open(path) as tar:
        tar.extractall(out, filter='data')
  if lost := [run.name for run in runs if run.name in questions.BEGUN_ON_GPU
              and not (out / run.name).exists()]:
    sys.exit(f'{out} lacks the states of {", ".join(lost)}, which were begun '
             'on a GPU (AMENDMENT_2.md); give --match for other runs')


def of_commit(code: pathlib.Path, runs: list[Run]) -> list[Run]:
  """Returns the runs of a clone's commit; exits if it has none, or changes."""
  git = lambda *words: subprocess.run(
      ['git', *words], cwd=code, check=True, capture_output=True,
      text=True).stdout.strip()
  if git('status', '--porcelain', '--untracked-files=no'):
    sys.exit(f'{code} has uncommitted changes; run from a clean clone')
  commit = git('rev-parse', 'HEAD')
  found = [run for run in runs if run.commit == commit]
  if not found:
    sys.exit(f'{code} is at {commit}, but these runs are of '
             f'{" and ".join({run.commit: 0 for run in runs})}; check one out')
  return found


if __name__ == '__main__':
  main()
