"""Measures on a GPU: tests, precision, speed, sweeps and memory.

python -m benchmarks.gpu --out=DIR [--data_dir=CIFAR10] [--seconds=1700]
python -m benchmarks.gpu --out=DIR --tiny --device=cpu

The parts run one after another, the most informative first, each in a process
of its own. When a part ends, its result is a line of DIR/results.jsonl: a part
that fails or hangs leaves the others as they are, and the same command runs the
parts that have no result yet. No part starts later than --seconds after the
command. DIR/README.md has the tables. The exit status is 1 if a part failed.
"""

from collections.abc import Callable
import dataclasses
import itertools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks import bench, common, sides
from moon_jax.distributed import host

_SIZES = (  # of the whole measurement, and with --tiny
    dict(num_examples=50_000, repeats=3, lanes=10, rows=(8, 2), size=32),
    dict(num_examples=400, repeats=1, lanes=2, rows=(2, 1), size=8))
Task = dict[str, Any]


def parts(data_dir: str, device: str, is_tiny: bool) -> dict[str, Task]:
  """Returns the task of each part by its name: its kind and its fields."""
  size = _SIZES[is_tiny]
  paper = dict(partition_seed=0, checkpoint_every=0, data_dir=data_dir,
               num_rounds=sides.WARM_UP + size['repeats'])
  if is_tiny:
    paper |= dict(model='mlp', projection_dim=8, batch_size=8, data_dir='')
  found = {}

  def add(kind, name, more=(), *, cohort_size=10, limit=120, **config):
    found[f'{kind}: {name}'] = size | {
        'kind': kind, 'limit': 900 if is_tiny else limit, 'device': device,
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
    add('precision', choice, {'choice': f'--{choice}'})
  lanes = size['lanes']
  moon = dict(algorithm='moon', lanes=lanes, num_clients=10, local_epochs=1)
  for algorithm in ('moon', 'fedavg'):
    add('pytorch', algorithm, **moon | {'algorithm': algorithm})
  for count in (1,) if is_tiny else (10, 1, 5, 64):
    clients = max(10, count)
    add('speed', f'moon, {count} lanes', cohort_size=clients,
        **moon | {'lanes': count, 'num_clients': clients})
  if not is_tiny:
    for field, value in (('precision', 'tf32'), ('precision', 'tf32x3'),
                         ('dtype', 'bfloat16')):
      add('speed', f'moon, 10 lanes, {field}={value}', **moon, **{field: value})
  add('sweep', '12 runs of moon', **moon)
  for model in ('resnet18', 'resnet50')[:1 if is_tiny else 2]:
    for fields in ({'dtype': 'bfloat16'}, {'precision': 'tf32'},
                   {'precision': 'tf32', 'convolution': 'native'}
                   )[:1 if is_tiny else 3]:
      text = ', '.join(f'{key}={value}' for key, value in fields.items())
      add('memory', f'{model}, {lanes} lanes, {text}', limit=280, **moon | {
          'mu': 1., 'num_clients': lanes, 'model': model, 'data_dir': '',
          'num_rounds': 4 * (1 + size['repeats']), **fields})
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
       *task['words']], cwd=common.ROOT, text=True, stdout=subprocess.PIPE,
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
  return bench.pair(task, task['repeats'], ['ours', 'theirs']) | {
      'differences': agreement}


def _speed(task):
  return bench.pair(task, task['repeats'], ['ours'])


def _sweep(task):
  """Rounds of 12 runs in one program, and of one of them alone."""
  host.share_cores()
  import jax
  import numpy as np

  from moon_jax.simulation import build
  from moon_jax.simulation.simulation import Simulation, Simulations

  config, data, clients = sides.inputs(task)
  federations = [build.federation(
      dataclasses.replace(config, seed=seed, mu=mu), data, clients)
                 for seed, mu in itertools.product(range(4), (.1, 1., 5.))]
  together, alone = Simulations(federations), Simulation(federations[0])
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
          float(np.abs(x - y).max()) for x, y in zip(*[
              jax.tree.leaves(simulation.global_model())
              for simulation in (together.runs[0], alone)]))}


def _memory(task):
  """A network at CIFAR-100's shapes: seconds per row, and device memory.

  Images are noise. Rounds of two lengths give the time of one row.
  """
  host.share_cores()
  import jax
  import numpy as np

  from moon_jax.config import Config
  from moon_jax.simulation import build
  from moon_jax.simulation.simulation import Simulation

  num_long, num_short = task['rows']
  config = Config(**task['config'])
  data = sides.noise(task['num_examples'], task['size'], num_classes=100)
  random = np.random.default_rng(0)

  def median_seconds(num_rows):
    clients = random.integers(
        task['num_examples'],
        size=(config.num_clients, num_rows * config.batch_size))
    simulation = Simulation(build.federation(
        config, data, list(clients),
        [list(range(config.num_clients))] * config.num_rounds))
    simulation.compile()
    seconds = [simulation.run_round().seconds
               for _ in range(2 + task['repeats'])]
    return simulation, statistics.median(seconds[2:])

  simulation, short = median_seconds(num_short)
  temporary, lanes = simulation.temporary_bytes(), simulation.num_lanes
  del simulation
  _, long = median_seconds(num_long)
  row = (long - short) / (num_long - num_short)
  stats = jax.devices()[0].memory_stats() or {}
  return {'seconds_per_row': row, 'lanes': lanes,
          'examples_per_second': config.batch_size * lanes / row,
          'peak_bytes': stats.get('peak_bytes_in_use', 0),
          'temporary_bytes': temporary}


# Of each kind: the function, and the columns of its table.

_count = '{:,.0f}'.format
_KINDS: dict[str, tuple[Callable, dict[str, Callable[[dict], Any]]]] = {
    'tests': (_tests, {
        'passed': lambda r: r.get('passed', 0),
        'skipped': lambda r: r.get('skipped', 0),
        'failed': lambda r: ', '.join(r['failures']) or 0}),
    'precision': (_precision, {
        'largest error of a weight': lambda r: f'{r["round"]["largest"]:.1e}',
        'relative to the update': lambda r: f'{r["round"]["relative"]:.1e}',
        'logits': lambda r: f'{r["gradients"]["logits"]:.1e}',
        'gradients': lambda r: f'{r["gradients"]["gradients"]:.1e}'}),
    'pytorch': (_pytorch, {
        'moon_jax, examples/s':
            lambda r: _count(r['ours']['examples_per_second']),
        'PyTorch, examples/s':
            lambda r: _count(r['theirs']['examples_per_second']),
        'ratio': lambda r: f'{r["ratio"]:.2f}'}),
    'speed': (_speed, {
        'examples/s': lambda r: _count(r['ours']['examples_per_second']),
        'compiling, s': lambda r: f'{r["ours"]["compile_seconds"]:.1f}'}),
    'sweep': (_sweep, {
        'a round of all runs, s': lambda r: f'{r["seconds"]:.2f}',
        'one by one, s': lambda r: f'{r["seconds_one_by_one"]:.2f}',
        'ratio': lambda r: f'{r["ratio"]:.2f}',
        'largest difference': lambda r: f'{r["largest_difference"]:.1e}'}),
    'memory': (_memory, {
        'ms per row': lambda r: f'{1e3 * r["seconds_per_row"]:.2f}',
        'examples/s': lambda r: _count(r['examples_per_second']),
        'peak memory, GiB': lambda r: f'{r["peak_bytes"] / 2**30:.2f}',
        'temporary memory, GiB':
            lambda r: f'{r["temporary_bytes"] / 2**30:.2f}'}),
    'clients': (sides.scaling, {
        'examples/s': lambda r: _count(r['examples_per_second']),
        'seconds per round': lambda r: f'{statistics.median(r["seconds"]):.3f}',
        'compilations after the first round':
            lambda r: r['num_compilations_after_first_round']}),
}


def run_part(task: Task) -> Task:
  """Runs a task in a process of its own, and returns its result.

  Raises:
    RuntimeError: if it fails, or takes longer than its limit.
  """
  function = _device if task['kind'] == 'device' else _KINDS[task['kind']][0]
  return common.run(function, task, limit=task['limit'])


def markdown(lines: list[dict]) -> str:
  """Returns a page with a table for each kind of part."""
  results = {line['part']: line for line in lines}
  device = results.pop('device')['result']
  versions = ', '.join(
      f'{name} {version}' for name, version in device['versions'].items())
  page = ['# Measurements on a GPU', '',
          f'{device["num_devices"]} x {device["device"]}, {versions}.']
  for kind, (_, columns) in _KINDS.items():
    rows = [(name.partition(': ')[2], line) for name, line in results.items()
            if name.startswith(f'{kind}: ')]
    if rows:
      first = next(iter(columns))
      cells = {heading: lambda row, heading=heading, cell=cell: (
          cell(row[1]['result']) if 'result' in row[1]
          else row[1]['error'] if heading == first else '')
               for heading, cell in columns.items()}
      page += ['', f'## {kind}', '',
               common.table({'part': lambda row: row[0]} | cells, rows)]
  return '\n'.join(page) + '\n'


def _parse():
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
  return parser.parse_args()


def main() -> None:
  args = _parse()
  start = time.monotonic()
  args.out.mkdir(parents=True, exist_ok=True)
  path = args.out / 'results.jsonl'
  path.touch()
  lines = [json.loads(line) for line in path.read_text().splitlines()]
  os.environ |= {  # of the parts
      'JAX_PLATFORMS': 'cpu' if args.device == 'cpu' else 'cuda,cpu',
      'XLA_PYTHON_CLIENT_PREALLOCATE': 'false'}
  data_dir = args.data_dir and str(
      pathlib.Path(args.data_dir).expanduser().absolute())
  tasks = {'device': {'kind': 'device', 'limit': 60}} | {
      name: task for name, task in parts(
          data_dir, args.device, args.tiny).items()
      if re.search(args.match, name)}
  done = {line['part'] for line in lines if 'result' in line}
  for name, task in tasks.items():
    if name in done or time.monotonic() - start > args.seconds:
      continue
    line = {'part': name, 'commit': _commit(), 'tiny': args.tiny}
    try:
      line['result'] = run_part(task)
    except RuntimeError as error:
      line['error'] = str(error)
    print(json.dumps(line), flush=True)
    lines.append(line)
    with open(path, 'a', encoding='utf-8') as file:
      file.write(json.dumps(line) + '\n')
  (args.out / 'README.md').write_text(markdown(lines), encoding='utf-8')
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
