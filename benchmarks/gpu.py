"""Measures on a GPU: tests, precision, speed, sweeps and memory.

python -m benchmarks.gpu --out=DIR [--data_dir=CIFAR10] [--seconds=1700]
python -m benchmarks.gpu --out=DIR --tiny --device=cpu

The parts run one after another, the most informative first, each in a process
of its own. When a part ends, its result is a line of DIR/results.jsonl: a part
that fails or hangs leaves the others as they are, and the same command runs the
parts that have no result yet. No part starts later than --seconds after the
command. The exit status is 1 if a part failed.
"""

from collections.abc import Callable
import dataclasses
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks import bench, common, sides
from moon_jax.distributed import host

Task = dict[str, Any]


def parts(data_dir: str, device: str, is_tiny: bool) -> dict[str, Task]:
  """Returns the task of each part by its name: its kind and its fields."""
  repeats, lanes = (1, 2) if is_tiny else (3, 10)
  paper = dict(partition_seed=0, checkpoint_every=0, data_dir=data_dir,
               num_rounds=sides.WARM_UP + repeats)
  if is_tiny:
    paper |= dict(model='mlp(projection_dim=8)', batch_size=8, data_dir='')
  found = {}

  def add(kind, name, more=(), *, cohort_size=10, limit=120, **config):
    found[f'{kind}: {name}'] = {
        'kind': kind, 'limit': 900 if is_tiny else limit, 'device': device,
        'num_examples': 400 if is_tiny else 50_000, 'repeats': repeats,
        'cohort_size': 2 if is_tiny else cohort_size,
        'config': paper | config, **dict(more)}

  tests = {'golden vectors': ['tests/golden_test.py'],
           'contract': ['tests/algorithms/algorithms_test.py'],
           'engine and models': ['tests/engine', 'tests/models']}
  if is_tiny:
    tests = {'golden vectors': ['tests/golden_test.py', '-k', 'fedavgm']}
  for name, words in tests.items():
    add('tests', name, {'words': words}, limit=300)
  for choice in ('precision=highest', 'precision=tf32x3', 'precision=tf32',
                 'precision=bfloat16', 'dtype=bfloat16')[-is_tiny:]:
    add('precision', choice, {'choice': f'--model.{choice}'})
  moon = dict(algorithm='moon', lanes=lanes, num_clients=10, local_epochs=1)
  for algorithm in ('moon', 'fedavg'):
    add('pytorch', algorithm, limit=300, **moon | {'algorithm': algorithm})
  for count in (1,) if is_tiny else (10, 1, 5, 64):
    clients = max(10, count)
    add('speed', f'moon, {count} lanes', cohort_size=clients,
        **moon | {'lanes': count, 'num_clients': clients})
  if not is_tiny:
    for field, value in (('precision', 'tf32'), ('precision', 'tf32x3'),
                         ('dtype', 'bfloat16')):
      add('speed', f'moon, 10 lanes, {field}={value}', **moon,
          model=f'simple_cnn({field}={value})')
  add('sweep', '12 runs of moon', **moon)
  for model in ('resnet18', 'resnet50')[:1 if is_tiny else 2]:
    for fields in ({'dtype': 'bfloat16'}, {'precision': 'tf32'},
                   {'precision': 'tf32', 'convolution': 'native'}
                   )[:1 if is_tiny else 3]:
      text = ', '.join(f'{key}={value}' for key, value in fields.items())
      add('memory', f'{model}, {lanes} lanes, {text}',
          {'client_size': 16 if is_tiny else 512}, cohort_size=lanes,
          limit=280, **moon | {
              'algorithm': 'moon(mu=1)', 'num_clients': lanes, 'data_dir': '',
              'model': f'{model}({text})'})
  for count, cohort, each, batch_size in ((20, 4, 10, 50),) if is_tiny else (
      (10_000, 100, 50, 50), (1000, 1000, None, 50), (10_000, 10_000, None, 5)):
    add('clients', f'{count:,}, {cohort:,} per round', {'client_size': each},
        algorithm='moon', num_clients=count, local_epochs=1, partition='iid',
        cohort_size=cohort, batch_size=batch_size)
  return found


# What is measured, in the process of a part.


def _device(task):
  del task
  import jax

  return {'device': jax.devices()[0].device_kind,
          'num_devices': jax.device_count(), 'versions': common.versions(),
          'num_cores': host.num_cores()}


def _tests(task):
  """Runs tests as users compile, in float32, and returns the failures."""
  done = subprocess.run(
      [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', '-rfE',
       f'-n{min(8, host.num_cores())}', *task['words']],
      cwd=common.ROOT, text=True, stdout=subprocess.PIPE,
      env=os.environ | {'JAX_DISABLE_MOST_OPTIMIZATIONS': '0',
                        'JAX_DEFAULT_MATMUL_PRECISION': 'highest'})
  print(done.stdout, flush=True)
  if done.returncode > 1:
    raise RuntimeError(f'pytest ended with status {done.returncode}')
  counts = dict(re.findall(r'(\d+) (passed|failed|skipped)', done.stdout))
  return {outcome: int(count) for count, outcome in counts.items()} | {
      'failures': re.findall(r'^(?:FAILED|ERROR) (\S+)', done.stdout, re.M)}


def _precision(task):
  from benchmarks import precision

  return precision.measure(**precision.CHOICES[task['choice']])


def _pytorch(task):
  """Rounds of both sides alternate; first, both must compute the same."""
  agreement = common.run(sides.agreement, task['device'])
  return bench.pair(task, ['ours', 'theirs']) | {
      'differences': agreement}


def _speed(task):
  return bench.pair(task, ['ours'])


def _sweep(task):
  """Rounds of 12 runs in one program, and of one of them alone."""
  host.share_cores()
  import jax
  import numpy as np

  from moon_jax.simulation import build
  from moon_jax.simulation.program import Program
  from moon_jax.simulation.simulation import Simulation

  config, data, clients = sides.inputs(task)
  federations = [build.federation(
      dataclasses.replace(
          config, seed=seed, algorithm=config.algorithm.replace(mu=mu)),
      data, clients)
                 for seed, mu in itertools.product(range(4), (.1, 1., 5.))]
  together, alone = Program(federations), Simulation(federations[0])
  everyone, seconds, seconds_alone = range(len(federations)), [], []
  for _ in range(1 + task['repeats']):
    seconds.append(sum(
        record.seconds for record in together.run_round(everyone)))
    seconds_alone.append(alone.run_round().seconds)
  one_by_one = len(federations) * statistics.median(seconds_alone[1:])
  return {
      'lanes': together.num_lanes, 'lanes_alone': alone.num_lanes,
      'seconds': statistics.median(seconds[1:]),
      'seconds_one_by_one': one_by_one,
      'ratio': one_by_one / statistics.median(seconds[1:]),
      'largest_difference': max(
          float(np.abs(x - y).max()) for x, y in zip(*map(jax.tree.leaves, (
              together.global_model(0), alone.global_model()))))}


_KINDS: dict[str, Callable[[Task], Task]] = {
    'device': _device, 'tests': _tests, 'precision': _precision,
    'pytorch': _pytorch, 'speed': _speed, 'sweep': _sweep,
    'memory': sides.scaling, 'clients': sides.scaling}


def main() -> None:
  parser = common.parser(__doc__)
  parser.add_argument('--data_dir', default='', help='directory that contains '
                      'CIFAR-10; without it images are noise')
  parser.add_argument('--seconds', type=float, default=1700.,
                      help='no part starts later (default: 1700)')
  parser.add_argument('--match', default='', help='run only parts whose name '
                      'matches this regular expression')
  parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda',
                      help='device of JAX and PyTorch')
  parser.add_argument('--tiny', action='store_true', help='reduced sizes, to '
                      'try everything on a CPU with --device=cpu')
  args = parser.parse_args()
  start = time.monotonic()
  args.out.mkdir(parents=True, exist_ok=True)
  path = args.out / 'results.jsonl'
  path.touch()
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  os.environ |= {  # of the parts
      'JAX_PLATFORMS': 'cpu' if args.device == 'cpu' else 'cuda,cpu',
      'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}
  tasks = {'device': {'kind': 'device', 'limit': 60}} | {
      name: task for name, task in parts(
          args.data_dir, args.device, args.tiny).items()
      if re.search(args.match, name)}
  done = {line['part'] for line in lines if 'result' in line}
  for name, task in tasks.items():
    if name in done or time.monotonic() - start > args.seconds:
      continue
    line = {'part': name, 'commit': _commit(), 'tiny': args.tiny,
            'xla_flags': os.environ.get('XLA_FLAGS', '')}
    try:
      line['result'] = common.run(
          _KINDS[task['kind']], task, limit=task['limit'])
    except RuntimeError as error:
      line['error'] = str(error)
    print(json.dumps(line), flush=True)
    lines.append(line)
    with open(path, 'a', encoding='utf-8') as file:
      file.write(json.dumps(line) + '\n')
  newest = {line['part']: line for line in lines}
  sys.exit(any('error' in line for line in newest.values()))


def _commit():
  file = common.ROOT / 'commit.txt'  # where there is no git
  done = subprocess.run(['git', 'rev-parse', 'HEAD'], cwd=common.ROOT,
                        text=True, capture_output=True, check=False)
  return done.stdout.strip() or (
      file.read_text().strip() if file.exists() else 'unknown')


if __name__ == '__main__':
  main()
