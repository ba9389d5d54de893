"""Measures moon_jax beside other simulators on the same work, in one run.

python -m benchmarks.peers --data_dir=DIR --python=PYTHON --sources=SOURCES \\
    --out=OUT

All sides train the same network on the same CIFAR-10, the same 10 clients
(Dirichlet 0.5, split seed 0) and the same batch size, one local epoch a round,
with SGD of momentum 0.9, FedAvg and MOON; each with its own loop, server,
clients and MOON. README.md says what they compute. A run is a process, no two
run at the same time, and every second pass has the opposite order. A run does
not count while other processes take more than --max_others cores, and is an
error if it has not learned. OUT/peers.json is written after each run, and the
same command resumes.

With other numbers of --clients only FedAvg runs, on equal parts of the data, in
batches of at most a client's number of examples; this shows how the time of a
round grows.

PYTHON has PyTorch, the packages in `PEERS` and what the clones need; SOURCES
has the clones at the commits in `PEERS`.
"""

import argparse
from collections.abc import Callable, Iterable
import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile
import time
from typing import Any, NamedTuple

from benchmarks import common, sides
from benchmarks.peers import memory, moon_side, report
from moon_jax.config import Config
from moon_jax.distributed import host

PEERS = {  # the commit of a clone in SOURCES, or the version of a package
    'PFLlib': 'd832e76', 'FL-bench': '06e658b', 'fluke': 'a0bd26a',
    'flwr': '1.42.0', 'pfl': '0.6.0', 'fedjax': '0.0.17', 'blazefl': '2.0.3'}


class Side(NamedTuple):
  program: str = ''
  peer: str = ''
  is_parallel: bool = False  # a process or thread trains on each core
  methods: tuple[str, ...] = 'fedavg', 'moon'
  is_batched: bool = False  # the user's part has no data loader
  is_threaded: bool = False
  launcher: tuple[str, ...] = ()  # of several processes


_FEDAVG = ('fedavg',)
_TORCHRUN = ('-m', 'torch.distributed.run', '--standalone',
             f'--nproc_per_node={host.num_cores()}')
SIDES = {
    'moon_jax': Side(),
    'PyTorch loop': Side('loop_side.py'),
    'PyTorch loop, processes': Side('loop_side.py', is_parallel=True),
    'PFLlib': Side('pfllib_side.py', 'PFLlib'),
    'fluke': Side('fluke_side.py', 'fluke'),
    'FL-bench': Side('fl_bench_side.py', 'FL-bench'),
    'FL-bench, ray': Side('fl_bench_side.py', 'FL-bench', True),
    'Flower': Side('flower_side.py', 'flwr'),
    'Flower, processes': Side('flower_side.py', 'flwr', True),
    'Flower, batched': Side('flower_side.py', 'flwr', is_batched=True),
    'Flower, batched, processes': Side(
        'flower_side.py', 'flwr', True, is_batched=True),
    'BlazeFL': Side('blazefl_side.py', 'blazefl', methods=_FEDAVG),
    'BlazeFL, processes': Side(
        'blazefl_side.py', 'blazefl', True, methods=_FEDAVG),
    'BlazeFL, batched': Side(
        'blazefl_side.py', 'blazefl', methods=_FEDAVG, is_batched=True),
    'BlazeFL, batched, processes': Side(
        'blazefl_side.py', 'blazefl', True, _FEDAVG, is_batched=True),
    'BlazeFL, batched, threads': Side(
        'blazefl_side.py', 'blazefl', True, _FEDAVG, is_batched=True,
        is_threaded=True),
    'pfl-research': Side('pfl_side.py', 'pfl', methods=_FEDAVG),
    'pfl-research, processes': Side(
        'pfl_side.py', 'pfl', True, _FEDAVG, launcher=_TORCHRUN),
    'FedJAX': Side('fedjax_side.py', 'fedjax', methods=_FEDAVG)}
_MIN_ACCURACY = .15  # of 10 clients after all rounds; chance is 0.1
_METHODS = {'fedavg': 'fedavg', 'moon': 'moon(mu=1)'}


def main() -> None:
  parser = common.parser(__doc__)
  add = parser.add_argument
  add_flags(parser)
  add('--data_dir', required=True, help='directory that contains CIFAR-10')
  add('--algorithm', action='append', choices=_METHODS,
      help='method to measure; may be repeated. Default: all')
  add('--clients', action='append', type=int,
      help=f'number of clients; may be repeated. Default: {report.CLIENTS}')
  add('--passes', type=int, default=2, help='runs of each side')
  add('--max_others', type=float, default=.15, help='cores that other '
      'processes may take during a run, which does not count above')
  add('--repeats', type=int, default=5,
      help=f'timed rounds after the {sides.WARM_UP} warm-up rounds')
  args = parser.parse_args()
  names = args.side or [*SIDES]
  peers = {peer: checked(peer, args) for peer in dict.fromkeys(
      SIDES[name].peer for name in names) if peer}
  results = common.describe('peers') | {'peers': peers, 'runs': []}
  del results['versions']  # each side reports its own
  path = args.out / 'peers.json'
  if path.exists():
    kept = json.loads(path.read_text())
    if kept['command'] != results['command']:
      raise ValueError(f'{path} was written by another command: '
                       f'{kept["command"]}. Choose another --out')
    results = kept
  measure(args, names, results)


def add_flags(parser: argparse.ArgumentParser, names: Iterable[str] = SIDES
              ) -> None:
  """Adds the flags of all programs that run peers."""
  add = parser.add_argument
  add('--python', required=True, help='Python with PyTorch and the peers')
  add('--sources', required=True, type=pathlib.Path,
      help='directory of the clones of the peers')
  add('--side', action='append', choices=[*names],
      help='side to run; may be repeated. Default: all')


def checked(peer: str, args: argparse.Namespace, version: str = '') -> str:
  """Returns the commit or version of a peer: `version`, or that of `PEERS`.

  Raises:
    ValueError: if another one is installed.
  """
  version = version or PEERS[peer]
  command = (
      ['git', '-C', args.sources / peer, 'rev-parse', 'HEAD']
      if '.' not in version
      else [args.python, '-c', 'import importlib.metadata as metadata;'
            f'print(metadata.version("{peer}"))'])
  found = subprocess.run(
      command, check=True, capture_output=True, text=True).stdout.strip()
  if not found.startswith(version):
    raise ValueError(f'{peer} must be at {version}, got {found}')
  return version


def measure(args: argparse.Namespace, names: list[str], results: dict) -> None:
  """Runs the sides that `results` lacks; writes it after each run."""
  fields = 'clients', 'algorithm', 'pass', 'side'
  done = [[run[field] for field in fields] for run in results['runs']]
  with tempfile.TemporaryDirectory() as scratch:
    for key in _keys(args, names):
      if [*key] in done:
        continue
      clients, algorithm, number, name = key
      run = _measured(name, algorithm, clients, args, pathlib.Path(scratch))
      results['runs'].append(dict(zip(fields, key)) | run)
      print(f'{clients} clients, {algorithm}, pass {number}, {name}: '
            f'{report.seconds_per_round(run):.2f} s a round, '
            f'{run["peak_bytes"] / 1e9:.1f} GB, accuracy '
            f'{run["accuracy"]:.3f}, others took {run["other_cores"]:.2f} '
            'cores', flush=True)
      common.write(args.out, 'peers', results, report.markdown(results))


def _keys(args, names):
  """Yields number of clients, method, pass and side of each run."""
  for clients in args.clients or [report.CLIENTS]:
    for algorithm in args.algorithm or _METHODS:
      if clients != report.CLIENTS and algorithm != 'fedavg':
        continue
      for number in range(args.passes):
        for name in names[::-1 if number % 2 else 1]:
          if algorithm in SIDES[name].methods:
            yield clients, algorithm, number, name


def _measured(name, algorithm, clients, args, scratch):
  """Runs a side until no other process disturbs it, at most three times."""
  config = Config(
      dataset='cifar10', data_dir=args.data_dir,
      algorithm=_METHODS[algorithm],
      num_clients=clients, local_epochs=1, augment=False,
      num_rounds=sides.WARM_UP + args.repeats)
  if clients != report.CLIENTS:
    config = dataclasses.replace(
        config, partition='iid', batch_size=min(64, 50_000 // clients))
  inputs = scratch / f'{clients}.npz'
  if not inputs.exists():
    common.run(moon_side.write_inputs, config.to_dict(), str(inputs))
  for _ in range(3):
    run, busiest = observed(
        lambda: common.run(moon_side.train, config.to_dict())
        if name == 'moon_jax' else
        run_peer(SIDES[name], task_of(config), args, inputs))
    if clients == report.CLIENTS and run['accuracy'] < _MIN_ACCURACY:
      raise ValueError(f'{name} must learn, got accuracy {run["accuracy"]}')
    if run['other_cores'] <= args.max_others:
      return run
    print(f'{name}: others took {run["other_cores"]:.2f} cores, most of it '
          f'process {busiest}', flush=True)
  raise ValueError(
      f'other processes must take at most --max_others={args.max_others} '
      f'cores, got {run["other_cores"]:.2f} beside {name} in three tries; stop '
      f'process {busiest}, or raise --max_others')


def observed(function: Callable[[], dict[str, Any]]
             ) -> tuple[dict[str, Any], int]:
  """Runs a side; returns its answer, and the busiest other process.

  Peak memory, the load average before the start and the cores that other
  processes took are added to the answer.
  """
  load, before = os.getloadavg()[0], _processor_seconds()
  start = time.perf_counter()
  with memory.Peak() as peak:
    run = function()
  seconds = time.perf_counter() - start
  others = {process: (after - before[process]) / seconds for process, after
            in _processor_seconds().items() if process in before}
  return run | {
      'peak_bytes': peak.num_bytes, 'load_average_before': load,
      'other_cores': sum(others.values())}, max(others, key=others.get)


def _processor_seconds():
  """Returns the processor time of each process but this one, by its number."""
  return {process: (int(fields[11]) + int(fields[12]))
          / os.sysconf('SC_CLK_TCK')
          for process, fields in memory.stats() if process != os.getpid()}


def task_of(config: Config) -> dict[str, Any]:
  """Returns what a peer's program is told of a run."""
  return {field: getattr(config, field) for field in (
      'batch_size', 'learning_rate', 'num_rounds')} | {
          'algorithm': config.algorithm.name, **config.args('optimizer'),
          'mu': 0., 'temperature': .5, **config.args('algorithm')}


def run_peer(side: Side, task: dict[str, Any], args: argparse.Namespace,
             inputs: pathlib.Path, weights: pathlib.Path | None = None
             ) -> dict[str, Any]:
  """Runs the program of a side; returns its answer.

  `weights` is the file that gets the parameters of its last model.

  Raises:
    RuntimeError: if the program fails.
  """
  cores, here = host.num_cores(), pathlib.Path(__file__).parent
  threads = 1 if side.is_parallel else cores  # contending threads are slow
  source, python = args.sources.absolute() / side.peer, args.python
  if os.sep in python:  # so that it works in any directory
    python = os.path.abspath(python)  # which follows no links
  with tempfile.TemporaryDirectory(dir=inputs.parent) as directory:
    path, answer = (pathlib.Path(directory) / file
                    for file in ('task.json', 'answer.json'))
    path.write_text(json.dumps(task | {
        'inputs': str(inputs), 'scratch': directory, 'source': str(source),
        'weights': str(weights or pathlib.Path(directory) / 'weights.npz'),
        'threads': threads, 'workers': cores if side.is_parallel else 1,
        'is_batched': side.is_batched, 'is_threaded': side.is_threaded}))
    paths = source, common.ROOT, common.ROOT / 'benchmarks', here
    process = subprocess.run(
        [python, *side.launcher, here / side.program, path, answer],
        cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env=os.environ | {
            'OMP_NUM_THREADS': str(threads),
            'PYTHONPATH': ':'.join(map(str, paths))})
    if process.returncode:
      raise RuntimeError(f'{side.program} ended with status '
                         f'{process.returncode}:\n{process.stdout[-3000:]}')
    return json.loads(answer.read_text())


if __name__ == '__main__':
  main()
