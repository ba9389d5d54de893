"""Measures moon_jax beside other simulators on the same work, in one run.

python -m benchmarks.peers --data_dir=DIR --python=PYTHON --sources=SOURCES \\
    --out=OUT

All sides train the same network on the same CIFAR-10, the same 10 clients
(Dirichlet 0.5, split seed 0) and the same batch size, one local epoch a round,
with SGD of momentum 0.9, FedAvg and MOON; each with its own loop, server,
clients and MOON. README.md says what they compute. A run is a process, no two
run at the same time, and every second pass has the opposite order. A run does
not count while other processes take more than --max_others cores, and is an
error if it has not learned.

PYTHON has PyTorch and the peers' requirements; SOURCES holds clones of the
peers at the commits of `PEERS`.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import tempfile
import time

from benchmarks import common, sides
from benchmarks.peers import moon_side, report
from moon_jax.config import Config
from moon_jax.distributed import host

PEERS = {  # the directory in SOURCES, and its commit
    'PFLlib': 'd832e76', 'FL-bench': '06e658b', 'fluke': 'a0bd26a'}
_SIDES = {  # the program, the peer, and whether a process trains on each core
    'moon_jax': ('', '', False),
    'PyTorch loop': ('loop_side.py', '', False),
    'PyTorch loop, processes': ('loop_side.py', '', True),
    'PFLlib': ('pfllib_side.py', 'PFLlib', False),
    'fluke': ('fluke_side.py', 'fluke', False),
    'FL-bench': ('fl_bench_side.py', 'FL-bench', False),
    'FL-bench, ray': ('fl_bench_side.py', 'FL-bench', True)}
_MIN_ACCURACY = .15  # after all rounds; chance is 0.1
_METHODS = {'fedavg': {'mu': -1.}, 'moon': {'mu': 1.}}


def _parse():
  parser = common.parser(__doc__)
  add = parser.add_argument
  add('--data_dir', required=True, help='directory that contains CIFAR-10')
  add('--python', required=True, help='Python with PyTorch and the peers')
  add('--sources', required=True, type=pathlib.Path,
      help='directory of the clones of the peers')
  add('--side', action='append', choices=_SIDES,
      help='side to measure; may be repeated. Default: all')
  add('--algorithm', action='append', choices=_METHODS,
      help='method to measure; may be repeated. Default: all')
  add('--passes', type=int, default=2, help='runs of each side')
  add('--max_others', type=float, default=.15, help='cores that other '
      'processes may take during a run, which does not count above')
  add('--repeats', type=int, default=5,
      help=f'timed rounds after the {sides.WARM_UP} warm-up rounds')
  return parser.parse_args()


def main() -> None:
  args = _parse()
  for name, commit in PEERS.items():
    found = subprocess.run(
        ['git', 'rev-parse', 'HEAD'], cwd=args.sources / name, check=True,
        capture_output=True, text=True).stdout
    if not found.startswith(commit):
      raise ValueError(f'{args.sources / name} must be at commit {commit}, got '
                       f'{found.strip()}')
  results = measure(args)
  common.write(args.out, 'peers', results, report.markdown(results))


def measure(args: argparse.Namespace) -> dict:
  """Runs all sides; returns their measurements and the environment."""
  results = common.describe('peers') | {'peers': PEERS, 'runs': []}
  del results['versions']  # each side reports its own
  names = args.side or [*_SIDES]
  with tempfile.TemporaryDirectory() as scratch:
    for algorithm in args.algorithm or _METHODS:
      for number in range(args.passes):
        for name in names[::-1 if number % 2 else 1]:
          run = _measured(name, algorithm, args, pathlib.Path(scratch))
          results['runs'].append(
              {'side': name, 'algorithm': algorithm, 'pass': number} | run)
          print(f'{algorithm}, pass {number}, {name}: '
                f'{report.seconds_per_round(run):.2f} s a '
                f'round, accuracy {run["accuracy"]:.3f}, others took '
                f'{run["other_cores"]:.2f} cores', flush=True)
  return results


def _measured(name, algorithm, args, scratch):
  """Runs a side until no other process disturbs it, at most three times."""
  config = Config(
      dataset='cifar10', data_dir=args.data_dir, algorithm=algorithm,
      num_clients=10, local_epochs=1, augment=False,
      num_rounds=sides.WARM_UP + args.repeats, **_METHODS[algorithm])
  for _ in range(3):
    before, start = _processor_seconds(), time.perf_counter()
    run = (common.run(moon_side.train, config.to_dict())
           if name == 'moon_jax' else _peer(name, config, args, scratch))
    seconds = time.perf_counter() - start
    others = {process: (after - before[process]) / seconds for process, after
              in _processor_seconds().items() if process in before}
    run['other_cores'] = sum(others.values())
    if run['accuracy'] < _MIN_ACCURACY:
      raise ValueError(f'{name} must learn, got accuracy {run["accuracy"]}')
    if run['other_cores'] <= args.max_others:
      return run
    busiest = max(others, key=others.get)
    print(f'{name}: others took {run["other_cores"]:.2f} cores, most of it '
          f'process {busiest}', flush=True)
  raise ValueError(
      f'other processes must take at most --max_others={args.max_others} '
      f'cores, got {run["other_cores"]:.2f} beside {name} in three tries; stop '
      f'process {busiest}, or raise --max_others')


def _processor_seconds():
  """Returns the processor time of each process but this one, by its number."""
  found = {}
  for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
    with contextlib.suppress(OSError):  # it has ended
      fields = path.read_text().rpartition(')')[2].split()
      if path.parent.name != str(os.getpid()):
        found[path.parent.name] = (int(fields[11]) + int(fields[12])) / (
            os.sysconf('SC_CLK_TCK'))
  return found


def _peer(name, config, args, scratch):
  """Runs the program of a side; returns its answer."""
  program, peer, is_parallel = _SIDES[name]
  inputs = scratch / 'inputs.npz'
  if not inputs.exists():
    common.run(moon_side.write_inputs, config.to_dict(), str(inputs))
  cores, here = host.num_cores(), pathlib.Path(__file__).parent
  threads = 1 if is_parallel else cores  # contending threads are slow
  source = args.sources.absolute() / peer
  with tempfile.TemporaryDirectory(dir=scratch) as directory:
    task, answer = (pathlib.Path(directory) / file
                    for file in ('task.json', 'answer.json'))
    task.write_text(json.dumps({
        'inputs': str(inputs), 'scratch': directory, 'source': str(source),
        'threads': threads,
        'workers': cores if is_parallel else 1} | {
            field: getattr(config, field) for field in (
                'algorithm', 'batch_size', 'learning_rate', 'momentum',
                'weight_decay', 'mu', 'temperature', 'num_rounds')}))
    paths = source, common.ROOT, common.ROOT / 'benchmarks', here
    process = subprocess.run(
        [args.python, here / program, task, answer], cwd=directory,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {'OMP_NUM_THREADS': str(threads),
                          'PYTHONPATH': ':'.join(map(str, paths))})
    if process.returncode:
      raise RuntimeError(f'{program} ended with status {process.returncode}:\n'
                         f'{process.stdout[-3000:]}')
    return json.loads(answer.read_text())


if __name__ == '__main__':
  main()
